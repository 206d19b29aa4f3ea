"""Retrieval: the corpus, its encoder and FAISS index, and the search service that agents ask.

facts -> questions -> (tools.build_world) -> corpus.jsonl, queries.jsonl, index/ -> Retriever.search -> [Document]
"""

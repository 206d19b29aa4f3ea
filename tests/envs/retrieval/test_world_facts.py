from __future__ import annotations

import re
from collections import Counter

import pytest

from envs.retrieval.elements import MAX_WORDS, SLIPS, sentences
from envs.retrieval.facts import listing
from envs.retrieval.questions import MAX_QUESTION_WORDS, build_queries
from tests.envs.retrieval.entities import elements, geography


@pytest.fixture(scope="module")
def worlds():
    return {size: geography(size) + elements(size) for size in ("full", "small")}


@pytest.fixture(scope="module")
def queries(worlds):
    return {"full": build_queries(worlds["full"], 400, 80, seed=0), "small": build_queries(worlds["small"], 24, 12, seed=0)}


@pytest.fixture(scope="module")
def documents(worlds):
    return {size: {f.document.id: f.document for e in world for f in e.facts.values()} for size, world in worlds.items()}


def test_known_facts(documents):
    """Read off an atlas and a periodic table, not off the packages."""
    full = documents["full"]
    assert "The capital of Norway is Oslo and its continent is Europe." in full["country-NO-overview"].contents
    assert "The land neighbours of Norway are Finland, Russia and Sweden." in full["country-NO-borders"].contents
    assert "The area of Norway is 324,220 square kilometres" in full["country-NO-size"].contents
    assert "The languages of Peru include Spanish, Quechua and Aymara." in full["country-PE-languages"].contents
    assert full["country-PE-languages"].contents.endswith("Its currency is the Sol, which has the currency code PEN.")
    assert full["country-IS-borders"].contents.startswith("There are no land neighbours of Iceland")
    assert full["country-DK-borders"].contents.startswith("The only land neighbour of Denmark is Germany.")
    assert full["country-US-overview"].title == "Capital of the United States"
    assert "The capital of the United States is Washington" in full["country-US-overview"].contents
    assert full["city-PE-3936456"].contents.startswith("Lima is the capital of Peru and has ")
    assert "12 degrees south and 77 degrees west, in the time zone America/Lima" in full["city-PE-3936456"].contents
    assert full["city-PE-3936456"].url == "https://www.geonames.org/3936456"
    assert full["element-Fe-overview"].contents == (
        "Iron, with the symbol Fe, has an atomic weight of 55.845. "
        "It is element 26 of the periodic table and one of the transition metals, melting at 1811 kelvin."
    )
    assert full["element-He-discovery"].contents.startswith("Helium was discovered in 1895 by Sir William Ramsay, ")
    assert full["element-Au-discovery"].contents.startswith("Gold was known to the ancients.")
    assert "cinnabar" in full["element-Hg-sources"].contents


def test_the_full_world_is_large_and_the_small_one_small(worlds, documents):
    kinds = Counter(entity.kind for entity in worlds["full"])
    assert kinds["element"] == 118 and 240 <= kinds["country"] <= 250 and 1600 <= kinds["city"] <= 1900
    assert len(documents["full"]) > 3000
    assert 350 <= len(documents["small"]) <= 450
    assert set(documents["small"]) <= set(documents["full"])


@pytest.mark.parametrize("size", ["full", "small"])
def test_documents_are_short_clean_and_name_their_entity(worlds, documents, size):
    facts = [(entity, fact) for entity in worlds[size] for fact in entity.facts.values()]
    assert len(documents[size]) == len(facts)  # no id twice
    for entity, fact in facts:
        document = fact.document
        assert 15 <= len(document.contents.split()) <= 45, document
        assert entity.name.lower() in document.contents.lower() and entity.name.lower() in document.title.lower()
        assert not re.search(r"[#{}\\\[\]\n]|  |\bnan\b|None|\.\.| [,.](?!\w)", document.contents), document
        assert re.fullmatch(r"\W?\w.*\.", document.contents)
        assert re.fullmatch(r"https://www\.geonames\.org/\d+|urn:mendeleev:[A-Z][a-z]?:\w+", document.url)


def test_a_country_has_one_capital_among_its_cities(worlds):
    counts = Counter(entity.country for entity in worlds["full"] if entity.capital)
    assert set(counts.values()) == {1} and len(counts) > 200


@pytest.mark.parametrize("size", ["full", "small"])
def test_check_strings_stand_in_the_first_sentence(worlds, size):
    """A writer that keeps a passage's first sentence keeps what the checklist asks for."""
    for entity in worlds[size]:
        for fact in entity.facts.values():
            assert all(text in sentences(fact.document.contents)[0] for text in fact.check), fact
        if entity.askable:
            assert entity.facts["overview"].check, entity


def test_every_mended_slip_still_occurs_in_the_package():
    from mendeleev.fetch import fetch_table

    table = fetch_table("elements")
    texts = " ".join(str(t) for c in ("uses", "sources", "discoverers", "discovery_location", "name_origin") for t in table[c])
    assert [slip for slip in SLIPS if not re.search(rf"\b{re.escape(slip)}(?!\w)", texts)] == []


def test_long_texts_are_cut_at_a_sentence(documents):
    titanium = documents["full"]["element-Ti-uses"].contents
    assert titanium.startswith("Uses of titanium: Since it is strong and resists acids it is used in many alloys.")
    assert titanium.endswith(".") and len(titanium.split()) <= MAX_WORDS
    barium = documents["full"]["element-Ba-sources"].contents
    assert "BaSO4" not in barium and "barytine and witherite" in barium  # formulas cost tokens and are left out


def test_sentences_and_listing():
    assert sentences("By R. Bunsen in St. John's. It is hot. end.") == ["By R. Bunsen in St. John's.", "It is hot. end."]
    assert [listing([]), listing(["a"]), listing(["a", "b"]), listing(["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]


def sections(query):
    return [part for topic in query["topics"] for part in (topic, *topic["subtopics"])]


@pytest.mark.parametrize(("size", "train", "heldout"), [("full", 400, 80), ("small", 24, 12)])
def test_queries_follow_the_contract(queries, documents, size, train, heldout):
    found = queries[size]
    assert [query["id"] for query in found] == [f"q{n:04d}" for n in range(1, train + heldout + 1)]
    assert [query["split"] for query in found] == ["train"] * train + ["heldout"] * heldout
    assert len({query["question"] for query in found}) == len(found)
    for query in found:
        assert set(query) == {"id", "split", "language", "question", "checklist", "topics"} and query["language"] == "en"
        assert len(query["question"].split()) <= MAX_QUESTION_WORDS
        assert len(query["topics"]) in (3, 4)
        assert sum(topic["deepen"] for topic in query["topics"]) in (1, 2)
        for topic in query["topics"]:
            assert len(topic["subtopics"]) in ((2, 3) if topic["deepen"] else (0,))
        titles = [part["title"] for part in sections(query)]
        assert len(set(titles)) == len(titles)
        for part in sections(query):
            assert 1 <= len(part["doc_ids"]) <= 2 and 1 <= len(part["keywords"]) <= 5 and part["plan"].endswith(".")
            assert all(id in documents[size] for id in part["doc_ids"])


@pytest.mark.parametrize("size", ["full", "small"])
def test_the_checklist_can_be_verified_by_a_rule_and_covers_every_golden_document(queries, documents, size):
    for query in queries[size]:
        golden = {(part["title"], id) for part in sections(query) for id in part["doc_ids"]}
        assert {(item["topic"], item["doc_id"]) for item in query["checklist"]} == golden
        assert [item["id"] for item in query["checklist"]] == [f"c{n}" for n in range(1, len(golden) + 1)]
        strings = [tuple(item["must_include"]) for item in query["checklist"]]
        assert len(set(strings)) == len(strings)  # no item is met by the text of another's fact
        for item in query["checklist"]:
            assert item["must_include"]
            for text in item["must_include"]:
                assert text in documents[size][item["doc_id"]].contents
                assert text.lower() not in query["question"].lower()  # repeating the question does not meet it


@pytest.mark.parametrize("size", ["full", "small"])
def test_the_question_alone_says_what_to_cover_and_where_to_go_deeper(queries, size):
    for query in queries[size]:
        question = query["question"]
        for topic in query["topics"]:
            name = topic["title"]
            assert name.lower() in question.lower()
            others = [other["title"].lower() for other in query["topics"] if other is not topic]
            assert not any(name.lower() in other for other in others)
            for subtopic in topic["subtopics"]:
                what = re.match(r"(\w+) of |", subtopic["title"])[1] or subtopic["title"]  # "borders", or a city's name
                assert what.lower() in question.lower()
                assert subtopic["title"].partition(" of ")[2].lower() in question.lower()


@pytest.mark.parametrize("size", ["full", "small"])
def test_held_out_queries_share_no_entity_with_train_queries(queries, size):
    def places(split):
        """Element symbols, and the country codes of countries and cities alike."""
        chosen = [query for query in queries[size] if query["split"] == split]
        return {re.match(r"\w+-(\w+)", id)[1] for query in chosen for part in sections(query) for id in part["doc_ids"]}

    def kinds(split):
        chosen = [query for query in queries[size] if query["split"] == split]
        return {
            (id.split("-")[0] == "element", id.split("-")[1]) for q in chosen for part in sections(q) for id in part["doc_ids"]
        }

    assert places("heldout") and not kinds("train") & kinds("heldout")


def test_all_kinds_templates_and_shapes_occur(queries):
    train = [query for query in queries["full"] if query["split"] == "train"]
    assert len({query["question"].split()[0] for query in train}) >= 5
    assert len({query["topics"][0]["doc_ids"][0].split("-")[0] for query in train}) == 3  # country, city, element
    assert {len(query["topics"]) for query in train} == {3, 4}
    assert {sum(topic["deepen"] for topic in query["topics"]) for query in train} == {1, 2}
    positions = Counter(i for query in train for i, topic in enumerate(query["topics"]) if topic["deepen"])
    assert min(positions[0], positions[1], positions[2]) > 80  # the deepened topic is not given away by its place


def test_queries_are_the_same_for_a_seed_and_others_for_another(worlds, queries):
    assert build_queries(worlds["small"], 24, 12, seed=0) == queries["small"]
    assert build_queries(worlds["small"], 24, 12, seed=1) != queries["small"]


def test_too_few_entities_are_an_error(worlds):
    few = [entity for entity in worlds["small"] if entity.country in ("IN", "CN", "US", "JP")]
    with pytest.raises(ValueError, match="too few entities for a query"):
        build_queries(few, 4, 0, seed=0)
    some = [entity for entity in worlds["small"] if entity.kind == "element" and entity.name <= "Boron"]
    some += [entity for entity in worlds["small"] if entity.country in {"BR", "CN", "ET", "FR", "IN", "MX", "NG", "TR"}]
    with pytest.raises(ValueError, match="too few entities for so many queries"):
        build_queries(some, 2000, 0, seed=0)

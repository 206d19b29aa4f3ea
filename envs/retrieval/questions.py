"""Research queries over the entities of the world, each with its checklist and the teacher's oracle.

    entities -> split -> topics (3 or 4, one or two of them to be deepened) -> question + checklist

A question names its topics, and in its own words says which of them to treat in more depth and by what. So whether an outline
still has to be expanded, where, and with which subsections follows from question and outline alone. The held-out queries
use only countries (with their cities) and elements that no train query uses.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from envs.retrieval.facts import Entity, Fact, listing

HELDOUT_SHARE = 0.2
MAX_QUESTION_WORDS = 30
CITIES_TO_ASK = 6  # of one country: its most populous ones
TEMPLATES = (
    "Write a report on {topics}, with {focus} in more depth.",
    "Give an overview of {topics}, and go deeper into {focus}.",
    "Prepare a briefing on {topics}. Treat {focus} in detail.",
    "I need a report about {topics}; please expand on {focus}.",
    "Describe {topics}, and look closely at {focus}.",
    "Summarise what is known of {topics}, and cover {focus} at length.",
)


@dataclass(frozen=True)
class _Part:
    """A topic or subtopic: the section's title and the facts it is written from."""

    title: str
    label: str
    facts: tuple[Fact, ...]
    subtopics: tuple[_Part, ...] = ()
    focus: str = ""  # how the question asks for the subtopics


@dataclass
class _Pool:
    """The entities that one split may ask about; cities by country, most populous first."""

    countries: list[Entity] = field(default_factory=list)
    elements: list[Entity] = field(default_factory=list)
    cities: dict[str, list[Entity]] = field(default_factory=lambda: defaultdict(list))


def build_queries(entities: list[Entity], train: int, heldout: int, seed: int) -> list[dict[str, Any]]:
    """`train` and then `heldout` queries, the kinds taking turns; the same for the same arguments.

    Raises ValueError when the entities are too few for so many different queries.
    """
    rng = random.Random(seed)
    train_pool, heldout_pool = _split(entities, rng)
    queries: list[dict[str, Any]] = []
    seen: set[str] = set()
    for split, pool, count in (("train", train_pool, train), ("heldout", heldout_pool, heldout)):
        for turn in range(count):
            query = _draw(KINDS[turn % len(KINDS)], pool, rng, seen)
            queries.append({"id": f"q{len(queries) + 1:04d}", "split": split, "language": "en", **query})
    return queries


def _split(entities: list[Entity], rng: random.Random) -> tuple[_Pool, _Pool]:
    train, heldout = _Pool(), _Pool()
    home: dict[str, _Pool] = {}
    for kind in ("country", "element"):
        askable = [entity for entity in entities if entity.kind == kind and entity.askable]
        rng.shuffle(askable)
        for rank, entity in enumerate(askable):
            pool = heldout if rank < round(HELDOUT_SHARE * len(askable)) else train
            (pool.countries if kind == "country" else pool.elements).append(entity)
            if kind == "country":
                home[entity.country] = pool
    for city in (entity for entity in entities if entity.kind == "city" and entity.askable and entity.country in home):
        cities = home[city.country].cities[city.country]
        if not city.capital and len(cities) < CITIES_TO_ASK:
            cities.append(city)
    return train, heldout


def _draw(kind: _Kind, pool: _Pool, rng: random.Random, seen: set[str]) -> dict[str, Any]:
    """One new query. Draws are cheap, so one that would make a poor question is thrown away and drawn again."""
    for _ in range(2000):
        topics = kind(pool, rng.choice((3, 3, 4)), rng.choice((1, 1, 2)), rng)
        rng.shuffle(topics)
        names = listing([topic.label for topic in topics])
        focus = " as well as ".join(topic.focus for topic in topics if topic.focus)
        question = rng.choice(TEMPLATES).format(topics=names, focus=focus)
        checklist = [item for topic in topics for part in (topic, *topic.subtopics) for item in _checklist(part)]
        content = f"{sorted(topic.label for topic in topics)} {focus}"
        if content not in seen and _clear(question, topics, checklist):
            seen.add(content)
            checklist = [{"id": f"c{number}", **item} for number, item in enumerate(checklist, start=1)]
            return {"question": question, "checklist": checklist, "topics": [_oracle(topic) for topic in topics]}
    raise ValueError(f"too few entities for so many queries: no new one of the kind {kind.__name__} found in 2000 draws")


def _clear(question: str, topics: list[_Part], checklist: list[dict[str, Any]]) -> bool:
    """True when the question is short, no topic's name hides in another's, and each check shows that its own fact was written."""
    names = [topic.title.lower() for topic in topics]
    titles = [part.title for topic in topics for part in (topic, *topic.subtopics)]
    checks = [tuple(item["must_include"]) for item in checklist]
    return (
        len(question.split()) <= MAX_QUESTION_WORDS
        and not any(one in other for one, other in permutations(names, 2))
        and len(set(titles)) == len(titles)
        and len(set(checks)) == len(checks)
        and not any(text.lower() in question.lower() for check in checks for text in check)
    )


def _checklist(part: _Part) -> list[dict[str, Any]]:
    return [{"topic": part.title, "doc_id": fact.document.id, "must_include": list(fact.check)} for fact in part.facts]


def _oracle(part: _Part, top: bool = True) -> dict[str, Any]:
    oracle = {
        "title": part.title,
        "plan": f"Cover the {listing([fact.subject for fact in part.facts])} of {part.label}.",
        "keywords": [f"{fact.subject} of {part.label}" for fact in part.facts],
        "doc_ids": [fact.document.id for fact in part.facts],
    }
    if not top:
        return oracle
    return {**oracle, "deepen": bool(part.subtopics), "subtopics": [_oracle(sub, top=False) for sub in part.subtopics]}


# ---- the kinds of query: each takes a pool, the numbers of topics and of deepened topics, and a random generator --------------


def _countries_by_cities(pool: _Pool, count: int, deep: int, rng: random.Random) -> list[_Part]:
    """Countries by capital and size; the deepened ones by their cities."""
    topics = []
    for country, deepen in _pick(pool.countries, lambda country: len(pool.cities[country.country]) >= 2, count, deep, rng):
        subtopics: list[_Part] = []
        if deepen:
            cities = pool.cities[country.country]
            chosen = sorted(rng.sample(range(len(cities)), min(rng.choice((2, 2, 3)), len(cities))))
            subtopics = [_part(cities[index], "overview") for index in chosen]
        named = listing([city.title for city in subtopics])
        focus = f"the cities {named} of {country.label}" if deepen else ""
        topics.append(_part(country, "overview", "size", subtopics=subtopics, focus=focus))
    return topics


def _countries_by_aspects(pool: _Pool, count: int, deep: int, rng: random.Random) -> list[_Part]:
    """Countries by capital; the deepened ones by two or three of languages, borders and size."""
    topics = []
    for country, deepen in _pick(pool.countries, lambda country: len(_aspects(country)) >= 2, count, deep, rng):
        subtopics, what = _subtopics(country, rng) if deepen else ([], "")
        topics.append(_part(country, "overview", subtopics=subtopics, focus=f"{what} of {country.label}" if deepen else ""))
    return topics


def _elements(pool: _Pool, count: int, deep: int, rng: random.Random) -> list[_Part]:
    """Elements by atomic weight; the deepened ones by two or three of uses, sources and discovery."""
    topics = []
    for element, deepen in _pick(pool.elements, lambda element: len(_aspects(element)) >= 2, count, deep, rng):
        subtopics, what = _subtopics(element, rng) if deepen else ([], "")
        topics.append(_part(element, "overview", subtopics=subtopics, focus=f"{what} of {element.label}" if deepen else ""))
    return topics


def _cities(pool: _Pool, count: int, deep: int, rng: random.Random) -> list[_Part]:
    """Cities of different countries by population; the deepened ones by languages, borders or size of their country."""
    topics = []
    homes = [country for country in pool.countries if pool.cities[country.country]]
    for country, deepen in _pick(homes, lambda country: len(_aspects(country)) >= 2, count, deep, rng):
        city = rng.choice(pool.cities[country.country])
        subtopics, what = _subtopics(country, rng) if deepen else ([], "")
        focus = f"{what} of {city.name}'s country {country.label}" if deepen else ""
        topics.append(_part(city, "overview", subtopics=subtopics, focus=focus))
    return topics


_Kind = Callable[[_Pool, int, int, random.Random], list[_Part]]
KINDS: tuple[_Kind, ...] = (_countries_by_cities, _elements, _countries_by_aspects, _cities)


def _pick(
    entities: list[Entity], can_deepen: Callable[[Entity], bool], count: int, deep: int, rng: random.Random
) -> list[tuple[Entity, bool]]:
    """`count` different entities, the first `deep` of them (which can be deepened) marked."""
    able = [entity for entity in entities if can_deepen(entity)]
    if len(entities) < count or len(able) < deep:
        raise ValueError(f"too few entities for a query: {count} are wanted of {len(entities)}, {deep} to deepen of {len(able)}")
    deepened = rng.sample(able, deep)
    names = {entity.name for entity in deepened}
    others = rng.sample([entity for entity in entities if entity.name not in names], count - deep)
    return [(entity, True) for entity in deepened] + [(entity, False) for entity in others]


def _aspects(entity: Entity) -> list[str]:
    """The aspects a question may ask for: all but the overview, where there is something to check."""
    return [aspect for aspect, fact in entity.facts.items() if fact.check and aspect != "overview"]


def _subtopics(entity: Entity, rng: random.Random) -> tuple[list[_Part], str]:
    aspects = _aspects(entity)
    chosen = sorted(rng.sample(range(len(aspects)), min(rng.choice((2, 2, 3)), len(aspects))))
    facts = [entity.facts[aspects[index]] for index in chosen]
    return [_Part(fact.document.title, entity.label, (fact,)) for fact in facts], f"the {listing([f.subject for f in facts])}"


def _part(entity: Entity, *aspects: str, subtopics: list[_Part] | None = None, focus: str = "") -> _Part:
    facts = tuple(entity.facts[aspect] for aspect in aspects)
    return _Part(entity.name, entity.label, facts, tuple(subtopics or ()), focus)

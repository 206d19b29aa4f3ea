"""Does what a text claims stand in its sources? Claims are verified by a judge, many in one call.

    faithfulness = mean_i v_i over the claims i,   v_i in {0, 0.5, 1}: not, partly, fully supported

For a plan the claims are atomic facts that a judge splits off, and any source may support them: FActScore (arXiv 2305.14251). For
a written section the claims are its sentences, and only what a sentence cites may support it. One that cites nothing is no claim
when it says nothing that needs a source (a transition), else it is not supported. DR Tulu (arXiv 2511.19399) gives transitions
full marks; counted that way they would pay for false claims beside them.

A text that claims nothing says nothing false. It has `no_claims`: 1 by default, so that a plan need not assert anything; what an
empty text is worth is for the other components to say. The number of claims is reported beside the value: where it is 0 for
every plan, the judge is not splitting them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rewards.judged import Unusable, ask, ask_numbers, form, messages, read_object, wording
from rewards.rubric import VERDICT
from rewards.sentences import Sentence
from rlcore.judge import Judge

BATCH = 20  # claims in one call
MOST_CLAIMS = 60  # of one plan

_SPLIT = {
    "en": "List the factual claims of the text: each a short sentence that can be checked by itself, with names in place of "
    "pronouns. What the text intends to write about is no claim. At most {most}; an empty list when it claims nothing.\n"
    'Reply: {{"claims": ["...", ...]}}',
    "zh": "列出正文中的事实论断：每条是一个可以单独核实的短句，用名称代替代词。"
    "打算写什么不算论断。最多 {most} 条；没有论断则为空列表。\n"
    '回复格式：{{"claims": ["...", ...]}}',
}
_VERIFY = {
    "en": "For each statement say how far its own sources support it: 1 fully, 0.5 in part, 0 not at all. [..] after its number "
    "names them ([any]: each of the sources); no other source and nothing that you know counts. [none] cites nothing: 1 when it "
    "says nothing that needs a source, else 0.\nReply: {form}",
    "zh": "逐条判断各陈述在多大程度上得到其自身来源的支持：1 完全，0.5 部分，0 完全没有。"
    "编号后的 [..] 是它的来源（[any] 指所有来源）；其他来源和你自己的知识都不算。"
    "[none] 表示没有引用：若其内容不需要来源则为 1，否则为 0。\n回复格式：{form}",
}


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement and the keys of the sources that are to support it."""

    text: str
    keys: tuple[str, ...]


async def plan_faithfulness(
    judge: Judge, text: str, sources: Mapping[str, str], language: str, *, component: str, no_claims: float = 1.0
) -> tuple[float, int]:
    """How far the plan's claims stand in any source (texts by key), and how many there are. Raises Unusable and JudgeFailed."""
    claims = await split_claims(judge, text, language, component=f"{component}/split")
    verdicts = await verify(judge, [Claim(claim, tuple(sources)) for claim in claims], sources, language, component=component)
    return supported_share(verdicts, no_claims), len(verdicts)


async def section_faithfulness(
    judge: Judge,
    statements: Sequence[Sentence],
    sources: Mapping[str, str],
    language: str,
    *,
    component: str,
    no_claims: float = 1.0,
) -> tuple[float, int]:
    """How far the section's sentences stand in what they cite, and how many claim something. Raises Unusable and JudgeFailed."""
    claims = [Claim(sentence.text, sentence.keys) for sentence in statements]
    verdicts = await verify(judge, claims, sources, language, component=component)
    counted = [verdict for claim, verdict in zip(claims, verdicts, strict=True) if claim.keys or verdict < 1]
    return supported_share(counted, no_claims), len(counted)


def supported_share(verdicts: Sequence[float], no_claims: float = 1.0) -> float:
    """The mean verdict, `no_claims` when there is none."""
    return sum(verdicts) / len(verdicts) if verdicts else no_claims


async def split_claims(judge: Judge, text: str, language: str, *, component: str) -> list[str]:
    """The atomic claims of a text."""
    schema = {
        "type": "object",
        "properties": {"claims": {"type": "array", "items": {"type": "string"}, "maxItems": MOST_CLAIMS}},
        "required": ["claims"],
        "additionalProperties": False,
    }
    question = messages(language, {"text": text}, _SPLIT[wording(language)].format(most=MOST_CLAIMS))
    return await ask(judge, question, schema, read_claims, component=component)


def read_claims(text: str) -> list[str]:
    """The claims of a reply. Raises Unusable for anything but {"claims": [text, ...]}."""
    found = read_object(text)
    claims = found.get("claims")
    if set(found) != {"claims"} or not isinstance(claims, list):
        raise Unusable('not of the form {"claims": [...]}')
    if not all(isinstance(claim, str) and claim.strip() for claim in claims):
        raise Unusable("a claim is no text")
    if len(claims) > MOST_CLAIMS:
        raise Unusable(f"more than {MOST_CLAIMS} claims")
    return [" ".join(claim.split()) for claim in claims]


async def verify(
    judge: Judge, claims: Sequence[Claim], sources: Mapping[str, str], language: str, *, component: str
) -> list[float]:
    """A verdict for each claim, in their order. One that cites only keys without a source is not supported; nobody is asked."""
    known = [Claim(claim.text, tuple(key for key in claim.keys if key in sources)) for claim in claims]
    asked = [i for i, claim in enumerate(known) if claim.keys or not claims[i].keys]
    batches = [asked[start : start + BATCH] for start in range(0, len(asked), BATCH)]
    answers = await asyncio.gather(
        *(_verify_batch(judge, [known[i] for i in batch], sources, language, component) for batch in batches)
    )
    verdicts = dict(zip(asked, (verdict for answer in answers for verdict in answer), strict=True))
    return [verdicts.get(i, 0.0) for i in range(len(claims))]


async def _verify_batch(
    judge: Judge, claims: Sequence[Claim], sources: Mapping[str, str], language: str, component: str
) -> list[float]:
    used = dict.fromkeys(key for claim in claims for key in claim.keys)
    ids = [f"s{n}" for n in range(1, len(claims) + 1)]
    marks = ["any" if len(claim.keys) == len(sources) > 1 else ", ".join(claim.keys) or "none" for claim in claims]
    lines = [f"{id} [{mark}] {claim.text}" for id, mark, claim in zip(ids, marks, claims, strict=True)]
    material = {**{f"source {key}": sources[key] for key in used}, "statements": "\n".join(lines)}
    question = messages(language, material, _VERIFY[wording(language)].format(form=form(ids)))
    verdicts = await ask_numbers(judge, question, ids, VERDICT, component=component)
    return [verdicts[id] for id in ids]

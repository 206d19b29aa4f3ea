r"""The rule reward of a whole report: which facts of the query's checklist does it state, and do its citations hold?

    R = facts x distinct x (1 - h (1 - holding) - c (1 - complete))

| part     | what a rule can verify of the written sections                                                             |
| -------- | ---------------------------------------------------------------------------------------------------------- |
| facts    | mean over the checklist: 1 for a fact stated under a citation that holds, `uncited` for one stated without  |
|          | a citation, 0 for one stated only under citations that do not hold (an invented one never does), or not at |
|          | all                                                                                                        |
| holding  | share of the sentences with citations whose citations hold: the cited documents have all of the sentence's |
|          | figures and half of its words                                                                              |
| distinct | share of the sentences that do not repeat an earlier one with the same citations                           |
| complete | 1 when every section was written within the step limit                                                     |

Everything is earned by facts: an unfinished report keeps what it has earned but for the share c, and form alone earns nothing.
What does not pay, therefore: copying the question (it holds no fact of its checklist), facts in titles or plans (not read), lists
of bare facts (a sentence has MIN_WORDS), one sentence under all citations (MAX_KEYS), and repetition (a fact counts once, and
every repeated sentence lowers `distinct`). Whether a sentence really follows from its source takes a judge; no rule here says so.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from envs.retrieval.corpus import read_corpus
from envs.warp.language import CJK
from envs.warp.outline import Outline
from rewards.rules import length
from rewards.sentences import Sentence, sentences
from rlcore.errors import ConfigError
from rlcore.types import RewardResult, Trajectory, scored, unavailable

MAX_KEYS = 3  # a sentence under more sources than this points at none of them
MIN_WORDS = 4  # fewer make no statement
LEAST_SHARED_WORDS = 0.5

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_WORD = re.compile(f"{CJK.pattern}|[^\\W\\d_]{{4,}}")


def checklist_score(
    checklist: Sequence[Mapping[str, Any]],
    texts: Iterable[str],
    document_of: Mapping[str, str],
    documents: Mapping[str, str],
    uncited: float = 0.25,
) -> dict[str, float]:
    """Components of a report's reward, each in [0, 1]: facts, supported, stated, holding, distinct.

    `checklist` has items {"topic", "doc_id", "must_include": [text, ...]}, `texts` are the written sections, `document_of` gives
    the document of a citation key and `documents` a document's text. A fact is stated by a sentence that has all of its
    `must_include` as whole words. It is supported when that sentence's citations hold and one names the item's own document, or
    one whose text has the topic and all of `must_include`. `stated` counts facts that are supported or uncited.
    """
    found = [sentence for text in texts for sentence in sentences(text)]
    holding = [sentence for sentence in found if _holds(sentence, document_of, documents)]
    supported, bare = 0, 0
    for item in checklist:
        names = [item["topic"], *item["must_include"]]
        saying = [s for s in found if length(s.text) >= MIN_WORDS and _has(s.text, item["must_include"])]
        sources = {document_of[key] for sentence in saying if sentence in holding for key in sentence.keys}
        if item["doc_id"] in sources or any(_has(documents[source], names) for source in sources):
            supported += 1
        elif any(not sentence.keys for sentence in saying):
            bare += 1
    cited, n = sum(bool(sentence.keys) for sentence in found), len(checklist)
    return {
        "facts": (supported + uncited * bare) / n,
        "supported": supported / n,
        "stated": (supported + bare) / n,
        "holding": len(holding) / cited if cited else 0.0,
        "distinct": len({(_normal(sentence.text), sentence.keys) for sentence in found}) / len(found) if found else 0.0,
    }


def _holds(sentence: Sentence, document_of: Mapping[str, str], documents: Mapping[str, str]) -> bool:
    """Do the cited documents have all figures of the sentence and half of its words? False without citations, with an unknown
    key, and with more than MAX_KEYS."""
    if not 0 < len(sentence.keys) <= MAX_KEYS or not all(key in document_of for key in sentence.keys):
        return False
    source, text = _normal(" ".join(documents[document_of[key]] for key in sentence.keys)), _normal(sentence.text)
    words = set(_WORD.findall(text))
    shared = len(words & set(_WORD.findall(source)))
    return set(_NUMBER.findall(text)) <= set(_NUMBER.findall(source)) and shared >= LEAST_SHARED_WORDS * len(words) > 0


def _has(text: str, names: Sequence[str]) -> bool:
    """Does the text have every name as whole words? "127" is neither in "1,127" nor in "127.5"."""
    text = _normal(text)
    return all(_pattern(_normal(name)).search(text) for name in names)


def _pattern(name: str) -> re.Pattern[str]:
    before = r"(?<!\w)(?<!\d[.,])" if name[0].isdigit() else "" if CJK.match(name[0]) else r"(?<!\w)"
    after = r"(?!\w)(?![.,]\d)" if name[-1].isdigit() else "" if CJK.match(name[-1]) else r"(?!\w)"
    return re.compile(before + re.escape(name) + after)


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


class WarpReport:
    """The reward of envs.warp.report's outcomes for queries with a checklist; see the module for its equation.

    `corpus` is the corpus file that the report's search serves, `holding` and `complete` are h and c. A query without a
    checklist, or a report of another corpus, is unavailable. Raises ConfigError for what is not a share, and for no corpus.
    """

    def __init__(self, corpus: str, uncited: float = 0.25, holding: float = 0.2, complete: float = 0.1) -> None:
        for name, share in [
            ("uncited", uncited),
            ("holding", holding),
            ("complete", complete),
            ("holding + complete", holding + complete),
        ]:
            if not 0 <= share <= 1:  # refuses NaN as well
                raise ConfigError(f"{name} must be a share between 0 and 1, got {share!r}")
        self.uncited, self.holding, self.complete = uncited, holding, complete
        self.documents = {document.id: document.passage for document in read_corpus(corpus).values()}

    def __call__(self, trajectory: Trajectory) -> RewardResult:
        checklist, data = trajectory.query.data.get("checklist"), trajectory.outcome.data
        if not _is_checklist(checklist):
            return unavailable(f"query {trajectory.query.id} has no checklist of {{topic, doc_id, must_include}}: {checklist!r}")
        assert checklist is not None
        document_of = {key: passage["doc_id"] for key, passage in data["passages"].items()}
        unknown = sorted(set(document_of.values()) - self.documents.keys())
        if unknown:
            return unavailable(f"the report's document {unknown[0]!r} is not in the reward's corpus")
        outline = Outline.from_json(data["outline"]) if data["outline"] else Outline("", [])
        texts = [section.content for _, section in outline.walk() if section.content is not None]
        parts = checklist_score(checklist, texts, document_of, self.documents, self.uncited)
        parts["complete"] = float(data["complete"])
        lost = self.holding * (1 - parts["holding"]) + self.complete * (1 - parts["complete"])
        return scored(parts["facts"] * parts["distinct"] * (1 - lost), parts)


def _is_checklist(checklist: Any) -> bool:
    """A list of at least one item that can be verified."""
    return (
        isinstance(checklist, list)
        and bool(checklist)
        and all(
            isinstance(item, dict)
            and all(isinstance(item.get(name), str) and item[name].strip() for name in ("topic", "doc_id"))
            and isinstance(item.get("must_include"), list)
            and item["must_include"]
            and all(isinstance(text, str) and text.strip() for text in item["must_include"])
            for item in checklist
        )
    )

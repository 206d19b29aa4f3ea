r"""What a judge gets to see of a text, and what share of the text that is: rules against writing for the judge.

    text -> sentences -> without those that add nothing to judge -> view;    kept = words in the view / words in the text

| rule      | a sentence goes when                                                                                    |
| --------- | ------------------------------------------------------------------------------------------------------- |
| addressed | it speaks to a judge: orders, marks to give, "ignore the above", chat template marks                    |
| quoted    | it has six words in a row of the rubric, praises "this section" by a criterion's name, or names three   |
| repeated  | four fifths of its word triples were there before, and it has no new word of the topic                  |
| copied    | more than half of it lies in a run of 20 words (Chinese: 40 characters) that a source has as well; with |
|           | `quotes` only where it cites nothing                                                                    |
| padding   | it cites nothing, and under a fifth of its words are of the question, the sources or what does cite     |
| long      | with it the view would have more than `most_words` words                                                |

A judged score is multiplied by `kept`: the judge cannot be moved by what it does not see, and what was put in to move it costs.
So repetition, pasted passages, stock phrases, orders to the judge and echoes of the rubric cannot pay, however the judge would
have taken them.

Limits. These are rules about words. Not caught: an order in words no pattern has, split over sentences or spelt with look-alike
letters; a copy with a word changed every 20 words, or patched together from short ones; a repetition in other words; padding on
the subject's own words, or under a citation (which faithfulness should refuse). Honest sentences are lost as well: one that takes
up the rubric's wording, a long quotation, a general remark without a source. They cost their share, which is why no rule is
strict. The prompt, both orders and `tools.judge_bias` deal with the judge itself; a limit on length deals with long texts.
"""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from envs.warp.language import CJK
from rewards.rubric import Rubric
from rewards.sentences import Sentence, sentences

QUOTED_WORDS = 6  # in a row, of the rubric; Chinese characters: QUOTED_CHARACTERS
QUOTED_CHARACTERS = 10
NAMED = 3  # criteria in one sentence
REPEATED_SHARE = 0.8
COPIED_WORDS, COPIED_CHARACTERS = 20, 40
ON_TOPIC_SHARE, ON_TOPIC_PAIRS = 0.2, 0.08  # of a sentence's words; of its pairs of Chinese characters, which are far more varied
STEM = 5  # letters by which words are compared: "evaporate", "evaporation"
PADDING_WORDS = 4  # fewer say too little to be judged, unless they have a word that is off the topic

_TOKEN = re.compile(f"{CJK.pattern}|[^\\W_]+(?:['’.,][^\\W_]+)*")
# What no reader sees, but a pattern trips over: controls of direction and joining, fillers, variation selectors, tags.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0"
    "\U000e0000-\U000e01ef]"
)
_SELF = re.compile(
    r"\b(?:this|the|our|my)\s+(?:section|report|text|answer|response|analysis|plan|outline|review|article)\b"
    r"|[本该此](?:节|文|报告|计划|提纲)"
)
_JUDGE = r"(?:judges?|graders?|evaluators?|assessors?|raters?|scorers?|markers?)"
_ADDRESSED = re.compile(
    "|".join(
        [
            r"\b(?:ignore|disregard|forget|override)\b.{0,40}\b(?:instruction|prompt|rule|rubric|criteri|guideline|above|previous|prior)",
            rf"\b(?:dear|attention|hey|hello|note to|to the|you are|as)\s+(?:an?\s+|the\s+)?(?:ai\s+|llm\s+|fair\s+)?{_JUDGE}\b",
            rf"\b{_JUDGE}\b.{{0,20}}\b(?:must|should|have to|please|shall)\b",
            r"\b(?:give|award|assign|grant|rate|score|grade|output|return|reply)\b.{0,60}"
            r"\b(?:full|maximum|max|highest|top|perfect|best)\b.{0,20}\b(?:mark|score|rating|grade|point|number)",
            r"\b(?:give|award|assign|rate|score|grade|output|return|reply)\b.{0,60}\b\d+\s*(?:/|out of|of)\s*\d+",
            r"\b(?:you|please)\s+(?:must|should|have to|shall|will)?\s*(?:give|award|assign|rate|score|grade)\b",
            r"\b(?:deserves?|merits?|earns?|worth)\b.{0,40}\b(?:mark|score|rating|grade|\d+\s*(?:/|out of)\s*\d+)",
            r"\b(?:score|rating|grade|marks?)\s*(?:[:=]|is|of)\s*\d",
            r"[\"'][\w.]+[\"']\s*:\s*\d",
            r"<\|[^|>]{1,30}\|>|\[/?INST\]|<<SYS>>|</?(?:system|assistant|user|think|data)\b[^>]{0,40}>",
            r"^\W*(?:system|assistant|user|judge)\s*[:：]",
            r"(?:忽略|无视|忘记|不要理会|不必理会).{0,20}(?:指令|提示|要求|规则|标准|以上|上述|之前|前面)",
            r"(?:评委|评审|评分者|评分员|打分者|评判者|评估者|阅卷人|裁判).{0,30}(?:请|应|必须|务必|给)|(?:尊敬|亲爱)的.{0,6}(?:评委|评审|评分|裁判)",
            r"请.{0,20}(?:打分|评分|给分|打.{0,6}分|给.{0,12}分)",
            r"(?:给|打|评|应得|值得|输出|回复).{0,12}(?:满分|最高分|高分)",
            r"(?:评分|得分|分数|打分)\s*(?:[:：=为是])\s*\d",
        ]
    ),
    re.IGNORECASE,
)
# Words of four letters and more that say nothing of a subject.
_STOP_WORDS = """
about above after again against almost already also although always among another anyone around aspect aspects based because
become been before being below between both cannot careful carefully certain clear clearly comes complex conclusion consider
considerable considered contains context could course crucial deal deals deeply deserve deserves detail details different
discuss discussed does doing done down during each either enough especially essential even ever every everyone everything fact
factor factors first following from fully further general generally given goes great greatly hardly have having here highly
however important importance indeed interesting into itself issue issues just keep kept kind know known large last less like
likely made mainly make makes many matter matters mean means mention mentioned might more moreover most much must namely need
needs never nothing note noted noting often once only order other others ought overall overview part particular perhaps place
plays point points possible quite rather really reason regard regarding related remains respect role said same section seem
seems seen several shall should show shown shows significant significantly similar simply since some something sometimes still
subject subjects such summary sure take taken takes than that their them then there therefore these they thing things this those
though through thus today together topic topics toward truly type understand understood unless until upon used useful using
usual various very view want ways well were what whatever when where whether which while whole will with within without world
worth would years your
"""
_STOP = frozenset(_STOP_WORDS.split())
_STOP_CHARACTERS = frozenset("的了是在和与及或也都就而但这那其之以为于有不需要可以应该非常重要值得注意总而言进行方面考虑众所周知")


class Screen:
    """Screens the parts of one text, in order: a part may repeat an earlier one. `kept` is the share so far.

    `sources` are the texts that may have been copied, `on_topic` is what else says what the text is about. `quotes`: what cites
    may be a source's own words, at any length (where the corpus is made of facts, as the built world is, that is how to write).
    `most_words` bounds the views of all parts together, a Chinese character being a word.
    """

    def __init__(
        self,
        rubric: Rubric,
        sources: Sequence[str] = (),
        on_topic: str = "",
        *,
        quotes: bool = False,
        most_words: float = math.inf,
    ) -> None:
        self._rubric_grams, self._names = _marks(rubric)
        self._sources, self._may_quote = [_tokens(source) for source in sources], quotes
        self._most_words = most_words
        self._topic = _terms(" ".join([on_topic, *sources]))
        self._seen: set[tuple[str, ...]] = set()
        self._seen_terms: set[str] = set()
        self._words = self._kept_words = 0
        self.removed: Counter[str] = Counter()

    @property
    def kept(self) -> float:
        """Share of the words that the views have, 1.0 before there were any."""
        return self._kept_words / self._words if self._words else 1.0

    def __call__(self, text: str, *, heading: bool = False) -> str:
        """The view of one part, line by line, without citations. A heading is too short to be on a topic, so it is no padding."""
        return view(self.lines(text, heading=heading))

    def lines(self, text: str, *, heading: bool = False) -> list[list[Sentence]]:
        """The sentences of each line that stay; blank lines, but not those that lost all they had."""
        lines = [[(s, _tokens(s.text)) for s in sentences(line)] for line in text.splitlines()]
        found = [pair for line in lines for pair in line]
        topic = self._topic | _terms(" ".join(sentence.text for sentence, _ in found if sentence.keys))
        copied = iter(self._copied([tokens for _, tokens in found]))
        lines_kept = []
        for line in lines:
            kept = []
            for sentence, tokens in line:
                reason = self._reason(sentence, tokens, next(copied), None if heading else topic)
                self._words += len(tokens)
                if reason is None:
                    self._kept_words += len(tokens)
                    kept.append(sentence)
                else:
                    self.removed[reason] += 1
            if kept or not line:
                lines_kept.append(kept)
        return lines_kept

    def _reason(self, sentence: Sentence, tokens: list[str], copied: int, topic: set[str] | None) -> str | None:
        """The rule by which the sentence goes, None for one that stays."""
        plain, terms = _plain(sentence.text), _terms(sentence.text)
        triples = set(_grams(tokens, 3)) or {tuple(tokens)}
        new = (terms - self._seen_terms) & self._topic
        repeated = len(triples & self._seen) >= REPEATED_SHARE * len(triples) and not new
        self._seen |= triples
        if topic is not None:  # a heading takes nothing away from the text below it
            self._seen_terms |= terms
        if _ADDRESSED.search(plain):
            return "addressed"
        size = _at_least(tokens, QUOTED_WORDS, QUOTED_CHARACTERS)
        named = sum(bool(name.search(plain)) for name in self._names)
        if any(gram in self._rubric_grams for gram in _grams(tokens, size)) or named >= (1 if _SELF.search(plain) else NAMED):
            return "quoted"
        if repeated:
            return "repeated"
        if copied > len(tokens) / 2 and not (self._may_quote and sentence.keys):
            return "copied"
        if topic is not None and not sentence.keys and _is_padding(terms, tokens, topic):
            return "padding"
        return "long" if self._kept_words + len(tokens) > self._most_words else None

    def _copied(self, parts: list[list[str]]) -> list[int]:
        """How many tokens of each sentence lie in a long run that a source has, also one that goes over its end."""
        tokens = [token for part in parts for token in part]
        size = _at_least(tokens, COPIED_WORDS, COPIED_CHARACTERS)
        runs = {gram for source in self._sources for gram in _grams(source, size)}
        covered = [False] * len(tokens)
        for start, gram in enumerate(_grams(tokens, size)):
            if gram in runs:
                covered[start : start + size] = [True] * size
        ends = itertools.accumulate(map(len, parts))
        return [sum(covered[end - len(part) : end]) for part, end in zip(parts, ends, strict=True)]


def view(lines: Iterable[Sequence[Sentence]]) -> str:
    """The lines as text, without citations."""
    return "\n".join(" ".join(sentence.text for sentence in line) for line in lines)


def _marks(rubric: Rubric) -> tuple[set[tuple[str, ...]], list[re.Pattern[str]]]:
    """By what a rubric is recognised: its texts' runs of words, and its criteria's names."""
    texts = [_tokens(text) for criterion in rubric.criteria for text in criterion.text.values()]
    grams = {gram for tokens in texts for gram in _grams(tokens, _at_least(tokens, QUOTED_WORDS, QUOTED_CHARACTERS))}
    names = {_plain(name) for criterion in rubric.criteria for name in criterion.names}
    return grams, [re.compile(_whole(name)) for name in sorted(names) if name]


def _is_padding(terms: set[str], tokens: list[str], topic: set[str]) -> bool:
    if len(tokens) < PADDING_WORDS:
        return bool(terms) and not terms & topic
    least = ON_TOPIC_PAIRS if 2 * sum(map(bool, map(CJK.match, tokens))) > len(tokens) else ON_TOPIC_SHARE
    return len(terms & topic) < least * len(terms) or not terms


def _plain(text: str) -> str:
    return " ".join(_INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).casefold().split())


def _tokens(text: str) -> list[str]:
    """Words and figures; a Chinese character is a word."""
    return _TOKEN.findall(_plain(text))


def _grams(tokens: Sequence[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]


def _at_least(tokens: Sequence[str], words: int, characters: int) -> int:
    """A length in tokens: that of Chinese text when half of them are characters."""
    return characters if 2 * sum(bool(CJK.match(token)) for token in tokens) > len(tokens) else words


def _terms(text: str) -> set[str]:
    """What a text is about: its longer words, figures, and pairs of neighbouring Chinese characters, common ones left out."""
    tokens = _tokens(text)
    words = {t[:STEM] for t in tokens if not CJK.match(t) and (t[0].isdigit() or (len(t) >= 4 and t not in _STOP))}
    pairs = {a + b for a, b in zip(tokens, tokens[1:], strict=False) if CJK.match(a) and CJK.match(b)}
    return words | {pair for pair in pairs if not set(pair) & _STOP_CHARACTERS}


def _whole(name: str) -> str:
    return re.escape(name) if CJK.match(name[0]) else rf"\b{re.escape(name)}\b"

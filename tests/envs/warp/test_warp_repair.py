r"""Tolerant parsing: each kind of broken form with what must come of it, and what must not be touched or believed."""

from __future__ import annotations

import json
import random
import time

import pytest

from envs.warp.actions import ERRORS, Context, parse_reply
from envs.warp.limits import Limits
from envs.warp.repair import Body, hides_latex, read_json, split_reply

STRICT = Limits()
TOLERANT = Limits(parsing="tolerant")
SEARCH, EXTEND = Context("search"), Context("extend", expandable=("section-1", "section-2.1"))
WRITE = Context("write", allowed_keys=("textid1", "textid2"))
CHINESE = Context("write", "zh", ("textid1",))
CITED = "Oslo is the capital of Norway and its largest city \\cite{textid1}."
NOP = '{"name":"nop"}'


def _wrap(body):
    return f"<thought>t</thought><action>{body}</action>"


def _keywords(text, finish_reason="stop"):
    reply = parse_reply(text, SEARCH, TOLERANT, finish_reason)
    return reply.action["keywords"] if reply.action else reply.error


@pytest.mark.parametrize(
    "text",
    [
        f"Sure! {_wrap(NOP)} Done.",
        f"```xml\n{_wrap(NOP)}\n```",
        _wrap(f"```json\n{NOP}\n```"),
        _wrap(f"```{NOP}```"),
        _wrap(f"I stop here: {NOP} Good."),
        _wrap("the set {a} is done, " + NOP),
        _wrap('{"name":"nop",}'),
        _wrap("{'name':'nop'}"),
        _wrap('{"name":""nop""}'),
        _wrap('{"name":"nop"'),
        _wrap("{“name”：“nop”}"),
        _wrap('｛"name"："nop"，｝'),
        _wrap(f"[{NOP}]"),
        f'<think>First <action>{{"name":"x"}}</action>?</think>{_wrap(NOP)}',
        f"as <action>x</action> no.</think>{_wrap(NOP)}",
        f"<think>unclosed{_wrap(NOP)}",
        f"<Thought>t</Thought>\n< ACTION >{NOP}</ action>",
        f"＜action＞{NOP}＜/action＞",
        f"<action>{NOP}",
        f"<action>{NOP}</act",
        f"{NOP}</action>",
        f"<thought>t</thought>{NOP}",
        f"<thought>t<action>{NOP}</action>",
        f"<action>```json\n{NOP}</action>```",
        f"<action><action>{NOP}</action></action>",
        f"<action></action><action>{NOP}</action>",
        f'<action>{{"name":"never"}}</action><action>{NOP}</action>',
        NOP,
    ],
)
def test_a_stop_in_every_broken_form_is_a_stop_and_not_for_a_strict_reader(text):
    assert parse_reply(text, EXTEND, TOLERANT).action == {"name": "nop"}
    strict = parse_reply(text, EXTEND, STRICT)
    assert strict.error in ERRORS or text.startswith(("Sure", "```xml", "<think>u", "<thought>t<a"))


@pytest.mark.parametrize(
    ("text", "finish_reason", "error"),
    [
        ("", "stop", "missing_action"),
        (" \n", "stop", "missing_action"),
        ("", "length", "length"),
        ("<think>and so on and", "length", "length"),
        ("<error>", "stop", "bad_json"),
        ("<action></action>", "stop", "bad_json"),
        (_wrap(""), "stop", "bad_json"),
        (_wrap("I would rather not."), "stop", "bad_json"),
        (_wrap('{"name":"search","keywords":["a"]}'), "stop", "bad_name"),
        (_wrap('{"name":"nop","why":"x"}'), "stop", "bad_keys"),
        (_wrap("{" * 5000), "stop", "bad_json"),
        (_wrap('{"name":' * 5000), "stop", "bad_json"),
        (_wrap('{"name":"nop","x":' + "[" * 600 + "]" * 600 + "}"), "stop", "bad_json"),
        (_wrap('{"name":"nop","x":' + "9" * 5000 + "}"), "stop", "bad_keys"),
        (_wrap('{"name":"nop"}') + "\ud800", "stop", "bad_text"),
    ],
)
def test_what_cannot_be_mended_is_classified(text, finish_reason, error):
    reply = parse_reply(text, EXTEND, TOLERANT, finish_reason)
    assert (reply.action, reply.error) == (None, error)


def test_a_cut_reply_counts_only_when_its_action_was_finished():
    search = '{"name":"search","keywords":["Oslo","Bergen"]}'
    assert _keywords(f"<action>{search}</action> and now I", "length") == ["Oslo", "Bergen"]
    for cut in range(len(search)):
        assert _keywords(f"<action>{search[:cut]}", "length") == "length"
        assert _keywords(f"<action>{search[:cut]}", "stop") == "bad_json"  # half an object, for whatever reason: not completed
    assert _keywords(f"<action>{search}", "stop") == ["Oslo", "Bergen"]
    assert parse_reply(f"<action>{CITED}", WRITE, TOLERANT, "length").error == "length"
    assert parse_reply(f"<action>{CITED}", WRITE, TOLERANT, "stop").valid


@pytest.mark.parametrize("tail", ["", ","])  # read as it stands, and by way of the repair
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"\frac{a}{b}", r"\frac{a}{b}"),
        (r"\times", r"\times"),
        (r"\nu", r"\nu"),
        (r"\nabla f \neq 0", r"\nabla f \neq 0"),
        (r"\beta \rho \theta \text{x}", r"\beta \rho \theta \text{x}"),
        (r"\alpha \sum_i", r"\alpha \sum_i"),
        (r"\underbrace{x} \u00e9", "\\underbrace{x} é"),
        (r"\( x \) \[ y \] \{ z \} a\_b 5\%", r"\( x \) \[ y \] \{ z \} a\_b 5\%"),
        (r"\\frac \\times \\nu", r"\frac \times \nu"),  # escaped as JSON wants it
        (r"a \\\\ b", r"a \\ b"),  # a matrix's row
        (r"say \"yes\" \/ no", 'say "yes" / no'),
        (r"it\'s", "it's"),
        (r"a\tb", "a b"),  # a tab that no command hides in
        (r"\ud83d\ude00", "😀"),
        ("```x``` in a value", "```x``` in a value"),
        ("他说“你好”：再见，走", "他说“你好”：再见，走"),
    ],
)
def test_latex_escapes_and_quotes_in_values(written, meant, tail):
    assert _keywords(_wrap(f'{{"name":"search","keywords":["{written}"]{tail}}}')) == [meant]


def test_line_breaks_stay_line_breaks():
    body = r'{"name":"init-plan","title":"R","sections":[{"title":"A","plan":"first\nsecond\new\nnumbers"}]}'
    reply = parse_reply(_wrap(body), Context("initialize"), Limits(parsing="tolerant", hard_mode=False))
    assert reply.action["sections"][0]["plan"] == "first\nsecond\new\nnumbers"


@pytest.mark.parametrize(
    ("keywords", "meant"),
    [
        ("［“挪威的“首都””，“卑尔根”］", ["挪威的“首都”", "卑尔根"]),
        ('["挪威"，"卑尔根"]', ["挪威", "卑尔根"]),
        ("['挪威，奥斯陆', 'it's here']", ["挪威，奥斯陆", "it's here"]),
        ('["say "hi" to", "b"]', ['say "hi" to', "b"]),
        ("[＂a＂、＂b＂]", ["a", "b"]),
    ],
)
def test_full_width_and_stray_quotes(keywords, meant):
    assert _keywords(_wrap(f'{{"name"："search"，"keywords"：{keywords}}}')) == meant


@pytest.mark.parametrize(
    ("body", "hidden"),
    [
        (r'{"plan":"\nu is small"}', True),
        (r'{"plan":"\\nu is small"}', False),
        (r'{"plan":"one\ntwo"}', False),
        (r'{"plan":"one\new"}', False),
        (r'{"plan":"\frac{1}{2}"}', True),
        (r'{"plan":"a\tb"}', False),
    ],
)
def test_hidden_latex_is_seen(body, hidden):
    json.loads(body)
    assert hides_latex(body) is hidden


@pytest.mark.parametrize(
    ("body", "content"),
    [
        (f"\n{CITED}\n", CITED),
        (f"```markdown\n{CITED}\n```", CITED),
        (f"```\n{CITED}", CITED),
        (f"```python\nx = 1\n```\n{CITED}\n```\ny\n```", f"```python\nx = 1\n```\n{CITED}\n```\ny\n```"),  # fences of its own
        (f"```python\n{CITED}\n```", f"```python\n{CITED}\n```"),
        (CITED.replace("\\cite", "\\citep[p. 3]"), CITED),
        (
            CITED.replace("\\cite{textid1}", "\\Citet* ｛textid1；textid2，textid1｝"),
            CITED.replace("textid1", "textid1, textid2"),
        ),
        (CITED + " \\nocite{textid2}", CITED),
    ],
)
def test_texts(body, content):
    assert parse_reply(_wrap(body), WRITE, TOLERANT).action == {"name": "write", "content": content}


def test_a_text_without_any_tag_is_no_section():
    apology = "I am sorry that I cannot write about this, whatever \\cite{textid1} says about Oslo."
    assert parse_reply(apology, WRITE, TOLERANT).error == "missing_action"
    assert parse_reply(f"<thought>t</thought>{apology}", WRITE, TOLERANT).valid
    assert parse_reply(f"{apology}</action>", WRITE, TOLERANT).valid


def test_the_contract_holds_after_mending():
    six = json.dumps({"name": "search", "keywords": list("abcdef")})
    assert _keywords(_wrap(six[:-1] + ",}")) == "too_many_keywords"
    assert parse_reply(_wrap("# Oslo\n" + CITED), WRITE, TOLERANT).error == "heading"
    assert parse_reply(_wrap(CITED + " \\cite{textid2"), WRITE, TOLERANT).error == "bad_citation"


def test_thoughts():
    assert split_reply("<thought>I use <action> tags</thought><action>A</action>")[0] == "I use <action> tags"
    assert split_reply("so</thought><action>A</action>") == ("so", [Body("A", True, True)])
    assert split_reply("<thought> </thought><thought>b</thought>x")[0] == "b"


def test_valid_json_is_unchanged():
    """Whatever json.dumps writes comes back as it went in, as it stands and through the repair."""
    rng = random.Random(0)
    pieces = [*"abc 0é奥“”：，{}[]\"'\\/#", "\n", "\\frac", "\\nu", "\\\\", "😀", "```", "<", "textid1", ": ", ", ", "\\u0041"]

    def text():
        return "".join(rng.choice(pieces) for _ in range(rng.randint(0, 12))).strip()

    for i in range(1500):
        sections = [{"title": text(), "plan": text()} for _ in range(rng.randint(0, 3))]
        value = {"name": "init-plan", "title": text(), "sections": sections}
        dumped = json.dumps(value, ensure_ascii=i % 2 == 0, indent=rng.choice([None, 1]))
        assert read_json(Body(dumped, True, True)) == value
        if i < 300:
            assert read_json(Body(dumped.rstrip()[:-1] + ",}", True, True)) == value


_SPICE = [
    *"{}[]\",:\\<>/#\n\t\x00\ud800é奥0“”：，｛｝'",
    *("null", "1e999", "NaN", "\\cite{", "\\citep", "\\u0007", "\\frac", "\\times", "\\nu", "\\ud800", "```", "```json\n"),
    *("<action>", "</action>", "<thought>", "</thought>", "<think>", "</think>", '"name"', "section-1", "textid1", "＜action＞"),
]


def _mutate(rng, text):
    for _ in range(rng.randint(1, 3)):
        a = rng.randrange(len(text) + 1)
        b = min(len(text), a + rng.randint(0, 8))
        kind = rng.random()
        if kind < 0.3:
            text = text[:a] + text[b:]
        elif kind < 0.75:
            text = text[:a] + rng.choice(_SPICE) + text[b:]
        elif kind < 0.85:
            text = text[:a] + text[a:b] * 2 + text[b:]
        elif kind < 0.9:
            text = text[:a]
        elif kind < 0.95:
            text = f"<think>{text[a:b]}</think>{text}"
        else:
            text = text.translate(str.maketrans({'"': rng.choice("“”＂'"), ":": "：", ",": "，"}))
    return text


def test_twenty_thousand_mutations_never_raise_and_every_failure_is_classified():
    nodes = [{"title": f"Title {i}", "plan": "A plan.", "subsections": []} for i in range(3)]
    flat = [{"title": n["title"], "plan": n["plan"]} for n in nodes]
    actions = {
        "search": '{"name":"search","keywords":["Oslo","Bergen"]}',
        "initialize": json.dumps({"name": "init-plan", "title": "Report", "sections": flat}),
        "write": CITED,
        "extend": json.dumps({"name": "extend-plan", "position": "section-1", "subsections": flat[:2]}),
    }
    legal = ("search", "initialize", "write", "expand", "terminate")
    seeds = [(Context(s, "en", ("textid1",), ("section-1",)), _wrap(a)) for s, a in actions.items()]
    seeds += [(Context("write", "en", ("textid1",), ("section-1",), legal), _wrap(a)) for a in actions.values()]
    seeds += [(CHINESE, _wrap(CITED)), (EXTEND, _wrap(NOP)), (Context("initialize"), _wrap(json.dumps({"sections": nodes})))]
    options = [
        Limits(parsing=parsing, hard_mode=hard, control=control)
        for parsing in ("strict", "tolerant")
        for hard in (True, False)
        for control in ("state_machine", "plan_then_write")
    ]
    rng = random.Random(0)
    valid = 0
    for i in range(20_000):
        context, text = seeds[i % len(seeds)]
        finish_reason = "length" if rng.random() < 0.05 else "stop"
        reply = parse_reply(_mutate(rng, text), context, options[i // len(seeds) % len(options)], finish_reason)
        assert reply.error in ERRORS if reply.action is None else reply.error is None
        if reply.action:
            json.dumps(reply.action, ensure_ascii=False).encode()
            valid += 1
    assert 2000 < valid < 18_000  # the damage neither spares nor kills everything


@pytest.mark.parametrize("context", [SEARCH, EXTEND, WRITE])
@pytest.mark.parametrize(
    "body",
    [
        "}" * 1000 + '{"name":' + "[" * 1000,  # what closes too much makes no room for what opens
        '{"name":"search","keywords":["' + "}" * 1000 + '"],"x":' + "[" * 1000,
        "```" + " " * 8000 + "x",
        "```" + " " * 8000 + "x" + " " * 8000 + "```",
    ],
)
def test_deep_and_long_bodies_cost_neither_an_exception_nor_time(context, body):
    began = time.process_time()
    parse_reply(f"<action>{body}</action>", context, TOLERANT)
    assert time.process_time() - began < 5

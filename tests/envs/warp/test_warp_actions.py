from __future__ import annotations

import json

import pytest

from envs.warp.actions import Context, parse_reply
from envs.warp.limits import Limits

HARD = Limits()
SOFT = Limits(hard_mode=False)
EXTEND = Context("extend", expandable=("section-1", "section-2.1"))
WRITE = Context("write", allowed_keys=("textid1", "textid2"))
CITED = "Oslo is the capital of Norway and its largest city \\cite{textid1}."


def _reply(action, thought="because"):
    body = action if isinstance(action, str) else json.dumps(action)
    return f"<thought>{thought}</thought><action>{body}</action>"


def _nodes(n, title="Title", plan="A plan."):
    return [{"title": f"{title} {i}", "plan": plan} for i in range(n)]


def _init(n=3, **changes):
    return {"name": "init-plan", "title": "Report", "sections": _nodes(n), **changes}


def _extend(n=2, **changes):
    return {"name": "extend-plan", "position": "section-1", "subsections": _nodes(n), **changes}


def _search(*keywords):
    return {"name": "search", "keywords": list(keywords)}


@pytest.mark.parametrize(
    ("state", "action", "kind"),
    [
        ("search", _search("Oslo"), "search"),
        ("search", _search("a", "b", "c", "d", "e"), "search"),
        ("initialize", _init(3), "initialize"),
        ("initialize", _init(12), "initialize"),
        ("extend", _extend(2), "expand"),
        ("extend", _extend(7, position="section-2.1"), "expand"),
        ("extend", {"name": "nop"}, "terminate"),
    ],
)
def test_valid_json_actions(state, action, kind):
    context = EXTEND if state == "extend" else Context(state)
    reply = parse_reply(_reply(action), context, HARD)
    assert (reply.action, reply.error, reply.kind, reply.thought) == (action, None, kind, "because")


def test_valid_write_is_the_stripped_body():
    reply = parse_reply(_reply(f"\n{CITED}\n"), WRITE, HARD)
    assert (reply.action, reply.kind) == ({"name": "write", "content": CITED}, "write")


@pytest.mark.parametrize(
    ("state", "action", "error"),
    [
        ("search", {"name": "nop"}, "bad_name"),
        ("search", {"name": ["search"], "keywords": ["a"]}, "bad_name"),
        ("search", {"keywords": ["a"]}, "bad_name"),
        ("search", {"name": "search", "keywords": ["a"], "why": "x"}, "bad_keys"),
        ("search", {"name": "search"}, "bad_keys"),
        ("search", {"name": "search", "keywords": "a"}, "bad_keys"),
        ("search", _search("a", 1), "bad_keys"),
        ("search", _search(), "no_keywords"),
        ("search", _search("a", " "), "bad_text"),
        ("search", _search("a", "b", "c", "d", "e", "f"), "too_many_keywords"),
        ("initialize", _init(2), "too_few_sections"),
        ("initialize", _init(13), "too_many_sections"),
        ("initialize", _init(title=3), "bad_keys"),
        ("initialize", _init(title=""), "bad_text"),
        ("initialize", _init(sections={"title": "a", "plan": "b"}), "bad_keys"),
        ("initialize", _init(sections=[*_nodes(2), {"title": "a"}]), "bad_keys"),
        ("initialize", _init(sections=[*_nodes(2), {"title": "a", "plan": "b", "content": "c"}]), "bad_keys"),
        ("initialize", _init(sections=[*_nodes(2), {"title": "a", "plan": None}]), "bad_keys"),
        ("initialize", _init(sections=[*_nodes(2), {"title": "a", "plan": " "}]), "bad_text"),
        ("initialize", _init(sections=[*_nodes(2), {"title": "奥斯陆奥斯陆奥斯陆", "plan": "b"}]), "wrong_language"),
        ("extend", _extend(1), "too_few_subsections"),
        ("extend", _extend(8), "too_many_subsections"),
        ("extend", _extend(position="section-2"), "bad_position"),
        ("extend", _extend(position="section-10"), "bad_position"),
        ("extend", _extend(position=["section-1"]), "bad_position"),
        ("extend", _extend(position=None), "bad_position"),
        ("extend", {"name": "nop", "why": "x"}, "bad_keys"),
        ("extend", _init(3), "bad_name"),
        ("extend", ["nop"], "bad_json"),
        ("extend", "null", "bad_json"),
        ("extend", "", "bad_json"),
    ],
)
def test_invalid_json_actions(state, action, error):
    context = EXTEND if state == "extend" else Context(state)
    reply = parse_reply(_reply(action), context, HARD)
    assert (reply.action, reply.error, reply.valid, reply.kind) == (None, error, False, None)


@pytest.mark.parametrize(
    "body",
    [
        '```json\n{"name":"nop"}\n```',
        'I stop. {"name":"nop"}',
        '{"name":"nop",}',
        "{'name':'nop'}",
        '{"name":""nop""}',
        "[" * 100_000,
        '{"name":' + "9" * 5000 + "}",
        '{"name":"\\underbrace"}',
    ],
)
def test_json_is_not_repaired(body):
    assert parse_reply(_reply(body), EXTEND, HARD).error == "bad_json"


@pytest.mark.parametrize("tag", ["<thought>", "</thought>", "<action>", "<think>", "</think>"])
def test_a_tag_within_an_action_is_refused(tag):
    assert parse_reply(_reply(f"{CITED} {tag} {CITED}"), WRITE, HARD).error == "bad_text"
    assert parse_reply(_reply(f"{tag}{CITED}"), WRITE, Limits(hard_mode=False)).error == "bad_text"
    assert parse_reply(_reply(_search(f"a {tag}")), Context("search"), HARD).error == "bad_text"
    assert parse_reply(_reply(f"{CITED} x<y, <thoughts>"), WRITE, HARD).valid


@pytest.mark.parametrize("latex", ["\\frac", "\\times", "\\beta", "\\rho", "\\nu", "\\u0000", "\\ud800", "\\u2028", "\\u2029"])
def test_latex_that_json_turns_into_control_characters_is_refused_in_titles(latex):
    """json.loads reads "\\times" as a tab and "imes"; at a title's start, white space must not be stripped before the check."""
    for text in (latex, f"on {latex}"):
        body = json.dumps(_init()).replace("Title 0", text)
        json.loads(body)  # it is valid JSON
        assert parse_reply(_reply(body), Context("initialize"), HARD).error == "bad_text"
    assert parse_reply(_reply('{"name":"search","keywords":["' + latex + '"]}'), Context("search"), HARD).error == "bad_text"


def test_doubled_backslashes_and_line_breaks_in_plans_are_kept():
    sections = [*_nodes(2), {"title": "On \\times", "plan": "first\nsecond \\frac{a}{b}"}]
    reply = parse_reply(_reply(_init(sections=sections)), Context("initialize"), HARD)
    assert reply.action["sections"] == sections
    tab = _init(sections=[*_nodes(2), {"title": "a", "plan": "b\times"}])
    assert parse_reply(_reply(tab), Context("initialize"), HARD).error == "bad_text"


@pytest.mark.parametrize("plan", [r"the rate \nu", r"\nabla f", r"a \neq b"])
def test_latex_that_json_turns_into_a_line_break_is_refused_in_plans(plan):
    body = json.dumps(_init()).replace("A plan.", plan, 1)
    assert "\n" in json.loads(body)["sections"][0]["plan"]
    assert parse_reply(_reply(body), Context("initialize"), HARD).error == "bad_text"
    assert parse_reply(_reply(body.replace("\\n", "\\\\n")), Context("initialize"), HARD).valid


def test_texts_are_stripped():
    reply = parse_reply(_reply(_search(" Oslo ", "Bergen")), Context("search"), HARD)
    assert reply.action["keywords"] == ["Oslo", "Bergen"]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", "too_short"),
        ("Oslo \\cite{textid1}.", "too_short"),
        (CITED.removesuffix("}."), "bad_citation"),
        ("# Oslo\n" + CITED, "heading"),
        (CITED + " The C# language.", "heading"),
        (CITED + " See bibkey.", "raw_key"),
        (CITED + " See BibKey:textid2.", "raw_key"),
        (CITED + " textid2 says so.", "raw_key"),
        (CITED.replace(" \\cite{textid1}", ""), "no_citation"),
        (CITED + " \\cite{}", "bad_citation"),
        (CITED + " \\citep{textid2}", "bad_citation"),
        (CITED + " \\cite{textid2}" * 12, "too_many_citations"),
        ("奥斯陆是挪威的首都和最大的城市。" * 5 + "\\cite{textid1}", "wrong_language"),
    ],
)
def test_invalid_writes(content, error):
    assert parse_reply(_reply(content), WRITE, HARD).error == error


@pytest.mark.parametrize(
    "content",
    [
        CITED + " \\cite{textid2}" * 11,  # 12 commands
        "x" * 35 + " \\cite{textid1}.",  # 51 characters
        CITED.replace("textid1", "textid999"),  # invented: the citation reward's business
        "1. First\n2. Second\n\n" + CITED,
        CITED + ' <b>It\'s & "quoted"</b>',
    ],
)
def test_valid_writes(content):
    assert parse_reply(_reply(content), WRITE, HARD).action == {"name": "write", "content": content}


def test_the_write_length_limit_is_exclusive():
    content = "x" * 34 + " \\cite{textid1}."
    assert len(content) == 50
    assert parse_reply(_reply(content), WRITE, HARD).error == "too_short"


def test_a_chinese_query_needs_chinese():
    context = Context("write", "zh", ("textid1",))
    content = "奥斯陆是挪威的首都和最大的城市，位于峡湾的尽头。" * 3 + "\\cite{textid1}。"
    assert parse_reply(_reply(content), context, HARD).valid
    assert parse_reply(_reply(CITED), context, HARD).error == "wrong_language"


def test_nothing_to_cite_needs_no_citation():
    content = CITED.replace(" \\cite{textid1}", "")
    assert parse_reply(_reply(content), Context("write"), HARD).valid
    assert parse_reply(_reply(content), WRITE, Limits(citation_required=False)).valid


@pytest.mark.parametrize(
    ("context", "action"),
    [
        (Context("search"), _search(*"abcdef")),
        (Context("initialize"), _init(1)),
        (Context("initialize"), _init(13)),
        (EXTEND, _extend(1)),
        (WRITE, "# Oslo, see bibkey"),
    ],
)
def test_without_hard_mode_only_formats_are_checked(context, action):
    assert parse_reply(_reply(action), context, SOFT).valid
    assert not parse_reply(_reply(action), context, HARD).valid


@pytest.mark.parametrize(("context", "action"), [(Context("initialize"), _init(0)), (EXTEND, _extend(0)), (WRITE, " ")])
def test_empty_is_invalid_in_any_mode(context, action):
    assert not parse_reply(_reply(action), context, SOFT).valid


@pytest.mark.parametrize(
    ("text", "thought", "error"),
    [
        ('<action>{"name":"nop"}</action>', None, None),
        ('<thought> </thought><action>{"name":"nop"}</action>', None, None),
        ('<thought>a</thought> so <action> {"name":"nop"} </action> end', "a", None),
        ('<thought>a</thought><thought>b</thought><action>{"name":"nop"}</action><action>x</action>', "a", None),
        ('<thought>a</thought><action>x</action><action>{"name":"nop"}</action>', "a", "bad_json"),
        ('<thought>a</thought><action>{"name":"nop"}', "a", "missing_action"),
        ("<thought>a</thought>", "a", "missing_action"),
        ('</action><action>{"name":"nop"}', None, "missing_action"),
        ("<error>", None, "missing_action"),
        ("", None, "missing_action"),
    ],
)
def test_tags(text, thought, error):
    reply = parse_reply(text, EXTEND, HARD)
    assert (reply.thought, reply.error) == (thought, error)


def test_a_reply_cut_by_its_limit_is_invalid():
    assert parse_reply(_reply({"name": "nop"}), EXTEND, HARD, "length").error == "length"


ZH = Context("write", "zh", ("textid1",))


@pytest.mark.parametrize(
    ("limits", "context", "fits", "fails", "error"),
    [
        ({"max_keywords": 2}, Context("search"), _search("a", "b"), _search("a", "b", "c"), "too_many_keywords"),
        ({"min_sections": 2}, Context("initialize"), _init(2), _init(1), "too_few_sections"),
        ({"max_sections": 4}, Context("initialize"), _init(4), _init(5), "too_many_sections"),
        ({"min_subsections": 1}, EXTEND, _extend(1), _extend(0), "too_few_subsections"),
        ({"max_subsections": 3}, EXTEND, _extend(3), _extend(4), "too_many_subsections"),
        ({"min_write_chars": 65}, WRITE, CITED, CITED.replace("its ", ""), "too_short"),
        ({"max_citations": 1}, WRITE, CITED, CITED + " \\cite{textid2}", "too_many_citations"),
        ({"citation_required": True}, WRITE, CITED, CITED.replace("\\cite{textid1}", "as said"), "no_citation"),
        ({"max_cjk": 0.01}, WRITE, CITED, CITED.replace("Oslo", "奥"), "wrong_language"),  # 1 of 47 letters: the release's demo
        (
            {"min_cjk": 0.9},
            ZH,
            "奥斯陆是首都" * 9 + "\\cite{textid1}",
            "奥斯陆是首都ab" * 9 + "\\cite{textid1}",
            "wrong_language",
        ),
    ],
)
def test_every_limit_is_an_option(limits, context, fits, fails, error):
    assert parse_reply(_reply(fits), context, Limits(**limits)).error is None
    assert parse_reply(_reply(fails), context, Limits(**limits)).error == error

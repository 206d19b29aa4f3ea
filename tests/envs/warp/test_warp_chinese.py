"""A Chinese question from the first prompt to the rendered report."""

from __future__ import annotations

import asyncio
import json

import pytest

from envs.warp.limits import Limits
from envs.warp.render import unresolved_markers
from envs.warp.render_html import report_html
from envs.warp.report import Report
from envs.warp.wording import CHINESE
from rlcore.types import Query

FACTS = {
    "peru": "秘鲁位于南美洲西海岸，首都利马有约一千万人口。",
    "norway": "挪威位于欧洲北部，首都是奥斯陆，海岸线很长。",
    "chad": "乍得是非洲中部的内陆国家，首都是恩贾梅纳。",
    "oslo": "奥斯陆是挪威最大的城市，位于峡湾尽头，颁发诺贝尔和平奖。",
    "bergen": "卑尔根是挪威西海岸多雨的港口城市，曾是汉萨同盟的商站。",
}


class Search:
    def __init__(self, doc):
        self.documents = [doc(i, i.title(), text, f"https://example.org/{i}") for i, text in FACTS.items()]

    async def search(self, queries, k):
        return [[d for d in self.documents if any(name in d.contents for name in q.split())][:k] for q in queries]


def _reply(thought, action):
    return f"<thought>{thought}</thought><action>{json.dumps(action, ensure_ascii=False)}</action>"


def _search(*keywords):
    return _reply("先查资料。", {"name": "search", "keywords": list(keywords)})


def _write(text, key):
    return f"<thought>据资料撰写。</thought><action>{text * 2}这些内容都来自检索到的资料，可以核对 \\cite{{{key}}}。</action>"


def _node(title, plan):
    return {"title": title, "plan": plan}


SCRIPT = [
    _search("秘鲁 利马", "挪威", "乍得"),
    _reply(
        "三个国家，三节。",
        {
            "name": "init-plan",
            "title": "三国概况",
            "sections": [_node("一、秘鲁", "国家与首都。"), _node("挪威", "国家与城市。"), _node("第三章 乍得", "国家与首都。")],
        },
    ),
    *(_search("秘鲁"), _write(FACTS["peru"], "textid1"), _search("挪威"), _write(FACTS["norway"], "textid2")),
    *(_search("乍得"), _write(FACTS["chad"], "textid5")),
    _reply(
        "问题要求深入挪威的城市。",
        {
            "name": "extend-plan",
            "position": "section-2",
            "subsections": [_node("2.1 奥斯陆", "首都。"), _node("（二）卑尔根", "港口。")],
        },
    ),
    *(_search("奥斯陆"), _write(FACTS["oslo"], "textid3"), _search("卑尔根"), _write(FACTS["bergen"], "textid4")),
    _reply("已经足够深入。", {"name": "nop"}),
]
QUERY = Query("zh1", {"question": "请写一份关于秘鲁、挪威和乍得的报告，并深入介绍挪威的城市。"})


@pytest.fixture
def outcome(doc, scripted):
    policy = scripted(SCRIPT)
    outcome = asyncio.run(
        Report(Search(doc), {"abbreviate_over": 12, "abbreviate_head": 6, "abbreviate_tail": 4}).run(QUERY, policy)
    )
    return outcome, policy.asked


def test_the_report(outcome):
    data, markdown = outcome[0].data, outcome[0].data["report_markdown"]
    assert data["complete"] and data["language"] == "zh" and [s["error"] for s in data["steps"]] == [None] * len(SCRIPT)
    assert [line for line in markdown.splitlines() if line.startswith("#")] == [
        *("# 三国概况", "## 1 秘鲁", "## 2 挪威", "### 2.1 奥斯陆", "### 2.2 卑尔根", "## 3 乍得", "## 参考文献"),
    ]
    assert unresolved_markers(markdown) == [] and "可以核对 [1]。" in markdown
    assert markdown.endswith("- [5] Chad. https://example.org/chad\n")


def test_the_page(outcome):
    page = report_html(outcome[0].data)
    assert '<html lang="zh">' in page and '<h3 id="section-2.1">2.1 奥斯陆</h3>' in page and "<h2>参考文献</h2>" in page
    assert '可以核对 <a href="#ref-1">[1]</a>。' in page and '<li id="ref-1">Peru. <a href="https://example.org/peru"' in page


def test_the_prompts_are_chinese_and_count_characters(outcome):
    asked = [a["messages"] for a in outcome[1]]
    assert {m[0]["content"] for m in asked} == {CHINESE.system}
    assert asked[0][1]["content"] == f"问题：{QUERY.data['question']}\n任务：为 outline 查找资料。动作：" + (
        '{"name":"search","keywords":["..."]}，1 到 5 个关键词。'
    )
    lines = asked[4][1]["content"].splitlines()  # the search for section-2: 6 characters of head; of tail 3, and the full stop
    assert lines[1] == "标题：三国概况" and lines[2] == "section-1 一、秘鲁 [OK] 秘鲁位于南美 ... 以核对。"


def test_english_texts_are_refused_and_too_short_chinese_ones(doc, scripted):
    english = "<action>Peru is on the west coast of South America and its capital is Lima \\cite{textid1}.</action>"
    short = "<action>秘鲁位于南美洲西海岸 \\cite{textid1}。</action>"
    script = [*SCRIPT[:3], english, short, *SCRIPT[3:]]
    data = asyncio.run(Report(Search(doc), Limits()).run(QUERY, scripted(script))).data
    assert [s["error"] for s in data["steps"] if s["error"]] == ["wrong_language", "too_short"] and data["complete"]


def test_an_unwritten_section_says_so_in_chinese(doc, scripted):
    data = asyncio.run(Report(Search(doc), {"max_steps": 4}).run(QUERY, scripted(SCRIPT))).data
    assert "## 2 挪威\n\n*尚未撰写。计划：国家与城市。*" in data["report_markdown"]
    assert '<p class="unwritten">尚未撰写。计划：国家与城市。</p>' in report_html(data)

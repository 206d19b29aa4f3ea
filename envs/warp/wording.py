r"""What prompts say, in English and Chinese. `$name` is a limit, or what the prompt is about: $cursor, $due, $legal.

Tags, keys, positions and commands are protocol and the same in every language.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wording:
    """One language. `tasks` by state, with a WRITE without passages, the plan of `plan_then_write` and free control beside them;
    `rules` (detailed prompts) by state, and for all; `errors` says of each of envs.warp.actions.ERRORS what to do instead."""

    system: str
    question: str
    title: str
    nothing: str
    refused: str
    task: str
    tasks: dict[str, str]
    rules: dict[str, str]
    errors: dict[str, str]


_SEARCH = '{"name":"search","keywords":["..."]}'
_INITIALIZE = '{"name":"init-plan","title":"...","sections":[{"title":"...","plan":"..."}]}'
_EXTEND = '{"name":"extend-plan","position":"section-N","subsections":[{"title":"...","plan":"..."}]}'
_NOP = '{"name":"nop"}'
_SUB = '{"title":"...","plan":"...","subsections":[{"title":"...","plan":"..."}]}'
_PLAN_ALL = f'{{"name":"init-plan","title":"...","sections":[{_SUB}]}}'

ENGLISH = Wording(
    system="You write a cited research report step by step. Reply: <thought>one short reason</thought><action>...</action>",
    question="Question: {}",
    title="Title: {}",
    nothing="The search found no passages.",
    refused="Your last reply was refused: {}",
    task="Task: {}",
    tasks={
        "search": f"find passages for $cursor. Action: {_SEARCH}, 1-$max_keywords keywords.",
        "initialize": f"plan the report. Action: {_INITIALIZE}, $min_sections-$max_sections sections.",
        "plan_all": f"plan the whole report, every level of it; nothing is added later. Action: {_PLAN_ALL}, "
        "$min_sections-$max_sections sections, $min_subsections-$max_subsections subsections where one has any, "
        "$max_levels levels at most.",
        "write": "write $cursor from the passages, citing each as \\cite{textidN}. Action: its text, no headings.",
        "write_unsourced": "write $cursor saying what is missing, without citations. Action: its text, no headings.",
        "extend": "add subsections where the question wants depth, else stop. "
        f"Action: {_EXTEND}, $min_subsections-$max_subsections subsections, or {_NOP}.",
        "free": f"""choose the next action; usual would be: $due. Action, one of:
SEARCH, while a section is due: {_SEARCH}, 1-$max_keywords keywords
INITIALIZE, while there is no outline: {_INITIALIZE}, $min_sections-$max_sections sections
WRITE the section that is due: its text, no headings, citing shown passages as \\cite{{textidN}}
EXPAND a written section that has no subsections: {_EXTEND}, $min_subsections-$max_subsections subsections
TERMINATE, when every section is written: {_NOP}""",
    },
    rules={
        "always": "Rules: one thought and one action, nothing around the tags and no code fences. JSON has exactly the keys "
        "shown, and a backslash in it is doubled. Titles, plans and texts are in the language of the question.",
        "search": "A keyword is a short phrase that a document on the subject would contain. Ask for what the plan of the "
        "section needs and the draft does not have yet; each keyword asks for something else.",
        "initialize": "Sections do not overlap and together answer the question. Titles carry no numbers. A plan says in one or "
        "two sentences what its section will establish, and claims nothing that the passages do not show.",
        "write": "Say only what the passages support, and cite after each statement: \\cite{textid3} or "
        "\\cite{textid3, textid1}, with keys from this prompt only, at most $max_citations times. More than $min_write_chars "
        "characters of plain Markdown without the sign #. Continue the draft; do not repeat it, introduce it or sum it up.",
        "extend": "Expand the one written section where the question wants more than the draft says: above level $max_levels and "
        "without subsections. Its text stays as it is, so plan what it lacks. Stop when more depth would add little.",
    },
    errors={
        "length": "it was cut off; be shorter.",
        "missing_action": "it had no <action>...</action>.",
        "bad_text": "a title, plan or keyword was empty or had a control character; in JSON a backslash is doubled.",
        "bad_json": "the action was not one JSON object.",
        "bad_name": "the action's name is not one of those asked for.",
        "bad_keys": "the action's keys or their types are not the ones shown.",
        "illegal": "that action is not possible now; possible: $legal.",
        "bad_position": "no section at that position can get subsections.",
        "no_keywords": "there was no keyword.",
        "too_many_keywords": "there were more than $max_keywords keywords.",
        "too_few_sections": "there were fewer than $min_sections sections.",
        "too_many_sections": "there were more than $max_sections sections.",
        "too_few_subsections": "there were fewer than $min_subsections subsections.",
        "too_many_subsections": "there were more than $max_subsections subsections.",
        "too_short": "the text must have more than $min_write_chars characters.",
        "heading": "the text had the sign #; write no headings.",
        "raw_key": "a passage's key stood outside \\cite{...}.",
        "bad_citation": "a citation was not of the form \\cite{textidN}.",
        "too_many_citations": "there were more than $max_citations citations.",
        "no_citation": "nothing was cited.",
        "wrong_language": "it was not in the language of the question.",
        "no_room": "the prompt left no room for it.",
    },
)

CHINESE = Wording(
    system="你正在分步撰写一份附引文的研究报告。回复格式：<thought>一句简短的理由</thought><action>...</action>",
    question="问题：{}",
    title="标题：{}",
    nothing="没有检索到任何资料。",
    refused="上一次回复未被接受：{}",
    task="任务：{}",
    tasks={
        "search": f"为 $cursor 查找资料。动作：{_SEARCH}，1 到 $max_keywords 个关键词。",
        "initialize": f"规划这份报告。动作：{_INITIALIZE}，$min_sections 到 $max_sections 节。",
        "plan_all": f"一次规划好整份报告的所有层级，之后不再增加。动作：{_PLAN_ALL}，$min_sections 到 $max_sections 节，"
        "有小节的节含 $min_subsections 到 $max_subsections 个小节，最多 $max_levels 级。",
        "write": "根据资料撰写 $cursor，每处用 \\cite{textidN} 注明出处。动作：该节正文，不加标题。",
        "write_unsourced": "撰写 $cursor，说明缺少哪些资料，不加引文。动作：该节正文，不加标题。",
        "extend": "问题需要更深入之处增加小节，否则结束。"
        f"动作：{_EXTEND}，$min_subsections 到 $max_subsections 个小节，或 {_NOP}。",
        "free": f"""选择下一个动作，通常是 $due。动作为下列之一：
检索（仍有待写的节时）：{_SEARCH}，1 到 $max_keywords 个关键词
规划（尚无提纲时）：{_INITIALIZE}，$min_sections 到 $max_sections 节
撰写待写的节：正文，不加标题，用 \\cite{{textidN}} 引用所示资料
扩展一个已写好且没有小节的节：{_EXTEND}，$min_subsections 到 $max_subsections 个小节
结束（所有节都写好时）：{_NOP}""",
    },
    rules={
        "always": "规则：只写一个 thought 和一个 action，标签之外不写任何内容，不用代码围栏。"
        "JSON 的键与示例完全一致，其中的反斜杠要写两个。标题、计划和正文都用中文。",
        "search": "关键词是相关文献中会出现的短语。针对该节计划需要而草稿还没有的内容，各个关键词互不重复。",
        "initialize": "各节互不重叠，合起来回答问题。标题不带编号。计划用一两句话写明该节要说清什么，不写资料中没有的论断。",
        "write": "只写资料支持的内容，每个论断之后注明出处：\\cite{textid3} 或 \\cite{textid3, textid1}，"
        "只用本提示中出现的编号，最多 $max_citations 处。正文超过 $min_write_chars 个字符，用普通 Markdown，不出现 # 号。"
        "承接草稿，不重复，不写引言或小结。",
        "extend": "只扩展一个已写好、问题还要求更深入的节：级别在第 $max_levels 级以上，且没有小节。"
        "其正文保持不变，小节补充它所缺的内容。继续深入意义不大时就结束。",
    },
    errors={
        "length": "回复被截断，请写得更短。",
        "missing_action": "没有 <action>...</action>。",
        "bad_text": "标题、计划或关键词为空或含有控制字符；JSON 中的反斜杠要写两个。",
        "bad_json": "动作不是一个 JSON 对象。",
        "bad_name": "动作的 name 不在要求之列。",
        "bad_keys": "动作的键或值的类型与示例不符。",
        "illegal": "现在不能执行该动作，可以执行的有：$legal。",
        "bad_position": "该位置没有可以增加小节的节。",
        "no_keywords": "没有关键词。",
        "too_many_keywords": "关键词超过 $max_keywords 个。",
        "too_few_sections": "少于 $min_sections 节。",
        "too_many_sections": "超过 $max_sections 节。",
        "too_few_subsections": "少于 $min_subsections 个小节。",
        "too_many_subsections": "超过 $max_subsections 个小节。",
        "too_short": "正文须超过 $min_write_chars 个字符。",
        "heading": "正文中有 # 号，不要写标题。",
        "raw_key": "资料编号出现在 \\cite{...} 之外。",
        "bad_citation": "引文格式不是 \\cite{textidN}。",
        "too_many_citations": "引文超过 $max_citations 处。",
        "no_citation": "没有引用任何资料。",
        "wrong_language": "所用语言与问题不一致。",
        "no_room": "提示过长，没有留给回复的空间。",
    },
)

WORDINGS = {"en": ENGLISH, "zh": CHINESE}

"""Fakes with known answers: an engine that says what it is told, and a tokenizer of one token per character."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rlcore.sampling import Generation, Sampling

END = 0  # the fake's end-of-turn id; other ids are code points


class CharTokenizer:
    """ChatML-like, one token per character. `<end>` is one token."""

    name_or_path = "chars"
    chat_template = "yes"
    eos_token_id = END

    def apply_chat_template(self, messages, tokenize=False, add_generation_prompt=False, **kwargs):
        text = "" if messages and messages[0]["role"] == "system" else "[system]be nice<end>\n"  # a default system prompt
        text += "".join(f"[{m['role']}]{m['content']}<end>\n" for m in messages)
        return text + ("[assistant]" if add_generation_prompt else "")

    def __call__(self, text, add_special_tokens=True):
        ids = []
        while text:
            if text.startswith("<end>"):
                ids.append(END)
                text = text[5:]
            else:
                ids.append(ord(text[0]))
                text = text[1:]
        return {"input_ids": ids}

    def decode(self, ids, skip_special_tokens=True):
        return "".join("" if skip_special_tokens and i == END else "<end>" if i == END else chr(i) for i in ids)


class ScriptedEngine:
    """Answers with `reply(prompt text)`, log-probability -0.5 for every token, and records what it was asked."""

    def __init__(self, reply: Callable[[str], str], delay_s: float = 0.0, finish_reason: str = "stop") -> None:
        self.reply, self.delay_s, self.finish_reason = reply, delay_s, finish_reason
        self.version = 0
        self.asked: list[tuple[list[int], Sampling]] = []

    async def generate(self, prompt_ids: list[int], sampling: Sampling) -> Generation:
        self.asked.append((prompt_ids, sampling))
        await asyncio.sleep(self.delay_s)
        ids = CharTokenizer()(self.reply(CharTokenizer().decode(prompt_ids)))["input_ids"] + [END]
        ids = ids[: sampling.max_tokens]
        reason = "length" if ids[-1] != END else self.finish_reason
        return Generation(ids, [-0.5] * len(ids), [self.version] * len(ids), reason)

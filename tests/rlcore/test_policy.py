import asyncio

import pytest

from rlcore.errors import NoRoom
from rlcore.policy import ChatRenderer, RecordingPolicy
from rlcore.sampling import Sampling
from rlcore.types import Query, Trajectory
from tests.fakes import END, CharTokenizer, ScriptedEngine


def policy(engine, max_model_len=500, max_tokens=50, seed=None):
    trajectory = Trajectory(Query("q"), "g", 0)
    sampling = Sampling(temperature=0.7, max_tokens=max_tokens, seed=seed)
    return RecordingPolicy(engine, ChatRenderer(CharTokenizer()), sampling, max_model_len, trajectory, 5.0), trajectory


def text(ids):
    return CharTokenizer().decode(ids, skip_special_tokens=False)


def test_generate_records_the_engines_ids_and_trains_exactly_what_the_model_wrote():
    p, trajectory = policy(ScriptedEngine(lambda prompt: "hello"))
    reply = asyncio.run(p.generate([{"role": "user", "content": "hi"}], span="greeting"))
    (s,) = trajectory.sequences
    assert reply.text == "hello" and reply.finish_reason == "stop"
    assert text([t for t, m in zip(s.token_ids, s.loss_mask, strict=True) if m]) == "hello<end>"
    assert (
        text([t for t, m in zip(s.token_ids, s.loss_mask, strict=True) if not m])
        == "[system]be nice<end>\n[user]hi<end>\n[assistant]"
    )
    assert s.spans["greeting"] == [(s.prompt_length, len(s))]


def test_a_conversation_is_one_sequence_that_equals_the_templates_own_rendering():
    answers = iter(["one", "two"])
    p, trajectory = policy(ScriptedEngine(lambda prompt: next(answers)))

    async def chat():
        c = p.conversation([{"role": "user", "content": "a"}])
        await c.generate()
        c.add({"role": "tool", "content": "42"}, {"role": "user", "content": "b"})
        await c.generate()
        return c.messages

    messages = asyncio.run(chat())
    (s,) = trajectory.sequences
    # the default system prompt appears once, the end of the first turn once, and no newline of the template is lost
    assert text(s.token_ids) + "\n" == CharTokenizer().apply_chat_template(messages)
    assert text([t for t, m in zip(s.token_ids, s.loss_mask, strict=True) if m]) == "one<end>two<end>"


def test_a_turn_cut_by_the_limit_still_gets_its_end_of_turn_as_context():
    p, trajectory = policy(ScriptedEngine(lambda prompt: "endless"), max_tokens=3)

    async def chat():
        c = p.conversation([{"role": "user", "content": "a"}])
        first = await c.generate()
        c.add({"role": "user", "content": "b"})
        await c.generate()
        return first

    first = asyncio.run(chat())
    (s,) = trajectory.sequences
    assert first.finish_reason == "length" and first.text == "end"
    assert "[assistant]end<end>\n[user]b<end>" in text(s.token_ids)
    cut = s.prompt_length + 3
    assert s.token_ids[cut] == END and s.loss_mask[cut] == 0  # the policy never chose it


def test_the_n_th_call_has_its_own_seed_and_limits_only_shrink():
    engine = ScriptedEngine(lambda prompt: "x")
    p, _ = policy(engine, seed=100)

    async def calls():
        await p.generate([{"role": "user", "content": "a"}], max_tokens=5)
        await p.generate([{"role": "user", "content": "a"}], max_tokens=5000)

    asyncio.run(calls())
    assert [s.seed for _, s in engine.asked] == [100, 101]
    assert [s.max_tokens for _, s in engine.asked] == [5, 50]


def test_a_prompt_that_fills_the_model_is_a_data_failure():
    p, _ = policy(ScriptedEngine(lambda prompt: "x"), max_model_len=20)
    with pytest.raises(NoRoom, match="leaves no room in max_model_len=20"):
        asyncio.run(p.generate([{"role": "user", "content": "long" * 10}]))


def test_a_call_that_never_returns_times_out():
    engine = ScriptedEngine(lambda prompt: "x", delay_s=60)
    p, _ = policy(engine)
    p._call_timeout_s = 0.05
    with pytest.raises(TimeoutError):
        asyncio.run(p.generate([{"role": "user", "content": "a"}]))


def test_a_template_that_drops_the_assistants_text_cannot_hold_a_conversation():
    class Dropping(CharTokenizer):
        def apply_chat_template(self, messages, **kwargs):
            return super().apply_chat_template([m for m in messages if m["role"] != "assistant"], **kwargs)

    with pytest.raises(ValueError, match="verbatim"):
        ChatRenderer(Dropping()).bridge([{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}])

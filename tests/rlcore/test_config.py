"""Configuration errors: one clear message, before anything is started, naming the field and what would work."""

import copy
import functools

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from recipes.cli import CONF, check_overrides, compose_config
from rlcore.config import Config, check_files, load_config
from rlcore.correction import Correction
from rlcore.errors import ConfigError
from rlcore.kl import KL


@functools.cache
def chosen(groups: tuple[str, ...]) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(groups))


def composed(*overrides: str) -> Config:
    """What recipes.cli composes. Hydra takes a third of a second for the files: each choice of them is composed only once."""
    check_overrides(list(overrides))
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    groups = [o for o in parsed if (CONF / o.key_or_group).is_dir()]
    config = copy.deepcopy(chosen(tuple(o.input_line for o in groups)))
    ConfigLoaderImpl._apply_overrides_to_config([o for o in parsed if o not in groups], config)  # as compose does at its end
    values = OmegaConf.to_container(config, resolve=True)
    values.pop("recipe", None)
    return load_config({**values, "recipe_name": "test"})


def test_composed_is_what_a_recipe_gets():
    values = ["algo.steps=3", "env.args.limits.max_steps=7", "evaluate.expansions=[0,3]", "+deepspeed.a.b=true", "resume=a/b"]
    wanted = compose_config("test", ["recipe=smoke", *values, "model=smollm2"])
    assert composed("recipe=smoke", *values, "model=smollm2") == wanted
    assert composed("recipe=smoke", "model=smollm2") != wanted  # what is kept is not changed


@pytest.mark.parametrize("model", ["smollm2", "tiny", "minicpm4_8b", "qwen3_8b"])
@pytest.mark.parametrize("cluster", ["local", "a100x8"])
def test_every_model_composes_with_every_cluster(model, cluster):
    c = composed(f"model={model}", f"cluster={cluster}", "stage=paper" if "8b" in model else "stage=laptop")
    assert c.model.max_model_len > c.algo.max_tokens


def test_the_papers_preset_is_table_7():
    c = composed("stage=paper", "model=minicpm4_8b", "cluster=a100x8", "deepspeed=zero3", "env=warp_atomic_paper")
    assert (c.sft.optimizer.lr, c.sft.batch_size) == (1.5e-5, 32)
    assert (c.algo.optimizer.lr, c.algo.queries_per_step, c.algo.group_size, c.algo.steps) == (2.5e-6, 8, 8, 200)
    from envs.warp.limits import Limits

    assert Limits.of(c.env.args["limits"]) == Limits()  # whose defaults are the paper's


def test_the_papers_pipeline_preset_is_table_7():
    c = composed("stage=paper", "recipe=pipeline_paper", "model=minicpm4_8b", "cluster=a100x8", "deepspeed=zero3")
    assert (c.algo.optimizer.lr, c.algo.queries_per_step, c.algo.group_size, c.algo.steps) == (1e-6, 8, 4, 50)
    assert c.algo.aggregation == "trajectory_mean"
    from envs.warp.limits import Limits

    assert Limits.of(c.env.args["limits"]) == Limits()


@pytest.mark.parametrize("recipe", ["pipeline", "pipeline_smoke"])
def test_the_pipeline_presets_are_whole_reports_with_their_reward(recipe):
    c = composed(f"recipe={recipe}")
    assert (c.env.target, c.env.reward.target) == ("envs.warp.report.Report", "rewards.report.WarpReport")
    assert c.env.reward.args["corpus"] == f"{c.trajectories.world}/corpus.jsonl"
    from envs.warp.limits import Limits

    assert Limits.of(c.env.args["limits"]).search_tokens == 56


def test_forced_expansions_are_a_list_of_counts():
    assert composed("evaluate.expansions=[0,3]").evaluate.expansions == [0, 3]
    for wrong, message in [("[-1]", "0 or more"), ("[x]", r"evaluate.expansions\[0\] must be int"), ("3", "must be a list")]:
        with pytest.raises(ConfigError, match=message):
            composed(f"evaluate.expansions={wrong}")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dr_grpo", {"std": "none", "aggregation": "constant", "constant_length": 160.0}),
        ("dapo", {"aggregation": "token_mean", "resample_tied": 3, "truncated": "soft"}),
        ("gspo", {"ratio": "sequence", "clip_low": 3e-4}),
        ("cispo", {"surrogate": "cispo", "clip_low": 1.0}),
        ("rloo", {"advantage": "rloo", "kl": KL(0.01, "k1", "reward")}),
        ("reinforce_pp", {"advantage": "reinforce_pp", "kl": KL(0.01, "k1", "reward")}),
        ("icepop", {"old_logprobs": "recomputed", "correction": Correction("icepop", 0.5, 5.0)}),
    ],
)
def test_every_algorithm_is_grpo_with_a_few_values_changed(name, changes):
    algo = composed(f"algo={name}").algo
    assert {key: getattr(algo, key) for key in changes} == changes
    assert algo.optimizer == composed().algo.optimizer and algo.temperature == 1.0


def test_a_reference_that_is_not_there_is_refused_before_anything_starts(tiny):
    with pytest.raises(ConfigError, match="algo.kl.reference='nowhere' holds no model"):
        check_files(composed("model=tiny", "env=vowels", "algo.kl.coef=0.1", "algo.kl.reference=nowhere"))


@pytest.mark.parametrize("recipe", ["demo", "smoke"])
def test_the_two_commands_compose(recipe):
    assert composed(f"recipe={recipe}").env.name == "warp_atomic"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lrr=1", "unknown key 'lrr'; did you mean algo.optimizer.lr"),
        ("+lrr=1", "unknown key 'lrr'; did you mean algo.optimizer.lr"),
        ("++algo.group_sise=4", "did you mean algo.group_size"),
        ("algo.optimizer.lrr=1", "did you mean algo.optimizer.lr"),
        ("algo.group_size=1", "algo.group_size=1 must be at least 2"),
        ("algo.steps=many", "algo.steps must be int, got 'many'"),
        ("algo.steps=2.5", "algo.steps must be int, got 2.5"),
        ("algo.temperature=0", "algo.temperature=0.0 must be above 0"),
        ("algo.temperature=nan", "algo.temperature must be finite"),
        ("algo.max_staleness=-1", "algo.max_staleness=-1"),
        ("algo.groups_in_flight=5", r"algo.groups_in_flight=5 must lie between .*=4 and .*max_staleness \+ 1.* = 4"),
        ("algo.aggregation=mean", "token_mean, trajectory_mean, sequence_mean, constant"),
        ("algo.aggregation=constant", "algo.constant_length"),
        ("algo.std=max", "sample, population or none"),
        ("+algo.top_p=0.8", "unknown key 'algo.top_p'"),
        ("algo.optimizer.schedule=step", "constant, linear or cosine"),
        ("algo.optimizer.lr=0", "algo.optimizer.lr=0.0 must be above 0"),
        ("algo.max_tokens=4096", "no room for a prompt in model.max_model_len=2048"),
        ("wandb.mode=offlin", "online, offline, disabled"),
        ("cluster.learner_ranks=3", r"algo.queries_per_step=3 or 6 would work, or cluster.learner_ranks in \{1, 2, 4\}"),
        ("+deepspeed.gradient_accumulation_steps=4", "deepspeed.gradient_accumulation_steps is the framework's own"),
        ("cluster.trajectory_timeout_s=1000", "cluster.step_timeout_s=1800 is shorter than a retried rollout"),
        ("seed=null", "seed must be int, got None"),
        ("trajectories.train.search=-2", "trajectories.train.search=-2 must be 0 or more, or -1 for all"),
        ("trajectories.teacher.kind=human", "must be one of scripted, engine, openai"),
        ("trajectories.teacher.kind=openai", "trajectories.teacher.url=None must be an address such as"),
        ("trajectories.teacher.top_p=0", "trajectories.teacher.top_p=0.0 must be above 0 and at most 1"),
        ("trajectories.teacher.attempts=0", "trajectories.teacher.attempts=0 must be at least 1"),
    ],
)
def test_bad_values_name_the_field_and_what_works(override, message):
    with pytest.raises(ConfigError, match=message):
        composed(override)


def test_free_mappings_take_any_key():
    c = composed("+deepspeed.zero_optimization.overlap_comm=true", "env.args.limits.max_steps=7")
    assert c.deepspeed["zero_optimization"]["overlap_comm"] is True and c.env.args["limits"]["max_steps"] == 7


def test_small_floats_stay_floats():
    assert composed("algo.optimizer.lr=1e-6").algo.optimizer.lr == 1e-6


def test_a_missing_model_says_how_to_make_it():
    with pytest.raises(ConfigError, match=r"model.path='nowhere' holds no model; build it with `.*tools.build_models"):
        check_files(composed("model.path=nowhere"))


def test_a_recorded_run_that_is_not_there_is_refused_before_anything_starts(tiny, tmp_path):
    with pytest.raises(ConfigError, match="replay='nowhere.jsonl' is no file"):
        check_files(composed("model=tiny", "env=vowels", "replay=nowhere.jsonl"))
    (tmp_path / "t.jsonl").write_text("")
    check_files(composed("model=tiny", "env=vowels", f"replay={tmp_path}/t.jsonl"))


def test_more_trained_layers_than_the_model_has_are_refused(tiny):
    with pytest.raises(ConfigError, match="model.train_layers=5 must be between 1 and 4"):
        check_files(composed("model=tiny", "model.train_layers=5"))


def test_a_missing_index_says_how_to_make_it(tmp_path, tiny):
    with pytest.raises(ConfigError, match="tools.build_world"):
        check_files(composed("model=tiny", f"trajectories.world={tmp_path}/none"))


def test_an_index_of_the_wrong_dimension_is_refused_before_it_is_read(tiny):
    with pytest.raises(ConfigError, match="384.*768|768.*384"):
        check_files(composed("model=tiny", "trajectories.world=data/world-small", "env.preflight.args.dimension=768"))


def test_an_unknown_environment_target_is_refused():
    with pytest.raises(ConfigError, match="no_such_module"):
        check_files(composed("model=tiny", "env=vowels", "env.target=no_such_module.Env"))


def test_text_that_hydra_cannot_read_says_how_to_quote_it():
    with pytest.raises(ConfigError, match="inner quotes"):
        check_overrides(["run_dir=ckpt/epoch=9-step=8"])

"""What a GRPOConfig and a recipe cannot have together is refused in words that say what to change."""

from pathlib import Path
from typing import Any

import pytest
from trl import GRPOConfig

from in_trl.small_run import small_trainer
from tokencredit.config.resolve import read_recipe
from tokencredit.errors import ConfigError
from tokencredit.integrations.trl.config import DECIDED_BY_THE_RECIPE, NOT_HONOURED, Settings, refuse_separate_processes, settle
from tokencredit.pipeline.distributed import refuse_ranks


def _settled(recipe: Any = "dapo", **settings: Any) -> Settings:
    batch = {"per_device_train_batch_size": 4, "steps_per_generation": 4, "num_generations": 4}
    config = GRPOConfig(output_dir="unused", use_cpu=True, bf16=False, report_to="none", **{**batch, **settings})
    return settle(config, read_recipe(recipe))


WHOLE = {"recipe": "delta", "batching": {"type": "query-preserved"}}
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "loss_type": ("dapo", {"loss_type": "grpo"}, "loss_type is 'grpo', but the recipe decides it: .* set objective.type"),
    "epsilon": ("dapo", {"epsilon": 0.3}, "epsilon is 0.3, but the recipe decides it: .* set objective.clip_low"),
    "epsilon_high": ("dapo", {"epsilon_high": 0.28}, "epsilon_high is 0.28, .* set objective.clip_high"),
    "sequence ratios": (
        "gspo",
        {"importance_sampling_level": "sequence"},
        "importance_sampling_level is 'sequence', .* objective.type 'gspo'",
    ),
    "scale_rewards": ("dapo", {"scale_rewards": "none"}, "scale_rewards is 'none', .* set advantage.type"),
    "top_entropy_quantile": ("dapo", {"top_entropy_quantile": 0.2}, "top_entropy_quantile is 0.2, .* credit.type 'forking'"),
    "entropy bonus": ("dapo", {"entropy_coef": 0.1}, "entropy_coef is 0.1, but no recipe has such a term"),
    "beta": ({"recipe": "grpo", "kl": {"beta": 0.1}}, {"beta": 0.2}, "beta is 0.2 but the recipe's kl.beta is 0.1; leave one of them at 0"),
    "filter_groups": ("dapo-dynamic", {}, "filter_groups samples replacements .* set filter_groups to false"),
    "ibpo": ("ibpo", {}, "asks the policy to revise failed responses, which TRL is not asked to do; train it with the local engine"),
    "vineppo": ("vineppo", {}, "continues responses from the middle, which TRL is not asked to do"),
    "remax": ("remax", {}, "compares with the policy's greedy response, which TRL is not asked to do"),
    "prompts": (
        WHOLE,
        {"num_generations": 8},
        "holds 2 prompts for 4 optimizer steps, but batching 'query-preserved' deals whole prompts; make the prompts .* a multiple",
    ),
    "accumulation": ("dapo", {"gradient_accumulation_steps": 3}, "must be a multiple of gradient_accumulation_steps"),
    "correction": ({"recipe": "dapo", "correction": {"kind": "tis"}}, {}, "without use_vllm the trainer is the sampler; use 'none'"),
    "stratified": (
        {"recipe": "grpo", "batching": {"type": "stratified"}},
        {"steps_per_generation": 8, "num_generations": 4},
        "a response of every prompt into each of 8 optimizer steps; raise num_generations",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    recipe, settings, words = REFUSED[what]
    with pytest.raises(ConfigError, match=words):
        _settled(recipe, **settings)


def test_processes_that_would_train_alone_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="2 processes were started but accelerate joins 1; without a GPU set use_cpu=True"):
        refuse_separate_processes(1)
    refuse_separate_processes(2)


def test_shards_are_refused_on_several_ranks() -> None:
    by_shard = read_recipe({"recipe": "delta", "credit": {"scope": "shard"}})
    refuse_ranks(by_shard, 1)
    with pytest.raises(ConfigError, match=r"there are 2 ranks, but credit\.scope 'shard' .*; use 'batch' or 'group'"):
        refuse_ranks(by_shard, 2)


def test_refused_where_a_trainer_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="loss_type is 'grpo'"):
        small_trainer(tmp_path, "dapo", loss_type="grpo")
    with pytest.raises(ConfigError, match="recipe 'dappo' is not known; did you mean 'dapo'"):
        small_trainer(tmp_path, "dappo")
    with pytest.raises(ConfigError, match="'sampling' is no part of a recipe"):
        small_trainer(tmp_path, {"recipe": "dapo", "sampling": {"prompts": 4}})


def test_every_named_setting_is_one_of_trl() -> None:
    """A setting that TRL renamed would be overruled in silence."""
    known = set(GRPOConfig.__dataclass_fields__)
    assert set(DECIDED_BY_THE_RECIPE) <= known
    assert set(NOT_HONOURED) <= known


def test_beta_of_either_side_reaches_the_other() -> None:
    assert _settled("grpo", beta=0.1).recipe.kl.beta == 0.1
    with_kl = {"recipe": "grpo", "kl": {"beta": 0.1, "estimator": "k2"}}
    for beta in (0.0, 0.1):
        settled = _settled(with_kl, beta=beta)
        assert settled.args.beta == 0.1
        assert settled.recipe.kl.estimator == "k2"


def test_the_callers_config_is_left_alone() -> None:
    config = GRPOConfig(output_dir="unused", use_cpu=True, bf16=False, report_to="none", num_generations=8)
    settle(config, read_recipe({"recipe": "grpo", "kl": {"beta": 0.1}}))
    assert config.beta == 0.0

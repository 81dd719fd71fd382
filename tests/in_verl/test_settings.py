"""What verl's configuration and a recipe cannot have together is refused in words that say what to change."""

import re
from copy import deepcopy
from pathlib import Path

import pytest
from omegaconf import DictConfig
from verl.trainer.ppo.utils import need_critic, need_reference_policy

from in_verl.stored_run import hydra_config
from surface.methods import refused_by, runs_by
from tokencredit.config.recipes import RECIPES
from tokencredit.errors import ConfigError
from tokencredit.integrations.support import unsupported_by_trainer_reason
from tokencredit.integrations.verl.settings import DECIDED_BY_THE_RECIPE, Settings, settle
from tokencredit.integrations.verl.trainer import CreditTrainer
from verl_cpu.command import Shape

SHAPE = Shape(prompts=8, group_size=4, mini_batch_prompts=2)
MODE = ("algorithm.adv_estimator=tokencredit", "trainer.v1.trainer_mode=tokencredit")
ACTOR = "actor_rollout_ref.actor"
BY_THE_TRAINER = runs_by("verl, trainer mode")
ONLY_LOCALLY = refused_by("verl, trainer mode")
DECIDED = {
    f"{ACTOR}.policy_loss.loss_mode=gspo": "leave it at 'vanilla' and set objective.type",
    f"{ACTOR}.loss_agg_mode=seq-mean-token-mean": "leave it at 'token-mean' and set objective.aggregation",
    f"{ACTOR}.loss_scale_factor=48": "leave it at None and set objective.constant_length",
    f"{ACTOR}.clip_ratio=0.1": "leave it at 0.2 and set objective.clip_low and objective.clip_high",
    f"{ACTOR}.clip_ratio_low=0.1": "leave it at 0.2 and set objective.clip_low",
    f"{ACTOR}.clip_ratio_high=0.28": "leave it at 0.2 and set objective.clip_high",
    f"{ACTOR}.clip_ratio_c=5.0": "leave it at 3.0 and set objective.dual_clip",
    f"{ACTOR}.use_kl_loss=true": "leave it at False and set kl.beta",
    "algorithm.use_kl_in_reward=true": "leave it at False and set kl.beta and kl.place",
    "algorithm.norm_adv_by_std_in_grpo=false": "leave it at True and set advantage.type",
    f"{ACTOR}.entropy_coeff=0.01": "no recipe has an entropy bonus",
    f"{ACTOR}.shuffle=true": "leave it at False and set batching.type",
}
CORRECTION = "is not read in this mode; use +tokencredit.correction.kind=tis or mis"
REFUSED: dict[str, tuple[str, list[str], str]] = {
    "another estimator": (
        "dapo",
        ["algorithm.adv_estimator=grpo"],
        "algorithm.adv_estimator is 'grpo'; the trainer mode needs 'tokencredit'",
    ),
    "a critic": ("dapo", ["critic.enable=true"], "critic.enable is true, but recipes are critic-free"),
    "distillation": ("dapo", ["distillation.enabled=true"], "distillation.enabled is true, but the loss is the recipe's alone"),
    "verl's weights": ("dapo", ["algorithm.rollout_correction.rollout_is=token"], f"algorithm.rollout_correction.rollout_is {CORRECTION}"),
    "verl's rejection": (
        "dapo",
        ["algorithm.rollout_correction.rollout_rs=token_k1"],
        f"algorithm.rollout_correction.rollout_rs {CORRECTION}",
    ),
    "verl's bypass": ("dapo", ["algorithm.rollout_correction.bypass_mode=true"], f"algorithm.rollout_correction.bypass_mode {CORRECTION}"),
    "filter_groups of the recipe": ("dapo-dynamic", [], "set algorithm.filter_groups.enable=true and its metric"),
    "filter_groups of verl": ("dapo", ["algorithm.filter_groups.enable=true"], "set +tokencredit.filter_groups=true"),
    "correction without log-probs": (
        "dapo",
        ["+tokencredit.correction.kind=tis", "actor_rollout_ref.rollout.calculate_log_probs=false"],
        "correction.kind is 'tis': set actor_rollout_ref.rollout.calculate_log_probs=true",
    ),
    "uneven plan": ("cancellation", ["+tokencredit.batching.keep_queries=false"], "batching.keep_queries=false deals responses unevenly"),
    "hidden states in megatron": (
        "delta",
        [f"{ACTOR}.strategy=megatron"],
        f"{ACTOR}.strategy is 'megatron', but the recipe needs our engine",
    ),
    "a statistic in megatron": ("dfpo", [f"{ACTOR}.strategy=megatron"], f"{ACTOR}.strategy is 'megatron', but the recipe needs our engine"),
    "fused kernels": ("delta", ["actor_rollout_ref.model.use_fused_kernels=true"], "model.use_fused_kernels hides the LM head's input"),
    "sequence parallel": ("delta", [f"{ACTOR}.ulysses_sequence_parallel_size=2"], f"{ACTOR}.ulysses_sequence_parallel_size above 1"),
    "a remembered temperature": (
        "delta",
        ["+tokencredit.credit.temperature=first-batch"],
        "credit.temperature 'first-batch'.*verl does not save what they remember",
    ),
    "shards": ("delta", ["+tokencredit.credit.scope=shard", "+tokencredit.credit.shards=2"], "credit.scope 'shard' .* use 'batch'"),
    "batch and mini-batch": (
        "dapo",
        [f"{ACTOR}.ppo_mini_batch_size=3"],
        f"data.train_batch_size is 8 but {ACTOR}.ppo_mini_batch_size is 3; .* the first must be a multiple of the second",
    ),
    "an unknown recipe": ("dappo", [], "recipe 'dappo' is not known; did you mean 'dapo'"),
    "an unknown stage": ("dapo", ["+tokencredit.objektive.type=gspo"], "'objektive' is no part of a recipe"),
    "the engine's part": ("dapo", ["+tokencredit.sampling.temperature=0.5"], "'sampling' is no part of a recipe; set it in the engine"),
    "a wrong value": ("dapo", ["+tokencredit.objective.clip_high=wide"], "objective.clip_high"),
    "a seed that is no number": ("dapo", ["+tokencredit.seed=first"], "tokencredit.seed is 'first'; give a whole number"),
}


def settled(folder: Path, *words: str) -> Settings:
    return settle(hydra_config(folder, SHAPE, *MODE, *words))


def test_every_recipe_is_run_by_the_trainer_or_has_a_reason_not_to_be() -> None:
    assert {*BY_THE_TRAINER, *ONLY_LOCALLY} == set(RECIPES)
    assert [name for name in BY_THE_TRAINER if unsupported_by_trainer_reason(RECIPES[name].recipe)] == []


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> DictConfig:
    return hydra_config(tmp_path_factory.mktemp("plain"), SHAPE, *MODE, "+tokencredit.recipe=delta")


@pytest.mark.parametrize("name", BY_THE_TRAINER)
def test_accepted(name: str, plain: DictConfig) -> None:
    config = deepcopy(plain)
    config.tokencredit.recipe = name
    config.algorithm.filter_groups.enable = name == "dapo-dynamic"
    assert settle(config) == Settings(RECIPES[name].recipe, seed=0, max_new_tokens=48, temperature=1.0, mini_batch_rows=8)


@pytest.mark.parametrize("name", ONLY_LOCALLY)
def test_recipes_that_sample_are_refused(name: str, plain: DictConfig) -> None:
    config = deepcopy(plain)
    config.tokencredit.recipe = name
    with pytest.raises(ConfigError, match=re.escape(ONLY_LOCALLY[name])):
        settle(config)


def test_every_setting_that_a_recipe_decides_has_a_case() -> None:
    assert {word.split("=")[0] for word in DECIDED} == set(DECIDED_BY_THE_RECIPE)


@pytest.mark.parametrize("word", DECIDED)
def test_what_the_recipe_decides_is_refused(word: str, tmp_path: Path) -> None:
    """Hydra itself refuses a name that verl does not have, and `test_accepted` a default that is not verl's."""
    with pytest.raises(ConfigError) as refusal:
        settled(tmp_path, "+tokencredit.recipe=delta", word)
    assert str(refusal.value).startswith(f"{word.split('=')[0]} is ")
    assert "but the recipe decides it" in str(refusal.value)
    assert DECIDED[word] in str(refusal.value)


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str, tmp_path: Path) -> None:
    recipe, words, why = REFUSED[what]
    with pytest.raises(ConfigError, match=why.replace("+", r"\+")):
        settled(tmp_path, f"+tokencredit.recipe={recipe}", *words)


def test_a_recipe_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs a recipe: \+tokencredit\.recipe=delta"):
        settled(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"needs a recipe: \+tokencredit\.recipe=delta"):
        settled(tmp_path / "seed", "+tokencredit.seed=3")
    with pytest.raises(ConfigError, match=r"tokencredit is 'delta'; it has fields, as in \+tokencredit\.recipe=delta"):
        settled(tmp_path / "bare", "+tokencredit=delta")


def test_the_trainer_refuses_before_it_starts_anything(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="clip_ratio_high"):
        CreditTrainer(hydra_config(tmp_path, SHAPE, *MODE, "+tokencredit.recipe=dapo", f"{ACTOR}.clip_ratio_high=0.3"))


def test_strategies_without_our_engine_run_what_does_not_need_it(tmp_path: Path) -> None:
    assert settled(tmp_path, "+tokencredit.recipe=dapo", f"{ACTOR}.strategy=megatron").recipe == RECIPES["dapo"].recipe


def test_kl_switches_the_reference_on(tmp_path: Path) -> None:
    for number, (words, wanted) in enumerate({(): False, ("+tokencredit.kl.beta=0.02",): True}.items()):
        config = hydra_config(tmp_path / str(number), SHAPE, *MODE, "+tokencredit.recipe=grpo", *words)
        assert not need_reference_policy(config)
        settle(config)
        assert need_reference_policy(config) is wanted
        with pytest.warns(UserWarning, match="Disabled critic"):
            assert not need_critic(config)


def test_differences_reach_the_recipe(tmp_path: Path) -> None:
    found = settled(
        tmp_path,
        "+tokencredit.recipe=delta",
        "+tokencredit.seed=11",
        "+tokencredit.objective.clip_high=0.4",
        "+tokencredit.objective.dual_clip=3",
        "+tokencredit.credit.scope=group",
        "+tokencredit.batching.type=query-preserved",
        "+tokencredit.shape.type=none",
        "+tokencredit.kl.beta=1e-2",
        "+tokencredit.kl.place=reward",
        "actor_rollout_ref.rollout.temperature=0.7",
    )
    recipe = found.recipe
    assert (found.seed, found.temperature) == (11, 0.7)
    assert (recipe.objective.clip_high, recipe.objective.dual_clip) == (0.4, 3.0)
    assert (recipe.credit.type, recipe.credit.scope) == ("delta", "group")
    assert (recipe.batching.type, recipe.shape.type, recipe.kl.beta, recipe.kl.place) == ("query-preserved", "none", 0.01, "reward")


@pytest.mark.parametrize(("word", "wanted"), [("true", True), ("false", False)])
def test_booleans_reach_the_recipe(word: str, wanted: bool, tmp_path: Path) -> None:
    extra = ["algorithm.filter_groups.enable=true"] if wanted else []
    assert settled(tmp_path, "+tokencredit.recipe=dapo", f"+tokencredit.filter_groups={word}", *extra).recipe.filter_groups is wanted


@pytest.mark.parametrize("word", ["null", "none"])
def test_nothing_can_be_asked_for(word: str, tmp_path: Path) -> None:
    assert settled(tmp_path, "+tokencredit.recipe=grpo", f"+tokencredit.objective.dual_clip={word}").recipe.objective.dual_clip is None

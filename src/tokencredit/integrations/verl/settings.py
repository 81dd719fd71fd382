"""Settings of verl that go with a recipe in the trainer mode: a setting that the recipe decides is refused, not overruled."""

from collections.abc import Mapping
from typing import NamedTuple

from omegaconf import DictConfig, OmegaConf, open_dict

from tokencredit.config import Recipe
from tokencredit.config.resolve import read_recipe
from tokencredit.errors import ConfigError
from tokencredit.integrations.support import MODE, unsupported_by_trainer_reason
from tokencredit.pipeline.build import build_objective, needed_evidence

ACTOR = "actor_rollout_ref.actor"
DECIDED_BY_THE_RECIPE = {
    f"{ACTOR}.policy_loss.loss_mode": ("vanilla", "objective.type"),
    f"{ACTOR}.loss_agg_mode": ("token-mean", "objective.aggregation"),
    f"{ACTOR}.loss_scale_factor": (None, "objective.constant_length"),
    f"{ACTOR}.clip_ratio": (0.2, "objective.clip_low and objective.clip_high"),
    f"{ACTOR}.clip_ratio_low": (0.2, "objective.clip_low"),
    f"{ACTOR}.clip_ratio_high": (0.2, "objective.clip_high"),
    f"{ACTOR}.clip_ratio_c": (3.0, "objective.dual_clip"),
    f"{ACTOR}.use_kl_loss": (False, "kl.beta"),
    "algorithm.use_kl_in_reward": (False, "kl.beta and kl.place"),
    "algorithm.norm_adv_by_std_in_grpo": (True, "advantage.type"),
    f"{ACTOR}.entropy_coeff": (0, "nothing: no recipe has an entropy bonus"),
    f"{ACTOR}.shuffle": (False, "batching.type"),
}
OUR_ENGINE = ("fsdp", "fsdp2")
"""Strategies for which hidden states and statistics of a whole optimizer step can be had."""


class Settings(NamedTuple):
    recipe: Recipe
    seed: int
    max_new_tokens: int
    temperature: float
    mini_batch_rows: int


def settle(config: DictConfig) -> Settings:
    """The recipe of `+tokencredit.recipe=...`; changes the configuration where verl must load a reference for it."""
    section = config.get("tokencredit") or {}
    given = OmegaConf.to_container(section, resolve=True) if isinstance(section, DictConfig) else section
    if not isinstance(given, Mapping):
        raise ConfigError(f"tokencredit is {given!r}; it has fields, as in +tokencredit.recipe=delta")
    given = {str(key): value for key, value in given.items()}
    seed = given.pop("seed", 0)
    if not isinstance(seed, int):
        raise ConfigError(f"tokencredit.seed is {seed!r}; give a whole number")
    if "recipe" not in given:
        raise ConfigError("the trainer mode 'tokencredit' needs a recipe: +tokencredit.recipe=delta")
    recipe = read_recipe(given)
    _refuse_recipe(recipe, config)
    _refuse_config(config)
    rollout = config.actor_rollout_ref.rollout
    mini_batch = config.actor_rollout_ref.actor.ppo_mini_batch_size
    if config.data.train_batch_size % mini_batch:
        raise ConfigError(
            f"data.train_batch_size is {config.data.train_batch_size} but {ACTOR}.ppo_mini_batch_size is {mini_batch}; "
            "a plan deals whole mini-batches, so the first must be a multiple of the second"
        )
    if recipe.kl.beta > 0:
        with open_dict(config):
            config.actor_rollout_ref.actor.use_kl_loss = True
    return Settings(recipe, seed, config.data.max_response_length, float(rollout.temperature), mini_batch * rollout.n)


def _refuse_config(config: DictConfig) -> None:
    if config.algorithm.adv_estimator != MODE:
        raise ConfigError(f"algorithm.adv_estimator is {config.algorithm.adv_estimator!r}; the trainer mode needs 'tokencredit'")
    if config.critic.enable:
        raise ConfigError("critic.enable is true, but recipes are critic-free; leave it unset")
    if OmegaConf.select(config, "distillation.enabled"):
        raise ConfigError("distillation.enabled is true, but the loss is the recipe's alone; set it to false")
    for path, (default, place) in DECIDED_BY_THE_RECIPE.items():
        found = OmegaConf.select(config, path, default=default)
        if found is not None and found != default:
            raise ConfigError(f"{path} is {found!r}, but the recipe decides it: leave it at {default!r} and set {place}")
    own = config.algorithm.get("rollout_correction") or {}
    for name in ("rollout_is", "rollout_rs", "bypass_mode"):
        if own.get(name):
            raise ConfigError(f"algorithm.rollout_correction.{name} is not read in this mode; use +tokencredit.correction.kind=tis or mis")


def _refuse_recipe(recipe: Recipe, config: DictConfig) -> None:
    if (why := unsupported_by_trainer_reason(recipe)) is not None:
        raise ConfigError(why)
    model, actor = config.actor_rollout_ref.model, config.actor_rollout_ref.actor
    filters = bool(OmegaConf.select(config, "algorithm.filter_groups.enable"))
    if recipe.filter_groups and not filters:
        raise ConfigError("filter_groups is done by verl's sampler: set algorithm.filter_groups.enable=true and its metric")
    if filters and not recipe.filter_groups:
        raise ConfigError("algorithm.filter_groups.enable is true, but the recipe keeps all groups: set +tokencredit.filter_groups=true")
    if recipe.correction.enabled and not config.actor_rollout_ref.rollout.calculate_log_probs:
        raise ConfigError(f"correction.kind is {recipe.correction.kind!r}: set actor_rollout_ref.rollout.calculate_log_probs=true")
    by_engine = "hidden" in needed_evidence(recipe) or build_objective(recipe, max_length=1).objective.statistic is not None
    if by_engine and actor.strategy not in OUR_ENGINE:
        raise ConfigError(f"{ACTOR}.strategy is {actor.strategy!r}, but the recipe needs our engine, which is there for fsdp and fsdp2")
    if "hidden" in needed_evidence(recipe):
        if model.get("use_fused_kernels"):
            raise ConfigError("model.use_fused_kernels hides the LM head's input, which the recipe's credit compares; set it to false")
        if actor.get("ulysses_sequence_parallel_size", 1) > 1:
            raise ConfigError(f"{ACTOR}.ulysses_sequence_parallel_size above 1 cuts hidden states apart; set it to 1")

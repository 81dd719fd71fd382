"""What a GRPOConfig may say beside a recipe: settings that the recipe decides are refused, not overruled."""

import copy
import os
from dataclasses import fields
from typing import Any, NamedTuple

from trl import GRPOConfig

from tokencredit.config import Kl, Recipe, keeps_queries
from tokencredit.errors import ConfigError
from tokencredit.integrations.limits import refuse_recipe
from tokencredit.integrations.recipe_source import refuse_ranks

DECIDED_BY_THE_RECIPE = {
    "loss_type": "objective.type and objective.aggregation",
    "epsilon": "objective.clip_low",
    "epsilon_high": "objective.clip_high",
    "delta": "objective.dual_clip",
    "importance_sampling_level": "objective.type 'gspo'",
    "scale_rewards": "advantage.type",
    "multi_objective_aggregation": "advantage.type",
    "top_entropy_quantile": "credit.type 'forking' and credit.keep",
    "use_bias_correction_kl": "kl.estimator",
    "sapo_temperature_pos": "objective.type 'sapo'",
    "sapo_temperature_neg": "objective.type 'sapo'",
}
NOT_HONOURED = (
    "off_policy_mask_threshold",
    "entropy_coef",
    "use_adaptive_entropy",
    "vespo_k_pos",
    "vespo_k_neg",
    "vespo_lambda_pos",
    "vespo_lambda_neg",
)
"""Terms that TRL's own loss has and no recipe does."""


class Settings(NamedTuple):
    args: GRPOConfig
    recipe: Recipe


def settle(args: GRPOConfig, recipe: Recipe) -> Settings:
    """Both, agreeing on the KL term; refused where they cannot be honoured together."""
    _refuse_recipe(recipe, args)
    defaults = {field.name: field.default for field in fields(GRPOConfig)}
    for name, place in DECIDED_BY_THE_RECIPE.items():
        if name in defaults and getattr(args, name) != defaults[name]:
            raise ConfigError(f"{name} is {getattr(args, name)!r}, but the recipe decides it: leave it at its default and set {place}")
    for name in NOT_HONOURED:
        if name in defaults and getattr(args, name) != defaults[name]:
            raise ConfigError(f"{name} is {getattr(args, name)!r}, but no recipe has such a term; leave it at its default")
    _refuse_batch(args, recipe)
    return _settle_kl(args, recipe)


def refuse_lone_processes(processes: int) -> None:
    """Where accelerate finds no GPU and was not told to do without, each process would train alone and nobody would notice."""
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != processes:
        raise ConfigError(
            f"{started} processes were started but accelerate joins {processes}; without a GPU set use_cpu=True in GRPOConfig"
        )


def optimizer_steps(args: GRPOConfig) -> int:
    """Per batch of generations, and per pass over it."""
    return _whole(args.steps_per_generation) // args.gradient_accumulation_steps


def _refuse_recipe(recipe: Recipe, args: GRPOConfig) -> None:
    refuse_recipe(recipe)
    refuse_ranks(recipe, args.world_size)
    if recipe.correction.kind != "none":
        if not args.use_vllm:
            raise ConfigError(f"correction.kind is {recipe.correction.kind!r}, but without use_vllm the trainer is the sampler; use 'none'")
        if args.vllm_importance_sampling_correction:
            raise ConfigError("correction.kind and vllm_importance_sampling_correction would both weigh tokens; turn one of them off")


def _refuse_batch(args: GRPOConfig, recipe: Recipe) -> None:
    slices, accumulated = _whole(args.steps_per_generation), args.gradient_accumulation_steps
    if slices % accumulated:
        raise ConfigError(
            f"gradient_accumulation_steps is {accumulated} but steps_per_generation is {slices}; a plan covers one batch of generations, "
            "so steps_per_generation must be a multiple of gradient_accumulation_steps"
        )
    steps, prompts = slices // accumulated, _whole(args.generation_batch_size) // _whole(args.num_generations)
    if keeps_queries(recipe.batching) and prompts % steps:
        raise ConfigError(
            f"a batch of generations holds {prompts} prompts for {steps} optimizer steps, but batching {recipe.batching.type!r} deals "
            "whole prompts; make the prompts (generation_batch_size / num_generations) a multiple of the optimizer steps"
        )
    if recipe.batching.type == "stratified" and steps > _whole(args.num_generations):
        raise ConfigError(
            f"batching 'stratified' puts a response of every prompt into each of {steps} optimizer steps; raise num_generations"
        )


def _settle_kl(args: GRPOConfig, recipe: Recipe) -> Settings:
    """TRL loads the reference where beta is above 0, so both must say the same."""
    if recipe.kl.beta == 0 and args.beta > 0:
        recipe = recipe.model_copy(update={"kl": Kl(beta=args.beta)})
    if args.beta not in (0.0, recipe.kl.beta):
        raise ConfigError(f"beta is {args.beta} but the recipe's kl.beta is {recipe.kl.beta}; leave one of them at 0")
    args = copy.copy(args)
    args.beta = recipe.kl.beta
    return Settings(args, recipe)


def _whole(value: Any) -> int:
    """TRL fills these in when a GRPOConfig is made; they are never None afterwards."""
    assert value is not None
    return int(value)

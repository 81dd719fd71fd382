"""Recipes that need rewards and log-probs only, under names in verl's own tables: `tokencredit-NAME` as estimator and as loss.

An estimator sees the whole batch and a loss one micro-batch; what neither can honour needs the trainer mode.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, register_adv_est, register_policy_loss

from tokencredit.config import Recipe
from tokencredit.config.recipes import RECIPES
from tokencredit.errors import ConfigError
from tokencredit.integrations.hooks.responses import (
    compare_responses,
    credit_responses,
    finite_inside,
    group_numbers,
    objective_inputs,
    silenced,
)
from tokencredit.integrations.support import AGGREGATIONS, MODE, PREFIX, unsupported_by_functions_reason
from tokencredit.pipeline.credit import CreditPipeline


def register() -> list[str]:
    """The recipes that were registered."""
    named = [name for name, entry in RECIPES.items() if unsupported_by_functions_reason(entry.recipe) is None]
    for name in named:
        register_adv_est(PREFIX + name)(estimator(RECIPES[name].recipe))
        register_policy_loss(PREFIX + name)(policy_loss(name, RECIPES[name].recipe))
    register_adv_est(MODE)(_needs_the_trainer)
    return named


def _needs_the_trainer(*_: Any, **__: Any) -> Any:
    raise ConfigError("algorithm.adv_estimator=tokencredit is computed by our trainer: set trainer.v1.trainer_mode=tokencredit too")


def estimator(recipe: Recipe) -> Any:
    pipeline = CreditPipeline(recipe, max_new_tokens=0)

    def estimate(
        token_level_rewards: Tensor, response_mask: Tensor, index: Sequence[Any] | None = None, config: Any = None, **_: Any
    ) -> tuple[Tensor, Tensor]:
        if index is None:
            raise ConfigError("verl gave no uid for the responses; groups are identified by it")
        score, length = token_level_rewards.sum(-1), response_mask.bool().sum(-1)
        # Rows that fill up a batch have no token in the loss and take no part in a comparison.
        real = (length > 0).nonzero()[:, 0]
        group = group_numbers(str(name) for name in index).to(score.device)
        advantage = torch.zeros_like(score)
        advantage[real] = compare_responses(pipeline, score[real], length[real], group[real])
        spread = advantage[:, None] * response_mask.to(advantage.dtype)
        return spread, spread.clone()

    return estimate


def policy_loss(name: str, recipe: Recipe) -> Any:
    def loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, dict[str, float]]:
        pipeline = _pipeline(name, recipe, loss_agg_mode, config)
        built = pipeline.objective
        mask = response_mask.bool()
        logp, old_logp = finite_inside("log_prob", log_prob, mask), finite_inside("old_log_prob", old_log_prob, mask)
        credit = credit_responses(pipeline, advantages.to(logp.dtype), mask, old_logp)
        inputs = objective_inputs(logp, old_logp, mask, credit=credit)
        token_loss = built.objective.token_loss(inputs, None)
        token_loss = token_loss if rollout_is_weights is None else token_loss * rollout_is_weights
        aggregated = agg_loss(loss_mat=token_loss, loss_mask=mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info)
        return aggregated, {"actor/silenced_share": float(silenced(built.objective, inputs).share)}

    return loss


def _pipeline(name: str, recipe: Recipe, mode: str, config: Any) -> CreditPipeline:
    """Verl divides by the counts of a mini-batch, which are those of a plan; its aggregation must be set to the recipe's."""
    wanted = AGGREGATIONS[recipe.objective.aggregation]
    if mode != wanted:
        raise ConfigError(f"actor_rollout_ref.actor.loss_agg_mode is {mode!r} but recipe {name!r} needs {wanted!r}; set it so")
    scale = config.global_batch_info.get("loss_scale_factor")
    if recipe.objective.aggregation == "constant" and not scale:
        raise ConfigError(
            f"recipe {name!r} divides by a constant length; set actor_rollout_ref.actor.loss_scale_factor to data.max_response_length"
        )
    return CreditPipeline(recipe, max_new_tokens=int(scale or 1))

"""prime-rl: a custom loss, called with one sequence at a time. Advantages are assigned by its own algorithm before that."""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from torch import Tensor

from tokencredit.config import Recipe
from tokencredit.config.resolve import RecipeSource, read_recipe
from tokencredit.errors import ConfigError
from tokencredit.integrations.hooks.responses import credit_responses, finite_inside, objective_inputs, silenced
from tokencredit.integrations.support import ELSEWHERE, EngineHooks, check_recipe
from tokencredit.masked import masked_sum
from tokencredit.pipeline.credit import CreditPipeline

PRIME_RL = EngineHooks(
    "prime-rl",
    whole_groups=False,
    filter_groups="let it drop responses without advantage, as it does by default",
    kl=f"leave it out, or {ELSEWHERE}",
)
OWN_ADVANTAGES = {"dr-grpo": "algo.type 'grpo'", "opo": "algo.type 'grpo' with length_weighted_baseline"}
"""Advantages that prime-rl's own algorithms assign, and which does."""


class LossOutputs(NamedTuple):
    """What prime-rl reads of a loss, by these names."""

    loss: Tensor
    metrics: dict[str, Tensor]


def prime_rl_loss(recipe: RecipeSource) -> Callable[[Any], LossOutputs]:
    """A loss for one sequence: token credit and objective of the recipe, summed; prime-rl divides by the tokens of the step."""
    chosen = read_recipe(recipe)
    check_recipe(chosen, PRIME_RL)
    _check_own_part(chosen)
    pipeline = CreditPipeline(chosen, max_new_tokens=1)  # check_recipe and _check_own_part refuse what reads the length limit.
    objective = pipeline.objective.objective

    def loss(inputs: Any) -> LossOutputs:
        mask = (inputs.loss_mask & ~inputs.inference_logprobs.isnan())[None]
        logp = finite_inside("trainer_logprobs", inputs.trainer_logprobs[None], mask)
        old_logp = finite_inside("inference_logprobs", inputs.inference_logprobs[None], mask).to(logp.dtype)
        credit = credit_responses(pipeline, inputs.advantages[None].to(logp.dtype), mask, old_logp)
        token_inputs = objective_inputs(logp, old_logp, mask, credit=credit)
        token_loss = objective.token_loss(token_inputs, None)
        if inputs.loss_weights is not None:
            token_loss = token_loss * inputs.loss_weights[None]
        return LossOutputs(masked_sum(token_loss, mask), {"silenced_share": silenced(objective, token_inputs).share})

    return loss


def prime_rl_custom_loss(inputs: Any, recipe: str | Mapping[str, Any]) -> LossOutputs:
    """For `[trainer.loss] import_path`; `recipe` stands in `[trainer.loss.kwargs]`."""
    return _made(json.dumps(recipe, sort_keys=True))(inputs)


@lru_cache
def _made(recipe: str) -> Callable[[Any], LossOutputs]:
    return prime_rl_loss(json.loads(recipe))


def _check_own_part(recipe: Recipe) -> None:
    """What prime-rl decides before it calls the loss; the recipe must agree."""
    if recipe.advantage.type not in OWN_ADVANTAGES:
        known = ", ".join(f"{name!r} ({how})" for name, how in OWN_ADVANTAGES.items())
        raise ConfigError(
            f"advantage is {recipe.advantage.type!r} but prime-rl assigns advantages before the loss; name the one it assigns: {known}. "
            "Where an Algorithm of your own assigns them, say 'dr-grpo'"
        )
    if recipe.shape.changes_reward:
        raise ConfigError(f"shape is {recipe.shape.type!r} but prime-rl compares rewards before the loss; use shape 'none'")
    if recipe.objective.aggregation != "token-mean":
        raise ConfigError(
            f"objective.aggregation is {recipe.objective.aggregation!r} but prime-rl divides by the tokens of the step; use 'token-mean'"
        )
    if recipe.correction.enabled:
        raise ConfigError(
            f"correction.kind is {recipe.correction.kind!r} but in prime-rl ratios are those to the sampler already; use 'none'"
        )

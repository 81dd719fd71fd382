"""From a config class to the function it names: the only place where mathematics meets a config."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import Tensor

from tokencredit.advantage import ADVANTAGES, AdvantageOutcome
from tokencredit.batching import make_plan
from tokencredit.config import Recipe, as_kwargs
from tokencredit.credit import CREDITS, CreditMethod
from tokencredit.errors import ConfigError
from tokencredit.objective import OBJECTIVES, Objective, with_correction, with_kl
from tokencredit.objective.correction import correction_weight
from tokencredit.shape import SHAPES, ShapeMethod
from tokencredit.types import Aggregation, Evidence, StepPlan

IN_A_PASS: frozenset[Evidence] = frozenset({"logp", "entropy", "hidden"})
"""Evidence that a pass over the rollouts computes. The other kinds must be sampled."""


def build_shape(recipe: Recipe) -> ShapeMethod:
    choice = recipe.shape
    return ShapeMethod(partial(SHAPES[choice.type], **as_kwargs(choice, *choice.sampling_fields)), frozenset(choice.needs))


def build_advantage(recipe: Recipe) -> Callable[..., AdvantageOutcome]:
    return partial(ADVANTAGES[recipe.advantage.type], **as_kwargs(recipe.advantage))


def build_credit(recipe: Recipe) -> CreditMethod:
    choice = recipe.credit
    return CreditMethod(partial(CREDITS[choice.type], **as_kwargs(choice, *choice.sampling_fields)), frozenset(choice.needs))


def why_needed(recipe: Recipe) -> dict[Evidence, str]:
    """The evidence that shape, advantage and credit of a recipe need beyond rollouts and scores -> what they do with it."""
    return {**recipe.shape.needs, **recipe.advantage.needs, **recipe.credit.needs}


def needed_evidence(recipe: Recipe) -> frozenset[Evidence]:
    return frozenset(why_needed(recipe))


def sampled_evidence(recipe: Recipe) -> frozenset[Evidence]:
    """The part of it that no forward pass over the rollouts computes; it must be sampled."""
    return needed_evidence(recipe) - IN_A_PASS


class AggregatedObjective(NamedTuple):
    objective: Objective
    aggregation: Aggregation
    constant_length: int
    """For the plan's denominators; the update itself counts no tokens."""


def build_objective(recipe: Recipe, *, max_length: int) -> AggregatedObjective:
    choice = recipe.objective
    objective = OBJECTIVES[choice.type](**as_kwargs(choice, "aggregation", "constant_length"))
    if recipe.correction.enabled:
        objective = with_correction(objective)
    if recipe.kl.beta > 0 and recipe.kl.place == "loss":
        objective = with_kl(objective, beta=recipe.kl.beta, estimator=recipe.kl.estimator)
    return AggregatedObjective(objective, choice.aggregation, choice.constant_length or max_length)


def build_correction(recipe: Recipe) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """`(old_logp, behavior_logp, mask) -> weight`, or None where the recipe assumes that sampler and trainer agree."""
    return partial(correction_weight, **as_kwargs(recipe.correction)) if recipe.correction.enabled else None


def build_planner(recipe: Recipe, objective: AggregatedObjective) -> Callable[..., StepPlan]:
    """`(lengths, group, advantage=, optimizer_steps=, max_tokens=, seed=, cost=) -> StepPlan`: the recipe's batching and denominators."""
    return partial(
        make_plan,
        kind=recipe.batching.type,
        aggregation=objective.aggregation,
        constant_length=objective.constant_length,
        **as_kwargs(recipe.batching),
    )


def refuse_sampling(recipe: Recipe, engine: str) -> None:
    """Only the local engine samples evidence that needs rollouts of its own."""
    for need in sorted(sampled_evidence(recipe)):
        raise ConfigError(f"the recipe {why_needed(recipe)[need]}, which {engine} is not asked to do; train it with the local engine")

"""From a choice to the function it names: the only place where mathematics meets a config."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import Tensor

from tokencredit.advantage import ADVANTAGES, AdvantageOutcome
from tokencredit.batching import make_plan
from tokencredit.credit import CREDITS, CreditMethod
from tokencredit.objective import OBJECTIVES, Objective, with_kl
from tokencredit.shape import overlong_penalty
from tokencredit.stages import Recipe, knobs
from tokencredit.types import Aggregation, StepPlan


def build_shape(recipe: Recipe, *, max_length: int) -> Callable[[Tensor], Tensor] | None:
    """`length -> penalty`, or None where the score is compared as it is."""
    if recipe.shape.type == "none":
        return None
    return partial(overlong_penalty, max_length=max_length, **knobs(recipe.shape))


def build_advantage(recipe: Recipe) -> Callable[..., AdvantageOutcome]:
    return partial(ADVANTAGES[recipe.advantage.type], **knobs(recipe.advantage))


def build_credit(recipe: Recipe) -> CreditMethod:
    method = CREDITS[recipe.credit.type]
    return CreditMethod(partial(method.assign, **knobs(recipe.credit)), method.needs)


class AggregatedObjective(NamedTuple):
    objective: Objective
    aggregation: Aggregation
    constant_length: int
    """For the plan's denominators; the update itself counts nothing."""


def build_objective(recipe: Recipe, *, max_length: int) -> AggregatedObjective:
    choice = recipe.objective
    objective = OBJECTIVES[choice.type](**knobs(choice, "aggregation", "constant_length"))
    if recipe.kl.beta > 0 and recipe.kl.place == "loss":
        objective = with_kl(objective, beta=recipe.kl.beta, estimator=recipe.kl.estimator)
    return AggregatedObjective(objective, choice.aggregation, choice.constant_length or max_length)


def build_planner(recipe: Recipe, objective: AggregatedObjective) -> Callable[..., StepPlan]:
    """`(lengths, group, optimizer_steps=, max_tokens=, seed=, cost=) -> StepPlan` with the recipe's dealing and denominators."""
    return partial(make_plan, kind=recipe.batching.type, aggregation=objective.aggregation, constant_length=objective.constant_length)

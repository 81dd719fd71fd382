"""What no function hook can honour, refused when the function is made and not in the middle of a run."""

from typing import NamedTuple

from tokencredit.advantage import NEEDS
from tokencredit.config import Recipe
from tokencredit.errors import ConfigError
from tokencredit.integrations.recipe_source import refuse_sampling
from tokencredit.pipeline.build import build_objective

ELSEWHERE = "train it through TRL, verl or the local engine"

RESPONSE_CREDITS = ("uniform", "one-sided", "ntf")
"""Credit that one response's advantage and log-probs are enough for."""

WHY_UNSEEN = {
    ("advantage", "fade"): "follows the mean entropy of the batch",
    ("credit", "delta"): "compares hidden states",
    ("credit", "forking"): "ranks the batch's tokens by entropy",
    ("credit", "ktae"): "compares the token ids of siblings",
    ("credit", "ntf-keep"): "goes by the entropy of the batch's tokens",
    ("credit", "sibling-value"): "compares hidden states",
    ("credit", "sibling-context"): "compares the token ids of siblings",
}


class EngineHooks(NamedTuple):
    name: str
    whole_groups: bool
    """All responses to a prompt meet in one optimizer step."""
    filter_groups: str
    """What takes the place of dynamic sampling there."""
    kl: str
    """What takes the place of a KL term there."""


def check_recipe(recipe: Recipe, engine: EngineHooks) -> None:
    """Refuse stages that need what the engine's hooks do not hand over, or that the engine decides itself."""
    refuse_sampling(recipe, engine.name)
    if NEEDS.get(recipe.advantage.type):
        _refuse_unseen(recipe, "advantage", engine)
    if recipe.credit.type not in RESPONSE_CREDITS:
        _refuse_unseen(recipe, "credit", engine)
    if build_objective(recipe, max_length=1).objective.statistic is not None:
        raise ConfigError(
            f"objective {recipe.objective.type!r} looks at a whole optimizer step, but a loss in {engine.name} sees part of it; {ELSEWHERE}"
        )
    if recipe.kl.beta > 0:
        raise ConfigError(
            f"kl.beta is {recipe.kl.beta:g} but {engine.name} hands the loss no reference policy; set it to 0 and {engine.kl}"
        )
    if recipe.filter_groups:
        raise ConfigError(
            f"filter_groups is a matter of sampling, which {engine.name} does itself; set it to false and {engine.filter_groups}"
        )
    planned = recipe.batching.type
    if planned != "shuffled" and not (planned == "query-preserved" and engine.whole_groups):
        instead = "'shuffled' or 'query-preserved'" if engine.whole_groups else "'shuffled'"
        raise ConfigError(f"batching {planned!r} is a plan that {engine.name} would not follow; use {instead}, or {ELSEWHERE}")


def _refuse_unseen(recipe: Recipe, stage: str, engine: EngineHooks) -> None:
    kind = getattr(recipe, stage).type
    why = WHY_UNSEEN.get((stage, kind), "needs more than a response's advantage and log-probs")
    raise ConfigError(f"{stage} {kind!r} {why}, which {engine.name} does not hand to a function; {ELSEWHERE}")

"""How verl can run a recipe: by functions in its tables, or by our trainer. Knows recipes only, so that docs can be made anywhere."""

from tokencredit.config import Recipe
from tokencredit.errors import ConfigError
from tokencredit.integrations.functions_limits import EngineHooks, check_recipe
from tokencredit.integrations.recipe_source import refuse_sampling

PREFIX = "tokencredit-"
"""Before a recipe's name in verl's tables."""
MODE = "tokencredit"
"""The trainer mode, and the estimator that goes with it."""
AGGREGATIONS = {"token-mean": "token-mean", "sequence-mean": "seq-mean-token-mean", "constant": "seq-mean-token-sum-norm"}
"""What verl calls ours."""
HOOKS = EngineHooks(
    "verl's estimators and losses",
    whole_groups=False,
    filter_groups="use algorithm.filter_groups",
    kl="use actor_rollout_ref.actor.use_kl_loss",
)


def why_no_function(recipe: Recipe) -> str | None:
    """Why the functions in verl's tables cannot run a recipe, or None."""
    try:
        check_recipe(recipe, HOOKS)
    except ConfigError as problem:
        return str(problem)
    if recipe.shape.type != "none":
        return f"shape {recipe.shape.type!r} goes by the length limit, which verl does not hand to an estimator"
    if recipe.correction.kind != "none":
        return "correction is verl's own algorithm.rollout_correction there"
    return None


def why_no_trainer(recipe: Recipe) -> str | None:
    """Why our trainer mode cannot run a recipe whatever the configuration, or None."""
    try:
        refuse_sampling(recipe, "verl")
    except ConfigError as problem:
        return str(problem)
    batching, credit = recipe.batching, recipe.credit
    if batching.type == "reward-balanced" and not batching.keep_queries and batching.method == "assign":
        return "batching.keep_queries=false deals responses unevenly, but verl's mini-batches are equal; keep queries whole"
    if getattr(credit, "temperature", None) == "first-batch":
        return "credit.temperature 'first-batch' is remembered by the workers, which verl does not save; use 'adaptive'"
    if getattr(credit, "momentum", 0.0):
        return "credit.momentum is remembered by the workers, which verl does not save; use momentum 0"
    if getattr(credit, "scope", None) == "shard":
        return "credit.scope 'shard' stands for the ranks of a trainer without exchange; use 'batch'"
    return None

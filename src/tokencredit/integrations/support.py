"""Which engine runs which recipe, and by which way: the table of docs/engines.md. Imports no engine."""

from collections.abc import Callable

from tokencredit.config import Recipe
from tokencredit.config.recipes import RECIPES
from tokencredit.errors import ConfigError
from tokencredit.integrations.hooks import prime_rl_loss, skyrl_advantage, skyrl_policy_loss, slime_loss
from tokencredit.integrations.limits import refuse_recipe
from tokencredit.integrations.routes import PREFIX, why_no_function, why_no_trainer

COLUMNS = ("recipe", "TRL", "verl, trainer mode", "verl, by name", "SkyRL", "slime", "prime-rl")


def _accepted(*steps: Callable[[], object]) -> bool:
    try:
        for step in steps:
            step()
    except ConfigError:
        return False
    return True


def routes(name: str, recipe: Recipe) -> tuple[str, ...]:
    """One cell per engine: yes, no, or under which condition."""
    limit = 1024  # Any: only whether it is known matters here.
    sampled_by_verl = "with `algorithm.filter_groups`" if recipe.filter_groups else "yes"
    cells = (
        "yes" if _accepted(lambda: refuse_recipe(recipe)) else "no",
        sampled_by_verl if why_no_trainer(recipe) is None else "no",
        f"`{PREFIX}{name}`" if why_no_function(recipe) is None else "no",
    )
    skyrl = _accepted(lambda: skyrl_advantage(recipe, max_new_tokens=limit), lambda: skyrl_policy_loss(recipe, max_new_tokens=limit))
    functions = (skyrl, _accepted(lambda: slime_loss(recipe)), _accepted(lambda: prime_rl_loss(recipe)))
    return (f"`{name}`", *cells, *("yes" if works else "no" for works in functions))


def table() -> str:
    """In Markdown, every recipe in the order of the paper index's families."""
    rows = [COLUMNS, tuple("---" for _ in COLUMNS), *(routes(name, entry.recipe) for name, entry in RECIPES.items())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)

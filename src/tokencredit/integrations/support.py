"""Which engine runs which recipe, and by which way: the table of docs/engines.md. Imports no engine.

Which versions of another engine an adapter works with.

Recipes that TRL cannot run, whatever its settings.

How verl can run a recipe: by functions in its tables, or by our trainer. Knows recipes only, so that docs can be made anywhere.

What no function hook can honour, refused when the function is made and not in the middle of a run.
"""

from collections.abc import Callable
from importlib import metadata
from typing import NamedTuple

from packaging.specifiers import SpecifierSet

from tokencredit.config import Recipe
from tokencredit.config.advantage import AdvantageBase
from tokencredit.config.credit import CreditBase
from tokencredit.config.recipes import RECIPES
from tokencredit.config.train import METHODS
from tokencredit.errors import ConfigError
from tokencredit.pipeline.build import build_objective, needed_evidence, refuse_sampling

SUPPORTED = {"trl": ">=1.15,<2", "verl": ">=0.9,<0.10"}
"""As in this package's extras."""
TESTED = {"trl": "1.16.0", "verl": "0.9.1"}


class EngineUnavailableError(ConfigError, ImportError):
    """The engine is not installed, or in a version whose seams are not known to fit."""


def require(engine: str) -> str:
    """The installed version, or a refusal that says which ones work."""
    works = f"tokencredit works with {engine} {SUPPORTED[engine]} (tested on {TESTED[engine]})"
    try:
        found = metadata.version(engine)
    except metadata.PackageNotFoundError:
        raise EngineUnavailableError(f"{engine} is not installed; {works}: pip install 'tokencredit[{engine}]'") from None
    if found not in SpecifierSet(SUPPORTED[engine], prereleases=True):
        raise EngineUnavailableError(f"{engine} {found} is installed, but {works}")
    return found


def refuse_recipe(recipe: Recipe) -> None:
    refuse_sampling(recipe, "TRL")
    if recipe.filter_groups:
        raise ConfigError("filter_groups samples replacements for groups without spread, which TRL cannot; set filter_groups to false")


ELSEWHERE = "train it through TRL, verl or the local engine"


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
    if recipe.advantage.needs:
        _refuse_unseen(recipe.advantage, engine)
    if not recipe.credit.sees_one_response:
        _refuse_unseen(recipe.credit, engine)
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
    followed = ("any", "whole groups") if engine.whole_groups else ("any",)
    if recipe.batching.engines not in followed:
        instead = " or ".join(
            repr(name) for name, batching in METHODS["batching"].items() if getattr(batching, "engines", None) in followed
        )
        raise ConfigError(f"{recipe.batching.label} is a plan that {engine.name} would not follow; use {instead}, or {ELSEWHERE}")


def _refuse_unseen(choice: AdvantageBase | CreditBase, engine: EngineHooks) -> None:
    unseen = [use for need, use in choice.needs.items() if need != "logp"]
    why = unseen[0] if unseen else choice.compares_siblings or "needs more than a response's advantage and log-probs"
    raise ConfigError(f"{choice.label} {why}, which {engine.name} does not hand to a function; {ELSEWHERE}")


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


def unsupported_by_functions_reason(recipe: Recipe) -> str | None:
    """Why the functions in verl's tables cannot run a recipe, or None."""
    try:
        check_recipe(recipe, HOOKS)
    except ConfigError as problem:
        return str(problem)
    if (use := recipe.shape.reads_length_limit) is not None:
        return f"{recipe.shape.label} {use}, which verl does not hand to an estimator"
    if recipe.correction.enabled:
        return "correction is verl's own algorithm.rollout_correction there"
    return None


def unsupported_by_trainer_reason(recipe: Recipe) -> str | None:
    """Why our trainer mode cannot run a recipe whatever the configuration, or None."""
    try:
        refuse_sampling(recipe, "verl")
    except ConfigError as problem:
        return str(problem)
    credit = recipe.credit
    if (setting := recipe.batching.deals_unevenly) is not None:
        return f"{setting}: verl's mini-batches are equal"
    if "hidden" in needed_evidence(recipe) and (memory := credit.keeps_state) is not None:
        return f"{credit.label} {memory}, but its workers compute it, and verl does not save what they remember"
    return credit.imitates_ranks


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
    # The hooks import this module.
    from tokencredit.integrations.hooks import prime_rl_loss, skyrl_advantage, skyrl_policy_loss, slime_loss

    limit = 1024  # Any: only whether it is known matters here.
    sampled_by_verl = "with `algorithm.filter_groups`" if recipe.filter_groups else "yes"
    cells = (
        "yes" if _accepted(lambda: refuse_recipe(recipe)) else "no",
        sampled_by_verl if unsupported_by_trainer_reason(recipe) is None else "no",
        f"`{PREFIX}{name}`" if unsupported_by_functions_reason(recipe) is None else "no",
    )
    skyrl = _accepted(lambda: skyrl_advantage(recipe, max_new_tokens=limit), lambda: skyrl_policy_loss(recipe, max_new_tokens=limit))
    functions = (skyrl, _accepted(lambda: slime_loss(recipe)), _accepted(lambda: prime_rl_loss(recipe)))
    return (f"`{name}`", *cells, *("yes" if works else "no" for works in functions))


def table() -> str:
    """In Markdown, every recipe in the order of the paper index's families."""
    rows = [COLUMNS, tuple("---" for _ in COLUMNS), *(routes(name, entry.recipe) for name, entry in RECIPES.items())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)

"""`tokencredit recipes`: every recipe in a table, or one of them in full."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tokencredit.config import Frozen, MethodConfig, Recipe, origin_of
from tokencredit.config.recipes import FAMILIES, RECIPES, RecipeEntry
from tokencredit.config.train import STAGES
from tokencredit.errors import EXIT_OK, ConfigError
from tokencredit.text import suggest


@dataclass(frozen=True)
class RecipesOptions:
    """List every recipe with its paper and its choice at each stage, or show one in full: formula, numbers, origins, caveats."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """A recipe to show in full."""


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "unset" if value is None else str(value)


def departures(choice: Frozen) -> dict[str, Any]:
    """Fields whose value is not the stage's default."""
    defaults = type(choice)().model_dump()
    return {key: value for key, value in choice.model_dump().items() if value != defaults[key]}


def stage_choice(choice: MethodConfig) -> str:
    """`ppo-clip (clip_high 0.28, dual_clip 10)`: the type, and what departs from its defaults."""
    changed = [f"{key} {_shown(value)}" for key, value in departures(choice).items()]
    name = str(choice.model_dump()["type"])
    return f"{name} ({', '.join(changed)})" if changed else name


def stage_choices(recipe: Recipe) -> dict[str, str]:
    chosen = {stage: stage_choice(getattr(recipe, stage)) for stage in STAGES}
    if recipe.filter_groups:
        chosen["batching"] += " + filter-groups"
    return chosen


def _overview() -> Iterable[RenderableType]:
    for family, entries in FAMILIES.items():
        table = Table(show_lines=True, title=family, title_justify="left", title_style="bold", expand=True)
        table.add_column("recipe", style="bold", no_wrap=True, width=max(len(name) for name in RECIPES))
        table.add_column("what it is, and where it comes from", ratio=3)
        for stage in STAGES:
            table.add_column(stage, ratio=2)
        for name, entry in entries.items():
            table.add_row(name, f"{entry.summary}\n{entry.paper}", *stage_choices(entry.recipe).values())
        yield table
    yield "In full: tokencredit recipes NAME. Use one with: tokencredit train --recipe NAME."
    yield "Stages mix freely, e.g. --recipe dapo --credit.type delta"


def _numbers(stage: str, choice: Frozen, entry: RecipeEntry) -> Table:
    table = Table.grid(padding=(0, 2))
    for field, value in choice.model_dump(exclude={"type"}).items():
        origin = entry.origins.get(f"{stage}.{field}") or origin_of(type(choice), field)
        table.add_row(Text(field, style="cyan"), _shown(value), Text(origin, style="dim"))
    return table


def _in_full(name: str, entry: RecipeEntry) -> Iterable[RenderableType]:
    yield Text(name, style="bold")
    yield f"{entry.summary}\n{entry.paper}\n"
    caveats = list(entry.caveats)
    for stage in STAGES:
        choice: MethodConfig = getattr(entry.recipe, stage)
        caveats += choice.caveats
        yield Text.assemble((f"{stage}: ", "bold"), f"{choice.model_dump()['type']}. {type(choice).__doc__}")
        numbers = [_numbers(stage, choice, entry)] if len(type(choice).model_fields) > 1 else []
        yield Padding(Group(Text(choice.formula, style="green"), *numbers), (0, 0, 1, 2))
    for name_of_term in ("kl", "correction"):
        term = getattr(entry.recipe, name_of_term)
        yield Text.assemble(
            (f"{name_of_term}: ", "bold"), f"off. {type(term).__doc__}" if not departures(term) else str(type(term).__doc__)
        )
        yield Padding(_numbers(name_of_term, term, entry), (0, 0, 1, 2))
    if entry.recipe.filter_groups:
        yield f"filter_groups: groups whose scores are all alike are replaced, {entry.recipe.filter_retries} extra rounds at most\n"
    if entry.asks_once:
        yield "sampling: each prompt is asked once, as many prompts as there would have been responses, unless you name a group size"
    for field, value in entry.optimizer.items():
        yield f"optimizer: {field} {_shown(value)}, unless you say otherwise"
    if entry.asks_once or entry.optimizer:
        yield ""
    if caveats:
        yield Text("Know before use", style="bold")
        table = Table.grid(padding=(0, 1))
        for caveat in caveats:
            table.add_row("  -", caveat)
        yield table
    yield f"\ntokencredit train --recipe {name}"


def run(arguments: Sequence[str]) -> int:
    name = tyro.cli(RecipesOptions, args=list(arguments), prog="tokencredit recipes").name
    if name is not None and name not in RECIPES:
        raise ConfigError(f"recipe {name!r} is not known; {suggest(name, RECIPES)}")
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(width=160, highlight=False)
    for part in _overview() if name is None else _in_full(name, RECIPES[name]):
        console.print(part, markup=False) if isinstance(part, str) else console.print(part)
    return EXIT_OK

"""`tokencredit recipes`: list all recipes in a table, or show one in detail."""

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
    """List all recipes with paper and stages, or show one in detail: formulas, numbers with their origin, caveats."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """Recipe to show in detail. Default: list all."""


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "unset" if value is None else str(value)


def departures(choice: Frozen) -> dict[str, Any]:
    """Fields whose value is not the stage's default."""
    defaults = type(choice)().model_dump()
    return {key: value for key, value in choice.model_dump().items() if value != defaults[key]}


def stage_choice(choice: MethodConfig) -> str:
    """`ppo-clip (clip_high 0.28, dual_clip 10)`: the type and the fields that differ from its defaults."""
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
        table.add_column("description and source", ratio=3)
        for stage in STAGES:
            table.add_column(stage, ratio=2)
        for name, entry in entries.items():
            table.add_row(name, f"{entry.summary}\n{entry.paper}", *stage_choices(entry.recipe).values())
        yield table
    yield "Show one: tokencredit recipes NAME. Train with one: tokencredit train --recipe NAME."
    yield "Stages can be combined, for example: --recipe dapo --credit.type delta"


def _numbers(stage: str, choice: Frozen, entry: RecipeEntry) -> Table:
    table = Table.grid(padding=(0, 2))
    for field, value in choice.model_dump(exclude={"type"}).items():
        origin = entry.origins.get(f"{stage}.{field}") or origin_of(type(choice), field)
        table.add_row(Text(field, style="cyan"), _shown(value), Text(origin, style="dim"))
    return table


def _details(name: str, entry: RecipeEntry) -> Iterable[RenderableType]:
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
        yield f"filter_groups: groups with equal scores are replaced, in at most {entry.recipe.filter_retries} extra sampling rounds\n"
    if entry.asks_once:
        yield "sampling: one response per prompt, with more prompts for the same batch size, unless you set --sampling.group-size"
    for field, value in entry.optimizer.items():
        yield f"optimizer: {field} {_shown(value)}, unless you set it"
    if entry.asks_once or entry.optimizer:
        yield ""
    if caveats:
        yield Text("Caveats", style="bold")
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
    for part in _overview() if name is None else _details(name, RECIPES[name]):
        console.print(part, markup=False) if isinstance(part, str) else console.print(part)
    return EXIT_OK

"""`tokencredit recipes`: every recipe with its paper and stage choices."""

from collections.abc import Sequence
from dataclasses import dataclass

import tyro
from rich.console import Console
from rich.table import Table

from tokencredit.choices import STAGES
from tokencredit.errors import EXIT_OK
from tokencredit.recipes import RECIPES
from tokencredit.stages import Frozen, Recipe


@dataclass(frozen=True)
class RecipesOptions:
    """List every recipe: its paper, its choice at each stage (numbers that differ from the stage's defaults beside it)."""


def stage_choice(choice: Frozen) -> str:
    """`ppo-clip (clip_high 0.28, dual_clip 10)`: the type, and what departs from its defaults."""
    fields = choice.model_dump()
    defaults = type(choice)().model_dump()
    name = str(fields.pop("type"))
    changed = [
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in fields.items() if value != defaults[key]
    ]
    return f"{name} ({', '.join(changed)})" if changed else name


def stage_choices(recipe: Recipe) -> dict[str, str]:
    chosen = {stage: stage_choice(getattr(recipe, stage)) for stage in STAGES}
    if recipe.filter_groups:
        chosen["batching"] += " + filter-groups"
    return chosen


def run(arguments: Sequence[str]) -> int:
    tyro.cli(RecipesOptions, args=list(arguments), prog="tokencredit recipes")
    console = Console()
    console = console if console.is_terminal else Console(width=160)
    table = Table(show_lines=True)
    table.add_column("recipe", style="bold", no_wrap=True)
    table.add_column("what it is, and where it comes from")
    for stage in STAGES:
        table.add_column(stage)
    for name, entry in RECIPES.items():
        table.add_row(name, f"{entry.summary}\n{entry.paper}", *stage_choices(entry.recipe).values())
    console.print(table)
    console.print("Use one with: tokencredit train --recipe NAME. Stages mix freely, e.g. --recipe dapo --credit.type delta")
    return EXIT_OK

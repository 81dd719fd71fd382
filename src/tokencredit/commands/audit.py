"""`tokencredit audit`: for each recipe and condition, the share of the update on shared tokens that does not cancel, and its causes."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from tokencredit.config.recipes import RECIPES
from tokencredit.config.resolve import read_toml, resolve
from tokencredit.errors import EXIT_OK, ConfigError
from tokencredit.text import suggest

if TYPE_CHECKING:
    from tokencredit.audit import Cell, Subject


@dataclass(frozen=True)
class AuditOptions:
    """Check whether the updates that sibling responses send to their shared tokens cancel.

    0: they cancel. 1: nothing cancels. silent: the shared tokens receive no update.
    """

    recipes: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Recipe names, or config files (.toml) whose stages to audit. Default: every recipe."""
    objective: str | None = None
    """A custom function, package.module:function, that replaces the objective of the recipe."""
    base: str | None = None
    """With --objective: the recipe of the other stages. Default: dapo."""
    aggregation: Literal["token-mean", "sequence-mean", "constant"] | None = None
    """With --objective: how its token losses are averaged. Default: token-mean. Ignored if the function returns one number."""
    seed: int = 0
    """Seed of the synthetic batches."""
    json: bool = False
    """Print the result as JSON."""


def _recipe_named(name: str):
    if name not in RECIPES:
        raise ConfigError(f"recipe {name!r} is not known; {suggest(name, RECIPES)}")
    return RECIPES[name].recipe


def _subjects(options: AuditOptions) -> "list[Subject]":
    from tokencredit.audit import Subject
    from tokencredit.audit.subject import load_objective
    from tokencredit.config import PpoClipObjective, Recipe
    from tokencredit.config.recipe import varied

    if options.objective is not None:
        if options.recipes:
            raise ConfigError(f"recipes {', '.join(options.recipes)} and --objective exclude each other; --base names the other stages")
        stand_in = PpoClipObjective(aggregation=options.aggregation or "token-mean")
        base = varied(_recipe_named(options.base or "dapo"), objective=stand_in)
        return [Subject(options.objective, base, load_objective(options.objective))]
    for flag, value in (("--base", options.base), ("--aggregation", options.aggregation)):
        if value is not None:
            raise ConfigError(f"{flag} {value} is only valid with --objective; a recipe has its own")
    subjects: list[Subject] = []
    for name in options.recipes or tuple(RECIPES):
        if name.endswith(".toml"):
            config = resolve([read_toml(Path(name))])
            subjects.append(Subject(name, Recipe(**{field: getattr(config, field) for field in Recipe.model_fields})))
        else:
            subjects.append(Subject(name, _recipe_named(name)))
    return subjects


def cell_text(cell: "Cell") -> str:
    """`silent`, `0`, or the residual and its causes."""
    if cell.residual is None:
        return "silent"
    if cell.cancels:
        return "0"
    size = f"{cell.residual:.2f}" if cell.residual >= 0.005 else f"{cell.residual:.0e}"
    return f"{size} {', '.join(cell.causes) or 'several terms together'}"


def run(arguments: Sequence[str]) -> int:
    options = tyro.cli(AuditOptions, args=list(arguments), prog="tokencredit audit")
    from tokencredit.audit import CAUSES, CONDITIONS, OTHER, audit_subject

    subjects = _subjects(options)
    rows: dict[str, dict[str, Cell]] = {}
    for number, subject in enumerate(subjects, 1):
        if sys.stderr.isatty():
            print(f"\raudit {number}/{len(subjects)} {subject.name:<40}", end="\r", file=sys.stderr, flush=True)
        try:
            rows[subject.name] = audit_subject(subject, seed=options.seed)
        except ValueError as problem:
            raise ConfigError(f"{subject.name} cannot be audited: {problem}") from None
    causes = {**CAUSES, OTHER: "a cause that the audit cannot switch off"}
    meanings = {name: " ".join((condition.__doc__ or "").split()) for name, condition in CONDITIONS.items()}
    if options.json:
        document = {
            "seed": options.seed,
            "conditions": meanings,
            "causes": causes,
            "rows": [
                {
                    "recipe": name,
                    "cells": {
                        condition: {"residual": cell.residual, "silent": cell.silent, "causes": list(cell.causes)}
                        for condition, cell in cells.items()
                    },
                }
                for name, cells in rows.items()
            ],
        }
        print(json.dumps(document, indent=1))
        return EXIT_OK
    _print_table(rows, meanings, causes)
    return EXIT_OK


def _print_table(rows: "dict[str, dict[str, Cell]]", meanings: dict[str, str], causes: dict[str, str]) -> None:
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(width=160, highlight=False)
    table = Table(title="residual |sum kappa| / sum |kappa| on tokens shared by siblings", title_justify="left")
    table.add_column("recipe", style="bold", no_wrap=True)
    for condition in meanings:
        table.add_column(condition)
    for name, cells in rows.items():
        styles = {True: "green", False: "yellow"}
        table.add_row(name, *(f"[{'dim' if cell.silent else styles[cell.cancels]}]{cell_text(cell)}[/]" for cell in cells.values()))
    console.print(table)
    console.print("0: cancels to 1e-12.  1: nothing cancels.  silent: no shared token receives an update.\n")
    for title, meaning in (("Conditions", meanings), ("Causes", causes)):
        legend = Table.grid(padding=(0, 2))
        for name, text in meaning.items():
            legend.add_row(f"  {name}", text)
        console.print(title, style="bold")
        console.print(legend)

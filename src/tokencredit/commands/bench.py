"""`tokencredit bench speed`: seconds per stage, what DelTA adds, and TRL beside us."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from tokencredit.errors import EXIT_OK, ConfigError
from tokencredit.nearest import nearest

KINDS = ("speed",)


@dataclass(frozen=True)
class SpeedOptions:
    """Measure the embedded default: seconds per stage, tokens/s, DelTA's share of a step, and TRL side by side."""

    steps: int = 8
    """Training steps timed per repeat, after two that warm up."""
    repeats: int = 3
    """Alternations of dapo, delta and TRL."""
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    trl_python: Path | None = None
    """Python of an environment with trl and tokencredit (`make bench` makes one); without it TRL is left out."""
    json: Path | None = None
    """Also write every number here."""


def run(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: tokencredit bench {speed} [OPTIONS]\n\n  speed     seconds per stage, DelTA's cost, TRL beside us")
        return EXIT_OK
    if arguments[0] not in KINDS:
        raise ConfigError(f"no benchmark {arguments[0]!r}; {nearest(arguments[0], KINDS)}")
    options = tyro.cli(SpeedOptions, args=list(arguments[1:]), prog="tokencredit bench speed")
    if options.steps < 1 or options.repeats < 1:
        raise ConfigError(f"steps is {options.steps} and repeats is {options.repeats}; both must be at least 1")
    return _speed(options)


def _speed(options: SpeedOptions) -> int:
    from tokencredit.bench.speed import run_speed

    result = run_speed(
        steps=options.steps,
        repeats=options.repeats,
        seed=options.seed,
        device=options.device,
        trl_python=options.trl_python,
        report=print,
    )
    _print_table(result)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return EXIT_OK


def _print_table(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    recipes = result["recipes"]
    table = Table(title="one training step: a batch of rollouts and its optimizer steps (medians)", title_justify="left")
    table.add_column("")
    for name in recipes:
        table.add_column(name, justify="right")
    for stage in next(iter(recipes.values()))["stages"]:
        table.add_row(stage, *(f"{1000 * row['stages'][stage]:.1f} ms" for row in recipes.values()))
    table.add_row("whole step", *(f"{1000 * row['seconds_per_step']:.1f} ms" for row in recipes.values()), style="bold")
    table.add_row("tokens/s", *(f"{row['tokens_per_second']:,.0f}" for row in recipes.values()))
    console = Console()
    console.print(table)
    share = result["delta_share_of_step"]
    console.print(f"DelTA adds {_range(share, 100, ' %')} of a step.")
    if result["trl"]:
        trl = result["trl"]
        console.print(
            f"TRL's GRPOTrainer: {1000 * trl['seconds_per_step']:.0f} ms for the same step, "
            f"{_range(trl['times_slower_than_dapo'], 1, ' times')} ours (dapo)."
        )


def _range(spread: dict[str, float], factor: float, unit: str) -> str:
    low, mid, high = (f"{factor * spread[key]:.2f}" for key in ("low", "median", "high"))
    return f"{mid}{unit} ({low} to {high} over repeats)"

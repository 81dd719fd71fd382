"""`tokencredit bench`: what training steps cost, beside TRL's; what looking at them costs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from tokencredit.errors import EXIT_OK, ConfigError
from tokencredit.nearest import nearest

KINDS = {
    "speed": "seconds per stage, DelTA's cost, TRL beside us",
    "microscope": "what a look at an update costs, as a ratio to a plain step",
}


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


@dataclass(frozen=True)
class MicroscopeOptions:
    """Measure what a look at an update costs on the embedded default: plain and looked-at training steps of one run in turn."""

    steps: int = 6
    """Training steps of either kind per repeat, after two that warm up."""
    repeats: int = 3
    recipe: str = "delta"
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    json: Path | None = None
    """Also write every number here."""


def run(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = "\n".join(f"  {name:<12}{what}" for name, what in KINDS.items())
        print(f"usage: tokencredit bench {{{','.join(KINDS)}}} [OPTIONS]\n\n{lines}")
        return EXIT_OK
    if arguments[0] not in KINDS:
        raise ConfigError(f"no benchmark {arguments[0]!r}; {nearest(arguments[0], KINDS)}")
    kind, measure = {"speed": (SpeedOptions, _speed), "microscope": (MicroscopeOptions, _microscope)}[arguments[0]]
    options = tyro.cli(kind, args=list(arguments[1:]), prog=f"tokencredit bench {arguments[0]}")
    if options.steps < 1 or options.repeats < 1:
        raise ConfigError(f"steps is {options.steps} and repeats is {options.repeats}; both must be at least 1")
    result = measure(options)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return EXIT_OK


def _microscope(options: MicroscopeOptions) -> dict[str, Any]:
    from tokencredit.bench.microscope import run_microscope

    result = run_microscope(
        steps=options.steps, repeats=options.repeats, seed=options.seed, device=options.device, recipe=options.recipe, report=print
    )
    plain, looked = (1000 * result["seconds"][name] for name in ("plain", "looked at"))
    ratio = _range(result["looked_at_over_plain"], 1, " times")
    print(f"A plain step takes {plain:.0f} ms, one that is looked at {looked:.0f} ms: {ratio} as long.")
    return result


def _speed(options: SpeedOptions) -> dict[str, Any]:
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
    return result


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

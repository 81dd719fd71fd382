"""`tokencredit bench`: the speed of training steps, the cost of the microscope, and the quality of token credit."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from tokencredit.errors import EXIT_OK, ConfigError
from tokencredit.storage.atomic import atomic_write
from tokencredit.text import suggest

if TYPE_CHECKING:
    from tokencredit.lab.speed.workload import Shown

EXIT_FAILED = 1
"""A part failed; the others were measured."""

KINDS = {
    "speed": "the training step and its parts, compared with TRL, generate, Liger and the hardware limits",
    "microscope": "the time of a step with microscope observation, relative to a plain step",
    "credit": "the token credit of every recipe, compared with the measured advantage of tokens",
}


@dataclass(frozen=True)
class SpeedOptions:
    """Measure speed and memory in parts, each compared with other libraries and with the hardware limits.

    embedded: training steps of the embedded default by stage, DelTA's share of a step, TRL's trainer.
    update: score + credit + 4 optimizer steps on a given batch, compared with TRL's loss path.
    delta: DelTA's coefficients, compared with the K + 2 passes of the published algorithm.
    head: log-probs and entropies without logits, compared with naive, TRL's and Liger's.
    sampling: our plain and fast sampler, compared with generate.
    step: a whole training step by stage, dapo, delta and cancellation.
    growth: a step at more rollouts, longer responses and larger models; the largest pass that fits.
    """

    parts: str | None = None
    """Parts, separated by commas. Default: embedded on a CPU, all the others on a GPU."""
    shapes: str | None = None
    """Models with random weights, separated by commas. Default: tiny on a CPU, smollm2-135m,qwen2-0.5b on a GPU."""
    steps: int = 8
    """Timed training steps of part embedded per repeat, after two warm-up steps."""
    repeats: int = 3
    """Measurements of every implementation."""
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    trl_python: Path | None = None
    """Python of an environment with trl and tokencredit (`make bench` makes one), for part embedded; without it that part skips TRL."""
    json: Path | None = None
    """Also write all numbers to this file, after every part."""


@dataclass(frozen=True)
class MicroscopeOptions:
    """Measure the cost of microscope observation on the embedded default: plain and observed training steps of one run in turn."""

    steps: int = 6
    """Timed training steps of either kind per repeat, after two warm-up steps."""
    repeats: int = 3
    recipe: str = "delta"
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    json: Path | None = None
    """Also write all numbers to this file."""


def run(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = "\n".join(f"  {name:<12}{what}" for name, what in KINDS.items())
        print(f"usage: tokencredit bench {{{','.join(KINDS)}}} [OPTIONS]\n\n{lines}")
        return EXIT_OK
    if arguments[0] not in KINDS:
        raise ConfigError(f"no benchmark {arguments[0]!r}; {suggest(arguments[0], KINDS)}")
    if arguments[0] == "credit":
        from tokencredit.lab.commands import bench_credit

        return bench_credit.run(arguments[1:])
    kind, measure = {"speed": (SpeedOptions, _speed), "microscope": (MicroscopeOptions, _microscope)}[arguments[0]]
    options = tyro.cli(kind, args=list(arguments[1:]), prog=f"tokencredit bench {arguments[0]}")
    if options.steps < 1 or options.repeats < 1:
        raise ConfigError(f"steps is {options.steps} and repeats is {options.repeats}; both must be at least 1")
    return measure(options)


def _write(path: Path | None, result: Mapping[str, Any]) -> None:
    if path is not None:
        atomic_write(path, json.dumps(result, indent=2) + "\n")


def _microscope(options: MicroscopeOptions) -> int:
    from tokencredit.lab.speed.embedded import run_microscope
    from tokencredit.lab.speed.workload import in_range

    result = run_microscope(
        steps=options.steps, repeats=options.repeats, seed=options.seed, device=options.device, recipe=options.recipe, report=print
    )
    plain, looked = (1000 * result["seconds"][name] for name in ("plain", "looked at"))
    ratio = in_range(result["looked_at_over_plain"], 1, " times")
    print(f"A plain step takes {plain:.0f} ms, an observed step {looked:.0f} ms: {ratio} as long.")
    _write(options.json, result)
    return EXIT_OK


def _speed(options: SpeedOptions) -> int:
    # The hub's client reads this at import: TRL's trainer would send telemetry.
    os.environ |= {"HF_HUB_DISABLE_TELEMETRY": "1"}
    from tokencredit.lab.speed.run import SpeedOrder, find_parts, run_speed, tables

    def finished(part: str, result: Mapping[str, Any]) -> None:
        if part in result["failed"]:
            print(f"part {part} failed: {result['failed'][part]}")
        else:
            for shown in tables(part, result["parts"][part]):
                _print_table(shown)
        _write(options.json, result)

    order = SpeedOrder(
        parts=find_parts(options.parts, options.device),
        shapes=options.shapes,
        steps=options.steps,
        repeats=options.repeats,
        seed=options.seed,
        device=options.device,
        trl_python=options.trl_python,
    )
    result = run_speed(order, report=lambda line: print(line, flush=True), finished=finished)
    if ceilings := result["ceilings"]:
        print(
            f"Measured at best: {ceilings['flops_per_second'] / 1e12:,.2f} TFLOP/s of {ceilings['dtype']} matrix products, "
            f"{ceilings['bytes_per_second'] / 1e9:,.0f} GB/s of copying."
        )
    return EXIT_FAILED if result["failed"] else EXIT_OK


def _print_table(shown: "Shown") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=shown.title, title_justify="left")
    for number, column in enumerate(shown.columns):
        table.add_column(column, justify="right" if number else "left")
    for row in shown.rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    for note in shown.notes:
        console.print(note, highlight=False)

"""Damaged run folders, through every command that reads them."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pyarrow
from pyarrow import parquet

from fault.fuzz import Trial, damage_values, damaged, flip_bits, json_line, lasting_folder
from fault.fuzz_rollouts import OTHER_TYPES
from made_up.run import make_run
from tokencredit.commands import diagnose, report, show
from tokencredit.config.train import TrainConfig

COLOURS = ("credit", "coefficient", "change", "predicted", "entropy")


@cache
def _made(*, parquet_files: bool) -> Path:
    folder = lasting_folder() / "run"
    make_run(folder, token_steps=(1, 3), prompts=2, group_size=2, operations=2, looked_at=1, parquet_files=parquet_files)
    (folder / "diagnosis.json").write_text(json.dumps({"subject": "step 3 of a run", "command": "tokencredit diagnose run"}))
    return folder


def run_folder(rng: Random, place: Path) -> Path:
    return shutil.copytree(_made(parquet_files=rng.random() < 0.5), place / "run")


def _damaged_object(rng: Random, path: Path) -> bytes:
    return json_line(damage_values(rng, json.loads(path.read_text())))


def _damaged_lines(rng: Random, path: Path) -> bytes:
    return b"".join(map(json_line, damage_values(rng, [json.loads(line) for line in path.read_text().splitlines()])))


def _damaged_table(rng: Random, path: Path) -> bytes:
    """Another value in a cell, or another type of a column."""
    table = parquet.read_table(path)
    if rng.random() < 0.6:
        rows = damage_values(rng, table.to_pylist())
        try:
            table = pyarrow.Table.from_pylist(rows)
        except (pyarrow.ArrowException, OverflowError, UnicodeEncodeError, AttributeError, TypeError):
            return b"".join(map(json_line, rows))
    else:
        at = rng.randrange(table.num_columns)
        column = rng.choice(OTHER_TYPES)(table.column(at).to_pylist())
        table = table.remove_column(at) if column is None else table.set_column(at, table.column_names[at], column)
    sink = pyarrow.BufferOutputStream()
    try:
        parquet.write_table(table, sink)
    except pyarrow.ArrowException:
        return b"PAR1"
    return sink.getvalue().to_pybytes()


BY_SUFFIX: dict[str, Callable[[Random, Path], bytes]] = {".json": _damaged_object, ".jsonl": _damaged_lines, ".parquet": _damaged_table}


def damage_one_file(rng: Random, folder: Path, among: str = "*") -> Path:
    path = rng.choice(sorted(path for path in folder.rglob(among) if path.is_file()))
    as_values = BY_SUFFIX.get(path.suffix)
    if as_values is None or rng.random() < 0.35:
        content = (flip_bits if path.suffix == ".parquet" and rng.random() < 0.5 else damaged)(rng, path.read_bytes())
    else:
        content = as_values(rng, path)
    path.write_bytes(content)
    return path


def report_of_run(rng: Random, place: Path) -> Trial:
    """Charts are drawn one time in twenty: they take a second."""
    folder = run_folder(rng, place)
    damage_one_file(rng, folder)
    out = place / "page.html"
    drawn = rng.random() < 0.05

    def run() -> None:
        with mock.patch("tokencredit.report.page.can_draw", return_value=drawn):
            report.run([str(folder), "--out", str(out)])
        assert out.read_text(encoding="utf-8").rstrip().endswith("</html>"), "half a page"

    return Trial(run, (str(folder),), (out,))


def show_run(rng: Random, place: Path) -> Trial:
    folder = run_folder(rng, place)
    damage_one_file(rng, folder, rng.choice(("*", "step-*")))
    flags: list[Any] = rng.choice(([], ["--step", "1"], ["--prompt", "1"], ["--by", rng.choice(COLOURS)]))
    return Trial(lambda: show.run([str(folder), *flags]), (str(folder), "by '", "prompt ", "step "))


@cache
def _trained() -> Path:
    """A real run of two steps, small enough to be taken again in a moment."""
    from engine.runs import run, small_config

    folder = lasting_folder() / "run"
    smallest = {"every": 0, "problems": 4, "samples": 1, "final_problems": 4, "final_samples": 1}
    run(small_config(recipe="grpo", steps=2, sampling={"prompts": 2, "group_size": 4}, evaluation=smallest), folder)
    return folder


def diagnose_run(rng: Random, place: Path) -> Trial:
    """What it finds goes elsewhere. Weights are damaged in the kind of model folders."""
    folder = shutil.copytree(_trained(), place / "run")
    damage_one_file(rng, folder, rng.choice(("*.jsonl", "*.toml", "*.json", "*.parquet")))
    out = place / "found"
    names = ("config.toml", "env.json", "diagnosis.json", "plans.jsonl", "tokens/step-000002.parquet", "findings/step-000002.parquet")
    flags = ["--step", "2", "--only", "flips", "--out", str(out)]
    return Trial(
        lambda: diagnose.run([str(folder), *flags]),
        (str(folder), "step", *TrainConfig.model_fields),
        tuple(out / name for name in (*names, "findings/step-000002.json")),
    )


KINDS = {"report RUN": report_of_run, "show RUN": show_run, "diagnose RUN": diagnose_run}

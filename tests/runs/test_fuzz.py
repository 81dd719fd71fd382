"""Every reader given rubbish: refused in words, or read rightly. The long part is fault.fuzz_soak."""

import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault import fuzz_config, fuzz_rollouts, fuzz_runs, fuzz_tasks
from fault.fuzz import NASTY_VALUES, Outcome, Trial, damage_values, damaged, json_line, judge
from fault.fuzz_soak import one, soak
from tokencredit.config.resolve import read_toml, resolve
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.rollout_io.read import read_rollouts
from tokencredit.rollout_io.schema import COLUMNS

QUICK = {**fuzz_config.KINDS, **fuzz_rollouts.KINDS, **fuzz_runs.KINDS, **fuzz_tasks.KINDS}
FEW = {"command line": 20, "diagnose --rollouts FILE": 15, "report RUN": 30, "show RUN": 40, "diagnose RUN": 6}
"""Seeds of kinds that take long; of the others there are 60."""


@pytest.mark.parametrize("name", QUICK)
def test_rubbish_is_refused_in_words_or_read_rightly(name: str) -> None:
    told: list[str] = []
    table = soak({name: (QUICK[name], FEW.get(name, 60))}, 90_000, told.append)
    assert table[name]["failures"] == []
    assert int(str(table[name]["refused"])) > 0


UNHURT: dict[str, Callable[..., Any]] = {
    "damaged": lambda rng, data: data,
    "flip_bits": lambda rng, data: data,
    "damage_values": lambda rng, value, nasty=(): value,
}


@pytest.mark.parametrize("name", ["config file, bytes", "config file, values", *fuzz_rollouts.KINDS, *fuzz_runs.KINDS, *fuzz_tasks.KINDS])
def test_what_is_not_damaged_is_read(name: str) -> None:
    """Else the refusals above would say nothing. Text needs a model, which half of the readers are not given."""
    kind = QUICK[name]
    with mock.patch.multiple(kind.__module__, **{name: how for name, how in UNHURT.items() if hasattr(sys.modules[kind.__module__], name)}):
        outcomes = [one(kind, seed) for seed in range(4 if name in FEW else 12)]
    assert {outcome.kind for outcome in outcomes} <= {"ran", "refused"}
    assert sum(outcome.kind == "ran" for outcome in outcomes) >= (1 if name.endswith("types") else 3), outcomes


def _json() -> st.SearchStrategy[Any]:
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(NASTY_VALUES)
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6
    )


def _judged(kind: Callable[[Random, Path], Trial]) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        return judge(kind(Random(0), Path(folder)), Path(folder))


@given(column=st.sampled_from([*COLUMNS, "completion", "input", "gts"]), value=_json(), source=st.sampled_from(fuzz_rollouts.SOURCES))
def test_any_value_in_any_cell(column: str, value: Any, source: Callable[[Random], list[dict[str, Any]]]) -> None:
    def put(rng: Random, place: Path) -> Trial:
        path = place / "rollouts.jsonl"
        rows = source(rng)
        rows[2][column] = value
        path.write_bytes(b"".join(map(json_line, rows)))
        return Trial(lambda: fuzz_rollouts.check_reading(path, read_rollouts(path, fuzz_rollouts.policy())), (str(path),))

    assert _judged(put).kind != "unhandled", _judged(put).said


@given(field=st.sampled_from(sorted(TrainConfig.model_fields)), value=_json())
def test_any_value_in_any_setting(field: str, value: Any) -> None:
    def resolved() -> None:
        fuzz_config.check_config({field: value}, resolve([{field: value}]))

    found = judge(Trial(resolved, (field,)), Path("/nonexistent"))
    assert found.kind != "unhandled", found.said


@given(content=st.binary(max_size=60))
def test_any_bytes_as_any_file(content: bytes) -> None:
    def put(rng: Random, place: Path) -> Trial:
        path = place / "file.jsonl"
        path.write_bytes(content)
        return Trial(lambda: read_rollouts(path), (str(path),))

    def put_config(rng: Random, place: Path) -> Trial:
        path = place / "file.toml"
        path.write_bytes(content)
        return Trial(
            lambda: fuzz_config.check_config(read_toml(path), resolve([read_toml(path)])), (str(path), "is not a setting", "recipe")
        )

    for kind in (put, put_config):
        assert _judged(kind).kind != "unhandled", _judged(kind).said


def _score_of(path: Path) -> float:
    """A reader with a planted bug: a row without a score is a KeyError."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (ValueError, RecursionError) as problem:
        raise ConfigError(f"{path}: {str(problem)[:100]}") from None
    if not all(isinstance(row, dict) and isinstance(row.get("score", 0.0), float) for row in rows):
        raise ConfigError(f"{path}: score must be a number")
    return sum(row["score"] for row in rows)


def _planted(rng: Random, place: Path) -> Trial:
    path = place / "scores.jsonl"
    path.write_bytes(b"".join(map(json_line, damage_values(rng, [{"score": 0.5, "row": row} for row in range(3)]))))
    return Trial(lambda: _score_of(path), (str(path),))


def test_a_planted_bug_is_found_and_its_seed_shows_it_again() -> None:
    table = soak({"planted": (_planted, 200)}, 0, lambda line: None)
    failures: Any = table["planted"]["failures"]
    assert 5 < len(failures) < 150
    assert all(failure["said"].startswith("KeyError: 'score'") for failure in failures)
    assert all(one(_planted, failure["seed"]).said == failure["said"] for failure in failures)
    assert table["planted"]["unhandled"] == len(failures)


def _hangs(path: Path) -> None:
    while True:
        time.sleep(0.1)


def _half_writes(path: Path) -> None:
    path.with_suffix(".partial").write_text("half")
    raise ConfigError(f"{path} is bad")


def _eats_its_input(path: Path) -> None:
    path.write_text("")
    raise ConfigError(f"{path} is bad")


def _names_nothing(path: Path) -> None:
    raise ConfigError("something is wrong")


def _repeats_everything(path: Path) -> None:
    raise ConfigError(f"{path} is bad: {'x' * 100_000}")


def _exits(path: Path) -> None:
    raise SystemExit(1)


def _warns(path: Path) -> None:
    warnings.warn("odd", RuntimeWarning, stacklevel=1)


def _misreads(path: Path) -> None:
    assert path.read_text() == "other"


def _prints_half_a_character(path: Path) -> None:
    print("\ud800", flush=True)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (_hangs, "Hung"), (_half_writes, "left or changed"), (_eats_its_input, "left or changed"), (_names_nothing, "names none of"),
        (_repeats_everything, "a refusal of 100"), (_exits, "exit code 1"), (_warns, "RuntimeWarning"), (_misreads, "AssertionError"),
        (_prints_half_a_character, "UnicodeEncodeError"),
    ],
)  # fmt: skip
def test_the_judge_rejects(tmp_path: Path, bad: Callable[[Path], None], said: str) -> None:
    path = tmp_path / "input.txt"
    path.write_text("input")
    found = judge(Trial(lambda: bad(path), (str(path),)), tmp_path, seconds=1)
    assert found.kind == "unhandled"
    assert said in found.said


def test_a_seed_gives_the_same_damage_and_another_seed_another() -> None:
    data = b"".join(map(json_line, fuzz_rollouts.rows_with_ids(Random(0))))
    assert damaged(Random(4), data) == damaged(Random(4), data)
    assert len({damaged(Random(seed), data) for seed in range(40)}) > 35

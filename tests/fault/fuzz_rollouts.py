"""Damaged rollout files, ours and those of other trainers, through every reader of them."""

import json
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow
from pyarrow import parquet

from fault.fuzz import Trial, damage_values, damaged, flip_bits, json_line, lasting_folder
from tiny import tiny_policy
from tokencredit.commands import convert, credit, diagnose
from tokencredit.policy.policy import Policy
from tokencredit.rollout_io.load import load
from tokencredit.rollout_io.read import StoredRollouts, read_rollouts

Row = dict[str, Any]


@cache
def policy() -> Policy:
    return tiny_policy()


def rows_with_ids(rng: Random) -> list[Row]:
    rows: list[Row] = []
    for index in range(6):
        length = rng.randrange(1, 6)
        rows.append(
            {
                "group": f"g{index // 2}",
                "prompt_ids": [3 + index // 2, 4],
                "response_ids": [rng.randrange(3, 24) for _ in range(length)],
                "mask": [True] * length,
                "logp": [-rng.random() for _ in range(length)],
                "score": float(index % 2),
                "finished": True,
                "token_class": [rng.choice(("digit", "sign")) for _ in range(length)],
                "answer": "4",
            }
        )
    return rows


def rows_with_text(rng: Random) -> list[Row]:
    return [
        {
            "step": 1,
            "prompt": f"{index // 2}+1=",
            "response": f"a:{index}+1={index};#{index}",
            "score": index % 2,
            "reward": 0.5,
            "advantage": 0.1,
        }
        for index in range(6)
    ]


def rows_of_trl(rng: Random) -> list[Row]:
    return [
        {"step": 1, "prompt": f"{index // 2}+1=", "completion": f"#{index}", "reward_exact": float(index % 2), "advantage": 0.5}
        for index in range(6)
    ]


def rows_of_verl(rng: Random) -> list[Row]:
    return [
        {"step": 1, "input": f"{index // 2}+1=", "output": f"#{index}", "gts": str(index), "score": float(index % 2), "acc": True}
        for index in range(6)
    ]


SOURCES: tuple[Callable[[Random], list[Row]], ...] = (rows_with_ids, rows_with_text, rows_of_trl, rows_of_verl)


def as_parquet(path: Path, rows: Sequence[Row]) -> None:
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)


def check_reading(path: Path, stored: StoredRollouts) -> None:
    """Against the plainest reading of the same lines: ids, scores, masks and log-probs stand where they stood."""
    loaded = load(path, step=stored.step)
    assert len(loaded.rows) == len(stored.rollouts.prompts)
    for index, row in enumerate(loaded.rows):
        mask = stored.rollouts.mask[index].tolist()
        if row.get("response_ids") is not None:
            given = row["response_ids"]
            assert stored.rollouts.tokens[index].tolist()[: len(given)] == given, "other token ids than in the file"
            assert sum(mask) == len(given) if row.get("mask") is None else mask[: len(given)] == row["mask"], (
                "another mask than in the file"
            )
            assert not any(mask[len(given) :]), "tokens beyond the response"
        if row.get("prompt_ids") is not None:
            assert list(stored.rollouts.prompts[index]) == row["prompt_ids"], "another prompt than in the file"
        if row.get("logp") is not None:
            told = stored.rollouts.behavior_logp[index].tolist()[: len(row["logp"])]
            assert all(a == b or (math.isnan(a) and (b is None or math.isnan(b))) for a, b in zip(told, row["logp"], strict=True)), (
                "log-probs"
            )
        score, read = row.get("score"), float(stored.score[index])
        if "response" in row or "response_ids" in row:
            assert math.isnan(read) if score is None or score != score else read == float(score), f"score {score} read as {read}"


def _read_trial(path: Path, rng: Random) -> Trial:
    chosen = policy() if rng.random() < 0.5 else None

    def read() -> None:
        check_reading(path, read_rollouts(path, chosen))

    return Trial(read, (str(path),))


def lines_bytes(rng: Random, place: Path) -> Trial:
    path = place / "rollouts.jsonl"
    path.write_bytes(damaged(rng, b"".join(map(json_line, rng.choice(SOURCES)(rng)))))
    return _read_trial(path, rng)


def lines_values(rng: Random, place: Path) -> Trial:
    path = place / "rollouts.jsonl"
    path.write_bytes(b"".join(map(json_line, damage_values(rng, rng.choice(SOURCES)(rng)))))
    return _read_trial(path, rng)


def parquet_bytes(rng: Random, place: Path) -> Trial:
    """No oracle: a flipped bit in a page without a checksum is another number, which nobody can tell."""
    path = place / "rollouts.parquet"
    as_parquet(path, rng.choice(SOURCES)(rng))
    path.write_bytes((flip_bits if rng.random() < 0.6 else damaged)(rng, path.read_bytes()))
    chosen = policy() if rng.random() < 0.5 else None
    return Trial(lambda: read_rollouts(path, chosen), (str(path),))


def _typed(values: Sequence[Any], *kinds: pyarrow.DataType) -> pyarrow.Array | None:
    for kind in kinds:
        try:
            return pyarrow.array(values, type=kind)
        except (pyarrow.ArrowException, TypeError, ValueError, OverflowError, AttributeError):
            continue
    return None


OTHER_TYPES: tuple[Callable[[list[Any]], pyarrow.Array | None], ...] = (
    lambda values: _typed([str(value) for value in values], pyarrow.large_string()),
    lambda values: _typed([str(value).encode() for value in values], pyarrow.binary()),
    lambda values: pyarrow.array([str(value) for value in values]).dictionary_encode(),
    lambda values: pyarrow.array([b"\xff\xfe"] * len(values), pyarrow.binary()).view(pyarrow.binary()).cast(pyarrow.string(), safe=False),
    lambda values: pyarrow.array([1] * len(values)).dictionary_encode(),
    lambda values: pyarrow.array([{"a": 1}] * len(values)),
    lambda values: pyarrow.array([[{"role": "user", "content": "1+1="}]] * len(values)),
    lambda values: pyarrow.array([datetime(2020, 1, 1)] * len(values)),
    lambda values: pyarrow.array([2**62 + 1] * len(values), pyarrow.timestamp("ns")),
    lambda values: pyarrow.array([2**62 + 1] * len(values), pyarrow.timestamp("s")),
    lambda values: pyarrow.array([1] * len(values), pyarrow.timestamp("us", tz="Nowhere/Atall")),
    lambda values: pyarrow.array([2**62] * len(values), pyarrow.duration("s")),
    lambda values: pyarrow.array([2**31 - 1] * len(values), pyarrow.date32()),
    lambda values: pyarrow.array([2**64 - 1] * len(values), pyarrow.uint64()),
    lambda values: pyarrow.array([1] * len(values), pyarrow.decimal128(38, 2)),
    lambda values: pyarrow.nulls(len(values)),
    lambda values: pyarrow.array([[("a", 1), ("a", 2)]] * len(values), pyarrow.map_(pyarrow.string(), pyarrow.int64())),
    lambda values: pyarrow.array([True] * len(values)),
    lambda values: pyarrow.array([1.0] * len(values), pyarrow.float32()),
    lambda values: _typed(values, pyarrow.large_list(pyarrow.int32()), pyarrow.float16()),
    lambda values: pyarrow.array([None, *values[1:]]) if values else None,
)


def parquet_types(rng: Random, place: Path) -> Trial:
    """A column of another type, two of one name, none at all, no rows."""
    path = place / "rollouts.parquet"
    rows = rng.choice(SOURCES)(rng)
    table = pyarrow.Table.from_pylist(rows)
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(table.num_columns)
        column = rng.choice(OTHER_TYPES)([row.get(table.column_names[at]) for row in rows][: table.num_rows])
        name = table.column_names[at]
        how = rng.random()
        if how < 0.7 and column is not None:
            table = table.set_column(at, name, column)
        elif how < 0.8 and column is not None:
            table = table.append_column(rng.choice((name, "extra", "", "step")), column)
        elif how < 0.9:
            table = table.slice(0, rng.choice((0, 1)))
        elif table.num_columns > 1:
            table = table.remove_column(at)
    try:
        parquet.write_table(table, path)
    except pyarrow.ArrowInvalid:  # a type that Parquet itself cannot hold
        path.write_bytes(b"")
    chosen = policy() if rng.random() < 0.5 else None
    return Trial(lambda: read_rollouts(path, chosen), (str(path),))


def _damaged_file(rng: Random, place: Path, source: Callable[[Random], list[Row]]) -> Path:
    rows = source(rng)
    if rng.random() < 0.25:
        path = place / "rollouts.parquet"
        as_parquet(path, rows)
        path.write_bytes(damaged(rng, path.read_bytes()))
        return path
    path = place / "rollouts.jsonl"
    content = b"".join(map(json_line, damage_values(rng, rows)))
    path.write_bytes(damaged(rng, content) if rng.random() < 0.2 else content)
    return path


def check_table(out: Path) -> list[Row]:
    """Written whole: every row reads back."""
    lines = [] if out.suffix == ".parquet" else out.read_text(encoding="utf-8").split("\n")[:-1]
    rows = parquet.read_table(out).to_pylist() if out.suffix == ".parquet" else [json.loads(line) for line in lines]
    assert rows, "an empty table"
    return rows


SAID = ("step", "group", "sampling.", "logp", "advantage", "overlong", "responses", "recipe")


def credit_command(rng: Random, place: Path) -> Trial:
    """Without a model, or with one and a recipe that needs it."""
    path = _damaged_file(rng, place, rows_with_ids)
    out = place / rng.choice(("credit.parquet", "credit.jsonl"))
    recipe = rng.choice((["rloo"], ["delta", "--model", _model_folder()], ["ktae", "--model", _model_folder()]))

    def run() -> None:
        credit.run([str(path), "--out", str(out), "--recipe", *recipe])
        rows = check_table(out)
        stored = read_rollouts(path)
        assert len(rows) == int(stored.rollouts.mask.sum()), "another number of tokens than in the file"
        assert [row["token_id"] for row in rows] == stored.rollouts.tokens[stored.rollouts.mask].tolist()
        assert all(math.isfinite(row["credit"]) for row in rows), "credit that is no number"

    return Trial(run, (str(path), *SAID), (out,))


def convert_command(rng: Random, place: Path) -> Trial:
    path = _damaged_file(rng, place, rng.choice((rows_of_trl, rows_of_verl)))
    out = place / rng.choice(("out.parquet", "out.jsonl"))

    def run() -> None:
        convert.run([str(path), "--out", str(out)])
        loaded = load(path, step="all")
        rows = check_table(out)
        assert [row["prompt"] for row in rows] == [row.get("prompt", row.get("input")) for row in loaded.rows], "other prompts"
        assert len(load(out, step="all").rows) == len(rows)

    return Trial(run, (str(path),), (out,))


@cache
def _model_folder() -> str:
    folder = str(lasting_folder())
    policy().model.save_pretrained(folder)
    policy().tokenizer.save_pretrained(folder)
    return folder


def diagnose_command(rng: Random, place: Path) -> Trial:
    path = _damaged_file(rng, place, rng.choice((rows_with_ids, rows_with_text)))
    out = place / "found"
    files = [out / name for name in ("config.toml", "env.json", "diagnosis.json", "plans.jsonl")]
    files += [
        out / folder / f"step-000001{suffix}"
        for folder, suffix in (("tokens", ".parquet"), ("findings", ".parquet"), ("findings", ".json"))
    ]

    def run() -> None:
        diagnose.run(["--model", _model_folder(), "--rollouts", str(path), "--recipe", "grpo", "--only", "flips", "--out", str(out)])
        rows = check_table(out / "tokens" / "step-000001.parquet")
        stored = read_rollouts(path, policy())
        assert [row["token_id"] for row in rows] == stored.rollouts.tokens[stored.rollouts.mask].tolist()

    return Trial(run, (str(path), *SAID), tuple(files))


KINDS = {
    "rollouts, JSON bytes": lines_bytes,
    "rollouts, JSON values": lines_values,
    "rollouts, Parquet bytes": parquet_bytes,
    "rollouts, Parquet types": parquet_types,
    "credit FILE": credit_command,
    "convert FILE": convert_command,
    "diagnose --rollouts FILE": diagnose_command,
}

"""Run folders made up from a seed, in the format a diagnosed run leaves."""

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from made_up.findings import made_up_findings
from tokencredit.config.resolve import resolve, to_toml

STAGES = ("sample", "grade", "score", "credit", "plan", "update", "record", "evaluate", "diagnose")
EVIDENCE = (
    "change_first", "change_step", "predicted_first", "predicted_first_positive", "predicted_first_negative", "predicted_step",
    "raw_positive", "raw_negative", "raw_mini_positive", "raw_mini_negative", "cancellation", "cancellation_mini",
    "kl", "entropy_after", "coupling_own", "coupling_same", "coupling_other", "value_before", "value_after",
)  # fmt: skip

MEASURED = ("change_first", "change_step", "kl", "entropy_after")
"""What is known of every token looked at; predictions are made for half of the prompts only."""


def make_run(
    folder: Path,
    *,
    token_steps: Sequence[int] = (1, 10, 20),
    prompts: int = 8,
    group_size: int = 8,
    operations: int = 4,
    seed: int = 0,
    recipe: str = "delta",
    finished: bool = True,
    looked_at: int = 4,
    texts: Sequence[str] | None = None,
    parquet_files: bool = True,
) -> Path:
    """`looked_at` prompts of every token step have evidence; `texts` replaces the tokens of the first prompt's responses."""
    random_numbers = random.Random(seed)
    (folder / "tokens").mkdir(parents=True)
    (folder / "findings").mkdir()
    steps = max(token_steps)
    sizes = {"prompts": prompts, "group_size": group_size}
    config = resolve([{"recipe": recipe, "seed": seed, "steps": steps, "sampling": sizes}])
    (folder / "config.toml").write_text(to_toml(config), encoding="utf-8")
    packages = {"tokencredit": "0.1.0", "torch": "2.13.0"}
    _json(folder / "env.json", {"python": "3.11.7", "platform": "Linux", "packages": packages, "commit": "c0ffee" * 6, "diff": ""})
    plans = []
    for step in token_steps:
        columns, plan = _tokens(random_numbers, step, prompts, group_size, operations, texts)
        plans.append(plan)
        _columns(folder / "tokens" / f"step-{step:06}", columns, parquet_files)
        if looked_at:
            _columns(folder / "findings" / f"step-{step:06}", _evidence(random_numbers, columns, looked_at), parquet_files)
            _json(folder / "findings" / f"step-{step:06}.json", made_up_findings(random_numbers, step))
    _lines(folder / "plans.jsonl", plans)
    _lines(folder / "metrics.jsonl", [_metrics(random_numbers, step, steps) for step in range(1, steps + 1)])
    _lines(folder / "timing.jsonl", [{"step": step, "seconds": _seconds(random_numbers)} for step in range(1, steps + 1)])
    if finished:
        before, after = _accuracy(0.25, 0.2), _accuracy(0.95, 0.85)
        result = {"recipe": recipe, "seed": seed, "steps": steps, "before": before, "after": after, "rollouts_used": 64 * steps}
        _json(folder / "result.json", result | {"best_step": steps, "seconds": dict.fromkeys(STAGES, 3.25)})
    return folder


def _accuracy(greedy: float, sampled: float) -> dict[str, float]:
    return {"greedy": greedy, "sampled": sampled, "pass_at_k": 0.9, "k": 8, "mixed_groups": 0.4, "length": 30.0, "problems": 512}


def _metrics(numbers: random.Random, step: int, steps: int) -> dict[str, float]:
    share = 0.2 + 0.7 * step / steps
    row = {
        "step": step, "rollouts_used": 64 * step, "score": share, "reward": share - 0.02, "entropy": 0.3 - 0.2 * step / steps,
        "completions/mean_length": 30 + numbers.random(), "frac_reward_zero_std": numbers.random() / 5,
        "silenced_share": numbers.random() / 50,
    }  # fmt: skip
    return row | ({} if step % 5 else {"held_out/greedy": share, "held_out/sampled": share - 0.05, "held_out/problems": 256})


def _seconds(numbers: random.Random) -> dict[str, float]:
    return {stage: 0.01 + numbers.random() / 5 for stage in STAGES}


def _response(numbers: random.Random, problem: list[tuple[str, int]], start: int) -> tuple[list[str], list[str], list[bool | None], bool]:
    """Pieces, classes, whether each piece's step is right, and whether the answer is."""
    pieces, classes, rights = [numbers.choice("ab"), ":"], ["preamble"] * 2, [None, None]
    value = truth = start
    for sign, operand in problem:
        truth = (truth + (operand if sign == "+" else -operand)) % 10
        result = (value + (operand if sign == "+" else -operand) + (numbers.random() < 0.12)) % 10
        right = result == (value + (operand if sign == "+" else -operand)) % 10
        for piece, name in (
            (str(value), "copy"),
            (sign, "operator"),
            (str(operand), "operand"),
            ("=", "operator"),
            (str(result), "result"),
        ):
            pieces.append(piece)
            classes.append(name)
            rights.append(right)
        for _ in range(1 + (numbers.random() < 0.4)):
            pieces.append(";")
            classes.append("separator")
            rights.append(None)
        value = result
    return (
        [*pieces, "#", str(value), "<eos>"],
        [*classes, "separator", "answer", "end"],
        [*rights, None, value == truth, None],
        value == truth,
    )


def _tokens(
    numbers: random.Random, step: int, prompts: int, group_size: int, operations: int, texts: Sequence[str] | None
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    names = (
        "step", "row", "group", "position", "prompt", "text", "token_class", "step_right", "token_id", "logp", "behavior_logp", "entropy",
        "score", "reward", "advantage", "coefficient", "credit", "optimizer_step",
    )  # fmt: skip
    columns: dict[str, list[Any]] = {name: [] for name in names}
    rows = prompts * group_size
    dealt = list(range(rows))
    numbers.shuffle(dealt)
    step_of_row = {row: place * 4 // rows for place, row in enumerate(dealt)}
    vocabulary: dict[str, int] = {}
    for group in range(prompts):
        start = numbers.randrange(10)
        problem = [(numbers.choice("+-"), numbers.randrange(10)) for _ in range(operations)]
        prompt = str(start) + "".join(f"{sign}{operand}" for sign, operand in problem) + "="
        responses = [_response(numbers, problem, start) for _ in range(group_size)]
        if texts is not None and group == 0:
            prompt = texts[0]
            responses = [(list(texts), ["other"] * len(texts), [None] * len(texts), bool(member % 2)) for member in range(group_size)]
        right_share = sum(right for *_, right in responses) / group_size
        for member, (pieces, classes, rights, right) in enumerate(responses):
            row = group * group_size + member
            spread = math.sqrt(right_share * (1 - right_share)) or 1.0
            advantage = (right - right_share) / spread
            for position, (piece, name, step_right) in enumerate(zip(pieces, classes, rights, strict=True)):
                sure = name not in ("result", "preamble", "answer")
                logp = -numbers.expovariate(40 if sure else 1.5)
                coefficient = 0.8 + 0.4 * numbers.random()
                values = (
                    step, row, group, position, prompt, piece, name, step_right, vocabulary.setdefault(piece, len(vocabulary)), logp, logp,
                    -1.2 * logp * (0.5 + numbers.random()), float(right), float(right), advantage, coefficient, coefficient * advantage,
                    step_of_row[row],
                )  # fmt: skip
                for column, value in zip(columns.values(), values, strict=True):
                    column.append(value)
    planned = [[row for row in dealt if step_of_row[row] == number] for number in range(4)]
    steps = [{"micro_batches": [some], "denominator": 31.0 * len(some), "prompts": prompts, "tokens": 31 * len(some)} for some in planned]
    return columns, {"step": step, "digest": "0123456789abcdef", "kind": "shuffled", "seed": 1, "rows": rows, "steps": steps}


def _evidence(numbers: random.Random, columns: dict[str, list[Any]], looked_at: int) -> dict[str, list[Any]]:
    seen = [at for at, group in enumerate(columns["group"]) if group < looked_at]
    found: dict[str, list[Any]] = {"step": [], "row": [], "position": []} | {name: [] for name in EVIDENCE}
    for at in seen:
        for name in ("step", "row", "position"):
            found[name].append(columns[name][at])
        credit, unsure = columns["credit"][at], 1 - math.exp(columns["logp"][at])
        up, down = 0.2 * unsure * numbers.random(), -0.2 * unsure * numbers.random()
        first = up + down + 0.1 * unsure * credit
        valued = columns["token_class"][at] in ("result", "answer")
        before = numbers.random()
        numbered = (
            first * (0.9 + 0.2 * numbers.random()), 3 * first * (0.7 + 0.6 * numbers.random()), first, up, down, 3 * first, up, down,
            up * 1.3, down * 0.6, 1 - abs(up + down) / (up - down), 0.4, abs(first) / 10, columns["entropy"][at] * 0.9,
            0.1 * credit * unsure, up / 2, down / 2, before if valued else None,
            min(1.0, max(0.0, before + numbers.uniform(-0.4, 0.3))) if valued else None,
        )  # fmt: skip
        only_measured = columns["group"][at] >= max(1, looked_at // 2)
        for name, value in zip(EVIDENCE, numbered, strict=True):
            found[name].append(None if only_measured and name not in MEASURED else value)
    return found


def _columns(stem: Path, columns: dict[str, list[Any]], as_parquet: bool) -> None:
    if as_parquet:
        parquet.write_table(pyarrow.table(columns), stem.with_suffix(".parquet"))
    else:
        _lines(stem.with_suffix(".jsonl"), [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])


def _json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def _lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

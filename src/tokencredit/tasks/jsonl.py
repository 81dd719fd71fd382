"""`jsonl`: questions and gold answers from a file of one's own, graded in child processes under limits.

Questions and gold answers of a file, and on which side each row is: trained on or held out.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tokencredit.config.messages import shortened
from tokencredit.config.task import JsonlTask
from tokencredit.errors import ConfigError
from tokencredit.grade.graders import compiled, last_match
from tokencredit.grade.pool import GraderPool
from tokencredit.grade.protocol import GradeLimits, Verdict
from tokencredit.tasks.jsonl_file import Line, Numeral, read_objects, text_cell
from tokencredit.tasks.protocol import GoldReport, Problem, Split
from tokencredit.tasks.split import alike, split_of


class Row(NamedTuple):
    line: int
    prompt: str
    gold: str
    written: str
    """The whole answer column, which may be a worked solution around the gold answer."""


class Columns(NamedTuple):
    """Where a row's parts stand."""

    question: str
    answer: str
    template: str
    gold_pattern: re.Pattern[str] | None


def read_rows(path: Path, field: str, columns: Columns) -> list[Row]:
    return distinct(path, [_row(line, cells, columns) for line, cells in read_objects(path, field)])


def _row(line: Line, cells: Mapping[str, Any], columns: Columns) -> Row:
    question = text_cell(line, cells, "question", columns.question)
    written = text_cell(line, cells, "answer", columns.answer)
    if isinstance(question, Numeral):
        raise line.wrong(f"{columns.question} is the number {shortened(question)}; give text")
    pattern = columns.gold_pattern
    gold = written if pattern is None else last_match(pattern, written)
    if pattern is not None and (gold is None or not gold.strip()):
        raise line.wrong(f"{columns.answer} is {shortened(written)}, in which task.gold_pattern {pattern.pattern!r} finds no gold answer")
    return Row(line.number, columns.template.replace("{question}", question), str(gold or "").strip(), str(written))


def distinct(path: Path, rows: list[Row]) -> list[Row]:
    """One per prompt: a row that repeats another is dropped, two that disagree on the answer are refused."""
    first: dict[str, Row] = {}
    for row in rows:
        known = first.setdefault(row.prompt, row)
        if known.gold != row.gold:
            raise ConfigError(
                f"{path}, line {row.line}: the same question as on line {known.line}, but the answer is {shortened(row.gold)} and not "
                f"{shortened(known.gold)}; keep one of them"
            )
    return list(first.values())


def two_sides(read: Callable[[Path, str], list[Row]], path: Path, held_out_path: Path | None) -> dict[Split, list[Row]]:
    """`read(file, option)` each file; without one of held-out rows, a prompt's own text decides. A question on both sides is refused."""
    rows = read(path, "path")
    if held_out_path is None:
        return {split: [row for row in rows if split_of(row.prompt) == split] for split in ("train", "held-out")}
    held_out = read(held_out_path, "held_out_path")
    trained = {alike(row.prompt): row.line for row in rows}
    leaks = [(trained[alike(row.prompt)], row.line) for row in held_out if alike(row.prompt) in trained]
    if leaks:
        raise ConfigError(
            f"{len(leaks)} questions of task.held_out_path {held_out_path} are trained on: line {leaks[0][1]} stands in {path} on line "
            f"{leaks[0][0]} too; leave them out of one file"
        )
    return {"train": rows, "held-out": held_out}


Pattern = re.Pattern[str]


def _boxed(row: Row, pattern: Pattern | None) -> str:
    return rf"\boxed{{{row.gold}}}"


def _alone(row: Row, pattern: Pattern | None) -> str:
    return row.gold


def _as_written(row: Row, pattern: Pattern | None) -> str | None:
    """No response can be made up from a pattern; but the file's own answer, or the gold answer alone, may be what it is meant to match."""
    return next((text for text in (row.written, row.gold) if pattern is not None and last_match(pattern, text) is not None), None)


class Grading(NamedTuple):
    knobs: tuple[str, ...]
    """Which of the task's options its grader takes."""
    right_response: Callable[[Row, Pattern | None], str | None]
    """A response that must be graded right, or None where none can be made."""


GRADINGS: dict[str, Grading] = {
    "math": Grading((), _boxed),
    "exact": Grading((), _alone),
    "regex": Grading(("pattern",), _as_written),
}


class Jsonl:
    """Without a file of held-out rows, the prompt's own text decides on which side a row is, as in every task."""

    decides_gold = "task.grading, task.answer and task.gold_pattern"

    def __init__(self, options: JsonlTask) -> None:
        if options.path is None:
            raise ConfigError("task.path is not set; task 'jsonl' needs a file with one JSON object per line")
        if "{question}" not in options.template:
            raise ConfigError(f"task.template is {options.template!r}; it must hold {{question}}, where the question goes")
        self._grading = GRADINGS[options.grading]
        knobs = {name: getattr(options, name) for name in self._grading.knobs}
        for name in [name for name, value in knobs.items() if value is None]:
            raise ConfigError(f"task.{name} is not set but task.grading {options.grading!r} needs it, for example '#### *(.+)'")
        self._pattern = None if options.pattern is None else compiled(options.pattern, "task.pattern")
        gold = None if options.gold_pattern is None else compiled(options.gold_pattern, "task.gold_pattern")
        columns = Columns(options.question, options.answer, options.template, gold)
        self._read_sides(lambda file, field: read_rows(file, field, columns), options.path, options.held_out_path)
        self._pool = GraderPool(
            grader=options.grading,
            knobs=knobs,
            limits=GradeLimits(seconds=options.deadline, memory_mib=options.memory),
            workers=options.workers,
        )

    def _read_sides(self, read: Callable[[Path, str], list[Row]], path: str, held_out_path: str | None) -> None:
        self._sides = two_sides(read, Path(path), None if held_out_path is None else Path(held_out_path))
        self._written = {row.prompt: row.written for rows in self._sides.values() for row in rows}
        self._sources = {"train": path, "held-out": held_out_path or path}

    def problems(self, count: int, *, split: Split, seed: int) -> list[Problem]:
        """Held-out problems are distinct; training ones go through the rows again, shuffled anew, where they are too few."""
        rows, rng = self._sides[split], Random(f"{split}/{seed}")
        if split == "held-out" and count > len(rows):
            raise ConfigError(
                f"{self._sources[split]} has {len(rows)} held-out rows that can be asked, but {count} are wanted; lower "
                f"evaluation.final_problems and evaluation.problems, or give a longer file as task.held_out_path"
            )
        if not rows and count > 0:
            raise ConfigError(f"{self._sources[split]} has no rows to train on; give more, or a file of its own as task.held_out_path")
        passes, rest = divmod(count, len(rows)) if rows else (0, 0)
        order = [index for _ in range(passes) for index in rng.sample(range(len(rows)), len(rows))] + rng.sample(range(len(rows)), rest)
        return [Problem(prompt=rows[index].prompt, answer=rows[index].gold) for index in order]

    def grade_all(self, asked: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        return self._pool.grade([(problem.answer, response) for problem, response in asked])

    def grade(self, problem: Problem, response: str) -> float:
        return self.grade_all([(problem, response)])[0].score

    def demonstrate(self, problem: Problem, *, seed: int) -> str:
        """The answer column as the file has it, or of a program its reference in a block."""
        return self._written[problem.prompt]

    def token_class(self, problem: Problem, response: str) -> list[str]:
        return ["response"] * len(response)

    def check_gold(self) -> GoldReport:
        """Grade every gold answer as if it were a response, and ask no more for those that fail.

        `checked` counts the rows for which a right response could be made: all of them, but for a pattern that matches
        neither the answer column nor the gold answer alone.
        """
        return self._check("train", "held-out")

    def check_gold_of(self, split: Split) -> GoldReport:
        return self._check(split)

    def _check(self, *splits: Split) -> GoldReport:
        asked = [
            (split, row, response)
            for split in splits
            for row in self._sides[split]
            if (response := self._grading.right_response(row, self._pattern)) is not None
        ]
        verdicts = self._pool.grade([(row.gold, response) for _, row, response in asked])
        bad = [(split, row, verdict) for (split, row, _), verdict in zip(asked, verdicts, strict=True) if verdict.score != 1.0]
        failed = tuple((row.line, f"{self._sources[split]}: {_why(row, verdict)}") for split, row, verdict in bad)
        if failed and len(failed) == len(asked):
            line, reason = failed[0]
            raise ConfigError(f"none of the {len(asked)} gold answers is graded right, line {line} of {reason}; see {self.decides_gold}")
        self.leave_out(failed)
        return GoldReport(checked=len(asked), failed=failed)

    def leave_out(self, failed: Sequence[tuple[int, str]]) -> None:
        """What a report of `check_gold` names: its line, and its file at the beginning of the reason."""

        def named(split: str, row: Row) -> bool:
            return any(line == row.line and reason.startswith(f"{self._sources[split]}: ") for line, reason in failed)

        self._sides = {split: [row for row in rows if not named(split, row)] for split, rows in self._sides.items()}


def _why(row: Row, verdict: Verdict) -> str:
    return verdict.reason or f"the gold answer {row.gold[:60]!r} is graded {verdict.score:g} against itself"

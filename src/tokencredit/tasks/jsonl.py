"""`jsonl`: questions and gold answers from the user's JSON-lines file, split into train and held-out rows.

Responses are graded in child processes under limits.
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
from tokencredit.tasks.split import normalize_prompt, split_of

Pattern = re.Pattern[str]


class Row(NamedTuple):
    line: int
    prompt: str
    gold: str
    written: str
    """The complete answer column, which may be a worked solution that contains the gold answer."""


class Columns(NamedTuple):
    """The columns and patterns from which a `Row` is read."""

    question: str
    answer: str
    template: str
    gold_pattern: Pattern | None


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
        raise line.wrong(f"{columns.answer} is {shortened(written)}, where task.gold_pattern {pattern.pattern!r} finds no gold answer")
    return Row(line.number, columns.template.replace("{question}", question), str(gold or "").strip(), str(written))


def distinct(path: Path, rows: list[Row]) -> list[Row]:
    """One row per prompt: repeated rows are dropped, and two rows with one prompt but different answers are a ConfigError."""
    first: dict[str, Row] = {}
    for row in rows:
        known = first.setdefault(row.prompt, row)
        if known.gold != row.gold:
            raise ConfigError(
                f"{path}, line {row.line}: the same question as on line {known.line}, but the answer is {shortened(row.gold)} and not "
                f"{shortened(known.gold)}; keep one of the two lines"
            )
    return list(first.values())


def split_rows(read: Callable[[Path, str], list[Row]], path: Path, held_out_path: Path | None) -> dict[Split, list[Row]]:
    """The rows of each split, by `read(file, field)`. A question in both splits is a ConfigError.

    Without a file of held-out rows, the prompt's text decides the split.
    """
    rows = read(path, "path")
    if held_out_path is None:
        return {split: [row for row in rows if split_of(row.prompt) == split] for split in ("train", "held-out")}
    held_out = read(held_out_path, "held_out_path")
    trained = {normalize_prompt(row.prompt): row.line for row in rows}
    leaks = [(trained[normalize_prompt(row.prompt)], row.line) for row in held_out if normalize_prompt(row.prompt) in trained]
    if leaks:
        raise ConfigError(
            f"{len(leaks)} questions of task.held_out_path {held_out_path} are also in task.path {path}, for example line {leaks[0][1]}, "
            f"which is line {leaks[0][0]} there; remove them from one of the files"
        )
    return {"train": rows, "held-out": held_out}


def _boxed(row: Row, pattern: Pattern | None) -> str:
    return rf"\boxed{{{row.gold}}}"


def _alone(row: Row, pattern: Pattern | None) -> str:
    return row.gold


def _as_written(row: Row, pattern: Pattern | None) -> str | None:
    """The answer column or the gold answer alone, whichever the pattern matches; None if it matches neither.

    A pattern alone does not tell what a matching response looks like.
    """
    return next((text for text in (row.written, row.gold) if pattern is not None and last_match(pattern, text) is not None), None)


class Grading(NamedTuple):
    knobs: tuple[str, ...]
    """The task fields that the grader takes as arguments."""
    right_response: Callable[[Row, Pattern | None], str | None]
    """A response that must be graded right; None where none can be constructed."""


GRADINGS: dict[str, Grading] = {
    "math": Grading((), _boxed),
    "exact": Grading((), _alone),
    "regex": Grading(("pattern",), _as_written),
}


class Jsonl:
    """Without a file of held-out rows, the prompt's text decides the split of a row, as in every task."""

    gold_fields = "task.grading, task.answer and task.gold_pattern"

    def __init__(self, options: JsonlTask) -> None:
        if options.path is None:
            raise ConfigError("task.path is not set; task 'jsonl' needs a file with one JSON object per line")
        if "{question}" not in options.template:
            raise ConfigError(f"task.template is {options.template!r}; it must hold {{question}}, which the question replaces")
        self._grading = GRADINGS[options.grading]
        knobs = {name: getattr(options, name) for name in self._grading.knobs}
        for name in [name for name, value in knobs.items() if value is None]:
            raise ConfigError(f"task.{name} is not set but task.grading {options.grading!r} needs it, for example '#### *(.+)'")
        self._pattern = None if options.pattern is None else compiled(options.pattern, "task.pattern")
        gold = None if options.gold_pattern is None else compiled(options.gold_pattern, "task.gold_pattern")
        columns = Columns(options.question, options.answer, options.template, gold)
        self._read_splits(lambda file, field: read_rows(file, field, columns), options.path, options.held_out_path)
        self._pool = GraderPool(
            grader=options.grading,
            knobs=knobs,
            limits=GradeLimits(seconds=options.deadline, memory_mib=options.memory),
            workers=options.workers,
        )

    def _read_splits(self, read: Callable[[Path, str], list[Row]], path: str, held_out_path: str | None) -> None:
        self._rows = split_rows(read, Path(path), None if held_out_path is None else Path(held_out_path))
        self._written = {row.prompt: row.written for rows in self._rows.values() for row in rows}
        self._sources = {"train": path, "held-out": held_out_path or path}

    def problems(self, count: int, *, split: Split, seed: int) -> list[Problem]:
        """Held-out problems are distinct; if there are too few training rows, they repeat, shuffled anew each pass."""
        rows, rng = self._rows[split], Random(f"{split}/{seed}")
        if split == "held-out" and count > len(rows):
            raise ConfigError(
                f"{self._sources[split]} has {len(rows)} usable held-out rows, but the run needs {count}; lower "
                f"evaluation.final_problems and evaluation.problems, or give a longer file as task.held_out_path"
            )
        if not rows and count > 0:
            raise ConfigError(f"{self._sources[split]} has no rows to train on; give more rows, or a separate task.held_out_path")
        passes, rest = divmod(count, len(rows)) if rows else (0, 0)
        order = [index for _ in range(passes) for index in rng.sample(range(len(rows)), len(rows))] + rng.sample(range(len(rows)), rest)
        return [Problem(prompt=rows[index].prompt, answer=rows[index].gold) for index in order]

    def grade_all(self, asked: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        return self._pool.grade([(problem.answer, response) for problem, response in asked])

    def grade(self, problem: Problem, response: str) -> float:
        return self.grade_all([(problem, response)])[0].score

    def demonstrate(self, problem: Problem, *, seed: int) -> str:
        """The answer column as the file has it; for `code`, the reference solution in a fenced block."""
        return self._written[problem.prompt]

    def token_class(self, problem: Problem, response: str) -> list[str]:
        return ["response"] * len(response)

    def check_gold(self) -> GoldReport:
        """Grade every gold answer as if it were a response, and stop sampling the rows that fail.

        `checked` counts the rows for which a right response could be constructed: all rows, except those where
        task.pattern matches neither the answer column nor the gold answer alone.
        """
        return self._check("train", "held-out")

    def check_gold_of(self, split: Split) -> GoldReport:
        return self._check(split)

    def _check(self, *splits: Split) -> GoldReport:
        checks = [
            (split, row, response)
            for split in splits
            for row in self._rows[split]
            if (response := self._grading.right_response(row, self._pattern)) is not None
        ]
        verdicts = self._pool.grade([(row.gold, response) for _, row, response in checks])
        bad = [(split, row, verdict) for (split, row, _), verdict in zip(checks, verdicts, strict=True) if verdict.score != 1.0]
        failed = tuple((row.line, f"{self._sources[split]}: {_why(row, verdict)}") for split, row, verdict in bad)
        if failed and len(failed) == len(checks):
            line, reason = failed[0]
            raise ConfigError(f"none of the {len(checks)} gold answers is graded right, line {line} of {reason}; see {self.gold_fields}")
        self.leave_out(failed)
        return GoldReport(checked=len(checks), failed=failed)

    def leave_out(self, failed: Sequence[tuple[int, str]]) -> None:
        """Remove the rows that a report of `check_gold` names: by the line, and by the file at the start of the reason."""

        def named(split: str, row: Row) -> bool:
            return any(line == row.line and reason.startswith(f"{self._sources[split]}: ") for line, reason in failed)

        self._rows = {split: [row for row in rows if not named(split, row)] for split, rows in self._rows.items()}


def _why(row: Row, verdict: Verdict) -> str:
    return verdict.reason or f"the gold answer {row.gold[:60]!r} is graded {verdict.score:g} against itself"

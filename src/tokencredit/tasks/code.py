"""`code`: programming problems in Python from a JSON-lines file with MBPP's columns. Programs run in the sandbox.

The task is off unless `allow_code_execution` is set, because it runs model-written code on this machine.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokencredit.config.task import CodeTask
from tokencredit.errors import ConfigError
from tokencredit.grade.code import CodeGold, cut_gold
from tokencredit.grade.code.split import GoldError
from tokencredit.grade.pool import GraderPool
from tokencredit.grade.protocol import GradeLimits
from tokencredit.grade.sandbox import settle
from tokencredit.grade.sandbox.child import START_SECONDS
from tokencredit.tasks.jsonl import Grading, Jsonl, Row, distinct
from tokencredit.tasks.jsonl_file import Line, read_objects, text_cell

UNISOLATED = "model-written programs run under plain limits, without isolation; docs/sandbox.md lists what that does not prevent"


class Code(Jsonl):
    """Rows, splits and the check of gold answers are those of `jsonl`; the row's reference solution must be graded right."""

    gold_fields = "task.code, task.tests and task.setup"

    def __init__(self, options: CodeTask) -> None:
        if not options.allow_code_execution:
            raise ConfigError(
                "task.allow_code_execution is false; task 'code' runs programs that a model wrote on this machine, in a sandbox that "
                "limits and isolates them (docs/sandbox.md first lists what it does not cover); set it to true to allow this"
            )
        if options.path is None:
            raise ConfigError("task.path is not set; task 'code' needs a file with one JSON object per line")
        if "{text}" not in options.template:
            raise ConfigError(
                f"task.template is {options.template!r}; it must hold {{text}}, which the problem replaces; "
                "{call} and {tests} are optional"
            )
        settled = settle(options.isolation)
        self.cautions = (UNISOLATED,) if settled == "plain" else ()
        self._grading = Grading((), lambda row, _: row.written)
        self._pattern = None
        self._read_splits(lambda file, field: _read(file, field, options), options.path, options.held_out_path)
        self._pool = GraderPool(
            grader="code",
            knobs={
                "isolation": settled,
                "judge_inside": options.judge_inside,
                "wall_seconds": options.wall_seconds,
                "cpu_seconds": options.cpu_seconds,
                "memory_mb": options.memory,
                "processes": options.processes,
            },
            # At most two programs run: the response's, and one for expected values that are no literals. The sandbox enforces the time.
            limits=GradeLimits(seconds=2 * (options.wall_seconds + 2 * START_SECONDS), memory_mib=1024 + options.memory),
            workers=options.workers,
        )


def _read(path: Path, field: str, columns: CodeTask) -> list[Row]:
    return distinct(path, [_row(line, cells, columns) for line, cells in read_objects(path, field)])


def _row(line: Line, cells: Mapping[str, Any], columns: CodeTask) -> Row:
    text, reference = (text_cell(line, cells, field, getattr(columns, field)) for field in ("text", "code"))
    tests, setup = cells.get(columns.tests), cells.get(columns.setup, "")
    if not isinstance(tests, list) or not tests or not all(type(test) is str for test in tests):
        raise line.wrong(f"{columns.tests} must be a list of assertions as text; set task.tests to the column that holds them")
    # Sanitized MBPP has a list of imports, MBPP a string.
    setup = "\n".join(setup) if isinstance(setup, list) and all(isinstance(part, str) for part in setup) else setup
    # `Numeral`, a number of the file, is a subclass of str.
    if type(setup) is not str:
        raise line.wrong(f"{columns.setup} must be text or a list of text; set task.setup to the column that holds it")
    gold = CodeGold(tuple(tests), setup).dumps()
    try:
        call = cut_gold(gold).questions[0]
    except GoldError as problem:
        raise line.wrong(f"{columns.tests}: {problem}") from None
    # Not str.format: a problem may contain braces.
    prompt = columns.template.replace("{call}", call).replace("{tests}", "\n".join(tests)).replace("{text}", text)
    return Row(line.number, prompt, gold, f"```python\n{reference}\n```")

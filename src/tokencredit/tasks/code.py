"""`code`: programming problems in Python from a JSON-lines file with MBPP's columns. Programs run in the sandbox.

The task is off unless `allow_code_execution` is set, because it runs model-written code on this machine.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokencredit.errors import ConfigError
from tokencredit.grade.code import CodeGold, cut_gold
from tokencredit.grade.code.split import GoldError
from tokencredit.grade.pool import GraderPool
from tokencredit.grade.protocol import GradeLimits
from tokencredit.grade.sandbox import Isolation, settle
from tokencredit.grade.sandbox.child import START_SECONDS
from tokencredit.tasks.jsonl import Grading, Jsonl, Row, distinct, split_rows, written_by_prompt
from tokencredit.tasks.jsonl_file import Line, read_objects, text_cell

UNISOLATED = "model-written programs run under plain limits, without isolation; docs/sandbox.md lists what that does not prevent"
TEMPLATE = "{text}\nWrite it in Python, in one ```python block. It will be called like this: {call}\n"


class CodeColumns(NamedTuple):
    text: str
    tests: str
    setup: str
    code: str
    template: str


class Code(Jsonl):
    """Rows, splits and the check of gold answers are those of `jsonl`; the row's reference solution must be graded right."""

    gold_fields = "task.code, task.tests and task.setup"

    def __init__(
        self,
        *,
        path: str | None,
        held_out_path: str | None = None,
        allow_code_execution: bool = False,
        isolation: Isolation = "bubblewrap",
        text: str = "text",
        tests: str = "test_list",
        setup: str = "test_setup_code",
        code: str = "code",
        template: str = TEMPLATE,
        judge_inside: bool = False,
        wall_seconds: float = 10.0,
        cpu_seconds: int = 5,
        memory: int = 512,
        processes: int = 16,
        workers: int = 2,
    ) -> None:
        if not allow_code_execution:
            raise ConfigError(
                "task.allow_code_execution is false; task 'code' runs programs that a model wrote on this machine, in a sandbox that "
                "limits and isolates them (docs/sandbox.md first lists what it does not cover); set it to true to allow this"
            )
        if path is None:
            raise ConfigError("task.path is not set; task 'code' needs a file with one JSON object per line")
        if "{text}" not in template:
            raise ConfigError(
                f"task.template is {template!r}; it must hold {{text}}, which the problem replaces; {{call}} and {{tests}} are optional"
            )
        settled = settle(isolation)
        self.cautions = (UNISOLATED,) if settled == "plain" else ()
        self._grading = Grading((), lambda row, _: row.written)
        self._pattern = None
        columns = CodeColumns(text, tests, setup, code, template)
        self._rows = split_rows(
            lambda file, field: _read(file, field, columns), Path(path), None if held_out_path is None else Path(held_out_path)
        )
        self._written = written_by_prompt(self._rows)
        self._sources = {"train": path, "held-out": held_out_path or path}
        self._pool = GraderPool(
            grader="code",
            knobs={
                "isolation": settled,
                "judge_inside": judge_inside,
                "wall_seconds": wall_seconds,
                "cpu_seconds": cpu_seconds,
                "memory_mb": memory,
                "processes": processes,
            },
            # At most two programs run: the response's, and one for expected values that are no literals. The sandbox enforces the time.
            limits=GradeLimits(seconds=2 * (wall_seconds + 2 * START_SECONDS), memory_mib=1024 + memory),
            workers=workers,
        )


def _read(path: Path, field: str, columns: CodeColumns) -> list[Row]:
    return distinct(path, [_row(line, cells, columns) for line, cells in read_objects(path, field)])


def _row(line: Line, cells: Mapping[str, Any], columns: CodeColumns) -> Row:
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

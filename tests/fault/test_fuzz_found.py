"""What the fuzzer once found, each by its name: the words that are said now."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from made_up.run import make_run
from tiny import tiny_policy
from tokencredit.commands import convert, credit, show
from tokencredit.config.resolve import read_toml, resolve
from tokencredit.errors import ConfigError
from tokencredit.report import write_report
from tokencredit.report.run_reader import Run
from tokencredit.report.token_view import read_step
from tokencredit.rollout_io.load import load
from tokencredit.rollout_io.read import read_rollouts
from tokencredit.storage.run_dir import RunDir

CONFIGS = {
    "a number of 5000 digits": (b"seed = " + b"9" * 5_000, "config.toml cannot be read as TOML: Exceeds the limit"),
    "tables in tables without end": (b"a" + b".a" * 3_000 + b" = 1", "config.toml cannot be read as TOML: it is nested too deeply"),
    "lists in lists without end": (b"a = " + b"[" * 30_000, "config.toml cannot be read as TOML: it is nested too deeply"),
    "bytes that are no UTF-8": (b"model = '\xff'", "config.toml cannot be read as TOML: 'utf-8' codec"),
    "a task type that is a list": (b"task = {type = []}", "task"),
    "a task type that is a table": (b"[task.type]\n", "task"),
    "true for a number": (b"seed = true", "seed is True: Input should be a valid integer"),
    "text for a number": (b'steps = "3"', "steps is '3': Input should be a valid integer"),
    "a fraction for a count": (b"steps = 3.0", "steps is 3.0: Input should be a valid integer"),
    "one for true": (b"filter_groups = 1", "filter_groups is 1: Input should be a valid boolean"),
    "a recipe too long to repeat": (b"recipe = '" + b"x" * 100_000 + b"'", "recipe 'xxx"),
    "a type too long to repeat": (b"[credit]\ntype = '" + b"x" * 100_000 + b"'", "credit.type is 'xxx"),
    "a value too long to repeat": (b"seed = '" + b"x" * 100_000 + b"'", "seed is 'xxx"),
    "a key too long to repeat": (b"x" * 100_000 + b" = 1", "is not a setting"),
    "more mistakes than anybody reads": (b"".join(b"x%d = 1\n" % key for key in range(500)), "and 494 more mistakes"),
    "a key that would move the text": ('"\u202e" = 1'.encode(), r"'\u202e' is not a setting"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_file_is_refused_in_few_words(tmp_path: Path, name: str) -> None:
    content, words = CONFIGS[name]
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        resolve([read_toml(path)])
    assert words in str(caught.value)
    assert len(str(caught.value)) < 6_000


def test_a_config_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xef\xbb\xbfseed = 7\nsteps = 3\n")
    assert read_toml(path) == {"seed": 7, "steps": 3}
    assert resolve([read_toml(path)]).seed == 7


def test_whole_numbers_may_stand_where_fractions_may() -> None:
    assert resolve([{"sampling": {"temperature": 1}}]).sampling.temperature == 1.0


GOOD: dict[str, Any] = {"prompt_ids": [3, 4], "response_ids": [5, 6, 7], "logp": [-1.0, -2.0, -3.0], "score": 1.0}
TRL = {"prompt": "1+1=", "completion": "#2", "reward": 1.0, "advantage": 0.5}
VERL = {"input": "1+1=", "output": "#2", "gts": "2", "score": 1.0}


def second(row: dict[str, Any], **changes: Any) -> str:
    """A good row, then the same with changes; `...` takes a column away."""
    changed = {column: value for column, value in {**row, **changes}.items() if value is not ...}
    return "".join(json.dumps(one) + "\n" for one in (row, changed))


ROLLOUTS = {
    "a score beyond numbers": (second(GOOD, score=10**400), "row 2: score is 1000000000000000000"),
    "a log-prob beyond numbers": (second(GOOD, logp=[-1, -(10**400), -1]), "row 2: logp holds -1000000000000000000"),
    "an id beyond numbers": (second(GOOD, response_ids=[5, 2**63, 7]), "row 2: response_ids holds 9223372036854775808 at position 2"),
    "a step beyond numbers": (second({**GOOD, "step": 1}, step=10**30), "row 2: step is 1000000000000000000000000000000; give a whole"),
    "a row that nests too deeply": (second(GOOD) + '{"a":' * 20_000, "row 3: the line is not JSON"),
    "a first row that nests too deeply": ("[" * 30_000, "is neither Parquet nor JSON lines: line 1 is '[[["),
    "half a character in a group": (
        second({**GOOD, "group": "a"}, group="\ud800"),
        r"row 2: group is '\ud800', which has an unpaired surrogate",
    ),
    "half a character in a class": (
        second({**GOOD, "token_class": ["a", "b", "c"]}, token_class=["a", "\udfff", "c"]),
        r"row 2: token_class is ['a', '\udfff', 'c'], which has an unpaired surrogate",
    ),
    "half a character in a name": (second(GOOD, **{"\ud83d": 1}), r"row 2: '\ud83d' is 1, which has an unpaired surrogate"),
    "a column twice": (second(GOOD) + '{"score": 1, "score": 0, "prompt_ids": [1], "response_ids": [1]}\n', "row 3: score is given twice"),
    "TRL without a completion": (second(TRL, completion=...), "row 2: completion is None; it must be text or a list of chat messages"),
    "TRL without a prompt": (second(TRL, prompt=...), "row 2: prompt is None; it must be text or a list of chat messages"),
    "names longer than anybody reads": (json.dumps({"x" * 100_000: 1}) + "\n", "is not a rollout file: it holds 'xxx"),
    "more names than anybody reads": (json.dumps({f"column{index}": 1 for index in range(5_000)}) + "\n", "and 4970 more; ours has prompt"),
}


@pytest.mark.parametrize("name", ROLLOUTS)
def test_a_rollout_file_is_refused_in_few_words(tmp_path: Path, name: str) -> None:
    content, words = ROLLOUTS[name]
    path = tmp_path / "rollouts.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_rollouts(path, step=1 if "step" in name else None)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 2_000


def test_messages_that_nothing_can_join_name_their_row(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(second(TRL, prompt=[{"role": "user", "content": "1"}]))
    with pytest.raises(ConfigError, match=r"rollouts\.jsonl, row 2: the model's tokenizer has no chat template"):
        read_rollouts(path, tiny_policy())


def _table(path: Path, **columns: pyarrow.Array) -> Path:
    rows = {name: pyarrow.array([value, value]) for name, value in GOOD.items()} | columns
    parquet.write_table(pyarrow.table(rows), path)
    return path


PARQUET: dict[str, tuple[pyarrow.Array, str]] = {
    "nanoseconds": (pyarrow.array([1, 2**62 + 1], pyarrow.timestamp("ns")), "column when of type timestamp[ns] cannot be read (Nanosecond"),
    "text that is no UTF-8": (
        pyarrow.array([b"\xff", b"a"], pyarrow.binary()).cast(pyarrow.string(), safe=False),
        "column when of type string cannot be read ('utf-8' codec",
    ),
    "a day beyond the calendar": (pyarrow.array([2**31 - 1] * 2, pyarrow.date32()), "column when of type date32[day] cannot be read"),
}


@pytest.mark.parametrize("name", PARQUET)
def test_a_column_that_python_has_no_values_for_is_named(tmp_path: Path, name: str) -> None:
    column, words = PARQUET[name]
    path = _table(tmp_path / "rollouts.parquet", when=column)
    with pytest.raises(ConfigError) as caught:
        read_rollouts(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.parquet"
    table = pyarrow.table({name: pyarrow.array([value, value]) for name, value in GOOD.items()})
    parquet.write_table(table.append_column("score", pyarrow.array([0.0, 0.0])), path)
    with pytest.raises(ConfigError, match="has two columns called score; keep one of them"):
        read_rollouts(path)


def test_one_step_of_many_is_read_from_parquet(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.parquet"
    rows = [{**GOOD, "step": step, "score": float(step)} for step in (4, 5, 4, 5)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    found = load(path, step=5)
    assert [row["score"] for row in found.rows] == [5.0, 5.0]
    assert [location.row for location in found.locations] == [2, 4]


CONVERTED = {
    "half a character in a completion": (
        second(TRL, completion="\ud83d"),
        r"row 2: completion is '\ud83d', which has an unpaired surrogate",
    ),
    "half a character in an answer": (second(VERL, gts=["\udc00"]), r"row 2: gts is ['\udc00'], which has an unpaired surrogate"),
    "a row that is no object": (second(VERL) + "3\n", "row 3: 3 is not a JSON object"),
}


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("name", CONVERTED)
def test_what_cannot_be_written_is_refused_before_anything_is(tmp_path: Path, name: str, suffix: str) -> None:
    content, words = CONVERTED[name]
    path = tmp_path / "log.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        convert.run([str(path), "--out", str(tmp_path / f"out{suffix}")])
    assert words in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["log.jsonl"]


def test_an_answer_that_json_has_no_word_for(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    table = pyarrow.Table.from_pylist([VERL, VERL])
    parquet.write_table(table.set_column(2, "gts", pyarrow.array([b"\xff", b"a"])), path)
    with pytest.raises(ConfigError, match=r"row 1: gts is b'\\xff', which cannot be written as JSON; give text"):
        convert.run([str(path), "--out", str(tmp_path / "out.jsonl")])


def test_notes_print_names_that_no_terminal_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(json.dumps({**GOOD, "score": score, "\u202e": 1, "\x00": 2}) + "\n" for score in (0.0, 1.0)))
    credit.run([str(path), "--recipe", "rloo"])
    assert r"2 other columns are not read: '\u202e', '\x00'" in capsys.readouterr().out


def edited(change: Callable[[list[dict[str, Any]]], None]) -> Callable[[Path], None]:
    """Lines of a file, changed and written back."""

    def edit(path: Path) -> None:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        change(rows)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return edit


def put(place: int, *path: str | int, value: Any) -> Callable[[Path], None]:
    def change(rows: list[dict[str, Any]]) -> None:
        holder: Any = rows[place]
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = value

    return edited(change)


def bytes_in(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


RUNS: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "tables in tables": ("config.toml", bytes_in(b"a" + b".a" * 3_000 + b" = 1"), "it is nested too deeply"),
    "a plan of no list": ("plans.jsonl", put(0, "steps", value=3), "line 1 has steps 3; each needs micro_batches, lists of rows"),
    "a plan without batches": ("plans.jsonl", put(1, "steps", value=[{}]), "line 2 has steps [{}]; each needs micro_batches"),
    "batches of no rows": ("plans.jsonl", put(0, "steps", 0, "micro_batches", value=[[1], 2]), "line 1 has steps"),
    "batches of lists": ("plans.jsonl", put(0, "steps", 0, "micro_batches", value=[[[1]]]), "line 1 has steps"),
    "a plan of no step": ("plans.jsonl", put(0, "step", value=[1]), "step of line 1 is [1], not a whole number"),
    "metrics of no step": ("metrics.jsonl", put(1, "step", value="2"), "step of line 2 is '2', not a whole number"),
    "lists without end": ("metrics.jsonl", bytes_in(b"[" * 30_000 + b"\n"), "line 1 is not JSON"),
    "a row that is text": ("tokens/step-000003.jsonl", put(4, "row", value="1"), "row of line 5 is '1', not a whole number"),
    "a group that is a list": ("tokens/step-000003.jsonl", put(0, "group", value=[0]), "group of line 1 is [0], not a whole number"),
    "an id that is a list": ("tokens/step-000003.jsonl", put(2, "token_id", value=[1]), "token_id of line 3 is [1], not a whole number"),
    "a class that is a list": ("tokens/step-000003.jsonl", put(2, "token_class", value=["a"]), "token_class of line 3 is ['a'], not text"),
    "a verdict that is a list": (
        "tokens/step-000003.jsonl",
        put(2, "step_right", value=[]),
        "step_right of line 3 is [], not true or false",
    ),
    "a token twice": ("tokens/step-000003.jsonl", edited(lambda rows: rows.append(rows[0])), "a token occurs twice"),
    "evidence of a list": ("findings/step-000003.jsonl", put(0, "position", value=[0]), "position of line 1 is [0], not a whole number"),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_damaged_run_folder_is_refused_in_words(tmp_path: Path, name: str) -> None:
    file, damage, words = RUNS[name]
    folder = make_run(tmp_path / "run", token_steps=(1, 3), prompts=2, group_size=2, operations=2, parquet_files=False)
    damage(folder / file)
    with pytest.raises(ConfigError) as caught:
        write_report([folder], tmp_path / "page.html")
    assert words in str(caught.value)
    assert str(folder / file) in str(caught.value)
    assert not list(tmp_path.glob("page.html*"))


@pytest.mark.parametrize("values", [[2**62 + 1], [b"\xff"]])
def test_token_files_of_unreadable_cells_are_refused(tmp_path: Path, values: Sequence[Any]) -> None:
    folder = make_run(tmp_path / "run", token_steps=(1,), prompts=2, group_size=2)
    path = folder / "tokens" / "step-000001.parquet"
    table = parquet.read_table(path)
    cells = values * table.num_rows
    raw = pyarrow.array(cells, pyarrow.timestamp("ns") if isinstance(cells[0], int) else pyarrow.binary())
    parquet.write_table(table.append_column("odd", raw if isinstance(cells[0], int) else raw.cast(pyarrow.string(), safe=False)), path)
    with pytest.raises(ConfigError, match=r"step-000001\.parquet cannot be read as Parquet"):
        show.run([str(folder)])


def test_an_optimizer_step_that_cannot_have_been_fills_no_memory(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", token_steps=(1,), prompts=2, group_size=2, parquet_files=False)
    (folder / "plans.jsonl").unlink()
    put(0, "optimizer_step", value=10**12)(folder / "tokens" / "step-000001.jsonl")
    with pytest.raises(ConfigError, match="optimizer step 1000000000000 is impossible"):
        write_report([folder], tmp_path / "page.html")


def test_columns_that_only_later_lines_have_are_read(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", token_steps=(1,), prompts=2, group_size=2, parquet_files=False)
    path = folder / "tokens" / "step-000001.jsonl"
    edited(lambda rows: rows[0].pop("credit"))(path)
    told = read_step(Run(folder), 1).columns["credit"]
    assert told[0] is None
    assert all(value is not None for value in told[1:])


LINES = {
    "a word": ("metrics.jsonl", '{"step": 1}\nword\n{"step": 2}\n', "line 2 is not JSON"),
    "a broken last line that was written whole": ("metrics.jsonl", '{"step": 1}\n{"st\n', "line 2 is not JSON"),
    "a list": ("plans.jsonl", '[1]\n{"step": 2}\n', "line 1 is not JSON with the number of a step"),
    "a row without a step": ("timing.jsonl", '{"seconds": 1}\n{"step": 2}\n', "line 1 is not JSON with the number of a step"),
    "lists without end": ("metrics.jsonl", "[" * 30_000 + "\n", "line 1 is not JSON"),
}


@pytest.mark.parametrize("name", LINES)
def test_a_run_that_goes_on_refuses_a_damaged_record(tmp_path: Path, name: str) -> None:
    file, content, words = LINES[name]
    (tmp_path / file).write_text(content)
    with pytest.raises(ConfigError) as caught:
        RunDir(tmp_path).read(file)
    assert f"{tmp_path / file} is damaged: {words}" in str(caught.value)


def test_a_run_that_goes_on_leaves_out_a_line_cut_short(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "why": "a\u2028b"}\n{"step": 2, "sc', encoding="utf-8")
    assert RunDir(tmp_path).read("metrics.jsonl") == [{"step": 1, "why": "a\u2028b"}]
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n\xff\xfe\n')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl is damaged: it cannot be read"):
        RunDir(tmp_path).read("metrics.jsonl")

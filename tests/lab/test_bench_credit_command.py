"""`tokencredit bench credit`: what it prints and writes, where its settings come from, and what it refuses before a model is loaded."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from engine.runs import run as train
from engine.runs import small_config
from fault.command import assert_refused
from tokencredit.errors import ConfigError
from tokencredit.lab.commands.bench import run
from tokencredit.lab.commands.bench_credit import _order, parse_credit
from tokencredit.lab.credit.table import tables
from tokencredit.lab.pages.credit_bench import gradient_rows, mark, render_credit_page
from tokencredit.report.format import hundreds

STORED = Path(__file__).parent / "stored_credit_bench"
"""Results of earlier versions of the benchmark, with seven of their recipes."""
TABLES = (sys.executable, "-m", "tokencredit.lab.studies.credit", "tables")

SMALL = (
    "--prompts", "4", "--continuations", "6", "--reference", "96", "--batches", "3", "--batch-prompts", "3", "--resamples", "50",
    "--recipes", "dapo,delta,vineppo,dapo-dynamic",
)  # fmt: skip


class Benched(NamedTuple):
    printed: str
    result: dict[str, Any]
    page: str


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory) -> Benched:
    folder = tmp_path_factory.mktemp("bench")
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("builtins.print", lambda *words, **_: printed.append(" ".join(map(str, words))))
        from rich.console import Console

        patch.setattr(Console, "print", lambda _, what="", **__: printed.append(_read(what)))
        asked = ["--json", "found.json", "--html", "found.html", "--show-examples"]
        assert run(["credit", "steps-shift", "steps-sharpen", *SMALL, *asked]) == 0
    return Benched("\n".join(printed), json.loads((folder / "found.json").read_text()), (folder / "found.html").read_text())


def _read(what: object) -> str:
    """Titles, headings and cells of a table."""
    columns = getattr(what, "columns", None)
    if columns is None:
        return str(what)
    return "\n".join([str(getattr(what, "title", "")), *(" | ".join([str(one.header), *map(str, one.cells)]) for one in columns)])


def test_it_prints_a_table_each_and_writes_every_number(benched: Benched) -> None:
    printed, result, _ = benched
    for word in (
        "steps-shift: where the true advantage A* is", "steps-sharpen: credit and A*", "by token class", "rollouts grpo would need",
        "oracle A*", "grpo x random 0.8-1.2", "is not significant after that many comparisons", "Numbers: found.json", "Page: found.html",
        "dapo-dynamic is left out of everything", "vineppo is left out of batches: took",
        "steps-shift: where credit goes wrong, in right / wrong responses", "delta: disagrees most, 1 - cos",
    ):  # fmt: skip
        assert word in printed
    assert [one["model"] for one in result["checkpoints"]] == ["steps-shift", "steps-sharpen"]
    assert (result["seed"], result["order"]["continuations"], result["order"]["group_size"]) == (0, 6, 8)
    assert {"commit", "packages", "platform"} <= set(result["environment"])
    for record in result["checkpoints"]:
        assert record["truth"]["rollouts"] == 32
        assert record["truth"]["tokens"] == sum(one["tokens"] for one in record["truth"]["classes"].values())
        assert {"result", "separator", "operand"} <= set(record["truth"]["classes"])
        batches, groups = record["gradient"]["batches"], record["gradient"]["groups"]
        assert [row["method"] for row in batches["rows"]] == ["grpo", "grpo x random 0.8-1.2", "dapo", "delta"]
        assert [row["method"] for row in groups["rows"]] == ["grpo", "grpo x random 0.8-1.2", "dapo", "delta", "vineppo", "oracle A*"]
        assert (batches["batches"], batches["rollouts_per_batch"], groups["rollouts_per_batch"]) == (3, 24, 8)
        assert all(len(row["cosines"]) == 3 for row in batches["rows"])
        assert set(record["seconds"]) >= {"truth", "reference", "batch gradients", "all"}


def test_the_page_holds_every_row_and_loads_nothing(benched: Benched) -> None:
    _, result, page = benched
    for word in ("steps-shift", "steps-sharpen", "oracle A*", "grpo x random 0.8-1.2", "How good the gradients are", "Bonferroni"):
        assert word in page
    assert not re.search(r"src=|url\(|@import|https?://(?!www\.w3\.org)", page)
    assert set(re.findall(r"<script.*?>", page)) == {"<script>", '<script type="application/json">'}
    cosine = result["checkpoints"][0]["gradient"]["batches"]["rows"][0]["cosine"]
    assert f"{cosine:.3f}".replace("-", "−") in page


def test_text_from_outside_cannot_become_markup(benched: Benched) -> None:
    hostile = json.loads(json.dumps(benched.result))
    hostile["checkpoints"][0]["model"] = "<img src=x onerror=alert(1)>\u202e"
    hostile["checkpoints"][0]["anatomy"]["responses"][0]["text"][0] = "</script><img src=x onerror=alert(1)>\u202e"
    page = render_credit_page(hostile)
    assert "<img" not in page
    assert "&lt;img" in page
    assert "\u202e" not in page


def test_a_truth_batch_without_a_mixed_group_still_has_its_tables(benched: Benched) -> None:
    record = json.loads(json.dumps(benched.result["checkpoints"][0]))
    record["gradient"]["groups"] = None
    titles = [shown.title.partition(": ")[2][:9] for shown in tables(record)]
    assert titles == ["where the", "credit an", "mean coef", "where cre", "gradients"]
    page = render_credit_page(benched.result | {"checkpoints": [record]})
    assert "How good the gradients are" in page
    assert "With the oracle, group by group" not in page


def test_failures_are_counted_and_shown_on_the_page(benched: Benched) -> None:
    _, result, page = benched
    record = result["checkpoints"][0]
    rows = {row["method"]: row for row in record["anatomy"]["rows"]}
    assert list(rows) == ["grpo", "grpo x random 0.8-1.2", "dapo", "delta", "vineppo", "oracle A*"]
    for side in ("right", "wrong"):
        parts = [rows["delta"][side][kind]["value"] for kind in ("undecided", "against", "agreeing")]
        assert sum(parts) == pytest.approx(1)
        assert (rows["oracle A*"][side]["against"]["value"], rows["oracle A*"][side]["missed"]["value"]) == (0, 0)
        assert f"{hundreds(parts[0])}\u202f%" in page
    assert len(rows["delta"]["examples"]) == result["order"]["examples"] == 2
    block = re.search(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    assert block is not None
    shown = json.loads(block[1])
    assert [row["method"] for row in shown["rows"]] == [name for name, row in rows.items() if row["examples"]]
    assert shown["rows"][-1]["examples"] == json.loads(json.dumps(rows["vineppo"]["examples"]))


def test_results_from_before_failures_were_taken_apart_are_still_read(benched: Benched) -> None:
    old = json.loads(json.dumps(benched.result))
    for record in old["checkpoints"]:
        del record["anatomy"]
    page = render_credit_page(old)
    assert "How credit goes with A*" in page
    assert "Where it goes wrong" not in page
    assert "<script" not in page
    assert all("goes wrong" not in shown.title for shown in tables(old["checkpoints"][0]))


@pytest.mark.parametrize("stored", sorted(STORED.glob("*.json")), ids=lambda path: path.stem)
def test_stored_results_give_their_page_and_tables(stored: Path) -> None:
    result = json.loads(stored.read_text())
    assert "<script" not in render_credit_page(result)
    told = subprocess.run([*TABLES, f"stored={stored}"], capture_output=True, text=True, check=True)
    assert "### anatomy" in told.stdout
    assert f"{result['checkpoints'][0]['policy']['entropy']:.3f}" in told.stdout


def test_recipes_measured_later_on_the_same_rollouts_join_a_column() -> None:
    folder = STORED
    command = [*TABLES, "--part", "gradients", f"one={folder / 'smollm2-addition.json'}"]
    alone, joined = (
        subprocess.run([*command, *more], capture_output=True, text=True, check=True).stdout.splitlines()
        for more in ([], [f"one={folder / 'smollm2-right-once.json'}"])
    )
    assert all(line in joined for line in alone), "what was there stays as it was"
    assert not any(line.startswith("| right-once ") for line in alone)
    assert sum(line.startswith("| right-once ") for line in joined) == 1
    other = subprocess.run([*command, f"one={folder / 'shift-base.json'}"], capture_output=True, text=True, check=False)
    assert other.returncode != 0
    assert "were not measured on the same rollouts" in other.stderr


def test_tables_over_files_tell_failures_and_draw_examples(benched: Benched, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    file.write_text(json.dumps(benched.result))
    command = [*TABLES, "--part", "anatomy", "--part", "examples", f"mine={file}"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    part = benched.result["checkpoints"][0]["anatomy"]
    delta = next(row for row in part["rows"] if row["method"] == "delta")
    response = part["responses"][delta["examples"][0]["response"]]
    assert f"{100 * delta['right']['undecided']['value']:.0f} / {100 * delta['wrong']['undecided']['value']:.0f}" in told
    assert "".join(response["text"]) in told
    assert f"1 - cos = {delta['examples'][0]['disagreement']:.2f}" in told


def test_no_examples_are_kept_where_none_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--prompts", "2", "--continuations", "4", "--reference", "0", "--resamples", "20", "--recipes", "grpo", "--examples", "0"]
    assert run(["credit", "steps-shift", *small, "--json", "found.json", "--html", "found.html"]) == 0
    part = json.loads((tmp_path / "found.json").read_text())["checkpoints"][0]["anatomy"]
    assert part["responses"] == []
    assert all(row["examples"] == [] for row in part["rows"])
    command = [*TABLES, "mine=found.json"]
    assert "### oracle" in subprocess.run(command, capture_output=True, text=True, check=True).stdout, "without gradients or examples"
    page = (tmp_path / "found.html").read_text()
    assert "Where it goes wrong" in page
    assert "<script" not in page


def test_gradients_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--prompts", "2", "--continuations", "4", "--reference", "0", "--resamples", "20", "--recipes", "grpo"]
    assert run(["credit", "steps-shift", *small, "--json", "found.json", "--html", "found.html"]) == 0
    assert "rollouts grpo would need" not in capsys.readouterr().out
    [record] = json.loads((tmp_path / "found.json").read_text())["checkpoints"]
    assert record["gradient"] is None
    assert record["policy"]["rollouts"] == 16
    assert "How good the gradients are" not in (tmp_path / "found.html").read_text()
    assert_refused(["bench", "credit", "steps-shift", *small, "--json", "found.json"], "found.json exists", tmp_path)


def test_a_run_brings_its_own_settings(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(small_config(steps=1, task={"type": "steps", "operations": 2}, sampling={"max_new_tokens": 40}), folder)
    models, options, [own, base] = parse_credit([str(folder), "steps-shift", "--quick", "--seed", "7"])
    assert models == [str(folder), "steps-shift"]
    assert (own.task.model_dump()["operations"], base.task.model_dump()["operations"]) == (2, 4)
    assert (own.sampling.max_new_tokens, base.sampling.max_new_tokens) == (40, 48)
    assert (own.seed, base.seed, own.model) == (7, 7, str(folder))
    assert (own.credit.type, own.objective.aggregation) == ("uniform", "sequence-mean")
    assert options.quick


def test_quick_makes_small_what_was_not_given() -> None:
    _, options, _ = parse_credit(["--quick", "--batches", "9"])
    order = _order(options)
    assert order.batches == 9
    assert order.reference < 32768
    assert order.continuations < 128
    assert _order(parse_credit([])[1]).reference == 32768


def test_without_a_model_both_regimes_are_measured() -> None:
    models, _, configs = parse_credit([])
    assert models == ["steps-shift", "steps-sharpen"] == [config.model for config in configs]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["steps-shft"], "did you mean 'steps-shift'"),
        (["steps-shift", "steps-shift"], "model 'steps-shift' is named more than once"),
        (["--recipes", "delt"], "recipes: 'delt' is not known; did you mean 'delta'"),
        (["--recipes", "dapo:steps=3"], "recipes: 'dapo:steps=3' sets steps, which must be the same for all; a recipe may set shape"),
        (["--recipes", "dapo:credit.scope=group"], "recipes: 'dapo:credit.scope=group': credit.scope is not a setting"),
        (["--recipes", "gone.toml"], "config file gone.toml does not exist"),
        (["--prompts", "1"], "prompts is 1; give at least 2"),
        (["--examples", "-1"], "examples is -1; give at least 0"),
        (["--examples", "0", "--show-examples"], "show-examples is given but examples is 0; give at least 1"),
        (["--batch-prompts", "0"], "batch-prompts is 0; give at least 1"),
        (["--decisive", "1.5"], "decisive is 1.5; it must lie between 0 and 1"),
        (["--reference", "9"], "reference is 9; two halves of two groups take 32 rollouts"),
        (["--sampling.group-size", "1"], "sampling.group_size is 1"),
        (["--sampling.prompts", "4"], "sampling.prompts is 4, which bench credit does not read"),
        (["--max-tokens", "20"], "max-tokens is 20 but a response may take 48"),
        (["--json", "found.txt"], "json found.txt ends in '.txt'"),
        (["--html", "nowhere/found.html"], "does not exist"),
        (["--task", "guess"], "is multi-turn"),
    ],
)
def test_mistakes_are_named(arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(words)):
        run(["credit", *arguments])
    assert not list(tmp_path.iterdir())


def test_a_mistake_ends_the_command_with_2(tmp_path: Path) -> None:
    assert_refused(["bench", "credit", "--continuations", "1"], "continuations is 1; give at least 2", tmp_path)
    assert_refused(["bench", "credt"], "did you mean 'credit'", tmp_path)


def test_the_chart_marks_what_leaves_zero_out() -> None:
    better = mark({"mean": 0.05, "low": 0.02, "high": 0.08}, 0.1)
    assert better is not None
    assert (better.low, better.high, better.middle, better.better, better.worse) == (600, 900, 750, True, False)
    far = mark({"mean": -0.4, "low": -0.5, "high": -0.3}, 0.1)
    assert far is not None
    assert (far.low, far.middle, far.worse) == (0, 0, True)
    assert mark({"mean": None, "low": None, "high": None}, 0.1) is None


def test_rows_of_the_page_are_sorted_and_say_who_is_the_same(benched: Benched) -> None:
    part = benched.result["checkpoints"][0]["gradient"]["groups"]
    rows = gradient_rows(part)
    gains = [row["versus_grpo"]["mean"] for row in rows]
    assert gains == sorted(gains, reverse=True)
    assert sum(1 + len(row["others"]) for row in rows) == len(part["rows"])

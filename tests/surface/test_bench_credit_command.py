"""`tokencredit bench credit`: what it prints and writes, where its settings come from, and what it refuses before a model is loaded."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from engine.runs import run as train
from engine.runs import small_config
from fault.command import assert_refused
from tokencredit.bench.credit.table import tables
from tokencredit.commands.bench import run
from tokencredit.commands.bench_credit import _order, parse_credit
from tokencredit.errors import ConfigError
from tokencredit.report.credit_bench import gradient_rows, mark, render_credit_page

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
        assert run(["credit", "steps-shift", "steps-sharpen", *SMALL, "--json", "found.json", "--html", "found.html"]) == 0
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
        "steps-shift: where the true advantage A* is", "steps-sharpen: credit beside A*", "by token class", "rollouts grpo would need",
        "oracle A*", "grpo x random 0.8-1.2", "does not survive that many comparisons", "Numbers: found.json", "Page: found.html",
        "dapo-dynamic is left out of everything", "vineppo is left out of batches: took",
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
    assert not re.search(r"<script|src=|url\(|@import|https?://(?!www\.w3\.org)", page)
    cosine = result["checkpoints"][0]["gradient"]["batches"]["rows"][0]["cosine"]
    assert f"{cosine:.3f}".replace("-", "−") in page


def test_text_from_outside_cannot_become_markup(benched: Benched) -> None:
    hostile = json.loads(json.dumps(benched.result))
    hostile["checkpoints"][0]["model"] = "<img src=x onerror=alert(1)>\u202e"
    page = render_credit_page(hostile)
    assert "<img" not in page
    assert "&lt;img" in page
    assert "\u202e" not in page


def test_a_truth_batch_without_a_mixed_group_still_has_its_tables(benched: Benched) -> None:
    record = json.loads(json.dumps(benched.result["checkpoints"][0]))
    record["gradient"]["groups"] = None
    assert [shown.title.partition(": ")[2][:9] for shown in tables(record)] == ["where the", "credit be", "mean coef", "gradients"]
    page = render_credit_page(benched.result | {"checkpoints": [record]})
    assert "How good the gradients are" in page
    assert "With the oracle, group by group" not in page


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
        (["--recipes", "delt"], "recipes names 'delt'; did you mean 'delta'"),
        (["--recipes", "gone.toml"], "config file gone.toml does not exist"),
        (["--prompts", "1"], "prompts is 1; give at least 2"),
        (["--batch-prompts", "0"], "batch-prompts is 0; give at least 1"),
        (["--decisive", "1.5"], "decisive is 1.5; it must lie between 0 and 1"),
        (["--reference", "9"], "reference is 9; two halves of two groups take 32 rollouts"),
        (["--sampling.group-size", "1"], "sampling.group_size is 1"),
        (["--sampling.prompts", "4"], "sampling.prompts is 4, which bench credit does not read"),
        (["--max-tokens", "20"], "max-tokens is 20 but one response may take 48"),
        (["--json", "found.txt"], "json found.txt ends in '.txt'"),
        (["--html", "nowhere/found.html"], "lies in no folder"),
        (["--task", "guess"], "converses in turns"),
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

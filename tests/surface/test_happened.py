"""What the report tells of a run's events, resumes and foreign code, read from its files."""

import html
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_up.run import make_run
from tokencredit.report.curves import curves
from tokencredit.report.events import FEW, MOST, MOST_ROWS, NOT_ISOLATED, REMOTE_CODE, Change, Detail, Resume, notices, run_events
from tokencredit.report.page import render
from tokencredit.report.run_reader import Run
from tokencredit.text import sanitize


def lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def bare_run(folder: Path, config: str = 'recipe = "grpo"\n') -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(config)
    return folder


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["guard", "warning", "ungraded", "new kind"])), max_size=30))
def test_every_event_is_in_one_row_and_only_many_of_a_kind_are_folded(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[int, str]]
) -> None:
    folder = bare_run(tmp_path_factory.mktemp("run"))
    lines(folder / "events.jsonl", [{"step": step, "kind": kind, "message": f"{kind} {at}"} for at, (step, kind) in enumerate(events)])
    rows = run_events(Run(folder)).rows
    assert sum(row.total for row in rows) == len(events)
    assert [row.first.step for row in rows] == sorted(row.first.step for row in rows)
    told = {(event.step, event.message) for row in rows for event in (row.events or (row.first,))}
    assert told == {(step, f"{kind} {at}") for at, (step, kind) in enumerate(events)}
    for row in rows:
        assert (row.total > FEW) == (row.total > 1) == bool(row.events)
        steps = [event.step for event in row.events] or [row.first.step]
        assert (row.first.step, row.last.step, row.steps) == (min(steps), max(steps), len(set(steps)))


def test_a_folded_row_adds_up_the_reasons_and_lists_a_bounded_number(tmp_path: Path) -> None:
    event = {"kind": "ungraded", "message": "some", "share": 0.125, "reasons": {"too slow": 2, "no answer": 1}}
    lines(bare_run(tmp_path) / "events.jsonl", [event | {"step": step // 2} for step in range(300)])
    (row,) = run_events(Run(tmp_path)).rows
    assert (row.kind, row.severe, row.total, row.steps, row.first.step, row.last.step) == ("not graded", False, 300, 150, 0, 149)
    assert row.details == (Detail("600 ×", "too slow"), Detail("300 ×", "no answer"))
    assert row.events[0].details == (Detail("12.5\u202f%", "of the batch"), Detail("2 ×", "too slow"), Detail("1 ×", "no answer"))
    assert len(row.events) == MOST


def test_a_file_of_any_length_gives_a_page_that_can_be_read(tmp_path: Path) -> None:
    long = "x" * 5_000
    lines(bare_run(tmp_path) / "events.jsonl", [{"step": step, "kind": f"kind {step}", "message": long} for step in range(2_000)])
    lines(tmp_path / "resumes.jsonl", [{"step": step, "changed": {"steps": [step, long]}} for step in range(2_000)])
    found = run_events(Run(tmp_path))
    assert (len(found.rows), len(found.resumes), found.left_out) == (MOST_ROWS, MOST_ROWS, 4_000 - 2 * MOST_ROWS)
    page = render([Run(tmp_path)])
    assert len(page) < 500_000
    assert "x… (4,000 more characters)" in page
    assert "3800 more in events.jsonl and resumes.jsonl in the run folder." in page


def test_what_else_an_event_says_is_told(tmp_path: Path) -> None:
    event = {"step": 4, "kind": "guard", "message": "m", "stage": "loss", "rows": list(range(25)), "dump": "dumps/4.pt"}
    lines(bare_run(tmp_path) / "events.jsonl", [event])
    (row,) = run_events(Run(tmp_path)).rows
    listed = ", ".join(map(str, range(20)))
    assert row.severe
    assert row.details == (Detail("stage", "loss"), Detail("rows", f"{listed} and 5 more"), Detail("dump", "dumps/4.pt"))


def test_resumes_say_what_changed_and_plain_ones_are_folded(tmp_path: Path) -> None:
    changed = {"steps": [80, 120], "optimizer.learning_rate": [1e-4, 5e-5], "limit": [None, 3]}
    rows: list[dict[str, object]] = [{"step": step, "optimizer_step": 4 * step, "changed": {}} for step in (10, 20, 30)]
    lines(bare_run(tmp_path) / "resumes.jsonl", [*rows, {"step": 40, "optimizer_step": 160, "changed": changed}])
    *plain, last = run_events(Run(tmp_path)).resumes
    assert plain == [Resume(f"Resumed after step {step}") for step in (10, 20, 30)]
    assert last == Resume(
        "Resumed after step 40",
        (Change("steps", "80", "120"), Change("optimizer.learning_rate", "0.0001", "5e-05"), Change("limit", "unset", "3")),
    )
    page = re.sub(r"<[^>]+>", "", render([Run(tmp_path)]))
    assert "Resumed after step 40, with steps 80 → 120, optimizer.learning_rate 0.0001 → 5e-05, limit unset → 3." in page
    lines(tmp_path / "resumes.jsonl", [*rows, {"step": 35}, {"step": 40, "changed": changed}])
    folded = run_events(Run(tmp_path)).resumes
    assert folded[0].sentence == "Resumed 4 times without changes, first after step 10, last after step 35"
    assert len(folded) == 2


def test_a_quiet_run_says_nothing(tmp_path: Path) -> None:
    for quiet in (render([Run(make_run(tmp_path / "run", token_steps=(2,)))]), render([Run(bare_run(tmp_path))])):
        assert ">Events<" not in quiet
        assert 'id="events"' not in quiet
        assert 'class="notices"' not in quiet
        assert "Ungraded responses" not in quiet


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("trust_remote_code = true\n", [REMOTE_CODE]),
        ("trust_remote_code = false\n", []),
        ('trust_remote_code = "true"\n', []),
        ('[task]\ntype = "code"\nisolation = "plain"\n', [NOT_ISOLATED]),
        ('[task]\ntype = "code"\nisolation = "sandbox"\n', []),
        ('[task]\ntype = "steps"\nisolation = "plain"\n', []),
        ('trust_remote_code = true\n[task]\ntype = "code"\nisolation = "plain"\n', [REMOTE_CODE, NOT_ISOLATED]),
    ],
)
def test_foreign_code_that_ran_is_named_at_the_top(tmp_path: Path, config: str, told: list[str]) -> None:
    run = Run(bare_run(tmp_path, 'recipe = "grpo"\n' + config))
    assert [notice.text for notice in notices(run)] == told
    assert all(notice.severe for notice in notices(run))
    text = html.unescape(render([run])).split('id="tokens"')[0]
    for sentence in (REMOTE_CODE, NOT_ISOLATED):
        assert (sentence in text) == (sentence in told)


def test_responses_without_a_verdict_have_a_curve_when_there_are_some(tmp_path: Path) -> None:
    for counts, shown in (((0, 0, 0), False), ((0, 5, 2), True)):
        lines(bare_run(tmp_path) / "metrics.jsonl", [{"step": step, "ungraded": count} for step, count in enumerate(counts, 1)])
        found = [curve for curve in curves([Run(tmp_path)]) if curve.title == "Ungraded responses"]
        assert [point.value for curve in found for point in curve.series[0].points] == (list(counts) if shown else [])


def test_runs_side_by_side_have_their_own_events_and_notices(tmp_path: Path) -> None:
    folders = [bare_run(tmp_path / name) for name in ("calm", "loud", "lost")]
    lines(folders[1] / "events.jsonl", [{"step": 1, "kind": "warning", "message": "too <b>loud</b>"}])
    lines(folders[2] / "resumes.jsonl", [{"step": 7, "changed": {}}])
    (folders[2] / "config.toml").write_text('recipe = "grpo"\ntrust_remote_code = true\n')
    page = render([Run(folder) for folder in folders])
    section = page.split('id="events"')[1].split("</section>")[0]
    assert re.findall(r"<h3>(\w+)</h3>", section) == ["loud", "lost"]
    assert "too &lt;b&gt;loud&lt;/b&gt;" in section.split("lost")[0]
    assert "Resumed after step 7." in section.split("lost")[1]
    assert re.search(r"About <bdi>lost</bdi></h3>\s*<ul class=\"notices\">", page)
    assert page.count('class="notices"') == 1


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x1c"])
def test_separators_inside_a_line_do_not_cut_it(tmp_path: Path, separator: str) -> None:
    event = {"step": 1, "kind": "warning", "message": f"a{separator}b"}
    (bare_run(tmp_path) / "events.jsonl").write_text(json.dumps(event, ensure_ascii=False) + "\n", encoding="utf-8")
    assert Run(tmp_path).events == [event]
    assert run_events(Run(tmp_path)).rows[0].first.message == sanitize(f"a{separator}b")

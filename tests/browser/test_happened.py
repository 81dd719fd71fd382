"""Events, resumes and notices on the page: what is told, where it stands, how it folds."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import OpenPage
from made_up.run import make_run
from tokencredit.report import write_report

EVENTS = [
    {"step": 0, "kind": "gold", "message": "3 of 512 rows have a gold answer that cannot be graded.", "rows": [3, 77, 120]},
    {"step": 7, "kind": "guard", "message": "The loss of 2 responses is not finite.", "stage": "loss", "rows": [12, 13], "dump": "d/7.pt"},
    {"step": 9, "kind": "out-of-memory", "message": "Out of memory at 16 rows; tried again with 8."},
    {"step": 15, "kind": "warning", "message": "Entropy fell to 0.031 nats."},
    {"step": 18, "kind": "damaged", "message": "Checkpoint step-000018 is damaged; passed over."},
    *(
        {"step": step, "kind": "ungraded", "message": f"{step} of 64 had no verdict.", "share": step / 64, "reasons": {"too slow": step}}
        for step in range(3, 15)
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("runs") / "eventful", token_steps=(1, 20), finished=False)
    (folder / "checkpoints" / "step-000020").mkdir(parents=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    (folder / "resumes.jsonl").write_text(json.dumps({"step": 16, "optimizer_step": 64, "changed": {"steps": [16, 20]}}) + "\n")
    config = folder / "config.toml"
    lines = [line for line in config.read_text().splitlines() if not line.startswith("trust_remote_code")]
    config.write_text("trust_remote_code = true\n" + "\n".join(lines) + "\n")
    write_report([folder], folder / "report.html")
    return folder / "report.html"


def cells(page: Page) -> list[list[str]]:
    rows = page.locator(".events tbody tr").evaluate_all("rows => rows.map((row) => [...row.cells].map((cell) => cell.innerText))")
    return [[" ".join(cell.split()) for cell in row] for row in rows]


def test_one_row_per_event_and_many_of_a_kind_fold(open_page: OpenPage, eventful: Path) -> None:
    page = open_page(eventful)
    page.locator("nav a", has_text="Events").click()
    expect(page.locator("#events h2")).to_have_text("Events")
    expect(page.locator("#events h2")).to_be_in_viewport()
    found = cells(page)
    assert [row[:2] for row in found] == [
        ["0", "gold answers"],
        ["3–14", "not graded 12 times"],
        ["7", "batch refused"],
        ["9", "out of memory"],
        ["15", "warning"],
        ["18", "damaged checkpoint"],
    ]
    assert found[1][2] == "first 3 of 64 had no verdict. last 14 of 64 had no verdict. 102 × too slow single events"
    assert found[2][2] == "The loss of 2 responses is not finite. stage loss rows 12, 13 dump d/7.pt"
    assert page.locator(".single li").first.is_hidden()
    page.locator("#events summary").click()
    assert page.locator(".single li").count() == 12
    expect(page.locator(".single li").last).to_contain_text(
        "14 of 64 had no verdict.21.9\u202f% of the batch14 × too slow", use_inner_text=False
    )
    expect(page.locator(".resumed")).to_have_text("Resumed after step 16, with steps 16 → 20.")


def test_foreign_code_and_how_to_continue_stand_above_the_numbers(open_page: OpenPage, eventful: Path) -> None:
    page = open_page(eventful)
    notices = page.locator(".notices li")
    expect(notices.nth(0)).to_contain_text("Code shipped with the model was executed")
    expect(notices.nth(1)).to_have_text("If this run is not running any more, resume it with: tokencredit train --resume eventful")
    borders = notices.evaluate_all("items => items.map((item) => getComputedStyle(item).borderLeftColor)")
    assert len(set(borders)) == 2
    tops = page.evaluate(
        "['.notices', '.headline', '#events', '#curves'].map((one) => document.querySelector(one).getBoundingClientRect().top)"
    )
    assert tops == sorted(tops)
    expect(notices.nth(0)).to_be_in_viewport()


def test_events_fit_a_narrow_page(open_page: OpenPage, eventful: Path) -> None:
    page = open_page(eventful, width=480)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    widths = page.locator(".events tbody td:last-child").evaluate_all("cells => cells.map((cell) => cell.getBoundingClientRect().width)")
    assert min(widths) > 200


def test_a_quiet_run_has_no_word_of_it(open_page: OpenPage, report: Path) -> None:
    page = open_page(report)
    assert page.locator("#events, .notices, nav a[href='#events']").count() == 0
    assert page.locator("nav a[href='#tokens']").count() == 1

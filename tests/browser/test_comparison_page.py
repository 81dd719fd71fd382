"""The page of `tokencredit compare` in a real browser."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from browser.conftest import OpenPage
from made_up.comparison import make_comparison
from tokencredit.lab.pages.comparison import write_comparison


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("comparison") / "comparison.html"
    write_comparison(make_comparison(bases=("steps-shift", "steps-sharpen"), remarks=["<b>hostile</b> \u202eremark"]), out)
    return out


def test_tables_forests_and_curves_are_there(open_page: OpenPage, page_file: Path) -> None:
    page = open_page(page_file)
    expect(page.locator("h1")).to_have_text("3 recipes against dapo")
    assert page.locator("#result table").count() == 2
    assert page.locator("#result tbody tr").count() == 8
    expect(page.locator("#result .control").first).to_have_text("A/A control")
    table = page.locator("#result table").first
    cells = dict(
        zip(table.locator("thead th").all_inner_texts(), table.locator("tbody tr").first.locator("th, td").all_inner_texts(), strict=True)
    )
    assert (cells["greedy"], cells["pass@8"], cells["tokens"], cells["rollouts"]) == ("99.0 ± 0.0", "97.0 ± 0.0", "20.0 ± 0.0", "8,000")
    forests = page.locator(".forest")
    assert forests.count() == 3 * 6
    assert forests.first.locator("tr").count() == 3
    text = forests.first.locator(".effect-text").first.text_content() or ""
    assert re.fullmatch(r"\+\d\.\d \[\+\d\.\d, \+\d\.\d\], t \+\d+\.\d", text)
    assert page.locator("#curves .chart").count() == 6
    expect(page.locator(".notes")).to_contain_text("<b>hostile</b> ⟨U+202E⟩remark")
    expect(page.locator("#rates tbody tr").first).to_contain_text("0.0003 (edge)")


def test_a_forest_s_marks_lie_where_their_numbers_say(open_page: OpenPage, page_file: Path) -> None:
    """Better to the right for accuracy, to the left for rollouts; blue for better."""
    page = open_page(page_file)
    area = page.locator(".forest").nth(0).locator("tr").first
    rollouts = page.locator(".forest").nth(2).locator("tr").first

    def middle(row: object) -> float:
        box, whole = (row.locator("rect").last.bounding_box(), row.locator("svg").bounding_box())  # pyright: ignore[reportAttributeAccessIssue]
        return (box["x"] + box["width"] / 2 - whole["x"]) / whole["width"]

    assert middle(area) > 0.55
    assert middle(rollouts) < 0.45
    assert area.locator("rect.fill-up").count() == rollouts.locator("rect.fill-up").count() == 2
    slower = page.locator(".forest").nth(3).locator("tr").nth(1)
    whisker, whole = slower.locator(".whisker").bounding_box(), slower.locator("svg").bounding_box()
    assert whisker is not None
    assert whole is not None
    assert whisker["x"] + whisker["width"] == pytest.approx(whole["x"] + whole["width"], abs=1)


def test_the_page_fits_a_phone_and_turns_dark(open_page: OpenPage, page_file: Path) -> None:
    page = open_page(page_file, width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 391
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_long_labels_wrap_at_their_settings(open_page: OpenPage, tmp_path: Path) -> None:
    long = "reinforce++:advantage.over=responses+credit.type=ntf-keep+sampling.prompts=256+sampling.group_size=1+kl.beta=1e+0"
    write_comparison(make_comparison(("dapo", long)), tmp_path / "comparison.html")
    page = open_page(tmp_path / "comparison.html", width=1400)
    row = page.locator("#result tbody th").nth(1)
    assert row.locator(".own-setting").all_text_contents() == long.partition(":")[2].replace("+", "\n").replace("1e\n0", "1e+0").split("\n")
    wider = "[...document.querySelectorAll('.scroll, .curves')].filter((box) => box.scrollWidth > box.clientWidth + 1).length"
    assert page.evaluate(wider) == 0

"""The page of the credit benchmark in a real browser: readable at every width, in both themes, nothing asked of the network."""

from pathlib import Path

import pytest

from browser.conftest import OpenPage
from browser.made_up_credit_bench import METHODS, made_up_result
from tokencredit.report.credit_bench import write_credit_page


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "credit.html"
    write_credit_page(made_up_result("steps-shift", "<b>a run</b>"), path)
    return path


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (420, True)])
def test_it_is_whole_at_every_width(open_page: OpenPage, written: Path, width: int, dark: bool) -> None:
    page = open_page(written, dark=dark, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("section.checkpoint h2 bdi").all_inner_texts() == ["steps-shift", "<b>a run</b>"]
    batches, groups = (page.locator("section.checkpoint").first.locator("table").nth(place).locator("tbody tr") for place in (1, 2))
    assert batches.count() == len(METHODS) - 1
    assert groups.count() == len(METHODS)
    assert "same here: dapo" in page.locator("tr.is-baseline").first.inner_text()


def test_intervals_are_drawn_on_the_side_their_number_says(open_page: OpenPage, written: Path) -> None:
    page = open_page(written)
    rows = page.locator("section.checkpoint").first.locator("table").nth(1).locator("tbody tr")
    for place in range(rows.count()):
        gain = float(rows.nth(place).locator("td").nth(1).inner_text().replace("\u2212", "-"))
        middle = float(rows.nth(place).locator("svg.forest rect").nth(2).get_attribute("x") or "nan") + 4
        assert (middle > 500) == (gain > 0) or abs(gain) < 0.001
        assert rows.nth(place).locator("svg.forest").bounding_box()["width"] > 60

"""The page of the credit benchmark in a real browser: readable at every width, in both themes, nothing asked of the network."""

from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from browser.conftest import OpenPage
from made_up.credit_bench import METHODS, made_up_result
from tokencredit.lab.pages.credit_bench import write_credit_page


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "credit.html"
    write_credit_page(made_up_result("steps-shift", "<b>a run</b>"), path)
    return path


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (700, False), (420, True)])
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


def anatomy(page: Page, place: int = 0) -> Locator:
    return page.locator(".anatomy").nth(place)


def tokens(section: Locator, line: int) -> Locator:
    return section.locator(".line").nth(line).locator(".t")


def numbers(section: Locator) -> dict[str, str]:
    names, values = (section.locator(f".detail {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return dict(zip(names, values, strict=True))


def test_a_response_is_drawn_twice_in_the_colours_of_its_numbers(open_page: OpenPage, written: Path) -> None:
    section = anatomy(open_page(written))
    assert section.locator("option").all_inner_texts() == ["grpo = dapo", METHODS[3]]
    assert tokens(section, 0).all_inner_texts() == tokens(section, 1).all_inner_texts() == ["a", "0", "<b>", "\u23ce"]
    truth, credit = ([span.get_attribute("class") or "" for span in tokens(section, line).all()] for line in (0, 1))
    assert [name.split()[1].partition("-")[0] for name in truth] == ["up", "down", "up", "unknown"]
    assert [name.split()[1].partition("-")[0] for name in credit] == ["up", "up", "up", "level"]
    assert "up-9" in credit[1], "the largest credit has the full colour"
    assert ["astray" in name for name in credit] == [False, True, False, False]
    assert not any("astray" in name for name in truth)
    assert "right response" in section.locator(".prompt").first.inner_text()
    assert section.locator(".prompt h4").all_inner_texts() == ["Disagrees most", "Typical: number 5 of 9"]


def test_pointing_at_a_token_and_moving_with_keys_tell_its_numbers(open_page: OpenPage, written: Path) -> None:
    page = open_page(written)
    section, detail = anatomy(page), anatomy(page).locator(".detail")
    expect(detail).to_contain_text("Point at a token")
    tokens(section, 1).nth(0).hover()
    tokens(section, 1).nth(1).hover()
    assert numbers(section) == {"A*": "\u22120.400", "standard error": "0.030", "grpo": "+0.700", "probability": "0.250"}
    expect(detail).to_contain_text("The credit goes against A*.")
    assert tokens(section, 0).nth(1).evaluate("span => span.classList.contains('pair')")
    page.mouse.move(2, 2)
    expect(detail).to_contain_text("Point at a token")
    # One stop of the tab key for the view; arrows from there.
    section.locator("select").focus()
    page.keyboard.press("Tab")
    expect(tokens(section, 0).nth(0)).to_be_focused()
    for key, line, at in (
        ("ArrowRight", 0, 1),
        ("ArrowDown", 1, 1),
        ("End", 1, 3),
        ("ArrowRight", 2, 0),
        ("ArrowUp", 1, 0),
        ("ArrowLeft", 0, 3),
    ):
        page.keyboard.press(key)
        expect(tokens(section, line).nth(at)).to_be_focused()
    expect(detail).to_contain_text("A* is not known here.")
    assert (tokens(section, 0).nth(1).get_attribute("aria-label") or "") == "0, token 2, A* \u22120.400, credit +0.900"
    assert section.locator("[tabindex='0']").count() == 1
    page.keyboard.press("Escape")
    expect(detail).to_contain_text("Point at a token")


def test_each_checkpoint_has_its_own_choice_of_recipe(open_page: OpenPage, written: Path) -> None:
    page = open_page(written, width=700)
    first, second = anatomy(page), anatomy(page, 1)
    second.locator("select").select_option(METHODS[3])
    assert tokens(first, 0).count() == 4
    assert tokens(second, 0).count() == 160
    assert "wrong response" in second.locator(".prompt").first.inner_text()
    tokens(second, 1).first.click()
    expect(second.locator(".detail")).to_contain_text("decided something and receives nothing")
    expect(first.locator(".detail")).to_contain_text("Point at a token")
    assert numbers(second)[METHODS[3]] == "0"
    # A long response breaks its lines instead of widening the page.
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    assert tokens(second, 0).last.evaluate("span => span.getBoundingClientRect().right") < 700

"""The token view, clicked, typed at and read in a real browser."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect
from pyarrow import parquet

from browser.conftest import OpenPage
from made_up.run import make_run
from tokencredit.report import write_report


def classes(page: Page) -> list[str]:
    return page.locator("#view .t").evaluate_all("spans => spans.map((span) => span.className)")


def block(path: Path, step: int) -> dict:
    found = re.search(rf'id="tokens-0-{step}">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def groups(page: Page) -> list[int]:
    return [int(value) for value in page.locator("#view .prompt").evaluate_all("cards => cards.map((card) => card.dataset.group)")]


def choose(page: Page, name: str, value: str) -> None:
    page.locator(f"#controls input[name={name}][value={value}]").locator("xpath=..").click()


def by_number(page: Page) -> Page:
    """A step with findings opens sorted by flips; most tests want prompts in the order of the file."""
    choose(page, "sort", "number")
    return page


def background(token: Locator) -> str:
    return token.evaluate("element => getComputedStyle(element).backgroundColor")


def test_every_token_of_the_first_prompts_is_shown_as_recorded(open_page: OpenPage, report: Path) -> None:
    page, packed = by_number(open_page(report)), block(report, 20)
    shown = page.locator("#view .line").first.locator(".t").all_text_contents()
    assert shown == [packed["texts"][place] for place in packed["tokens"]["text"][: packed["responses"]["count"][0]]]
    assert page.locator("#view .prompt").count() == 4
    assert page.locator("#step").input_value() == "20"


def test_sign_is_in_the_colour_and_in_the_bar_and_follows_the_numbers(open_page: OpenPage, report: Path) -> None:
    page, packed = by_number(open_page(report)), block(report, 20)
    for place, name in enumerate(classes(page)[:200]):
        credit = packed["tokens"]["credit"][place]
        assert ("up-" in name, "down-" in name) == (credit > 0, credit < 0)
    up, down = page.locator("#view [class*=up-]").first, page.locator("#view [class*=down-]").first
    shadow = "element => getComputedStyle(element).boxShadow"
    assert up.evaluate(shadow).endswith("0px 2px 0px 0px inset")
    assert down.evaluate(shadow).endswith("0px -2px 0px 0px inset")
    assert background(up) != background(down)


@pytest.mark.parametrize("by", ["coefficient", "change_first", "change_step", "predicted", "entropy", "gain", "right"])
def test_the_chooser_changes_colours_and_the_legend(open_page: OpenPage, report: Path, by: str) -> None:
    page = by_number(open_page(report))
    before, legend = classes(page), page.locator("#legend").text_content()
    choose(page, "by", by)
    assert classes(page) != before
    assert page.locator("#legend").text_content() != legend


def test_entropy_has_sizes_and_no_sign(open_page: OpenPage, report: Path) -> None:
    page = by_number(open_page(report))
    choose(page, "by", "entropy")
    assert page.locator("#view [class*=size-]").count() > 100
    assert page.locator("#view [class*=up-], #view [class*=down-]").count() == 0


def test_filters_leave_right_or_wrong_responses(open_page: OpenPage, report: Path) -> None:
    page = by_number(open_page(report))
    everything = page.locator("#view .response").count()
    assert everything == 32
    choose(page, "filter", "right")
    right = page.locator("#view .response").count()
    assert page.locator("#view .response.right").count() == right > 0
    choose(page, "filter", "wrong")
    assert page.locator("#view .response.wrong").count() == page.locator("#view .response").count() > 0


def test_prompts_are_sorted_by_flips_and_by_surprise_as_the_numbers_say(open_page: OpenPage, report: Path) -> None:
    page, packed = open_page(report), block(report, 20)
    flips, least = {}, {}
    cover, changes = packed["evidence"]["change_step"]
    start = seen = 0
    for prompt in packed["prompts"]:
        moved = against = 0
        lowest = 0.0
        for response in range(prompt["first"], prompt["first"] + prompt["count"]):
            for _ in range(packed["responses"]["count"][response]):
                lowest = min(lowest, packed["tokens"]["logp"][start])
                if response in packed["covers"][cover]:
                    credit, change = packed["tokens"]["credit"][start], changes[seen]
                    moved, against = moved + (credit != 0), against + (abs(change) > 1e-4 and credit * change < 0)
                    seen += 1
                start += 1
        flips[prompt["group"]] = against / moved if moved else -1
        least[prompt["group"]] = lowest
    assert page.locator("#controls input[name=sort]:checked").input_value() == "flip"
    assert groups(page) == sorted(flips, key=lambda group: (-flips[group], group))[:4]
    first = page.locator("#view .prompt").first
    share = 100 * flips[groups(page)[0]]
    expect(first.locator(".facts")).to_contain_text(f"{share:.1f}\u202f% of tokens moved against their credit")
    choose(page, "sort", "surprise")
    assert groups(page) == sorted(least, key=lambda group: (least[group], group))[:4]
    choose(page, "sort", "number")
    assert groups(page) == [0, 1, 2, 3]


def test_pages_of_prompts(open_page: OpenPage, report: Path) -> None:
    page = by_number(open_page(report))
    assert page.locator("#page-back").is_disabled()
    page.locator("#page-on").click()
    assert groups(page) == [4, 5, 6, 7]
    assert page.locator("#page-on").is_disabled()
    expect(page.locator("#page-range")).to_have_text("prompts 5–8 of 8")


def test_steps_are_parsed_when_chosen_and_show_their_own_tokens(open_page: OpenPage, report: Path) -> None:
    page = by_number(open_page(report))
    page.locator("#step-back").click()
    assert page.locator("#step").input_value() == "10"
    packed = block(report, 10)
    shown = page.locator("#view .line").first.locator(".t").all_text_contents()
    assert shown == [packed["texts"][place] for place in packed["tokens"]["text"][: packed["responses"]["count"][0]]]
    page.locator("#step").select_option("1")
    assert page.locator("#step-back").is_disabled()


def test_shared_beginnings_are_marked_up_to_the_branch(open_page: OpenPage, report: Path) -> None:
    page = by_number(open_page(report))
    lines = (
        page.locator("#view .prompt")
        .first.locator(".line")
        .evaluate_all("lines => lines.map((line) => [...line.querySelectorAll('.t')].map((span) => [span.textContent, span.className]))")
    )
    texts = [[text for text, _ in line] for line in lines]
    for place, line in enumerate(lines):
        siblings = texts[:place] + texts[place + 1 :]
        for at, (_, name) in enumerate(line):
            shared = any(sibling[: at + 1] == texts[place][: at + 1] for sibling in siblings)
            assert ("shared" in name.split()) == shared
            before = at > 0 and any(sibling[:at] == texts[place][:at] for sibling in siblings)
            assert ("branch" in name.split()) == (before and not shared)


def test_keys_move_between_tokens_and_responses(open_page: OpenPage, report: Path) -> None:
    page = by_number(open_page(report))
    where = """() => {
        const line = document.activeElement.closest('.line');
        if (!line) return null;
        const [lines, spans] = [document.querySelectorAll('#view .line'), line.querySelectorAll('.t')];
        return [[...lines].indexOf(line), [...spans].indexOf(document.activeElement)] }"""
    page.locator("#view .t").first.click()
    assert page.evaluate(where) == [0, 0]
    for key, place in (
        ("ArrowRight", [0, 1]),
        ("ArrowRight", [0, 2]),
        ("ArrowDown", [1, 2]),
        ("ArrowLeft", [1, 1]),
        ("ArrowUp", [0, 1]),
        ("Home", [0, 0]),
    ):
        page.keyboard.press(key)
        assert page.evaluate(where) == place, key
    page.keyboard.press("End")
    count = page.locator("#view .line").first.locator(".t").count()
    assert page.evaluate(where) == [0, count - 1]
    page.keyboard.press("ArrowRight")
    assert page.evaluate(where) == [1, 0]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert page.locator("#view [tabindex='0']").count() == 1
    page.keyboard.press("PageDown")
    assert groups(page) == [4, 5, 6, 7]
    assert page.evaluate(where) == [0, 0]
    page.keyboard.press("Escape")
    assert page.evaluate(where) is None


def test_tab_reaches_the_tokens_once(open_page: OpenPage, report: Path) -> None:
    page = by_number(open_page(report))
    page.locator("#wrap").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.classList.contains('t')")
    page.keyboard.press("Tab")
    assert not page.evaluate("document.activeElement.classList.contains('t')")


def test_pointing_shows_all_numbers_of_the_token(open_page: OpenPage, report: Path) -> None:
    page, packed = by_number(open_page(report)), block(report, 20)
    token = page.locator("#view .t").nth(6)
    token.hover()
    detail = page.locator("#detail")
    told = dict(zip(detail.locator("dt").all_text_contents(), detail.locator("dd").all_text_contents(), strict=True))
    # "cancels" stands there twice: for the batch and for the own step.
    assert detail.locator("dt", has_text="cancels").count() == 2
    credit, change = packed["tokens"]["credit"][6], packed["evidence"]["change_step"][1][6]
    assert float(told["credit"].replace("−", "-")) == pytest.approx(credit, abs=5e-3)
    assert float(told["measured, all steps"].replace("−", "-")) == pytest.approx(change, rel=0.05, abs=1e-3)
    for label in (
        "predicted, first step",
        "KL at this token",
        "this token",
        "same token elsewhere",
        "other tokens",
        "positive, batch",
        "negative, optimizer step",
        "entropy",
    ):
        assert label in told
    page.mouse.move(5, 5)
    expect(detail).to_contain_text("Point at a token")


def test_a_resting_pointer_does_not_take_the_detail_from_the_focus(open_page: OpenPage, report: Path) -> None:
    page = by_number(open_page(report))
    page.locator("#view .line").nth(2).locator(".t").nth(6).click()
    page.keyboard.press("PageDown")
    page.wait_for_timeout(300)
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    where = re.search(r"token 1 of \d+, response \d+", focused)
    assert where is not None
    expect(page.locator("#detail")).to_contain_text(where[0])
    page.locator("#view .line").nth(2).locator(".t").nth(6).hover()
    expect(page.locator("#detail")).to_contain_text("token 7 of")


@pytest.mark.parametrize(
    ("logp", "told"), [("-5.7e-5", "1 − 5.7e−5"), ("-0.0051", "0.995"), ("-0.004", "1 − 4.0e−3"), ("0", "1"), ("-1", "0.368")]
)
def test_near_certainty_shows_what_is_missing(open_page: OpenPage, tmp_path: Path, logp: str, told: str) -> None:
    folder = make_run(tmp_path / "run", looked_at=0, token_steps=(1,), prompts=1)
    table = parquet.read_table(folder / "tokens" / "step-000001.parquet")
    column = table.column_names.index("logp")
    parquet.write_table(table.set_column(column, "logp", [[float(logp)] * len(table)]), folder / "tokens" / "step-000001.parquet")
    write_report([folder], tmp_path / "page.html")
    page = open_page(tmp_path / "page.html")
    page.locator("#view .t").first.click()
    expect(page.locator("#detail dt:text-is('probability') + dd")).to_have_text(told)


def test_a_step_without_findings_opens_by_number(open_page: OpenPage, tmp_path: Path) -> None:
    write_report([make_run(tmp_path / "run", looked_at=0)], tmp_path / "page.html")
    page = open_page(tmp_path / "page.html")
    assert page.locator("#controls input[name=sort]:checked").input_value() == "number"
    assert groups(page) == [0, 1, 2, 3]


def test_on_a_narrow_page_the_detail_leaves_room(open_page: OpenPage, report: Path) -> None:
    page = open_page(report, width=700)
    page.locator("#view .t").first.click()
    assert page.locator("#detail").evaluate("panel => panel.offsetHeight / innerHeight") <= 0.31


def test_a_token_in_focus_says_what_it_is(open_page: OpenPage, report: Path) -> None:
    page = by_number(open_page(report))
    page.locator("#view .t").first.click()
    assert re.match(
        r"[ab], token 1 of \d+, response \d+, (right|wrong), credit ", page.locator("#view .t").first.get_attribute("aria-label") or ""
    )


def test_a_response_without_evidence_says_so(open_page: OpenPage, report: Path) -> None:
    page = by_number(open_page(report))
    page.locator("#page-on").click()
    page.locator("#view .t").first.hover()
    expect(page.locator("#detail")).to_contain_text("was not measured")


def test_prompts_without_the_chosen_number_come_last(open_page: OpenPage, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    tokens = parquet.read_table(folder / "findings" / "step-000020.parquet")
    moved = [row + 40 for row in tokens["row"].to_pylist()]
    parquet.write_table(tokens.set_column(1, "row", [moved]), folder / "findings" / "step-000020.parquet")
    write_report([folder], tmp_path / "page.html")
    page = by_number(open_page(tmp_path / "page.html"))
    assert groups(page) == [0, 1, 2, 3]
    choose(page, "by", "predicted")
    assert groups(page) == [5, 6, 0, 1]
    choose(page, "by", "credit")
    assert groups(page) == [0, 1, 2, 3]


def test_dark_by_system_and_by_button(open_page: OpenPage, report: Path) -> None:
    paper = "() => getComputedStyle(document.body).backgroundColor"
    light, dark = open_page(report), open_page(report, dark=True)
    bright, dim = light.evaluate(paper), dark.evaluate(paper)
    assert bright != dim
    light.locator("#theme").click()
    assert light.evaluate(paper) == dim
    dark.locator("#theme").click()
    assert dark.evaluate(paper) == bright


def test_text_stands_out_from_its_background_in_both_themes(open_page: OpenPage, report: Path) -> None:
    """WCAG contrast of the ink of the strongest tokens, and of quiet text, at least 4.5."""
    contrast = """element => {
        const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
        const linear = (part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
        const luminance = (...colours) => {
            for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1) }
            const [red, green, blue] = [...canvas.getImageData(0, 0, 1, 1).data].map((part) => linear(part / 255));
            return 0.2126 * red + 0.7152 * green + 0.0722 * blue };
        const paper = getComputedStyle(document.body).backgroundColor, style = getComputedStyle(element);
        const [one, other] = [luminance(paper, style.backgroundColor), luminance(paper, style.backgroundColor, style.color)];
        return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05) }"""
    for dark in (False, True):
        page = open_page(report, dark=dark)
        for name in ("up-9", "down-9", "up-5", "down-5", "size-9"):
            page.locator("#view .t").nth(3).evaluate(f"element => {{ element.className = 't {name}' }}")
            assert page.locator("#view .t").nth(3).evaluate(contrast) >= 4.5, (name, dark)
        for level in range(1, 10):
            for kind in ("up", "down", "size"):
                name = f"t {kind}-{level} shared"
                page.locator("#view .t").nth(3).evaluate(f"element => {{ element.className = '{name}' }}")
                assert page.locator("#view .t").nth(3).evaluate(contrast) >= 4.5, (name, dark)
        for quiet in (".facts", ".verdict", ".fine", ".eyebrow"):
            assert page.locator(quiet).first.evaluate(contrast) >= 4.5, (quiet, dark)


@pytest.mark.parametrize("width", [700, 1280])
def test_the_page_itself_never_scrolls_sideways(open_page: OpenPage, report: Path, width: int) -> None:
    page = open_page(report, width=width)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

"""The page as a whole: findings, plan, several runs, hostile text, size and speed."""

import json
import re
from pathlib import Path

from playwright.sync_api import expect

from browser.conftest import OpenPage
from made_up.run import make_run
from tokencredit.report import write_report

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "<img src=x onerror=alert(3)>",
    "\u202egnp.exe",
    "a\u0000b\nc\td\u2028e",
    "{{ 7 * 7 }}",
    "]]>-->&amp;\"'",
    "שלום",
    "é́́́́",
    "👩‍👩‍👧",
    "x" * 100_000,
)


def test_findings_are_drawn_from_their_tables(open_page: OpenPage, report: Path) -> None:
    page = open_page(report)
    names = page.locator("#finding-cards .finding").evaluate_all("cards => cards.map((card) => card.dataset.finding)")
    assert names == ["flips", "effect", "cancellation", "coupling", "tax", "drift", "weather"]
    matrix = page.locator("[data-finding=flips] .heat-table").last
    framed = matrix.locator(".flip").all_text_contents()
    assert len(framed) == 2
    assert all(re.fullmatch(r"\d+\.\d\u202f%flip", cell) for cell in framed)
    expect(page.locator("[data-finding=flips] .question")).to_have_text(
        "Does the log-prob of each token move in the direction of its advantage?"
    )
    expect(page.locator("[data-finding=flips] .fine")).to_have_text("A token that moved by no more than 1e−4 nats counts as unmoved.")
    assert all(cell == "42.0\u202f%" for cell in matrix.locator("td:nth-child(3)").all_text_contents())
    tiles = page.locator("[data-finding=flips] .tile-value").all_text_contents()
    assert [cell.removesuffix("flip") for cell in framed] == tiles[:2]
    assert re.fullmatch(r"\d+\.\d points", tiles[2])
    assert page.locator("[data-finding=cancellation] .tile-value").last.text_content() == "−6.3 points"
    bars = page.locator("[data-finding=cancellation] .bars").first
    assert bars.locator("tbody tr").count() == 14
    assert page.locator("[data-finding=cancellation] .pushed").count() == 2
    heat = page.locator("[data-finding=coupling] .heat-table")
    assert heat.count() == 2
    assert heat.last.locator("td").first.text_content() == "20.0\u202f%"


def test_a_finding_no_page_knows_is_shown_with_its_numbers_and_tables(open_page: OpenPage, report: Path) -> None:
    card = open_page(report).locator("[data-finding=weather]")
    expect(card).to_contain_text("A finding no page knows.")
    expect(card.locator(".tile-value")).to_have_text("3.50")
    card.locator("summary", has_text="by day").click()
    assert card.locator("details[open] tbody tr").count() == 12
    card.locator("button.more").click()
    assert card.locator("details[open] tbody tr").count() == 30


def test_the_lead_says_how_much_was_looked_at_and_how(open_page: OpenPage, report: Path) -> None:
    expect(open_page(report).locator("#findings-lead")).to_contain_text(
        "predicted by jvp (forward-mode differentiation). Predictions cover 2 of 8 prompts."
    )


def test_correlations_have_one_format_and_a_small_range_is_drawn_small(open_page: OpenPage, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    for step, value in ((1, 0.9999), (10, 1.0), (20, 1.0)):
        effect = {
            "name": "effect",
            "note": "",
            "tables": {},
            "numbers": {"first/correlation": value, "step/correlation": 0.97 + 0.03 * (step > 1)},
        }
        (folder / "findings" / f"step-{step:06}.json").write_text(json.dumps({"findings": [effect]}))
    write_report([folder], tmp_path / "page.html")
    page = open_page(tmp_path / "page.html")
    assert page.locator(".tile-value").all_text_contents() == ["1.000", "1.000"]
    heights = page.locator(".spark polyline").evaluate_all("lines => lines.map((line) => line.getBBox().height)")
    assert heights[0] < 1
    assert heights[1] > 19
    assert page.locator(".spark-ends").last.locator("span").all_text_contents() == ["1.000", "0.970"]


def test_a_wide_plan_can_be_reached_and_says_that_it_scrolls(open_page: OpenPage, tmp_path: Path) -> None:
    write_report([make_run(tmp_path / "run", prompts=32, token_steps=(1,))], tmp_path / "page.html")
    page = open_page(tmp_path / "page.html", width=700)
    expect(page.locator("#plan-grid .hint")).to_be_visible()
    assert page.locator("#plan-grid .scroll").get_attribute("tabindex") == "0"
    write_report([make_run(tmp_path / "small", prompts=4, token_steps=(1,))], tmp_path / "page.html")
    expect(open_page(tmp_path / "page.html").locator("#plan-grid .hint")).to_be_hidden()


def test_the_plan_has_a_dot_for_every_response(open_page: OpenPage, report: Path) -> None:
    page = open_page(report)
    assert page.locator("#plan-grid tbody tr").count() == 4
    assert page.locator("#plan-grid circle").count() == 64
    right = page.locator("#view .response.right").count()
    page.locator("#page-on").click()
    assert page.locator("#plan-grid .plan-right").count() == right + page.locator("#view .response.right").count()
    expect(page.locator("#plan-grid")).to_contain_text("Batching: shuffled.")


def test_curves_have_a_text_alternative_and_no_colour_of_their_own(open_page: OpenPage, report: Path) -> None:
    page = open_page(report)
    told = page.locator(".curve [role=img]").evaluate_all("images => images.map((image) => image.getAttribute('aria-label'))")
    assert told[0] == "Held-out accuracy, greedy. 25.0 % at step 0, 95.0 % at step 20; lowest 25.0 %, highest 95.0 %."
    assert page.locator(".curve svg [style], .curve svg [fill^='#'], .curve svg [stroke^='#']").count() == 0
    line = page.locator(".curve .stroke-series-0").first
    light = line.evaluate("element => getComputedStyle(element).stroke")
    page.locator("#theme").click()
    assert line.evaluate("element => getComputedStyle(element).stroke") != light != "none"


def test_hostile_text_is_shown_as_text_and_nothing_runs(open_page: OpenPage, tmp_path: Path) -> None:
    """`open_page` fails the test on any dialog, console complaint, policy violation or request."""
    folder = make_run(tmp_path / "<b>run & co", texts=HOSTILE)
    config = folder / "config.toml"
    config.write_text(config.read_text().replace('model = "steps-shift"', 'model = "<script>alert(4)</script>"'))
    write_report([folder], tmp_path / "page.html")
    page = open_page(tmp_path / "page.html")
    page.locator("#controls input[value=number]").locator("xpath=..").click()
    shown = page.locator("#view .line").first.locator(".t").all_text_contents()
    assert shown[0] == HOSTILE[0]
    assert shown[1] == HOSTILE[1]
    assert shown[3] == "⟨U+202E⟩gnp.exe"
    assert shown[4] == "a␀b⏎c⇥d⟨U+2028⟩e"
    assert shown[7] == "שלום"
    assert page.locator("script").count() == page.locator("script[type='application/json']").count() + 1
    assert page.locator("main img, main iframe").count() == 0
    expect(page.locator(".prompt-text").first).to_have_text("<script>alert(1)</script>")
    expect(page.locator("#result")).to_contain_text("<script>alert(4)</script>")
    # Tokens stay in reading order, left to right, whatever script they are in.
    lefts = (
        page.locator("#view .line")
        .first.locator(".t")
        .evaluate_all("spans => spans.slice(5, 9).map((span) => [span.offsetTop, span.offsetLeft])")
    )
    assert lefts == sorted(lefts)


def test_a_long_line_is_cut_and_shown_on_demand(open_page: OpenPage, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", texts=HOSTILE)
    write_report([folder], tmp_path / "page.html")
    page = open_page(tmp_path / "page.html")
    page.locator("#controls input[value=number]").locator("xpath=..").click()
    first = page.locator("#view .line").first
    length = len(first.text_content() or "")
    assert length < 3000
    first.locator("button.more").click()
    assert 2 * length < len(page.locator("#view .line").first.text_content() or "") < 100_000


def test_a_large_run_stays_small_and_opens_at_once(open_page: OpenPage, tmp_path: Path) -> None:
    """Opening: from the start of navigation until the tokens of the last step stand on the page, by the browser's own clock."""
    folder = make_run(tmp_path / "run", looked_at=2, prompts=48, group_size=16, token_steps=tuple(range(1, 9)), operations=12)
    write_report([folder], tmp_path / "page.html")
    assert 2_000_000 < (tmp_path / "page.html").stat().st_size < 5_000_000
    page = open_page(tmp_path / "page.html")
    assert page.evaluate("performance.getEntriesByName('shown')[0].startTime") < 2000
    assert page.locator("#view .t").count() > 4000
    tokens = "[...document.querySelectorAll('[id^=tokens-0-]')].map((block) => JSON.parse(block.textContent).tokens.text.length)"
    assert all(count > 10_000 for count in page.evaluate(tokens))
    steps = [int(value) for value in page.locator("#step option").evaluate_all("options => options.map((option) => option.value)")]
    assert len(steps) >= 5
    assert (steps[0], steps[-1]) == (1, 8)
    told = page.locator("#left-out").text_content() or ""
    assert f"{8 - len(steps)} step" in told
    left_out = ", ".join(str(step) for step in range(1, 9) if step not in steps)
    expect(page.locator("#left-out details")).to_contain_text(f"left out to limit the size of the page{left_out}")
    assert re.search(r"\d+ of 48 prompts fit on the page", told)
    shown = int(told.split()[0])
    expect(page.locator("#page-range")).to_contain_text(f"of {shown}")


def test_two_runs_side_by_side(open_page: OpenPage, report: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", seed=1, recipe="grpo", finished=False)
    write_report([report.parent, other], tmp_path / "two.html")
    page = open_page(tmp_path / "two.html")
    rows = page.locator(".before-after tbody tr")
    expect(rows.nth(0)).to_contain_text("95.0")
    expect(rows.nth(1)).to_contain_text("20 of 20, not finished")
    differences = dict(
        page.locator("#differences tbody tr").evaluate_all(
            "rows => rows.map((row) => [row.cells[0].textContent, row.cells[2].textContent])"
        )
    )
    assert differences["recipe"] == "grpo"
    assert differences["seed"] == "1"
    assert "model" not in differences
    accuracy = page.locator(".curve").first
    assert accuracy.locator(".stroke-series-0").count() > 0
    assert accuracy.locator(".stroke-series-1").count() > 0
    assert page.locator("[data-finding=flips] .tile").first.locator("li").count() == 2
    before = page.locator("#view .line").first.text_content()
    page.locator("#run").select_option("1")
    assert page.locator("#view .line").first.text_content() != before
    assert page.locator("#step").input_value() == "20"


def test_a_folder_with_tokens_only(open_page: OpenPage, tmp_path: Path) -> None:
    """What a diagnosis of somebody's rollouts leaves: no metrics, no timing, no result."""
    folder = make_run(tmp_path / "run")
    for name in ("metrics.jsonl", "timing.jsonl", "result.json", "env.json", "plans.jsonl"):
        (folder / name).unlink()
    write_report([folder], tmp_path / "page.html")
    page = open_page(tmp_path / "page.html")
    expect(page.locator("#result")).to_contain_text("nothing was trained in it")
    assert page.locator("#curves").count() == 0
    assert page.locator("#view .t").count() > 500
    assert page.locator("#plan-grid circle").count() == 64


def test_a_folder_without_tokens(open_page: OpenPage, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", looked_at=0)
    for file in (folder / "tokens").iterdir():
        file.unlink()
    write_report([folder], tmp_path / "page.html")
    page = open_page(tmp_path / "page.html")
    expect(page.locator("#view")).to_have_text("No tokens were recorded at this step.")
    expect(page.locator("#plan-grid")).to_have_text("No plan was recorded at this step.")

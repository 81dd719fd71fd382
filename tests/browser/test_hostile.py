"""Text of a model, a user or a file is text wherever it reaches the page: nothing runs, nothing is hidden, nothing moves its neighbours."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from browser.conftest import OpenPage
from browser.hostile import PAYLOADS, Attack, hostile_config, hostile_diagnosis, hostile_run
from made_up.run import make_run
from tokencredit.report import blocks, write_report
from tokencredit.report import page as writing
from tokencredit.text import sanitize

READ = """() => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT, (node) =>
        node.parentElement.closest('script, style') ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT);
    const texts = [document.title];
    while (walker.nextNode()) texts.push(walker.currentNode.data);
    for (const element of document.body.querySelectorAll('[title], [aria-label]'))
        texts.push(element.getAttribute('title') ?? '', element.getAttribute('aria-label') ?? '');
    return texts }"""

MOVES_OTHERS = """(mark) => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) {
        const node = walker.currentNode;
        if (!node.data.includes(mark) || node.parentElement.closest('script, style')) continue;
        let box = node.parentElement;
        for (; ; box = box.parentElement) {
            const style = getComputedStyle(box);
            if (style.unicodeBidi.startsWith('isolate') || !['inline', 'contents'].includes(style.display)) break;
        }
        const inside = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
        let beside = 0;
        while (inside.nextNode()) beside += inside.currentNode.data.trim() ? 1 : 0;
        if (beside > 1) found.push(box.outerHTML.slice(0, 300));
    }
    return found }"""
"""Right-to-left text that shares its bidirectional paragraph with other text, which it may then reorder."""

RUNNABLE = """() => [...document.querySelectorAll('*')].filter((element) => [...element.attributes].some(({ name, value }) =>
    name.startsWith('on') || name === 'style' || (['href', 'src', 'action'].includes(name) && !value.startsWith('#'))))
    .map((element) => element.outerHTML)"""

MARK = "שלום"
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\u3164]")
OPEN_POLICY = "default-src * 'unsafe-inline'"


def texts(page: Page) -> list[str]:
    return page.evaluate(READ)


def unseen(page: Page) -> list[str]:
    return [text for text in texts(page) if UNSEEN.search(text)]


@pytest.fixture(scope="module")
def attack() -> Attack:
    return Attack()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, attack: Attack) -> list[Path]:
    parent = tmp_path_factory.mktemp("hostile")
    return [make(parent, attack) for make in (hostile_run, hostile_config, hostile_diagnosis)]


def by_number(page: Page) -> Page:
    page.locator("#controls input[value=number]").locator("xpath=..").click()
    return page


def test_every_text_of_a_run_is_shown_and_none_of_it_acts(open_page: OpenPage, tmp_path: Path, folders: list[Path], attack: Attack) -> None:
    """`open_page` fails the test on any dialog, console complaint, policy violation or request."""
    said = ""
    for number, shown in enumerate([*([folder] for folder in folders), folders]):
        path = tmp_path / f"{number}.html"
        write_report(shown, path)
        page = open_page(path, width=1000)
        if folders[0] in shown:
            by_number(page)
            page.locator("#view .t").nth(3).click()
            assert page.locator("#detail dt").count() > 3
            expect(page.locator("#detail .glyph")).to_have_text("__proto__")
        assert page.evaluate("window.pwned") is None
        assert page.evaluate(RUNNABLE) == []
        assert unseen(page) == []
        assert page.evaluate(MOVES_OTHERS, MARK) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        said += "\n".join(texts(page))
    # Names of findings are paths, whose parts the page sets apart.
    said = said.replace(" \u203a ", "/")
    assert [place for place, text in attack.texts.items() if sanitize(text) not in said] == []
    assert len(attack.texts) > 50


def test_tokens_are_shown_as_they_are_spelled_and_the_view_still_works(open_page: OpenPage, tmp_path: Path, folders: list[Path]) -> None:
    write_report([folders[0]], tmp_path / "page.html")
    page = by_number(open_page(tmp_path / "page.html"))
    shown = page.locator("#view .line").first.locator(".t").all_text_contents()
    assert shown[: len(PAYLOADS) - 1] == [sanitize(text) for text in PAYLOADS[:-1]]
    assert len(shown[-1]) < 1300
    heights = page.locator("#view .line").first.locator(".t").evaluate_all("spans => spans.map((span) => span.getClientRects()[0].height)")
    assert max(heights) < 1.5 * min(heights)
    page.locator("#view .t").first.click()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#detail .glyph")).to_have_text("]]>--></style>")
    before = page.locator("#step").input_value()
    page.locator("#step-back").click()
    assert page.locator("#step").input_value() != before
    assert page.locator("#view .t").count() > 50
    cards = page.locator("#finding-cards .finding").evaluate_all("cards => cards.map((card) => card.querySelector('h3').textContent)")
    assert "constructor" in cards
    assert len(cards) == 5
    page.locator("#events details summary").first.click()
    assert page.locator("#events .single li").count() == 5
    assert page.evaluate("window.pwned") is None


def bare(browser: Browser, path: Path) -> Page:
    """A page without the watch of `open_page`, for pages that are meant to be broken. Nothing leaves it all the same."""
    page = browser.new_page()
    page.route("**/*", lambda route: route.continue_() if route.request.url == path.as_uri() else route.abort())
    page.add_init_script(
        "window.violations = []; document.addEventListener('securitypolicyviolation', (event) => violations.push(event.violatedDirective))"
    )
    page.goto(path.as_uri())
    page.wait_for_timeout(200)
    return page


def without_escaping_in_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    escaping = writing.Environment

    def careless(*, loader: object, autoescape: bool, undefined: type, trim_blocks: bool, lstrip_blocks: bool) -> object:
        return escaping(loader=loader, autoescape=False, undefined=undefined, trim_blocks=trim_blocks, lstrip_blocks=lstrip_blocks)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(writing, "Environment", careless)


def without_escaping_in_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "UNSAFE", {})


def with_markup_in_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's own script, were it to put texts in as markup."""
    asset, careful = writing._asset, "element.append(...children.filter((child) => child !== null && child !== undefined));"
    as_markup = "typeof child === 'string' ? element.insertAdjacentHTML('beforeend', child) : child && element.append(child)"
    careless = f"for (const child of children) {as_markup};"
    assert careful in asset("dom.js")
    monkeypatch.setattr(writing, "_asset", lambda name: asset(name).replace(careful, careless))


@pytest.mark.parametrize("careless", [without_escaping_in_templates, without_escaping_in_data, with_markup_in_the_script])
def test_either_wall_alone_holds_and_the_test_sees_when_both_fall(
    browser: Browser, tmp_path: Path, folders: list[Path], monkeypatch: pytest.MonkeyPatch, careless: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """Wrong twins: without escaping the policy stops the script and says so; without the policy as well it runs."""
    careless(monkeypatch)
    write_report([folders[0]], tmp_path / "guarded.html")
    guarded = bare(browser, tmp_path / "guarded.html")
    assert guarded.evaluate("window.pwned ?? null") is None
    assert any(directive.startswith("script-src") for directive in guarded.evaluate("violations"))
    guarded.close()
    monkeypatch.setattr(writing, "content_policy", lambda script, style: OPEN_POLICY)
    write_report([folders[0]], tmp_path / "open.html")
    opened = bare(browser, tmp_path / "open.html")
    assert opened.evaluate("window.pwned") == 1
    opened.close()


def test_the_watches_see_what_they_watch_for(open_page: OpenPage, tmp_path: Path, folders: list[Path]) -> None:
    """Wrong twins of what is shown: a control in the text, a name that is not isolated, an attribute that could run."""
    write_report([folders[0]], tmp_path / "page.html")
    page = open_page(tmp_path / "page.html")
    page.evaluate("document.querySelector('h1').append('\\u202e')")
    assert len(unseen(page)) == 1
    page.evaluate("for (const isolated of document.querySelectorAll('#result .lede bdi')) isolated.replaceWith(isolated.textContent)")
    assert len(page.evaluate(MOVES_OTHERS, MARK)) == 1
    page.evaluate("document.querySelector('h1').setAttribute('href', 'javascript:1')")
    assert len(page.evaluate(RUNNABLE)) == 1


def test_the_policy_alone_keeps_an_image_from_being_fetched(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the browser says of the request it did not make; under an open policy it tries, and fails for another reason."""
    folder = make_run(tmp_path / "run", token_steps=(1,))
    (folder / "events.jsonl").write_text('{"step": 1, "kind": "warning", "message": "<img src=http://127.0.0.1:9/leak.png>"}\n')
    without_escaping_in_templates(monkeypatch)
    why: list[str | None] = []
    for policy in (writing.content_policy, lambda script, style: OPEN_POLICY):
        monkeypatch.setattr(writing, "content_policy", policy)
        write_report([folder], tmp_path / "page.html")
        page = browser.new_page()
        with page.expect_event("requestfailed") as failed:
            page.goto((tmp_path / "page.html").as_uri())
        why.append(failed.value.failure)
        page.close()
    assert why[0] == "csp"
    assert why[1] != "csp"

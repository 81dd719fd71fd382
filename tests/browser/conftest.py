"""A real Chromium that may open files and nothing else; every test that leaves a complaint in the console fails."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, sync_playwright

from made_up.run import make_run
from tokencredit.report import write_report

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
]  # fmt: skip

OpenPage = Callable[..., Page]


def chromium() -> str | None:
    """The system's, or the one CHROMIUM names; None lets playwright take its own."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens a page from a file. After the test: nothing was asked of the network, nothing complained, no policy was broken."""
    asked: list[str] = []
    complaints: list[str] = []
    contexts = []

    def guard(route: Route) -> None:
        if route.request.url.startswith("file:"):
            route.continue_()
        else:
            asked.append(route.request.url)
            route.abort()

    def opened(path: Path, *, dark: bool = False, width: int = 1280) -> Page:
        context = browser.new_context(color_scheme="dark" if dark else "light", viewport={"width": width, "height": 900})
        contexts.append(context)
        context.route("**/*", guard)
        context.add_init_script(
            "window.violations = [];"
            "document.addEventListener('securitypolicyviolation', (event) => violations.push(event.violatedDirective))"
        )
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(path.as_uri())
        return page

    yield opened
    broken = [page.evaluate("violations") for context in contexts for page in context.pages]
    for context in contexts:
        context.close()
    assert asked == []
    assert complaints == []
    assert all(not one for one in broken), broken


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of one made-up run, with evidence for half of its prompts."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "made-up")
    write_report([folder], folder / "report.html")
    return folder / "report.html"

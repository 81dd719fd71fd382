"""Tables that list methods and recipes are written by `make docs`; a stale page fails here."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKE_DOCS = runpy.run_path(str(ROOT / "scripts" / "make_docs.py"))


@pytest.mark.parametrize("page", MAKE_DOCS["PAGES"])
def test_a_page_holds_the_tables_of_the_code(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert MAKE_DOCS["written"](text) == text, f"{page} is stale; run `make docs`"


def test_every_table_stands_on_a_page() -> None:
    found = [match["name"] for page in MAKE_DOCS["PAGES"] for match in MAKE_DOCS["BLOCK"].finditer((ROOT / page).read_text())]
    assert sorted(found) == sorted(MAKE_DOCS["TABLES"])


def test_a_stale_table_is_noticed() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    stale = text.replace("| `credit` | one number per token | uniform, ", "| `credit` | one number per token | ")
    assert stale != text == MAKE_DOCS["written"](stale)

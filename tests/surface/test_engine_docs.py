"""docs/engines.md says of every recipe and engine what the adapters do."""

from pathlib import Path

import pytest

from tokencredit.config.recipes import RECIPES
from tokencredit.integrations.support import COLUMNS, SUPPORTED, TESTED, routes, table

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "engines.md").read_text()


def test_the_table_of_recipes_is_what_the_adapters_do() -> None:
    assert table() in PAGE, f"docs/engines.md must hold this table:\n{table()}"


def test_the_page_names_the_versions() -> None:
    for engine, versions in SUPPORTED.items():
        assert f"{engine} {versions}" in PAGE
        assert TESTED[engine] in PAGE


@pytest.mark.parametrize(
    ("recipe", "expected"),
    {
        "delta": ("yes", "yes", "no", "no", "no", "no"),
        "grpo": ("yes", "yes", "`tokencredit-grpo`", "yes", "yes", "no"),
        "dapo-dynamic": ("no", "with `algorithm.filter_groups`", "no", "no", "no", "no"),
        "ibpo": ("no", "no", "no", "no", "no", "no"),
        "opo": ("yes", "yes", "`tokencredit-opo`", "yes", "yes", "yes"),
        "cancellation": ("yes", "yes", "no", "no", "no", "no"),
    }.items(),
)
def test_routes_of_some_recipes(recipe: str, expected: tuple[str, ...]) -> None:
    found = routes(recipe, RECIPES[recipe].recipe)
    assert len(found) == len(COLUMNS)
    assert found[1:] == expected

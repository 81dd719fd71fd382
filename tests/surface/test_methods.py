"""What a method declares on its config class decides everything else; all of it is in methods.json."""

import ast
from pathlib import Path

import pytest

import tokencredit
from surface.methods import measured, stored
from tokencredit.config.recipes import RECIPES
from tokencredit.config.train import METHODS


def test_methods_and_recipes_are_the_recorded_ones() -> None:
    """Record a deliberate change with `make record`, and say why in the commit."""
    assert measured() == stored()
    assert list(stored()["recipes"]) == list(RECIPES)
    assert {stage: list(names) for stage, names in stored()["methods"].items()} == {stage: list(names) for stage, names in METHODS.items()}


def compared_names(source: str) -> list[str]:
    """Names of methods that code compares a `.type` with."""
    names = {name for methods in METHODS.values() for name in methods}
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        if any(isinstance(side, ast.Attribute) and side.attr == "type" for side in sides):
            found += [part.value for side in sides for part in ast.walk(side) if isinstance(part, ast.Constant) and part.value in names]
    return found


def test_only_the_configuration_compares_methods_by_name() -> None:
    """Everything else reads a property that the method declares."""
    package = Path(tokencredit.__file__).parent
    compared = {path: compared_names(path.read_text()) for path in package.rglob("*.py") if (package / "config") not in path.parents}
    assert {path: names for path, names in compared.items() if names} == {}


@pytest.mark.parametrize("source", ['recipe.shape.type != "none"', 'one.credit.type in ("delta", "other")', '"ktae" == credit.type'])
def test_a_comparison_by_name_is_noticed(source: str) -> None:
    assert compared_names(source)
    assert not compared_names(source.replace(".type", ".kind"))

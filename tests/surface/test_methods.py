"""What a method declares on its config class decides everything else; all of it is in methods.json."""

from surface.methods import measured, stored
from tokencredit.config.recipes import RECIPES
from tokencredit.config.train import METHODS


def test_methods_and_recipes_are_the_recorded_ones() -> None:
    """Record a deliberate change with `make record`, and say why in the commit."""
    assert measured() == stored()
    assert list(stored()["recipes"]) == list(RECIPES)
    assert {stage: list(names) for stage, names in stored()["methods"].items()} == {stage: list(names) for stage, names in METHODS.items()}

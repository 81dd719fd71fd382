"""Old path of `tokencredit.config.recipes`."""

from tokencredit.config.recipe import RecipeEntry
from tokencredit.config.recipes import FAMILIES, RECIPES
from tokencredit.engine import warn_moved

warn_moved("tokencredit.recipes", "tokencredit.config.recipes")

__all__ = ["FAMILIES", "RECIPES", "RecipeEntry"]

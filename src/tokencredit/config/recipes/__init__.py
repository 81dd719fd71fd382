"""Recipes by name: one method per stage, with the authors' hyperparameters. A recipe fixes stages only; the run sets the rest."""

from tokencredit.config.recipe import RecipeEntry
from tokencredit.config.recipes.baselines import BASELINES
from tokencredit.config.recipes.ours import CONTROLS, OURS
from tokencredit.config.recipes.token_credit import CANCELLATION, FOCUS, TOKEN_CREDIT

FAMILIES: dict[str, dict[str, RecipeEntry]] = {
    "baselines": BASELINES,
    "token credit": TOKEN_CREDIT,
    "cancellation": CANCELLATION,
    "focus": FOCUS,
    "controls": CONTROLS,
    "ours": OURS,
}

RECIPES: dict[str, RecipeEntry] = {name: entry for family in FAMILIES.values() for name, entry in family.items()}

__all__ = ["FAMILIES", "RECIPES", "RecipeEntry"]

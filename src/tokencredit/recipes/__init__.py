"""Name -> recipe: one choice per stage, with the authors' numbers. A recipe fixes stages only; the rest is the run's."""

from tokencredit.recipes.baselines import BASELINES
from tokencredit.recipes.cancellation import CANCELLATION
from tokencredit.recipes.controls import CONTROLS
from tokencredit.recipes.entry import RecipeEntry
from tokencredit.recipes.focus import FOCUS
from tokencredit.recipes.ours import OURS
from tokencredit.recipes.token_credit import TOKEN_CREDIT

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

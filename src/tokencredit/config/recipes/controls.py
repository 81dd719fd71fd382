"""Controls: what a method must beat before it means anything."""

from tokencredit.config import DeltaCredit, OneSidedCredit
from tokencredit.config.recipes.baselines import DAPO, DAPO_ORIGINS
from tokencredit.config.recipes.entry import RecipeEntry, varied

CONTROLS: dict[str, RecipeEntry] = {
    "positive-only": RecipeEntry(
        varied(DAPO, credit=OneSidedCredit()), "control", "dapo on max(A, 0): only better responses teach", DAPO_ORIGINS
    ),
    "negative-only": RecipeEntry(
        varied(DAPO, credit=OneSidedCredit(side="negative")),
        "control",
        "dapo on min(A, 0): only worse responses teach",
        {**DAPO_ORIGINS, "credit.side": "ours"},
    ),
    "random-lambda": RecipeEntry(
        varied(DAPO, credit=DeltaCredit(score="random")),
        "control of DelTA, 2605.21467",
        "delta with coefficients drawn at random",
        {**DAPO_ORIGINS, "credit.score": "paper (an ablation); uniform draws are a reading"},
    ),
}

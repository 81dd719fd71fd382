"""Name -> recipe: one choice per stage, with the authors' numbers. A recipe fixes stages only; the rest is the run's."""

from typing import NamedTuple

from tokencredit.stages import (
    DeltaCredit,
    DrGrpoAdvantage,
    OverlongShape,
    PpoClipObjective,
    Recipe,
    RlooAdvantage,
)


class RecipeEntry(NamedTuple):
    recipe: Recipe
    paper: str
    summary: str


_DAPO = Recipe(shape=OverlongShape(), objective=PpoClipObjective(clip_low=0.2, clip_high=0.28, dual_clip=10.0))

RECIPES: dict[str, RecipeEntry] = {
    "grpo": RecipeEntry(
        Recipe(objective=PpoClipObjective(aggregation="sequence-mean")),
        "DeepSeekMath, 2402.03300",
        "group-normalised advantage, equal clip, every response weighs the same",
    ),
    "dr-grpo": RecipeEntry(
        Recipe(advantage=DrGrpoAdvantage(), objective=PpoClipObjective(aggregation="constant")),
        "Understanding R1-Zero-Like Training, 2503.20783",
        "no division by spread or length",
    ),
    "rloo": RecipeEntry(
        Recipe(advantage=RlooAdvantage(), objective=PpoClipObjective(aggregation="constant")),
        "Back to Basics, 2402.14740",
        "leave-one-out baseline, tokens of a response summed",
    ),
    "dapo": RecipeEntry(
        _DAPO,
        "DAPO, 2503.14476",
        "clip-higher, dual clip, token mean, overlong penalty; without dynamic sampling",
    ),
    "dapo-dynamic": RecipeEntry(
        _DAPO.model_copy(update={"filter_groups": True}),
        "DAPO, 2503.14476",
        "dapo with dynamic sampling: groups without spread are replaced",
    ),
    "delta": RecipeEntry(
        _DAPO.model_copy(update={"credit": DeltaCredit()}),
        "DelTA, 2605.21467",
        "dapo with discriminative token coefficients",
    ),
}

"""FADE and its static probes: which prompts and which sign the update leans on."""

from tokencredit.config import AsymAdvantage, FadeAdvantage, PowerAdvantage, Recipe
from tokencredit.config.recipes.entry import RecipeEntry

_PAPER = "FADE, 2607.01490"
_ORIGINS = {"objective.aggregation": "reading: not published", "objective.clip_low": "reading: not published"}
_ORIGINS |= {"objective.clip_high": "reading: not published"}
_CLIP = "the paper's clip and divisor were not found; PPO's 0.2 and the token mean stand in"

FOCUS: dict[str, RecipeEntry] = {
    "fade": RecipeEntry(
        Recipe(advantage=FadeAdvantage()),
        _PAPER,
        "focus on hard prompts and on failures, adapted while training",
        origins=_ORIGINS,
        caveats=(_CLIP,),
    ),
    "power": RecipeEntry(
        Recipe(advantage=PowerAdvantage()), _PAPER, "fade's difficulty axis held still", origins=_ORIGINS, caveats=(_CLIP,)
    ),
    "asym": RecipeEntry(Recipe(advantage=AsymAdvantage()), _PAPER, "fade's sign axis held still", origins=_ORIGINS, caveats=(_CLIP,)),
}

"""Methods that let opposing signals cancel: objectives with exchangeable token gradients, and batching in which they meet."""

from tokencredit.config import DfpoObjective, QueryPreservedBatching, Recipe, RewardBalancedBatching, SignBlindClipObjective
from tokencredit.config.recipes.baselines import DAPO, DAPO_ORIGINS
from tokencredit.config.recipes.entry import RecipeEntry, varied

_DFPO_PAPER = "Token Gradient Cancellation, 2604.13088v1"
_WHOLE_GROUPS = "reading: groups are kept whole, because a weight made exchangeable over half a group does not cancel"

CANCELLATION: dict[str, RecipeEntry] = {
    "cancellation": RecipeEntry(
        varied(DAPO, batching=RewardBalancedBatching()),
        "The Cancellation Hypothesis, 2605.08666",
        "dapo whose optimizer steps hold whole groups, balanced between right and wrong",
        DAPO_ORIGINS,
        (
            "reading: only the abstract was available",
            "few prompts per optimizer step make its gradient noisier (metric prompts_per_optimizer_step)",
        ),
    ),
    "grpo-fix": RecipeEntry(
        Recipe(objective=SignBlindClipObjective(), batching=QueryPreservedBatching()),
        _DFPO_PAPER,
        "token ratios clipped alike for both signs, one divisor, whole groups",
        caveats=(_WHOLE_GROUPS,),
    ),
    "dfpo": RecipeEntry(
        Recipe(objective=DfpoObjective(), batching=QueryPreservedBatching()),
        _DFPO_PAPER,
        "sequence weights replaced by the group's smallest",
        caveats=(_WHOLE_GROUPS,),
    ),
    "dfpo-orthogonal": RecipeEntry(
        Recipe(objective=DfpoObjective(transform="orthogonal"), batching=QueryPreservedBatching()),
        _DFPO_PAPER,
        "sequence weights made orthogonal to the group's advantages",
        {"objective.transform": "a published note on the paper"},
        (_WHOLE_GROUPS, "no results of this variant were found"),
    ),
}

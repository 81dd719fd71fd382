"""Recipes with token-level credit, recipes in which opposing token gradients cancel, and FADE with its static probes."""

from tokencredit.config import (
    AsymAdvantage,
    CrfAdvantage,
    DeltaCredit,
    DfpoObjective,
    DrGrpoAdvantage,
    EditMaskCredit,
    FadeAdvantage,
    ForkingCredit,
    IbpoShape,
    KtaeCredit,
    NtfCredit,
    PowerAdvantage,
    PpoClipObjective,
    ProcessCredit,
    QueryPreservedBatching,
    Recipe,
    ReinforcePlusPlusAdvantage,
    RewardBalancedBatching,
    SignBlindClipObjective,
)
from tokencredit.config.recipe import RecipeEntry, varied
from tokencredit.config.recipes.baselines import DAPO, DAPO_ORIGINS, GRPO, GRPO_ORIGINS

_NTF_CLIP = PpoClipObjective(clip_low=0.2, clip_high=10.0, aggregation="sequence-mean")
CRF_ORIGINS = {
    "objective.clip_low": "a paper-aligned reproduction",
    "objective.clip_high": "a paper-aligned reproduction",
    "objective.aggregation": "a paper-aligned reproduction: divisor is the full length",
}
CRF = Recipe(advantage=CrfAdvantage(), objective=_NTF_CLIP)

TOKEN_CREDIT: dict[str, RecipeEntry] = {
    "delta": RecipeEntry(
        varied(DAPO, credit=DeltaCredit()), "DelTA, 2605.21467", "dapo with discriminative token coefficients", DAPO_ORIGINS
    ),
    "forking-tokens": RecipeEntry(
        varied(DAPO, credit=ForkingCredit()),
        "Beyond the 80/20 Rule, 2506.01939",
        "dapo on the fifth of tokens with the highest entropy",
        DAPO_ORIGINS,
    ),
    "ktae": RecipeEntry(
        varied(GRPO, credit=KtaeCredit()),
        "KTAE, 2505.16826",
        "grpo plus the association of a token with success among the siblings",
        GRPO_ORIGINS,
    ),
    "vineppo": RecipeEntry(
        Recipe(advantage=DrGrpoAdvantage(), credit=ProcessCredit()),
        "VinePPO, 2410.01679",
        "value of each step by sampled continuations",
        caveats=("VinePPO's own sampling numbers and PPO settings were not re-read",),
    ),
    "ibpo": RecipeEntry(
        varied(GRPO, shape=IbpoShape()),
        "IBPO, 2605.16302",
        "grpo with a bonus for failures that the policy repairs when shown a sibling",
        GRPO_ORIGINS,
        ("reading: shaping and mask are separate recipes; the paper's headline configuration was not found",),
    ),
    "ibpo-mask": RecipeEntry(
        varied(GRPO, shape=IbpoShape(), credit=EditMaskCredit()),
        "IBPO, 2605.16302",
        "ibpo that credits a repaired failure only where the repair edited it",
        GRPO_ORIGINS,
        ("reading: mask and bonus together; --shape.weight 0 leaves the mask alone",),
    ),
    "c-rf": RecipeEntry(
        CRF,
        "Rethinking Groups in Critic-Free RLVR, 2606.17250",
        "+1 or -1 by outcome, both sides weighing the same; needs no groups",
        CRF_ORIGINS,
        asks_once=True,
    ),
    "ntf": RecipeEntry(
        varied(CRF, credit=NtfCredit()),
        "Rethinking Groups in Critic-Free RLVR, 2606.17250",
        "c-rf that penalises only the least probable tokens of failures",
        CRF_ORIGINS,
        asks_once=True,
    ),
    "ntf-whitened": RecipeEntry(
        Recipe(advantage=ReinforcePlusPlusAdvantage(over="responses"), credit=NtfCredit(), objective=_NTF_CLIP),
        "Rethinking Groups in Critic-Free RLVR, 2606.17250",
        "negative token filtering on batch-whitened rewards",
        {**CRF_ORIGINS, "advantage.over": "reading: the paper's second batch-level method was not found"},
        ("reading: the paper's second batch-level method was not found; this is a REINFORCE++-like one",),
        asks_once=True,
    ),
}


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
    "power": RecipeEntry(Recipe(advantage=PowerAdvantage()), _PAPER, "fade's difficulty axis, fixed", origins=_ORIGINS, caveats=(_CLIP,)),
    "asym": RecipeEntry(Recipe(advantage=AsymAdvantage()), _PAPER, "fade's sign axis, fixed", origins=_ORIGINS, caveats=(_CLIP,)),
}

"""Methods that tell the tokens of a response apart."""

from tokencredit.config import (
    CrfAdvantage,
    DeltaCredit,
    DrGrpoAdvantage,
    EditMaskCredit,
    ForkingCredit,
    IbpoShape,
    KtaeCredit,
    NtfCredit,
    PpoClipObjective,
    ProcessCredit,
    Recipe,
    ReinforcePlusPlusAdvantage,
)
from tokencredit.config.recipes.baselines import DAPO, DAPO_ORIGINS, GRPO, GRPO_ORIGINS
from tokencredit.config.recipes.entry import RecipeEntry, varied

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
        "grpo plus how strongly a token goes with success among the siblings",
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

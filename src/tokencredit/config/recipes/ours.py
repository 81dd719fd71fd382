"""Our own recipes, each with the paper it derives from, and the controls that a method must beat."""

from tokencredit.config import DeltaCredit, NtfKeepCredit, OneSidedCredit, SiblingContextCredit, SiblingValueCredit
from tokencredit.config.recipe import RecipeEntry, varied
from tokencredit.config.recipes.baselines import DAPO, DAPO_ORIGINS
from tokencredit.config.recipes.token_credit import CRF, CRF_ORIGINS

_SYMMETRIC = DeltaCredit(lam_min=0.0, lam_max=2.0, scope="group", proxy="head", coefficient_map="symmetric")
_SYMMETRIC_ORIGINS = DAPO_ORIGINS | {f"credit.{field}": "ours" for field in ("lam_min", "lam_max", "scope", "proxy", "coefficient_map")}
_ALL_TOKENS_ALIKE = CRF.objective.model_copy(update={"aggregation": "token-mean"})
_HEAD = "the exact head proxy refuses models that do more than hidden x head (logit scale, soft-cap, bias)"

OURS: dict[str, RecipeEntry] = {
    "right-once": RecipeEntry(
        varied(CRF, credit=OneSidedCredit(), objective=_ALL_TOKENS_ALIKE),
        "ours, after Rethinking Groups, 2606.17250",
        "one response per prompt, gradients from right responses only; the default",
        CRF_ORIGINS | {"objective.aggregation": "ours: divided by its own length, a short response's tokens would weigh more"},
        (
            "close to online rejection sampling (RAFT, 2304.06767), with importance ratios over several optimizer steps",
            "a batch without a right response has no gradient; a task that is rarely solved needs groups or an easier start",
            "wrong responses get no gradient: for multi-turn tasks or free-text reasoning, compare with c-rf --credit.type ntf-keep",
        ),
        asks_once=True,
        optimizer={"steps_per_batch": 8},
    ),
    "delta-symmetric": RecipeEntry(
        varied(DAPO, credit=_SYMMETRIC),
        "ours, after DelTA, 2605.21467",
        "delta within each group, in the exact LM-head geometry, the same coefficient on both sides",
        _SYMMETRIC_ORIGINS,
        (_HEAD,),
    ),
    "delta-momentum": RecipeEntry(
        varied(DAPO, credit=_SYMMETRIC.model_copy(update={"momentum": 0.9})),
        "ours, after DelTA, 2605.21467",
        "delta-symmetric whose direction between the centroids is averaged over steps",
        _SYMMETRIC_ORIGINS | {"credit.momentum": "ours"},
        (_HEAD, "the direction has vocab x hidden numbers; for large models take --credit.proxy hidden-gradient"),
    ),
    "sibling-value": RecipeEntry(
        varied(DAPO, credit=SiblingValueCredit()),
        "ours, after the abstract of IBPO, 2605.16302",
        "dapo with token credit from the change in value, estimated from siblings with similar hidden states",
        DAPO_ORIGINS,
    ),
    "sibling-context": RecipeEntry(
        varied(DAPO, credit=SiblingContextCredit()),
        "ours, after the abstract of IBPO, 2605.16302",
        "sibling-value by the last tokens instead of hidden states",
        DAPO_ORIGINS,
    ),
    "ntf-anneal": RecipeEntry(
        varied(DAPO, credit=NtfKeepCredit()),
        "ours, after Rethinking Groups, 2606.17250",
        "dapo with a negative token filter that fades as entropy falls",
        DAPO_ORIGINS,
    ),
    "ntf-orthogonal": RecipeEntry(
        varied(DAPO, credit=NtfKeepCredit(anneal="none", orthogonal="kept")),
        "ours, after Rethinking Groups, 2606.17250",
        "dapo with a negative token filter that leaves entropy unchanged to first order",
        DAPO_ORIGINS | {"credit.anneal": "ours", "credit.orthogonal": "ours"},
    ),
}


CONTROLS: dict[str, RecipeEntry] = {
    "positive-only": RecipeEntry(
        varied(DAPO, credit=OneSidedCredit()), "control", "dapo on max(A, 0): gradients from better responses only", DAPO_ORIGINS
    ),
    "negative-only": RecipeEntry(
        varied(DAPO, credit=OneSidedCredit(side="negative")),
        "control",
        "dapo on min(A, 0): gradients from worse responses only",
        {**DAPO_ORIGINS, "credit.side": "ours"},
    ),
    "random-lambda": RecipeEntry(
        varied(DAPO, credit=DeltaCredit(score="random")),
        "control of DelTA, 2605.21467",
        "delta with coefficients drawn at random",
        {**DAPO_ORIGINS, "credit.score": "paper (an ablation); uniform draws are a reading"},
    ),
}

"""Claims about which tokens receive credit: DelTA, negative token filtering, IBPO."""

from claims.declaration import Claim, Study, against

ABLATIONS = {
    "delta:credit.score=own-side": "delta, own side only",
    "delta:credit.assignment=hard": "delta, hard assignment",
    "delta:credit.coefficient-map=raw": "delta, raw map",
    "delta:credit.refinements=0": "delta, no refinement",
    "delta:credit.normalize=false": "delta, no normalisation",
}
ONE = "sampling.prompts=256+sampling.group-size=1"
NTF_ONE, CRF_ONE = f"ntf:{ONE}", f"c-rf:{ONE}"
AREA = "area decides and final accuracy is told: runs end near the ceiling of the task"

DELTA = Study(
    name="delta",
    paper="DelTA, 2605.21467",
    arms={"plain": ("dapo", "delta", "random-lambda", *ABLATIONS)},
    columns=("area", "final", "pass_at_k", "to_threshold", "entropy"),
    names=ABLATIONS,
    remarks=(AREA, "random-lambda is the paper's random ablation, and an A/A control here"),
    claims=(
        Claim(
            "DelTA trains to a higher accuracy than DAPO.",
            "curve area above DAPO's",
            "curve area below DAPO's",
            (
                against("delta - dapo", "plain", "delta", "dapo", "area", "more"),
                against("delta - dapo", "plain", "delta", "dapo", "final", "more", decides=False),
                against("delta / dapo", "plain", "delta", "dapo", "to_threshold", "less", decides=False),
            ),
        ),
        Claim(
            "Every part of it helps: each ablation is worse than the whole.",
            "the whole's area above that of every ablation",
            "an ablation's area above the whole's",
            tuple(against(f"delta - ({name})", "plain", "delta", recipe, "area", "more") for recipe, name in ABLATIONS.items()),
        ),
        Claim(
            "It is the contrast of the two sides that helps: random and own-side coefficients fall below DAPO.",
            "area of both below DAPO's",
            "area of one of them above DAPO's",
            (
                against("random - dapo", "plain", "random-lambda", "dapo", "area", "less"),
                against("own side - dapo", "plain", "delta:credit.score=own-side", "dapo", "area", "less"),
                against("delta - random", "plain", "delta", "random-lambda", "area", "more", decides=False),
            ),
        ),
    ),
    not_testable=(
        "The ablation 'no adaptive gamma': with one refinement it is, as described, the same as the whole method.",
        "The size of the gain (5 points on seven competition benchmarks at 8B): no such model or data here.",
    ),
)

NTF = Study(
    name="ntf",
    paper="Rethinking Groups in Critic-Free RLVR (NTF), 2606.17250",
    arms={"plain": ("grpo", "ntf", NTF_ONE, CRF_ONE), "multi-turn": ("grpo", NTF_ONE, CRF_ONE)},
    columns=("area", "final", "pass_at_k", "to_threshold", "entropy"),
    names={"grpo": "grpo, 32 x 8", "ntf": "ntf, 32 x 8", NTF_ONE: "ntf, 256 x 1", CRF_ONE: "c-rf, 256 x 1"},
    remarks=(
        "One response to each of 256 prompts against eight to each of 32: prompts differ as well as groups, which c-rf 256 x 1 shows alone",
        "Comparable means: not more than 2 points of curve area below",
    ),
    claims=(
        Claim(
            "On reasoning, NTF with one rollout per prompt is comparable to groups.",
            "area not more than 2 points below GRPO's with groups of 8",
            "area more than 2 points below",
            (
                against("ntf 256 x 1 - grpo 32 x 8", "plain", NTF_ONE, "grpo", "area", "no worse", margin=0.02),
                against("c-rf 256 x 1 - grpo 32 x 8", "plain", CRF_ONE, "grpo", "area", "no worse", margin=0.02, decides=False),
                against("ntf 256 x 1 - ntf 32 x 8", "plain", NTF_ONE, "ntf", "area", "more", decides=False),
                against("ntf 256 x 1 - grpo 32 x 8", "plain", NTF_ONE, "grpo", "pass_at_k", "no worse", margin=0.02, decides=False),
                against("ntf 256 x 1 - grpo 32 x 8", "plain", NTF_ONE, "grpo", "entropy", "more", decides=False),
            ),
        ),
        Claim(
            "With one rollout per prompt it is the filter that protects from false penalties.",
            "area of NTF above that of the same method without the filter",
            "area below it",
            (
                against("ntf - c-rf, 256 x 1", "plain", NTF_ONE, CRF_ONE, "area", "more"),
                against("ntf - c-rf, 256 x 1", "plain", NTF_ONE, CRF_ONE, "entropy", "more", decides=False),
            ),
        ),
        Claim(
            "On agentic tasks NTF with one rollout is better than groups.",
            "area above GRPO's on the multi-turn task",
            "area below it",
            (
                against("ntf 256 x 1 - grpo 32 x 8", "multi-turn", NTF_ONE, "grpo", "area", "more"),
                against("ntf 256 x 1 - grpo 32 x 8", "multi-turn", NTF_ONE, "grpo", "final", "more", decides=False),
                against("ntf - c-rf, 256 x 1", "multi-turn", NTF_ONE, CRF_ONE, "area", "more", decides=False),
            ),
        ),
    ),
    not_testable=(
        "The second batch-level method: not found in what is public; `ntf-whitened` is a reading and not in this study.",
        "Agentic tasks in a real environment (ALFWorld): `guess` is a multi-turn toy of at most four turns.",
    ),
)

IBPO = Study(
    name="ibpo",
    paper="IBPO, 2605.16302",
    arms={"revisions": ("grpo", "ibpo", "ibpo-mask")},
    columns=("area", "equal_rollouts", "final", "rollouts", "to_threshold", "pass_at_k", "entropy"),
    remarks=(
        "Rollouts count revisions; area and accuracy are taken up to the rollouts that all runs cover",
        "All begin from `steps-revise`, a base that was warm-started on revisions",
    ),
    claims=tuple(
        Claim(
            f"{what} beats GRPO.",
            "area over equal rollouts, revisions counted, above GRPO's",
            "area below GRPO's",
            (
                against(f"{recipe} - grpo", "revisions", recipe, "grpo", "area", "more"),
                against(f"{recipe} - grpo", "revisions", recipe, "grpo", "equal_rollouts", "more", decides=False),
                against(f"{recipe} / grpo", "revisions", recipe, "grpo", "to_threshold", "less", decides=False),
                against(f"{recipe} - grpo", "revisions", recipe, "grpo", "entropy", "more", decides=False),
            ),
        )
        for recipe, what in (("ibpo", "Rewarding failures that can be repaired"), ("ibpo-mask", "Crediting only the edited tokens"))
    ),
    not_testable=("The paper's own revision prompt and number of references were not found; these are readings.",),
)

"""The papers' claims that this project tests, as data: the arms, the measures and the outcomes that decide each verdict."""

from tokencredit.lab.studies.claim_runs import Claim, Study, Test, against

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


WHOLE, STRATIFIED, BALANCED = "dapo:batching.type=query-preserved", "dapo:batching.type=stratified", "cancellation"
FEW, MANY = "plain", "many-prompts"


def _learns_better(said: str, setting: str, recipe: str) -> Claim:
    tests = (
        against("it - shuffled", setting, recipe, "dapo", "area", "more"),
        against("it - shuffled", setting, recipe, "dapo", "final", "more", decides=False),
        against("it / shuffled", setting, recipe, "dapo", "to_threshold", "less", decides=False),
    )
    return Claim(said, "area above shuffled", "area below shuffled", tests)


BATCHING = Study(
    name="batching",
    paper="The Cancellation Hypothesis, 2605.08666 (abstract only)",
    arms={FEW: ("dapo", WHOLE, STRATIFIED, BALANCED), MANY: ("dapo", WHOLE, BALANCED)},
    columns=("area", "final", "pass_at_k", "to_threshold", "entropy", "jitter"),
    names={"dapo": "shuffled", WHOLE: "query-preserved", STRATIFIED: "stratified", BALANCED: "reward-balanced (whole groups)"},
    remarks=(
        "Whole groups: 8 prompts per optimizer step in `plain`, 32 in `many-prompts`. All are dapo",
        "One optimizer step per batch would hold every group whole under any batching, so it compares nothing and is not run",
    ),
    claims=(
        _learns_better("Query-preserved mini-batches improve learning (few prompts per optimizer step).", FEW, WHOLE),
        _learns_better("Query-preserved mini-batches improve learning (many prompts per optimizer step).", MANY, WHOLE),
        _learns_better("Reward-balanced mini-batches improve learning (few prompts per optimizer step).", FEW, BALANCED),
        _learns_better("Reward-balanced mini-batches improve learning (many prompts per optimizer step).", MANY, BALANCED),
        _learns_better("Ours, no paper's: some responses of every prompt in every step (stratified) improve learning.", FEW, STRATIFIED),
    ),
    not_testable=("The paper's own algorithms and amounts: only the abstract was found; both batchings are readings.",),
)

LOOKED = "looked-at"
SIGNS = Study(
    name="signs",
    paper="The Cancellation Hypothesis, 2605.08666 (abstract only)",
    arms={LOOKED: ("dapo", "positive-only")},
    columns=("moved_format", "moved_decisive", "first_moved_format", "first_moved_decisive", "moved", "area", "final", "entropy"),
    names={"dapo": "both signs (dapo)"},
    remarks=(
        "Share of all KL moved that lies on format tokens (preamble, separators) and on decisive ones (results), mean over seven looks",
        "At the first look both arms have the same rollouts; later each has its own",
    ),
    claims=(
        Claim(
            "Against positive-only training, learning from both signs moves updates from format to reasoning tokens.",
            "share of KL on format tokens smaller and on decisive tokens larger, mean over a run",
            "either the other way round",
            (
                against("both signs - positive-only", LOOKED, "dapo", "positive-only", "moved_format", "less"),
                against("both signs - positive-only", LOOKED, "dapo", "positive-only", "moved_decisive", "more"),
                against("the same, first look", LOOKED, "dapo", "positive-only", "first_moved_format", "less", decides=False),
                against("the same, first look", LOOKED, "dapo", "positive-only", "first_moved_decisive", "more", decides=False),
                against("both signs - positive-only", LOOKED, "dapo", "positive-only", "area", "more", decides=False),
            ),
        ),
    ),
)


OFF = "off-policy"
TOKEN_CLIP = "grpo:objective.aggregation=token-mean"
TOKEN_LINEAR = "grpo-fix:objective.clipping=none"
SEQUENCE_CLIP = "gspo:objective.aggregation=token-mean+objective.clip-low=0.01+objective.clip-high=0.01"
SEQUENCE_LINEAR = "dfpo:objective.transform=none"
PRODUCT = "objective.weight=product"
PRODUCT_LINEAR = f"{SEQUENCE_LINEAR}+{PRODUCT}"
TOKEN_FIXED, SEQUENCE_FIXED, PRODUCT_FIXED, PRODUCT_ORTHOGONAL = "grpo-fix", "dfpo", f"dfpo:{PRODUCT}", f"dfpo-orthogonal:{PRODUCT}"

COUPLING = {SEQUENCE_CLIP: 0.5, SEQUENCE_LINEAR: 0.5, TOKEN_CLIP: -0.5, TOKEN_LINEAR: -0.5}
SIGN_CLIP = {SEQUENCE_CLIP: 0.5, TOKEN_CLIP: 0.5, SEQUENCE_LINEAR: -0.5, TOKEN_LINEAR: -0.5}
INTERACTION = {SEQUENCE_CLIP: 1.0, SEQUENCE_LINEAR: -1.0, TOKEN_CLIP: -1.0, TOKEN_LINEAR: 1.0}


def _breaks(said: str, what: str, weights: dict[str, float]) -> Claim:
    tests = (
        Test(what, OFF, weights, "tax_format", "more"),
        Test(what, OFF, weights, "drift_ratio", "more"),
        Test(what, OFF, weights, "tax_any", "more", decides=False),
        Test(what, OFF, weights, "drift_equal", "more", decides=False),
        Test(what, OFF, weights, "entropy", "less", decides=False),
        Test(what, OFF, weights, "area", "less", decides=False),
    )
    return Claim(said, "tax on format tokens and drift ratio both above 0", "either below 0", tests)


def _restores(name: str, fixed: str, plain: str) -> tuple[Claim, Claim]:
    """What a transformation is to do at once, and what is to follow from it."""
    what = f"{name}: with - without"
    return (
        Claim(
            f"The transformation restores cancellation: less tax and less drift ({name}).",
            "tax on format tokens and drift ratio both smaller with it",
            "either larger with it",
            (
                against(what, OFF, fixed, plain, "tax_format", "less"),
                against(what, OFF, fixed, plain, "drift_ratio", "less"),
                against(what, OFF, fixed, plain, "tax_any", "less", decides=False),
                against(what, OFF, fixed, plain, "drift_equal", "less", decides=False),
            ),
        ),
        Claim(
            f"With it entropy lasts, and learning is faster, smoother and ends higher ({name}).",
            "more entropy at the end, fewer rollouts to 80 %, less jitter, more final accuracy",
            "any of these the other way round",
            (
                against(what, OFF, fixed, plain, "entropy", "more"),
                against(what.replace(" - ", " / "), OFF, fixed, plain, "to_threshold", "less"),
                against(what, OFF, fixed, plain, "jitter", "less"),
                against(what, OFF, fixed, plain, "final", "more"),
                against(what, OFF, fixed, plain, "area", "more", decides=False),
            ),
        ),
    )


FACTORIAL = Study(
    name="factorial",
    paper="Token Gradient Cancellation (DFPO), 2604.13088v1",
    arms={
        OFF: (
            *(TOKEN_CLIP, TOKEN_LINEAR, SEQUENCE_CLIP, SEQUENCE_LINEAR, PRODUCT_LINEAR),
            *(TOKEN_FIXED, SEQUENCE_FIXED, PRODUCT_FIXED, PRODUCT_ORTHOGONAL),
        )
    },
    columns=(
        *("tax_format", "tax_any", "drift_ratio", "drift_equal", "moved", "entropy", "jitter"),
        *("area", "final", "to_threshold", "pass_at_k", "silenced"),
    ),
    names={
        TOKEN_CLIP: "token ratio, clip by sign",
        TOKEN_LINEAR: "token ratio, no clip",
        SEQUENCE_CLIP: "sequence mean, clip by sign",
        SEQUENCE_LINEAR: "sequence mean, no clip",
        PRODUCT_LINEAR: "sequence product, no clip",
        TOKEN_FIXED: "token ratio, sign-blind clip (grpo-fix)",
        SEQUENCE_FIXED: "sequence mean, min-replace (dfpo)",
        PRODUCT_FIXED: "sequence product, min-replace (dfpo)",
        PRODUCT_ORTHOGONAL: "sequence product, orthogonal (dfpo)",
    },
    remarks=(
        "All cells: grpo's advantage, token mean, 8 optimizer steps per batch of 8 whole groups each, the same rate and seeds",
        "The 2 x 2: token ratio or sequence weight (geometric mean, as GSPO's), clipped by sign or not at all",
        "Tax, format: share of KL moved on tokens that the task says carry no credit. Tax and drift are means over seven looks",
        "The sequence clip is 0.01 wide: in ten trial steps GSPO's own 3e-4 silenced half of all tokens, the token clip of 0.2 under 1 %",
        "Geometric means stay near 1, so this coupling is weak: three trial steps with and without min-replace moved drift by 0.001 nats. "
        "The product of ratios couples strongly; it has no clipped cell and stands beside the 2 x 2",
    ),
    claims=(
        _breaks(
            "Sequence coupling breaks cancellation: more learning tax and more drift (geometric mean, the 2 x 2).",
            "sequence mean - token ratio, over clip on and off",
            COUPLING,
        ),
        _breaks(
            "Sequence coupling breaks cancellation: more learning tax and more drift (product of ratios).",
            "sequence product - token ratio, no clip",
            {PRODUCT_LINEAR: 1.0, TOKEN_LINEAR: -1.0},
        ),
        _breaks(
            "A clip that depends on the sign breaks cancellation: more learning tax and more drift.",
            "clip by sign - no clip, over coupling on and off",
            SIGN_CLIP,
        ),
        _breaks(
            "Ours, no paper's: the two add up to more than each by itself.",
            "interaction of coupling and clip",
            INTERACTION,
        ),
        *_restores("sign-blind clip for clip by sign", TOKEN_FIXED, TOKEN_CLIP),
        *_restores("min-replace on geometric means", SEQUENCE_FIXED, SEQUENCE_LINEAR),
        *_restores("min-replace on products", PRODUCT_FIXED, PRODUCT_LINEAR),
        *_restores("orthogonal on products", PRODUCT_ORTHOGONAL, PRODUCT_LINEAR),
    ),
    not_testable=(
        "Sequence weight, clipped by sign, with the transformation: dfpo has no clip and gspo no transformation.",
        "Sequence product, clipped by sign: gspo knows the geometric mean only.",
        "Token ratio, no clip, with the transformation: a token that siblings share has one ratio, so there is nothing to transform.",
        "Growth of the gain with group size, and its size at 32B.",
    ),
)


QUICK = "fade:advantage.ema-new-weight=0.1"

FADE = Study(
    name="fade",
    paper="FADE, 2607.01490",
    arms={"plain": ("grpo", "fade", QUICK)},
    columns=("pass_at_k", "pass_at_4", "entropy", "mean_entropy", "area", "final", "to_threshold"),
    names={QUICK: "fade, quick averages (0.1)"},
    remarks=(
        "pass@8 after a run is near its ceiling, so pass@4, averaged over the evaluations of a run, decides",
        "With 2 % of every new batch in its averages, FADE's entropy term hardly acts within 48 steps; with 10 % it does",
    ),
    claims=tuple(
        claim
        for recipe, name in (("fade", "fade"), (QUICK, "fade, quick"))
        for claim in (
            Claim(
                f"FADE raises pass@k over GRPO ({name}).",
                "pass@4, mean over a run, above GRPO's",
                "below GRPO's",
                (
                    against(f"{name} - grpo", "plain", recipe, "grpo", "pass_at_4", "more"),
                    against(f"{name} - grpo", "plain", recipe, "grpo", "pass_at_k", "more", decides=False),
                ),
            ),
            Claim(
                f"FADE keeps more entropy than GRPO at no loss of accuracy ({name}).",
                "end entropy above GRPO's, area not more than 1 point below",
                "end entropy below, or area more than 1 point below",
                (
                    against(f"{name} - grpo", "plain", recipe, "grpo", "entropy", "more"),
                    against(f"{name} - grpo", "plain", recipe, "grpo", "area", "no worse", margin=0.01),
                    against(f"{name} - grpo", "plain", recipe, "grpo", "mean_entropy", "more", decides=False),
                    against(f"{name} - grpo", "plain", recipe, "grpo", "final", "more", decides=False),
                ),
            ),
        )
    ),
    not_testable=(
        "pass@100, and thousands of training steps, over which its schedules were made.",
        "The paper's clip, divisor and group size were not found; PPO's 0.2, the token mean and 8 stand in.",
    ),
)

STUDIES: dict[str, Study] = {study.name: study for study in (DELTA, BATCHING, FACTORIAL, SIGNS, FADE, NTF, IBPO)}

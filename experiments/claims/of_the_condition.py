"""The cancellation condition as a 2 x 2 factorial, with and without the transformations (2604.13088v1)."""

from claims.declaration import Claim, Study, Test, against

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

"""Claims about which tokens meet in an update and cancel there: batching, and learning from one sign alone."""

from claims.declaration import Claim, Study, against

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

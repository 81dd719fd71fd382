"""Critic-free baselines: sequence-level advantages with uniform credit over the tokens of a response."""

from tokencredit.config import (
    CispoObjective,
    ClipCovObjective,
    DrGrpoAdvantage,
    FipoObjective,
    GmpoObjective,
    GpgAdvantage,
    GspoObjective,
    KlCovObjective,
    OpoAdvantage,
    OverlongShape,
    PassAtKAdvantage,
    PolicyGradientObjective,
    PpoClipObjective,
    Recipe,
    ReinforcePlusPlusAdvantage,
    ReinforcePlusPlusBaselineAdvantage,
    RemaxAdvantage,
    RlooAdvantage,
    SapoObjective,
)
from tokencredit.config.recipe import RecipeEntry, varied

GRPO = Recipe(objective=PpoClipObjective(aggregation="sequence-mean"))
DAPO = Recipe(shape=OverlongShape(), objective=PpoClipObjective(clip_low=0.2, clip_high=0.28, dual_clip=10.0))

GRPO_ORIGINS = {"objective.aggregation": "DeepSeekMath, 2402.03300"}
DAPO_ORIGINS = {
    "objective.aggregation": "DAPO, 2503.14476",
    "objective.clip_high": "DAPO, 2503.14476",
    "objective.dual_clip": "public DAPO scripts",
}
CONSTANT = {"objective.aggregation": "paper: a constant divisor; the constant itself (the length limit) is a reading"}

BASELINES: dict[str, RecipeEntry] = {
    "grpo": RecipeEntry(
        GRPO,
        "DeepSeekMath, 2402.03300",
        "group-normalised advantage, equal clip, every response weighs the same",
        GRPO_ORIGINS,
        ("KL is off; --kl.beta turns it on", "1/T_i differs between siblings of unequal length: shared tokens no longer cancel"),
    ),
    "dr-grpo": RecipeEntry(
        Recipe(advantage=DrGrpoAdvantage(), objective=PpoClipObjective(aggregation="constant")),
        "Understanding R1-Zero-Like Training, 2503.20783",
        "no division by spread or length",
        CONSTANT,
    ),
    "rloo": RecipeEntry(
        Recipe(advantage=RlooAdvantage(), objective=PpoClipObjective(aggregation="constant")),
        "Back to Basics, 2402.14740",
        "leave-one-out baseline, tokens of a response summed",
        {"objective.aggregation": "reading: tokens of a response are summed"},
    ),
    "dapo": RecipeEntry(
        DAPO,
        "DAPO, 2503.14476",
        "clip-higher, dual clip, token mean, overlong penalty; without dynamic sampling",
        DAPO_ORIGINS,
    ),
    "dapo-dynamic": RecipeEntry(
        varied(DAPO, filter_groups=True),
        "DAPO, 2503.14476",
        "dapo with dynamic sampling: groups without spread are replaced",
        DAPO_ORIGINS,
        ("sampling stops after filter_retries extra rounds, possibly with fewer groups",),
    ),
    "reinforce++": RecipeEntry(
        Recipe(advantage=ReinforcePlusPlusAdvantage()),
        "REINFORCE++, 2501.03262",
        "rewards whitened over the batch's tokens; needs no groups",
        caveats=("the paper's KL term in the reward is off; --kl.beta with --kl.place reward turns it on",),
    ),
    "reinforce++-baseline": RecipeEntry(
        Recipe(advantage=ReinforcePlusPlusBaselineAdvantage()),
        "REINFORCE++, 2501.03262",
        "group-centred rewards, whitened over the batch's tokens",
    ),
    "opo": RecipeEntry(
        Recipe(advantage=OpoAdvantage()),
        "OPO, 2505.23585",
        "length-weighted group baseline",
        caveats=("the paper trains exactly on policy: --optimizer.steps-per-batch 1",),
    ),
    "gpg": RecipeEntry(
        Recipe(advantage=GpgAdvantage(), objective=PolicyGradientObjective()),
        "GPG, 2504.02546",
        "plain policy gradient on group-centred rewards, scaled by the rewarded share",
    ),
    "pass-at-k": RecipeEntry(
        Recipe(advantage=PassAtKAdvantage(), objective=PpoClipObjective(aggregation="sequence-mean")),
        "Optimizing Language Models for Inference Time Objectives, 2503.19595",
        "only the best response of a group is credited, by its lead over the second",
        {"objective.aggregation": "reading: as in grpo"},
    ),
    "remax": RecipeEntry(
        Recipe(advantage=RemaxAdvantage()),
        "ReMax, 2310.10505",
        "the policy's greedy response is the baseline; needs no groups",
    ),
    "gspo": RecipeEntry(
        Recipe(objective=GspoObjective()),
        "GSPO, 2507.18071",
        "one ratio per response; the counterpart of dfpo",
    ),
    "gmpo": RecipeEntry(Recipe(objective=GmpoObjective()), "GMPO, 2507.20673", "geometric mean of clipped token ratios"),
    "cispo": RecipeEntry(
        Recipe(objective=CispoObjective()),
        "MiniMax-M1, 2506.13585",
        "the clipped ratio is a weight without gradient; no token loses its gradient",
    ),
    "sapo": RecipeEntry(Recipe(objective=SapoObjective()), "SAPO, 2511.20347", "a soft gate on the ratio instead of a clip"),
    "clip-cov": RecipeEntry(
        Recipe(objective=ClipCovObjective()),
        "The Entropy Mechanism of RL for Reasoning, 2505.22617",
        "a few tokens with high covariance of log-prob and credit lose their gradient",
    ),
    "kl-cov": RecipeEntry(
        Recipe(objective=KlCovObjective()),
        "The Entropy Mechanism of RL for Reasoning, 2505.22617",
        "a KL penalty on the tokens with the highest covariance of log-prob and credit",
    ),
    "fipo": RecipeEntry(
        Recipe(shape=OverlongShape(), objective=FipoObjective()),
        "FIPO, 2603.19835",
        "dapo with token weights from the log-prob change of the following tokens",
        caveats=("taken from a port, with the settings of the DelTA paper's comparison",),
    ),
}

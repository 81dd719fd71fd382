"""Methods of the advantage stage: one number per response."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tokencredit.config.base import CODE, NOTE, OURS, MethodConfig, NonNegative, Number, Origin, Positive, PositiveShare

Preset = Annotated[Literal["tokencredit", "trl", "verl"], OURS]


class AdvantageBase(MethodConfig):
    stage = "advantage"
    never_negative: ClassVar[bool] = False
    credits_single_outcome: ClassVar[bool] = False
    """A batch whose responses all have the same outcome receives credit."""

    @property
    def compares_siblings(self) -> str | None:
        return "compares siblings"


class AdvantageWithoutGroups(AdvantageBase):
    """Compares over the batch or with the greedy response, so a prompt may have a single response."""

    @property
    def compares_siblings(self) -> None:
        return None


class GrpoAdvantage(AdvantageBase):
    """Group-centred reward over the group's standard deviation."""

    formula = "A_i = (R_i - mean_g) / (std_g + epsilon)"

    type: Literal["grpo"] = "grpo"
    preset: Preset = "tokencredit"
    """Whose numerics: epsilon, groups of one, ungraded responses."""
    epsilon: Annotated[NonNegative | None, Origin("public code: 1e-6, preset trl 1e-4")] = None
    """Added to the standard deviation; default the preset's."""


class DrGrpoAdvantage(AdvantageBase):
    """Group-centred reward."""

    formula = "A_i = R_i - mean_g"

    type: Literal["dr-grpo"] = "dr-grpo"
    preset: Preset = "tokencredit"
    """Whose numerics: groups of one, ungraded responses."""


class RlooAdvantage(AdvantageBase):
    """Reward minus the mean of the siblings."""

    formula = "A_i = R_i - mean of the other responses = G/(G-1) (R_i - mean_g)"

    type: Literal["rloo"] = "rloo"
    preset: Preset = "tokencredit"
    """Whose numerics: groups of one, ungraded responses."""


class ReinforcePlusPlusAdvantage(AdvantageWithoutGroups):
    """REINFORCE++: rewards whitened over the batch, no groups."""

    formula = "A_i = (R_i - m) / sqrt(v + epsilon),  m and v (n - 1) of R over all tokens of the batch (over responses: over all responses)"
    caveats = (
        "no discount: the published gamma is 1 wherever the reward comes at the end",
        "not centred in a group: opposing signals of one prompt need not cancel",
    )

    type: Literal["reinforce++"] = "reinforce++"
    over: Annotated[Literal["tokens", "responses"], CODE] = "tokens"
    """Whiten over tokens (long responses weigh more) or over responses."""
    preset: Preset = "tokencredit"
    """Whose numerics: ungraded responses."""
    epsilon: Annotated[NonNegative, CODE] = 1e-8
    """Added to the variance."""


class ReinforcePlusPlusBaselineAdvantage(AdvantageBase):
    """REINFORCE++-baseline: group-centred rewards, whitened over the batch's tokens."""

    formula = "A_i = (d_i - m) / sqrt(v + epsilon),  d_i = R_i - mean_g,  m and v (n - 1) of d over all tokens of the batch"
    caveats = ("with uneven lengths m is not 0, so advantages of a group do not sum to 0",)

    type: Literal["reinforce++-baseline"] = "reinforce++-baseline"
    preset: Preset = "tokencredit"
    """Whose numerics: groups of one, ungraded responses."""
    epsilon: Annotated[NonNegative, CODE] = 1e-8
    """Added to the variance."""


class OpoAdvantage(AdvantageBase):
    """OPO: reward minus the length-weighted group mean."""

    formula = "A_i = R_i - sum_j T_j R_j / sum_j T_j  over the group"
    caveats = ("with uneven lengths the advantages of a group do not sum to 0",)

    type: Literal["opo"] = "opo"
    preset: Preset = "tokencredit"
    """Whose numerics: groups of one, ungraded responses."""


class GpgAdvantage(AdvantageBase):
    """GPG: group-centred reward, scaled up when few responses are rewarded."""

    formula = "A_i = (B / number of responses with a reward other than 0) (R_i - mean_g),  B graded responses in the batch"

    type: Literal["gpg"] = "gpg"
    preset: Preset = "tokencredit"
    """Whose numerics: groups of one, ungraded responses."""


class PassAtKAdvantage(AdvantageBase):
    """Pass@k policy optimisation: only the best response of a group is credited."""

    formula = "A_best = R_best - R_second (/ (std_g + epsilon) with normalize), every other response 0"
    caveats = ("never negative: nothing can cancel", "a group with two equally good best responses gives nothing")
    never_negative = True

    type: Literal["pass-at-k"] = "pass-at-k"
    preset: Preset = "tokencredit"
    """Whose numerics: epsilon, groups of one, ungraded responses."""
    normalize: Annotated[bool, CODE] = True
    """Divide by the group's standard deviation."""
    epsilon: Annotated[NonNegative | None, Origin("public code: 1e-6, preset trl 1e-4")] = None
    """Added to the standard deviation; default the preset's."""


class FadeAdvantage(AdvantageBase):
    """FADE: focus on hard prompts while they are hard, and push failures more when entropy is low."""

    formula = (
        "A_i = (1 - mean_g)^(alpha - 1) (R_i - mean_g), divided by delta where R_i < mean_g;  "
        "alpha = clip(3 (1 - p) / (2 p), 1, alpha_max),  delta = clip(1 + H - H*, delta_min, 1),  p and H running means"
    )
    caveats = (
        "reading: a running mean takes ema_new_weight of the new value (the note can be read the other way round)",
        "reading: mean_g is the prompt's own mean, p the batch's solve rate",
        "reading: entropy is the mean over response tokens, in nats",
        "reading: a batch enters the running means before alpha and delta are set by them",
        "delta below 1 leaves the group's advantages uncentred: shared tokens then no longer cancel",
        "with filter_groups the solve rate is that of mixed groups only",
    )
    needs = {"entropy": "follows the mean entropy of the batch"}

    type: Literal["fade"] = "fade"
    alpha_max: Annotated[float, Field(ge=1, allow_inf_nan=False), NOTE] = 3.0
    """Strongest focus on hard prompts."""
    delta_min: Annotated[PositiveShare, NOTE] = 0.3
    """Failures weigh at most 1 / this."""
    target_entropy: Annotated[Positive | None, NOTE] = None
    """H*, nats per token; default half the entropy of the first batch."""
    ema_new_weight: Annotated[PositiveShare, Origin("reading of 0.02 in a published note")] = 0.02
    """Share of the newest batch in the running means."""
    initial_solve_rate: Annotated[PositiveShare, NOTE] = 0.5
    """Where the running solve rate starts."""

    @property
    def keeps_state(self) -> str:
        return "remembers running means of solve rate and entropy"


class PowerAdvantage(AdvantageBase):
    """FADE's static difficulty probe: prompts solved rarely weigh more."""

    formula = "A_i = C (1 - mean_g)^(alpha - 1) (R_i - mean_g), divided by delta where R_i < mean_g;  mass C p (1-p)^alpha"
    caveats = ("reading: C was not published; none takes 1, peak makes the largest mass that of mean-centred GRPO, 1/4",)

    type: Literal["power"] = "power"
    alpha: Annotated[Positive, NOTE] = 2.0
    """The mass peaks at solve rate 1 / (1 + alpha)."""
    delta: Annotated[Positive, Origin("reading: 1, so that the two sides weigh the same; the paper's power-asym sets it too")] = 1.0
    """Failures weigh 1 / this."""
    scale: Annotated[Literal["none", "peak"], Origin("reading: C was not published")] = "none"
    """The constant C."""


class AsymAdvantage(AdvantageBase):
    """FADE's static sign probe: failures weigh 1/delta."""

    formula = "A_i = R_i - mean_g, divided by delta where R_i < mean_g"
    caveats = ("not centred unless delta is 1", "not the AsymGRPO of 2604.04894")

    type: Literal["asym"] = "asym"
    delta: Annotated[Positive, NOTE] = 0.5
    """Below 1 failures weigh more, above 1 less."""


class CrfAdvantage(AdvantageWithoutGroups):
    """C-RF: +1 or -1 by outcome, the two sides of the batch weighing the same. Needs no groups."""

    formula = "A_i = +B/(2 B+) where score_i > threshold, -B/(2 B-) elsewhere (+1 or -1 where one side is missing);  B graded responses"
    caveats = (
        "reading: sides are counted over the whole batch of rollouts, not per optimizer step",
        "not centred in a group: opposing signals of one prompt need not cancel",
    )
    reads_score = "reads the verifier's score"
    credits_single_outcome = True

    type: Literal["c-rf"] = "c-rf"
    threshold: Annotated[Number, NOTE] = 0.0
    """A score above this is a success."""


class RemaxAdvantage(AdvantageWithoutGroups):
    """ReMax: reward minus that of the policy's greedy response."""

    formula = "A_i = R_i - score of the greedy response to the same prompt"
    caveats = (
        "one greedy response per prompt is sampled for it and counted in rollouts used",
        "not centred in a group: opposing signals of one prompt need not cancel",
        "the baseline is the verifier's score: no shaping is applied to the greedy response",
    )
    needs = {"greedy-scores": "compares with the policy's greedy response"}

    type: Literal["remax"] = "remax"


AdvantageChoice = (
    GrpoAdvantage
    | DrGrpoAdvantage
    | RlooAdvantage
    | ReinforcePlusPlusAdvantage
    | ReinforcePlusPlusBaselineAdvantage
    | OpoAdvantage
    | GpgAdvantage
    | PassAtKAdvantage
    | FadeAdvantage
    | PowerAdvantage
    | AsymAdvantage
    | CrfAdvantage
    | RemaxAdvantage
)

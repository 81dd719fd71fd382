"""Methods of the objective stage: the per-token surrogate and its aggregation."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from tokencredit.config.base import (
    CODE,
    NOTE,
    OURS,
    READING,
    Count,
    MethodConfig,
    NonNegative,
    OnlyWhen,
    Origin,
    Positive,
    PositiveShare,
    Share,
)

Aggregation = Literal["token-mean", "sequence-mean", "constant"]
_PPO = Origin("PPO, 1707.06347")
DualClip = Annotated[float, Field(gt=1, allow_inf_nan=False)]


class ObjectiveBase(MethodConfig):
    """The fields that all objectives share."""

    stage = "objective"
    needs_one_divisor: ClassVar[str | None] = None
    """Why every response's loss must be divided by the same length."""

    aggregation: Annotated[Aggregation, CODE] = "token-mean"
    """How token losses become one number."""
    constant_length: Annotated[Count | None, OURS, OnlyWhen("aggregation", ("constant",))] = None
    """Divisor per response when aggregation is constant; default the length limit."""

    @property
    def one_ratio_per_response(self) -> bool:
        """Differentiates one importance ratio per response, which averages differences between tokens away."""
        return False


class PpoClipObjective(ObjectiveBase):
    """PPO's clipped surrogate."""

    formula = "L_it = -min(rho a, clip(rho, 1 - clip_low, 1 + clip_high) a),  rho = exp(logp - old_logp)"
    caveats = ("the clip depends on the sign of credit: where it acts, shared tokens no longer cancel",)

    type: Literal["ppo-clip"] = "ppo-clip"
    clip_low: Annotated[Share, _PPO] = 0.2
    """Ratios are clipped below 1 - this."""
    clip_high: Annotated[NonNegative, _PPO] = 0.2
    """Ratios are clipped above 1 + this."""
    dual_clip: Annotated[DualClip | None, OURS] = None
    """Bound on the loss of tokens with negative credit, as a multiple of it."""


class SignBlindClipObjective(ObjectiveBase):
    """A token is clipped when its ratio leaves the band, whatever the sign of its credit (GRPO-fix, a reading)."""

    formula = "L_it = -clip(rho, 1 - clip_low, 1 + clip_high) a   (clipping none: -rho a)"
    caveats = (
        "reading: the paper's GRPO-fix is not defined; this is symmetric clipping, or no clipping",
        "aggregation sequence-mean would undo the cancellation where lengths differ",
    )

    type: Literal["sign-blind-clip"] = "sign-blind-clip"
    clipping: Annotated[Literal["sign-blind", "none"], READING] = "sign-blind"
    """none leaves the surrogate linear."""
    clip_low: Annotated[Share, READING, OnlyWhen("clipping", ("sign-blind",))] = 0.2
    """Ratios below 1 - this give no gradient."""
    clip_high: Annotated[NonNegative, READING, OnlyWhen("clipping", ("sign-blind",))] = 0.2
    """Ratios above 1 + this give no gradient."""
    aggregation: Annotated[Aggregation, Origin("reading: one divisor for all tokens")] = "token-mean"
    """How token losses become one number."""


class GspoObjective(ObjectiveBase):
    """GSPO: one ratio per response, the geometric mean of its token ratios."""

    formula = "L_it = -min(s a, clip(s, 1 - clip_low, 1 + clip_high) a),  s = sg[s_i] exp(logp - sg[logp]),  s_i = exp(mean_t log rho)"
    caveats = (
        "the token form keeps token credit; the sequence form averages it away and is refused with it",
        "the sequence ratio differs between siblings off policy: shared tokens no longer cancel",
    )

    type: Literal["gspo"] = "gspo"
    clip_low: Annotated[Share, Origin("general knowledge of the paper's settings")] = 3e-4
    """Sequence ratios are clipped below 1 - this."""
    clip_high: Annotated[NonNegative, Origin("general knowledge of the paper's settings")] = 4e-4
    """Sequence ratios are clipped above 1 + this."""
    form: Annotated[Literal["token", "sequence"], CODE] = "token"
    """sequence differentiates the one ratio itself; the same gradient with uniform credit."""
    aggregation: Annotated[Aggregation, CODE] = "sequence-mean"
    """How token losses become one number."""

    @property
    def one_ratio_per_response(self) -> bool:
        return self.form == "sequence"


class GmpoObjective(ObjectiveBase):
    """GMPO: the geometric mean of clipped token ratios."""

    formula = "L_it = -a sg[r_i] exp(c_it - sg[c_it]),  r_i = exp(mean_t c_it),  c = log rho, clipped on the side that the sign of a gives"
    caveats = (
        "the token form keeps token credit; the sequence form averages it away and is refused with it",
        "the sequence ratio differs between siblings off policy: shared tokens no longer cancel",
    )

    type: Literal["gmpo"] = "gmpo"
    clip_low: Annotated[NonNegative, Origin("general knowledge of the paper's settings")] = 0.4
    """Log-ratios of tokens with negative credit are clipped below minus this."""
    clip_high: Annotated[NonNegative, Origin("general knowledge of the paper's settings")] = 0.4
    """Log-ratios of tokens with positive credit are clipped above this."""
    form: Annotated[Literal["token", "sequence"], OURS] = "token"
    """sequence differentiates the one ratio itself; the same gradient with uniform credit."""
    aggregation: Annotated[Aggregation, CODE] = "sequence-mean"
    """How token losses become one number."""

    @property
    def one_ratio_per_response(self) -> bool:
        return self.form == "sequence"


class CispoObjective(ObjectiveBase):
    """CISPO: the clipped ratio is only a weight, so no token loses its gradient."""

    formula = "L_it = -sg[clip(rho, 1 - clip_low, 1 + clip_high)] a logp"

    type: Literal["cispo"] = "cispo"
    clip_low: Annotated[Share, Origin("general knowledge of the paper: no lower bound")] = 1.0
    """Weights are at least 1 - this."""
    clip_high: Annotated[NonNegative, Origin("public settings with a largest weight of 5; the paper tunes it")] = 4.0
    """Weights are at most 1 + this."""


class SapoObjective(ObjectiveBase):
    """SAPO: a soft gate on the ratio instead of a clip."""

    formula = "L_it = -(4 / tau) sigmoid(tau (rho - 1)) a,  tau = tau_positive where a > 0, else tau_negative"
    caveats = ("unequal temperatures treat the two signs differently off policy",)

    type: Literal["sapo"] = "sapo"
    tau_positive: Annotated[Positive, CODE] = 1.0
    """Steepness of the gate for positive credit."""
    tau_negative: Annotated[Positive, CODE] = 1.05
    """Steepness of the gate for negative credit."""
    aggregation: Annotated[Aggregation, CODE] = "sequence-mean"
    """How token losses become one number."""


class PolicyGradientObjective(ObjectiveBase):
    """Plain policy gradient: no ratio, no clip."""

    formula = "L_it = -a logp"
    caveats = ("off policy nothing corrects for the drift",)

    type: Literal["policy-gradient"] = "policy-gradient"


class ClipCovObjective(ObjectiveBase):
    """Clip-Cov: PPO clip, and a few tokens whose log-prob and credit vary together lose their gradient."""

    formula = (
        "L_it = PPO clip, 0 on share x N tokens (at least 1) drawn from those with cov_low < (a - mean a)(logp - mean logp) < cov_high"
    )
    caveats = ("means, counts and draws are over the tokens of one optimizer step",)

    type: Literal["clip-cov"] = "clip-cov"
    clip_low: Annotated[Share, CODE] = 0.2
    """Ratios are clipped below 1 - this."""
    clip_high: Annotated[NonNegative, CODE] = 0.2
    """Ratios are clipped above 1 + this."""
    share: Annotated[PositiveShare, CODE] = 2e-4
    """Share of the step's tokens that lose their gradient."""
    cov_low: Annotated[float, Field(allow_inf_nan=False), CODE] = 1.0
    """Covariance above which a token may be drawn."""
    cov_high: Annotated[float, Field(allow_inf_nan=False), CODE] = 5.0
    """Covariance below which a token may be drawn."""

    @model_validator(mode="after")
    def _ordered(self) -> "ClipCovObjective":
        if self.cov_low >= self.cov_high:
            raise ValueError(f"objective.cov_low is {self.cov_low} and objective.cov_high is {self.cov_high}; no covariance lies between")
        return self


class KlCovObjective(ObjectiveBase):
    """KL-Cov: unclipped surrogate, and a penalty on the tokens whose log-prob and credit vary together most."""

    formula = "L_it = -rho a + penalty |logp - old_logp| on the share x N tokens (at least 1) of largest (a - mean a)(logp - mean logp)"
    caveats = ("means and ranks are over the tokens of one optimizer step",)

    type: Literal["kl-cov"] = "kl-cov"
    share: Annotated[PositiveShare, CODE] = 2e-4
    """Share of the step's tokens that are penalised."""
    penalty: Annotated[NonNegative, CODE] = 1.0
    """Weight of the penalty."""


class FipoObjective(ObjectiveBase):
    """FIPO: a token weighs more when the tokens after it became more probable."""

    formula = (
        "PPO clip with f a in place of a,  f_t = sg[clip(exp F_t, 1 - weight_low, 1 + weight_high)],  "
        "F_t = sum_{j >= t} 2^(-(j - t)/decay) log rho_j over tokens with rho_j <= dual_clip"
    )
    caveats = (
        "the weight is found anew at every optimizer step; on the first one after sampling it is 1",
        "where a < 0 and rho > safety, f stays within [1 - safety_band, 1]",
        "a response with more than one dual-clipped token (a < 0, rho > dual_clip) gives no gradient",
    )

    type: Literal["fipo"] = "fipo"
    clip_low: Annotated[Share, CODE] = 0.2
    """Ratios are clipped below 1 - this."""
    clip_high: Annotated[NonNegative, CODE] = 0.28
    """Ratios are clipped above 1 + this."""
    dual_clip: Annotated[DualClip, CODE] = 10.0
    """Bound on the loss of tokens with negative credit; tokens with larger ratios leave the future sum."""
    decay: Annotated[Positive, Origin("as run in the DelTA paper")] = 32.0
    """Tokens after which a later token counts half."""
    weight_low: Annotated[Share, Origin("as run in the DelTA paper: high only")] = 0.0
    """Weights are at least 1 - this."""
    weight_high: Annotated[NonNegative, Origin("as run in the DelTA paper")] = 0.2
    """Weights are at most 1 + this."""
    safety: Annotated[Positive, Origin("as run in the DelTA paper")] = 10.0
    """Ratio above which a token with negative credit is not weighed up."""
    safety_band: Annotated[Share, CODE] = 0.2
    """How far such a token may be weighed down."""


class DfpoObjective(ObjectiveBase):
    """DFPO: sequence weights made exchangeable within the group, so that shared tokens cancel."""

    formula = (
        "L_it = -sg[wt_i] a logp,  w_i = exp(mean_t log rho) (product: exp(sum_t log rho)),  "
        "min-replace: wt_i = min_j w_j;  orthogonal: wt = w - (A.w / |A|^2) A"
    )
    caveats = (
        "reading: the surrogate around the published transformations is unclipped and linear, under stop-gradient",
        "reading: one length divisor for all; 1/T_i is refused because it would undo the cancellation",
        "both transformations bias the importance correction; orthogonal weights can be negative",
        "cancels exactly only with advantages centred in the group, uniform credit and whole groups per optimizer step",
    )
    needs_one_divisor = "cancels only with one length divisor for the group"

    type: Literal["dfpo"] = "dfpo"
    transform: Annotated[Literal["min-replace", "orthogonal", "none"], NOTE] = "min-replace"
    """none leaves the sequence weights as they are: the counterpart that does not cancel."""
    weight: Annotated[Literal["mean", "product"], READING] = "mean"
    """Sequence weight: geometric mean of token ratios, or their product."""
    fold_length: Annotated[bool, READING] = False
    """Fold 1/T_i (relative to the group's mean length) into the weight before the transformation."""
    floor: Annotated[bool, READING, OnlyWhen("transform", ("orthogonal",))] = False
    """Raise negative orthogonal weights to 0, which gives up exact cancellation."""
    aggregation: Annotated[Aggregation, Origin("reading: one divisor for the group")] = "token-mean"
    """How token losses become one number."""


ObjectiveChoice = (
    PpoClipObjective
    | SignBlindClipObjective
    | GspoObjective
    | GmpoObjective
    | CispoObjective
    | SapoObjective
    | PolicyGradientObjective
    | ClipCovObjective
    | KlCovObjective
    | FipoObjective
    | DfpoObjective
)

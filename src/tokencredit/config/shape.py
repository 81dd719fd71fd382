"""Methods that change the reward before responses are compared; the KL term; the correction for another sampler's log-probs."""

from typing import Annotated, ClassVar, Literal

from pydantic import model_validator

from tokencredit.config.base import (
    CODE,
    NOTE,
    OURS,
    READING,
    REVISIONS,
    Count,
    Frozen,
    MethodConfig,
    NonNegative,
    OnlyWhen,
    Origin,
    Positive,
    PositiveShare,
    Share,
)


class ShapeBase(MethodConfig):
    stage = "shape"
    changes_reward: ClassVar[bool] = True
    reads_length_limit: ClassVar[str | None] = None
    """How the method uses the length limit of a response."""


class NoShape(ShapeBase):
    """The verifier's score as it is."""

    formula = "R_i = score_i"
    changes_reward = False

    type: Literal["none"] = "none"


class OverlongShape(ShapeBase):
    """DAPO's soft penalty near the length limit."""

    formula = "R_i = score_i + min(0, -factor (T_i - (L - b)) / b),  b = buffer x L,  L the length limit"
    reads_length_limit = "reads the length limit"

    type: Literal["overlong"] = "overlong"
    buffer: Annotated[PositiveShare, Origin("public DAPO scripts: 4096 of 20480 tokens")] = 0.2
    """Share of the length limit over which the penalty grows."""
    factor: Annotated[NonNegative, Origin("public DAPO scripts")] = 1.0
    """Penalty at the limit."""


class IbpoShape(ShapeBase):
    """IBPO: a failed response that the policy repairs when shown a sibling is worth more than a hopeless one."""

    formula = "R_i = score_i + weight x repair_value x (share of i's references whose revision is right)   if i failed, else score_i"
    caveats = (
        "reading: the bonus is the mean over references; revisions are never trained on",
        "reading: references are correct siblings first, then other failures; none are repeated",
        "revisions are sampled from the same policy and counted in rollouts used",
    )
    sampling_fields = ("references", "prefer_correct")
    needs = REVISIONS

    type: Literal["ibpo"] = "ibpo"
    weight: Annotated[NonNegative, NOTE] = 0.6
    """Lambda: weight of the repair score in the reward."""
    repair_value: Annotated[Share, NOTE] = 0.5
    """Rho: what one successful repair is worth."""
    references: Annotated[Count, Origin("reading: K - 1 with K = 3; the paper's K was not found")] = 2
    """Siblings each failed response is compared with."""
    prefer_correct: Annotated[bool, NOTE] = True
    """Take correct siblings as references before other failures."""
    correct_above: Annotated[Share, READING] = 0.5
    """A score above this is a success."""

    @property
    def compares_siblings(self) -> str:
        return "corrects a response by a sibling"


ShapeChoice = NoShape | OverlongShape | IbpoShape


class Kl(Frozen):
    """Optional divergence from the frozen starting policy."""

    beta: Annotated[NonNegative, OURS] = 0.0
    """Weight; 0 turns it off and loads no reference."""
    estimator: Annotated[Literal["k1", "k2", "k3"], CODE] = "k3"
    """k1 = log-ratio, k2 = half its square, k3 = the non-negative unbiased form."""
    place: Annotated[Literal["loss", "reward"], CODE] = "loss"
    """Added to every token's loss, or taken from every response's reward."""


_ON = OnlyWhen("kind", ("tis", "mis"))


class Correction(Frozen):
    """Optional importance correction where the sampler's log-probs differ from the trainer's."""

    kind: Annotated[Literal["none", "tis", "mis"], OURS] = "none"
    """tis truncates the ratio trainer / sampler at cap; mis drops what lies beyond it."""
    level: Annotated[Literal["token", "sequence"], OURS, _ON] = "token"
    """A ratio per token, or one per response (the product)."""
    cap: Annotated[Positive, CODE, _ON] = 2.0
    """Largest ratio that is used as it is."""
    floor: Annotated[NonNegative, OURS, _ON] = 0.0
    """mis drops ratios below this too; tis raises them to it."""

    @property
    def enabled(self) -> bool:
        return self.kind != "none"

    @model_validator(mode="after")
    def _ordered(self) -> "Correction":
        if self.floor > self.cap:
            raise ValueError(f"correction.floor is {self.floor} but correction.cap is {self.cap}; the floor must not be above the cap")
        return self

"""The choices at each stage, one frozen class each, and the recipe that holds one of every stage. Imports no torch."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]


class Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _none_in_words(cls, fields: Any) -> Any:
        """TOML has no null: there "none" unsets a field that may be unset."""
        if not isinstance(fields, dict):
            return fields
        unset = {name for name, field in cls.model_fields.items() if field.default is None}
        return {name: None if name in unset and value == "none" else value for name, value in fields.items()}


# --- shape: the reward before comparison


class NoShape(Frozen):
    """The verifier's score as it is."""

    type: Literal["none"] = "none"


class OverlongShape(Frozen):
    """DAPO's soft penalty near the length limit."""

    type: Literal["overlong"] = "overlong"
    buffer: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Share of the length limit over which the penalty grows."""
    factor: NonNegative = 1.0
    """Penalty at the limit."""


# --- advantage: one number per response

Preset = Literal["tokencredit", "trl", "verl"]


class GrpoAdvantage(Frozen):
    """Group-centred reward over the group's standard deviation."""

    type: Literal["grpo"] = "grpo"
    preset: Preset = "tokencredit"
    """Whose numerics: epsilon, groups of one, ungraded responses."""
    epsilon: NonNegative | None = None
    """Added to the standard deviation; default the preset's."""


class DrGrpoAdvantage(Frozen):
    """Group-centred reward."""

    type: Literal["dr-grpo"] = "dr-grpo"
    preset: Preset = "tokencredit"
    """Whose numerics: groups of one, ungraded responses."""


class RlooAdvantage(Frozen):
    """Reward minus the mean of the siblings."""

    type: Literal["rloo"] = "rloo"
    preset: Preset = "tokencredit"
    """Whose numerics: groups of one, ungraded responses."""


# --- credit: one number per token


class UniformCredit(Frozen):
    """Every token receives the response's advantage."""

    type: Literal["uniform"] = "uniform"


class DeltaCredit(Frozen):
    """DelTA: weigh a token by how much nearer its gradient is to its own side's centroid."""

    type: Literal["delta"] = "delta"
    lam_min: NonNegative = 0.8
    """Coefficient before normalisation at score 0."""
    lam_max: Positive = 1.2
    """Coefficient before normalisation at score 1."""
    refinements: CountOrZero = 1
    """Times the centroids are refined; 0 is an ablation."""
    scope: Literal["batch", "group", "shard"] = "batch"
    """Over which tokens statistics are taken."""
    shards: Count = 2
    """Shards when scope is shard (the authors' runs had 2)."""
    proxy: Literal["row", "hidden-gradient", "head"] = "row"
    """Token-gradient vector: (1-p)h, top-K d log p/dh, or the exact LM-head gradient."""
    top_k: Count = 32
    """Vocabulary entries of the hidden-gradient proxy (not published)."""
    temperature: Literal["adaptive", "first-batch", "constant"] = "adaptive"
    """Where the margins' scale comes from."""
    constant_gamma: Positive = 1.0
    """The scale when temperature is constant."""
    gamma_scale: Positive = 1.0
    """Multiplies the measured temperature."""
    score: Literal["contrast", "own-side", "random"] = "contrast"
    """contrast is DelTA; own-side and random are its ablations."""
    assignment: Literal["soft", "hard"] = "soft"
    """hard is the ablation without the entropy term."""
    coefficient_map: Literal["bounded", "raw", "symmetric"] = "bounded"
    """raw is an ablation; symmetric gives a token the same coefficient on either side (ours)."""
    normalize: bool = True
    """Divide by the mean coefficient."""

    @model_validator(mode="after")
    def _ordered(self) -> "DeltaCredit":
        if self.lam_min > self.lam_max:
            raise ValueError(f"lam_min is {self.lam_min} and lam_max is {self.lam_max}; lam_min must not be above lam_max")
        if self.score == "own-side" and self.coefficient_map == "symmetric":
            raise ValueError("credit.coefficient_map 'symmetric' needs credit.score 'contrast': own-side distances differ by side")
        if self.score == "own-side" and self.assignment == "hard":
            raise ValueError("credit.assignment 'hard' needs credit.score 'contrast': minus a distance is never above 0")
        return self


# --- objective: the per-token surrogate and its aggregation


class PpoClipObjective(Frozen):
    """PPO's clipped surrogate."""

    type: Literal["ppo-clip"] = "ppo-clip"
    clip_low: Share = 0.2
    """Ratios are clipped below 1 - this."""
    clip_high: NonNegative = 0.2
    """Ratios are clipped above 1 + this."""
    dual_clip: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """Bound on the loss of tokens with negative credit, as a multiple of it."""
    aggregation: Literal["token-mean", "sequence-mean", "constant"] = "token-mean"
    """How token losses become one number."""
    constant_length: Count | None = None
    """Divisor per response when aggregation is constant; default the length limit."""


# --- batching: which tokens meet in one optimizer step


class ShuffledBatching(Frozen):
    """Responses are dealt at random."""

    type: Literal["shuffled"] = "shuffled"


class QueryPreservedBatching(Frozen):
    """Prompts are dealt; responses to a prompt stay together."""

    type: Literal["query-preserved"] = "query-preserved"


class Kl(Frozen):
    """Optional divergence from the frozen starting policy."""

    beta: NonNegative = 0.0
    """Weight; 0 turns it off and loads no reference."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """k1 = log-ratio, k2 = half its square, k3 = the non-negative unbiased form."""
    place: Literal["loss", "reward"] = "loss"
    """Added to every token's loss, or taken from every response's reward."""


class Recipe(Frozen):
    """One choice per stage."""

    shape: Annotated[NoShape | OverlongShape, Field(discriminator="type")] = NoShape()
    advantage: Annotated[GrpoAdvantage | DrGrpoAdvantage | RlooAdvantage, Field(discriminator="type")] = GrpoAdvantage()
    credit: Annotated[UniformCredit | DeltaCredit, Field(discriminator="type")] = UniformCredit()
    objective: Annotated[PpoClipObjective, Field()] = PpoClipObjective()
    batching: Annotated[ShuffledBatching | QueryPreservedBatching, Field(discriminator="type")] = ShuffledBatching()
    kl: Kl = Kl()
    filter_groups: bool = False
    """Dynamic sampling: replace groups whose scores are all alike."""
    filter_retries: CountOrZero = 4
    """Extra sampling rounds at most while groups are missing."""


def knobs(choice: Frozen, *without: str) -> dict[str, Any]:
    """The numbers of a choice as keyword arguments for the function it names."""
    return choice.model_dump(exclude={"type", *without})

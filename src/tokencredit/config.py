"""What a run is made of: one frozen class per choice. Imports no torch, so that `tokencredit -h` answers at once.

A recipe is one choice per stage; everything else (task, model, sampling, optimizer, evaluation) is the run's.
"""

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


# --- the run


class StepsTask(Frozen):
    """Chains of additions and subtractions mod 10, worked out on a scratchpad."""

    type: Literal["steps"] = "steps"
    operations: Annotated[int, Field(ge=1, le=20)] = 4
    """Operations in a chain."""
    subtract_share: Share = 0.5
    """Share of subtractions, where the base errs most."""


class CotAddTask(Frozen):
    """Addition, answered directly or after a scratchpad that RL discovers."""

    type: Literal["cotadd"] = "cotadd"
    digits: Annotated[int, Field(ge=1, le=12)] = 4
    """Digits of each term."""


class Sampling(Frozen):
    prompts: Count = 32
    """Prompts per training step."""
    group_size: Count = 8
    """Responses per prompt."""
    max_new_tokens: Count = 48
    """Length limit of a response."""
    temperature: Positive = 1.0
    """Divides logits, in sampling and in scoring."""


class Optimizer(Frozen):
    steps_per_batch: Count = 4
    """Optimizer steps per batch of rollouts."""
    max_tokens: Count = 8192
    """Micro-batch budget: rows x longest row, prompt included. Never changes the gradient."""
    learning_rate: Positive = 1e-3
    weight_decay: NonNegative = 0.0
    beta1: Share = 0.9
    beta2: Share = 0.95
    warmup_steps: CountOrZero = 2
    """Training steps over which the rate rises."""
    final_rate: Share = 0.1
    """Share of the rate left at the end of a linear decay."""
    gradient_clip: Positive = 1.0
    """Largest gradient norm."""


class Evaluation(Frozen):
    every: CountOrZero = 5
    """Training steps between evaluations; 0 evaluates only before and after."""
    problems: Count = 256
    """Held-out problems each time."""
    samples: Count = 4
    """Sampled responses per problem while training, for pass@1 and pass@k."""
    final_problems: Count = 512
    """Held-out problems before and after."""
    final_samples: Count = 8
    """Sampled responses per problem before and after."""


class TrainConfig(Recipe):
    """A whole run. Every field has a value, so a file holds differences only."""

    recipe: str = "delta"
    """Named choice of stages; see `tokencredit recipes`."""
    model: str = "steps-shift"
    """A shipped base (steps-shift, steps-sharpen, steps-revise, cotadd) or a folder with a transformers causal LM."""
    task: Annotated[StepsTask | CotAddTask, Field(discriminator="type")] = StepsTask()
    seed: CountOrZero = 0
    """Everything random in the run follows from it."""
    steps: Count = 80
    """Training steps, each one batch of rollouts."""
    sampling: Sampling = Sampling()
    optimizer: Optimizer = Optimizer()
    evaluation: Evaluation = Evaluation()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Precision of the weights."""
    scoring: Literal["auto", "sampler", "pass"] = "auto"
    """Old log-probs, entropies, hidden states: as the sampler saw them, or from a pass of their own (auto: pass in bfloat16)."""
    threads: CountOrZero = 0
    """CPU threads; 0 picks 1 for models under 5 M parameters (more threads spin and slow those down), else all cores."""
    save_every: CountOrZero = 20
    """Training steps between checkpoints; 0 saves only the best and the last."""
    tokens_every: CountOrZero = 5
    """Training steps between token files; 0 writes none."""

    @model_validator(mode="after")
    def _plannable(self) -> "TrainConfig":
        """Refuse here, before anything is sampled, what the stages would refuse later."""
        sampling, optimizer = self.sampling, self.optimizer
        if sampling.group_size == 1:
            raise ValueError(
                f"sampling.group_size is 1 but advantage {self.advantage.type!r} compares siblings; give a group size of at least 2"
            )
        rows = sampling.prompts * sampling.group_size
        units, what = (sampling.prompts, "prompts") if self.batching.type == "query-preserved" else (rows, "responses")
        if optimizer.steps_per_batch > units:
            raise ValueError(f"optimizer.steps_per_batch is {optimizer.steps_per_batch} but a batch holds only {units} {what} to deal")
        if optimizer.max_tokens <= sampling.max_new_tokens:
            raise ValueError(
                f"optimizer.max_tokens is {optimizer.max_tokens} but one response may take {sampling.max_new_tokens} tokens "
                "plus its prompt; give a larger budget"
            )
        return self


def knobs(choice: Frozen, *without: str) -> dict[str, Any]:
    """The numbers of a choice as keyword arguments for the function it names."""
    return choice.model_dump(exclude={"type", *without})

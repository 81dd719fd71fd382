"""The configuration of a run: a recipe, and all other settings (task, model, sampling, optimizer, evaluation).

Imports no torch, so that `tokencredit -h` is fast.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from tokencredit.config import Count, CountOrZero, Frozen, NonNegative, Positive, Recipe, Share
from tokencredit.config.base import MethodConfig, OnlyWhen
from tokencredit.config.task import StepsTask, TaskChoice

AS_WRITTEN = BeforeValidator(lambda given: tuple(given) if isinstance(given, list) else given)
"""A file writes a list."""
Texts = Annotated[tuple[str, ...], AS_WRITTEN]


TAGS = ("<think>", "</think>", "<answer>", "</answer>")
"""Of prompt.tags."""


SIBLINGS = 8
"""Group size for observations when training samples one response per prompt."""

HEEDED_BY_PACKED = {"compile": ("auto", "off"), "features": ("auto",)}
"""Fields that only packed passes read -> the values that padded passes accept."""


def _cuts_a_tag(stop: str) -> bool:
    return any(stop in tag and stop != tag for tag in TAGS)


class Sampling(Frozen):
    prompts: Count = 32
    """Prompts per training step."""
    group_size: Count = 8
    """Responses per prompt."""
    max_new_tokens: Count = 48
    """Length limit of a response."""
    temperature: Positive = 1.0
    """Divides logits, in sampling and in scoring."""
    stop: Texts = ()
    """A response ends once its text holds any of these; what is graded ends before it."""

    @property
    def siblings(self) -> int:
        """Group size for observations that compare responses to one prompt."""
        return self.group_size if self.group_size > 1 else SIBLINGS

    @model_validator(mode="after")
    def _stops_hold_something(self) -> "Sampling":
        if not all(self.stop):
            raise ValueError("stop holds an empty text, which every response would hold; leave it out")
        return self


class Prompt(Frozen):
    """How a problem becomes a prompt."""

    style: Literal["auto", "chat", "plain"] = "auto"
    """chat: through the tokenizer's chat template; plain: as text; auto: chat where the tokenizer has a template."""
    system: str | None = None
    """System message of a chat, or the first lines of plain text."""
    few_shot: CountOrZero = 0
    """Training problems shown with a right response before each question."""
    separator: str = "\n"
    """Between plain shots."""
    tags: bool = False
    """Ask for <think>...</think> and then <answer>...</answer>; only what the answer tags hold is graded."""


class Reward(Frozen):
    """Terms added to the verifier's score; each term is logged separately."""

    format: NonNegative = 0.0
    """Added for a response that ends by itself and, with prompt.tags, keeps to the tags."""
    length: NonNegative = 0.0
    """Taken from a right response that uses all of sampling.max_new_tokens; less from a shorter one, in proportion."""


class Optimizer(Frozen):
    steps_per_batch: Count = 4
    """Optimizer steps per batch of rollouts."""
    max_tokens: Count = 8192
    """Micro-batch budget: rows x longest row, prompt included. Never changes the gradient."""
    learning_rate: Positive = 5e-4
    """At 1e-3 objectives without a clip fall apart on the embedded tasks."""
    weight_decay: NonNegative = 0.0
    beta1: Share = 0.9
    beta2: Share = 0.95
    warmup_steps: CountOrZero = 2
    """Training steps over which the rate rises."""
    final_rate: Share = 0.1
    """Share of the rate left at the end of a linear decay."""
    gradient_clip: Positive = 1.0
    """Largest gradient norm."""
    gradient_checkpointing: bool = False
    """Keeps less of a pass in memory and computes it again; the gradient is the same."""


class Lora(Frozen):
    """Low-rank adapters on a frozen model (extra peft)."""

    rank: CountOrZero = 0
    """0 trains every weight."""
    alpha: Positive = 32.0
    """What adapters add is multiplied by alpha / rank."""
    targets: str = "all-linear"
    """Layers that are adapted: all linear ones but the LM head, or names with commas between them."""


class Evaluation(Frozen):
    every: CountOrZero = 5
    """Training steps between evaluations; 0 evaluates only before and after."""
    problems: Count = 256
    """Held-out problems each time: the first of the final ones, and no more than those."""
    samples: Count = 4
    """Sampled responses per problem while training, for pass@1 and pass@k."""
    final_problems: Count = 512
    """Held-out problems before and after."""
    final_samples: Count = 8
    """Sampled responses per problem before and after."""
    seed: CountOrZero | None = None
    """Which problems are held out follows from it, so that runs of several seeds can be measured on the same ones; unset: from the
    run's own seed."""


class Diagnose(Frozen):
    """Observation of an update by the microscope. It never changes training: weights are bit-equal with it on or off."""

    every: CountOrZero = 20
    """Training steps between observations of what an update did to every token, the first and the last step included; 0 turns them off."""
    groups: CountOrZero = 4
    """Groups whose tokens' change is also predicted, by side (with one response per prompt: eight prompts for each group); 0 uses the
    entire batch."""
    coupling_tokens: Count = 1024
    """Tokens between which the LM-head kernel is tabled pair by pair; more are sampled down to it."""
    value_budget: CountOrZero = 0
    """Continuations that each observation may sample to estimate the value of tokens; 0 samples none."""
    value_continuations: Count = 32
    """Continuations of each prefix."""
    drift_budget: CountOrZero = 0
    """Fresh responses that each observation may sample, to measure drift outside the training batch; 0 samples none."""

    @model_validator(mode="after")
    def _pays_for_one_token(self) -> "Diagnose":
        if 0 < self.value_budget < 2 * self.value_continuations:
            raise ValueError(
                f"value_budget is {self.value_budget} but one token takes 2 x {self.value_continuations} continuations; give that many or 0"
            )
        return self


class Guard(Frozen):
    """When a run stops with exit code 3, and when it warns."""

    refused_steps: Count = 3
    """Training steps in a row whose update may be refused for numbers that are not finite, before the run stops."""
    silent_steps: CountOrZero = 25
    """Training steps in a row without any credit (every group all right or all wrong) before the run stops; 0 never stops."""
    ungraded_share: Share = 0.2
    """Stop when more than this share of a batch could not be graded."""
    entropy_share: Share = 0.02
    """Warn when the mean entropy of tokens falls below this share of the first step's; 0 never warns."""
    length_factor: NonNegative = 4.0
    """Warn when responses are on average this many times as long as at the first step; 0 never warns."""
    cut_share: Share = 0.5
    """Warn when more than this share of responses is cut at the length limit; 1 never warns."""


class Track(Frozen):
    """Experiment trackers that receive the metrics of a run. They never change training."""

    to: Annotated[tuple[Literal["trackio", "wandb", "tensorboard"], ...], AS_WRITTEN] = ()
    """Experiment trackers, several at once (extra track)."""
    project: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")] = "tokencredit"
    """Project the run is listed under, in trackio and wandb."""
    name: str | None = None
    """Name of the run there; default: that of the run folder."""

    @model_validator(mode="after")
    def _each_once(self) -> "Track":
        if twice := sorted({name for name in self.to if self.to.count(name) > 1}):
            raise ValueError(f"track.to names {', '.join(twice)} more than once; name it once")
        return self


class TrainConfig(Recipe):
    """The configuration of a run. Every field has a default, so a file holds only differences."""

    recipe: str = "right-once"
    """Named choice of stages; see `tokencredit recipes`."""
    model: str = "steps-shift"
    """A shipped base, smollm2, a folder with a transformers causal LM, a run (its best checkpoint), or owner/name on the hub."""
    trust_remote_code: bool = False
    """Run Python code that lies in the model's folder. Off: such a model is refused. On: the report says so."""
    task: TaskChoice = StepsTask()
    engine: Literal["local", "trl"] = "local"
    """Who trains: this package, or TRL with this package's credit, plan and objective (extra trl)."""
    seed: CountOrZero = 0
    """Everything random in the run follows from it."""
    steps: Count = 80
    """Training steps, each one batch of rollouts."""
    source: Literal["policy", "demonstrations"] = "policy"
    """The source of the responses: sampled from the policy, or demonstrations of the task, which are correct (`tokencredit sft`)."""
    revision_share: Annotated[Share, OnlyWhen("source", ("demonstrations",))] = 0.0
    """Share of demonstrations that revise a failed response, for recipes that sample revisions."""
    prompt: Prompt = Prompt()
    sampling: Sampling = Sampling()
    reward: Reward = Reward()
    optimizer: Optimizer = Optimizer()
    lora: Lora = Lora()
    evaluation: Evaluation = Evaluation()
    diagnose: Diagnose = Diagnose()
    guard: Guard = Guard()
    track: Track = Track()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Precision of the passes; bfloat16 runs them over weights of either kind."""
    weights: Literal["float32", "bfloat16", "bfloat16-stochastic"] = "float32"
    """What weights are kept in. bfloat16 takes half the memory and rounds small updates away; bfloat16-stochastic rounds by chance instead,
    which keeps them in expectation, with moments in float32."""
    scoring: Literal["auto", "sampler", "pass"] = "auto"
    """The source of old log-probs, entropies and hidden states: the sampler or a separate pass. auto: a pass in bfloat16 or with a
    correction."""
    sampler: Literal["auto", "plain", "fast", "vllm"] = "auto"
    """What samples responses: the plain loop, the fast one (CUDA graphs), or vLLM next to the trainer (extra vllm). auto: fast on a GPU in
    bfloat16 where it knows the model, else plain."""
    vllm_memory: Annotated[float, Field(gt=0, lt=1), OnlyWhen("sampler", ("vllm",))] = 0.4
    """Share of the GPU's memory that vLLM may take."""
    passes: Literal["auto", "padded", "packed"] = "auto"
    """How rows go through the model in scoring and update: padded to the longest, or packed without padding, each prompt read once and
    no logits kept. auto: packed on a GPU where the model allows it."""
    compile: Literal["auto", "off", "on"] = "auto"
    """Let torch compile the layers for packed passes: about half a minute at the start, much faster afterwards. auto: on a GPU for models
    of 50 M parameters and more."""
    features: Literal["auto", "host", "recompute"] = "auto"
    """Where packed passes keep hidden states that a credit method needs: auto leaves them on the GPU while they fit into features_gib
    and else streams them from the host; recompute keeps none and passes the batch through the model again at every sweep."""
    features_gib: Annotated[Positive, OnlyWhen("features", ("auto",))] = 8.0
    """GPU memory that kept hidden states may take, in GiB: 2 bytes x tokens x width."""
    threads: CountOrZero = 0
    """CPU threads; 0 picks 1 for models under 5 M parameters (more threads spin and slow those down), else all cores."""
    save_every: CountOrZero = 20
    """Training steps between checkpoints; 0 saves only the best and the last."""
    save_best: bool = True
    """A checkpoint wherever held-out accuracy is the best so far; without, `--model RUN` takes the last. A large model's takes its time."""
    keep_last: Annotated[int, Field(ge=2)] = 2
    """Newest checkpoints that are kept: if the last one is damaged, a run resumes from the one before."""
    keep_every: CountOrZero = 0
    """Training steps between checkpoints that are kept for good, so that `diagnose RUN --step N` need not train again from the start."""
    tokens_every: CountOrZero = 5
    """Training steps between token files; 0 writes none."""

    @model_validator(mode="after")
    def _plannable(self) -> "TrainConfig":
        """Refuse settings that cannot work together, before anything is sampled."""
        sampling, optimizer = self.sampling, self.optimizer
        if sampling.group_size == 1 and (reason := self.needs_siblings()) is not None:
            raise ValueError(f"sampling.group_size is 1 but {reason}; give a group size of at least 2")
        if self.source == "demonstrations" and (sampling.group_size > 1 or not self.advantage.credits_single_outcome or self.filter_groups):
            raise ValueError(
                "source is 'demonstrations', which are all right and one to a problem; that needs sampling.group_size 1, advantage 'c-rf' "
                "and no filter_groups (`tokencredit sft` sets them)"
            )
        if self.prompt.tags and (cut := [stop for stop in sampling.stop if _cuts_a_tag(stop)]):
            raise ValueError(f"sampling.stop holds {cut[0]!r}, which would end a response inside the tags of prompt.tags; use '</answer>'")
        if (self.reward.format or self.reward.length) and (use := self.advantage.reads_score) is not None:
            raise ValueError(f"reward.format and reward.length add to the reward, but {self.advantage.label} {use}; leave them at 0")
        if self.correction.enabled and self.scoring == "sampler":
            raise ValueError(
                f"correction.kind is {self.correction.kind!r} but scoring 'sampler' uses the sampler's log-probs, so there is nothing "
                "to correct; use scoring 'pass' or 'auto'"
            )
        for name, plain in HEEDED_BY_PACKED.items():
            if self.passes == "padded" and (value := getattr(self, name)) not in plain:
                raise ValueError(
                    f"{name} is {value!r} but passes is 'padded', and only packed passes use it; use passes 'auto' or 'packed'"
                )
        if self.sampler == "vllm" and self.scoring == "sampler":
            raise ValueError("scoring is 'sampler' but sampler 'vllm' returns no entropies; use scoring 'auto' or 'pass'")
        if self.sampler == "vllm" and self.lora.rank:
            raise ValueError(f"sampler is 'vllm', which does not load adapters, but lora.rank is {self.lora.rank}; use sampler 'auto'")
        if (reason := self._unusable_weights()) is not None:
            raise ValueError(f"weights is {self.weights!r} but {reason}")
        rows = sampling.prompts * sampling.group_size
        units, what = (sampling.prompts, "prompts") if self.batching.deals_prompts else (rows, "responses")
        if self.batching.spreads_prompts and optimizer.steps_per_batch > sampling.group_size:
            raise ValueError(
                f"optimizer.steps_per_batch is {optimizer.steps_per_batch} but {self.batching.label} puts a response of every prompt "
                f"into every optimizer step and sampling.group_size is {sampling.group_size}; give no more steps than that"
            )
        if optimizer.steps_per_batch > units:
            raise ValueError(
                f"optimizer.steps_per_batch is {optimizer.steps_per_batch} but a batch holds only {units} {what} to deal; give no more "
                "than that, or more sampling.prompts"
            )
        if optimizer.max_tokens <= sampling.max_new_tokens:
            raise ValueError(
                f"optimizer.max_tokens is {optimizer.max_tokens} but one response may take {sampling.max_new_tokens} tokens "
                "plus its prompt; give a larger budget"
            )
        return self

    def _unusable_weights(self) -> str | None:
        """Why weights cannot be kept in bfloat16."""
        if self.weights == "float32":
            return None
        if self.dtype != "bfloat16":
            return f"dtype is {self.dtype!r}, and passes over bfloat16 weights run in bfloat16; set dtype to 'bfloat16'"
        if self.diagnose.every:
            return (
                f"diagnose.every is {self.diagnose.every}, and the change that an update makes to log-probs is lost in the rounding of "
                "bfloat16; set diagnose.every to 0"
            )
        if self.weights == "bfloat16-stochastic" and self.lora.rank:
            return f"lora.rank is {self.lora.rank}, and adapters are kept in float32, where nothing is rounded by chance; use 'bfloat16'"
        return None

    def needs_siblings(self) -> str | None:
        """Why a prompt with a single response gives no gradient."""
        for choice in (self.advantage, self.shape, self.credit, self.batching):
            if (comparison := choice.compares_siblings) is not None:
                return f"{choice.label} {comparison}"
        return "filter_groups looks for groups whose scores differ" if self.filter_groups else None


def _types_of(field: str) -> dict[str, type[BaseModel]]:
    annotation = TrainConfig.model_fields[field].annotation
    members = getattr(annotation, "__args__", (annotation,))
    classes = [member for member in members if isinstance(member, type) and issubclass(member, BaseModel)]
    return {member.model_fields["type"].default: member for member in classes if "type" in member.model_fields}


CHOICES: dict[str, dict[str, type[BaseModel]]] = {field: types for field in TrainConfig.model_fields if (types := _types_of(field))}
"""Field -> type name -> class."""

STAGES = tuple(field for field in CHOICES if field in Recipe.model_fields)

METHODS: dict[str, dict[str, type[MethodConfig]]] = {
    stage: {name: choice for name, choice in CHOICES[stage].items() if issubclass(choice, MethodConfig)} for stage in STAGES
}
"""Stage -> type name -> class: every method there is."""

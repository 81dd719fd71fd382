"""One training step:

    sample -> grade -> score tokens -> (revise, branch) -> shape -> advantage -> credit -> plan -> update

Tokens are scored before rewards are shaped because a KL penalty in the reward needs their log-probs. In full precision
the sampler's own log-probs, entropies and hidden states are the scores; in bfloat16 a pass of its own finds them.

One training step while it is under way: how far it got, and whether a guard refused it.

A batch on its way from rollouts to a planned update: each stage fills in more of it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.config import as_kwargs
from tokencredit.config.train import TrainConfig
from tokencredit.errors import BadNumbersError, ConfigError
from tokencredit.forward.memory import Notify, ignore
from tokencredit.forward.modes import ForwardMode, choose_forward_mode, recomputable_layers
from tokencredit.optim.microscope import Microscope, MicroscopeConfig, memory_for_a_look
from tokencredit.optim.optimizer import make_optimizer
from tokencredit.optim.update import OptimizerStepResult, as_done, as_result, run_plan
from tokencredit.pipeline.build import AggregatedObjective, sampled_evidence
from tokencredit.pipeline.credit import NOTHING_SAMPLED, BatchEvidence, ExtraEvidence, MethodState
from tokencredit.policy.lora import load_trained
from tokencredit.policy.policy import Policy, choose_device, load_policy, set_threads
from tokencredit.policy.prompting import with_prompting
from tokencredit.rollout.collect import collect
from tokencredit.rollout.extra import gather_extra
from tokencredit.rollout.grading import bonus, part_means
from tokencredit.rollout.sampler import with_sampler
from tokencredit.rollout.scoring import Pipeline, model_facts
from tokencredit.seeds import derive_seed
from tokencredit.storage.run_dir import RunDir
from tokencredit.tasks import TASKS, GoldReport, Problem, Task
from tokencredit.timing import Stopwatch
from tokencredit.trainer.preflight import check_gold
from tokencredit.types import Credited, Rollouts, StepPlan, StepResult, TokenScores

if TYPE_CHECKING:
    from tokencredit.trainer.checkpoint import StoredBatch


class GatheredBatch(NamedTuple):
    """What was sampled and scored; everything after it is computed from it."""

    problems: Sequence[Problem]
    """`problems[g]` is what group g answers."""
    rollouts: Rollouts
    score: Float[Tensor, " seq"]
    evidence: TokenScores
    rollouts_used: int
    """Sampled in all, the discarded ones included."""
    responses: int
    """Of these, the ones that answer prompts and were graded for training: without what evidence cost."""
    reference_logp: Float[Tensor, "seq tok"] | None = None
    sampled: ExtraEvidence = NOTHING_SAMPLED
    bonus: Float[Tensor, " seq"] | None = None
    """What a response earns beside its score."""
    extra: Mapping[str, float] = {}
    """Numbers to log: the parts of the reward, and what evidence beyond the rollouts was sampled."""
    ungraded: Mapping[str, int] = {}
    """Why responses could not be graded, and how many."""

    def without_hidden(self) -> "GatheredBatch":
        """Hidden states are the largest part of a batch, and nobody needs them once the credit is assigned."""
        return self._replace(evidence=self.evidence._replace(hidden=None, features=None))


class PlannedBatch(NamedTuple):
    """Credited and planned: what the optimizer steps need, and what a checkpoint between two of them keeps."""

    gathered: GatheredBatch
    credited: Credited
    plan: StepPlan
    state: MethodState
    """What the methods remember after this batch."""


NOTHING_TAKEN = StepResult(loss=(), gradient_norm=(), silenced_share=(), ratio_mean=())


class TrainedBatch(NamedTuple):
    problems: Sequence[Problem]
    """`problems[g]` is what group g answers."""
    credited: Credited
    plan: StepPlan
    result: StepResult
    look: Microscope | None
    """What watched the optimizer steps, where somebody asked."""


class FinishedStep(NamedTuple):
    rollouts_used: int
    state: MethodState
    trained: TrainedBatch | None
    """None where dynamic sampling or a balanced plan left nothing to learn from: no update."""
    extra: Mapping[str, float]
    """What evidence beyond the rollouts was sampled."""

    def without_look(self) -> "FinishedStep":
        """Lets go of the copies of the weights that a look holds."""
        return self if self.trained is None else self._replace(trained=self.trained._replace(look=None))


def learning_rate(config: TrainConfig, step: int) -> float:
    """Linear warm-up, then linear decay to `final_rate` of the peak; `step` counts from 0."""
    optimizer = config.optimizer
    rise = min(1.0, (step + 1) / (optimizer.warmup_steps + 1))
    done = step / max(1, config.steps - 1)
    return optimizer.learning_rate * rise * (1 - (1 - optimizer.final_rate) * done)


class _Scoring(TypedDict):
    passes: ForwardMode
    notify: Notify
    free_memory: Callable[[], None]


def make_lens(config: TrainConfig, *, seed: int) -> MicroscopeConfig:
    return MicroscopeConfig(
        temperature=config.sampling.temperature,
        max_tokens=config.optimizer.max_tokens,
        gradient_clip=config.optimizer.gradient_clip,
        dtype=config.dtype,
        seed=seed,
        groups=config.diagnose.groups * (config.sampling.siblings // config.sampling.group_size),
        recompute=config.optimizer.gradient_checkpointing,
    )


class Stepper:
    """Policy, reference, task, stages and optimizer of one run; `source` is what the policy's weights are loaded from."""

    def __init__(self, config: TrainConfig, *, source: str, task: Task | None = None) -> None:
        self.config = config
        device = choose_device(config.device)
        trusted = config.trust_remote_code
        self.policy = load_trained(config, source, device=device)
        if config.optimizer.gradient_checkpointing:
            recomputable_layers(self.policy.model)
        set_threads(config.threads, self.policy.model)
        self.reference = None
        if config.kl.beta > 0:
            self.reference = load_policy(config.model, device=device, dtype=config.dtype, weights=config.weights, trust_remote_code=trusted)
        self.task: Task = TASKS[config.task.type](**as_kwargs(config.task)) if task is None else task
        self.policy = with_sampler(
            with_prompting(self.policy, config, self.task), config.sampler, dtype=config.dtype, memory=config.vllm_memory
        )
        self.passes = choose_forward_mode(config, self.policy.model)
        self.pipeline = Pipeline(config)
        self.optimizer = make_optimizer(config, self.policy.model)

    def check_gold(self, folder: RunDir) -> GoldReport | None:
        """Rows that fail are not asked, and not shown as examples either."""
        report = check_gold(self.task, folder)
        self.policy = with_prompting(self.policy, self.config, self.task)
        return report

    def gather(self, number: int, watch: Stopwatch, notify: Notify = ignore) -> GatheredBatch:
        """Sampled, graded and scored, for training step `number` counted from 0."""
        config, policy, pipeline = self.config, self.policy, self.pipeline
        scoring = _Scoring(passes=self.passes, notify=notify, free_memory=policy.release)

        def score(rollouts: Rollouts) -> TokenScores:
            pipeline.check_budget(rollouts)
            return pipeline.score_tokens(policy.model, rollouts, keep_hidden=pipeline.keeps_hidden, **scoring)

        batch = collect(
            policy,
            self.task,
            config,
            step=number,
            watch=watch,
            keep_hidden=pipeline.keeps_hidden_while_sampling,
            score=score if pipeline.scores_in_a_pass else None,
        )
        used = batch.rollouts_used
        earned = part_means(batch.parts)
        gathered = GatheredBatch(
            batch.problems,
            batch.rollouts,
            batch.score,
            batch.evidence,
            used,
            used or len(batch.problems),
            bonus=bonus(batch.parts, config.reward),
            extra=earned,
            ungraded=batch.ungraded,
        )
        if not batch.problems:
            return gathered
        pipeline.check_budget(batch.rollouts)
        with watch.stage("score"):
            evidence = batch.evidence
            if pipeline.scores_in_a_pass and not batch.scored_beside:
                evidence = score(batch.rollouts)
            if config.source == "demonstrations":
                gathered = gathered._replace(rollouts=replace(batch.rollouts, behavior_logp=evidence.logp))
            reference = None
            if self.reference is not None:
                reference = pipeline.score_tokens(self.reference.model, batch.rollouts, keep_hidden=False, **scoring).logp
        # Told as a stage of its own only by recipes that sample something here.
        with watch.stage("extra") if sampled_evidence(config) else nullcontext():
            seed = derive_seed(config.seed, "extra", number)
            extra = gather_extra(policy, self.task, config, batch.problems, batch.rollouts, batch.score, seed=seed)
        return gathered._replace(
            evidence=evidence,
            reference_logp=reference,
            sampled=extra.sampled,
            extra=earned | dict(extra.metrics),
            rollouts_used=batch.rollouts_used + extra.rollouts_used,
        )

    def plan(self, number: int, gathered: GatheredBatch, state: MethodState, watch: Stopwatch) -> PlannedBatch:
        """Shaped, compared, credited and planned; the first number that is not finite refuses the batch."""
        pipeline, seed = self.pipeline, self.config.seed
        with watch.stage("credit"):
            credited, state = pipeline.credit(
                gathered.rollouts,
                gathered.score,
                BatchEvidence(gathered.evidence, gathered.reference_logp, gathered.sampled, model_facts(self.policy)),
                state,
                seed=derive_seed(seed, "credit", number),
                bonus=gathered.bonus,
            )
        with watch.stage("plan"):
            plan = pipeline.plan_steps(credited, seed=derive_seed(seed, "plan", number), packed=self.passes.packed)
        return PlannedBatch(gathered.without_hidden(), credited, plan, state)

    def take(
        self,
        number: int,
        planned: PlannedBatch,
        watch: Stopwatch,
        *,
        look: bool = False,
        taken: list[OptimizerStepResult] | None = None,
        stop_asked: Callable[[], bool] = lambda: False,
        notify: Notify = ignore,
    ) -> TrainedBatch | None:
        """The optimizer steps that are not taken yet, watched where asked; None for an empty plan."""
        if not planned.plan.steps:
            return None
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, number)
        result, microscope = update(
            self.policy,
            self.optimizer,
            planned.credited,
            planned.plan,
            self.pipeline.objective,
            self.config,
            number=number,
            look=look,
            passes=self.passes,
            stopwatch=watch,
            taken=taken,
            stop_asked=stop_asked,
            notify=notify,
        )
        return TrainedBatch(planned.gathered.problems, planned.credited, planned.plan, result, microscope)

    def step(self, number: int, state: MethodState, watch: Stopwatch, *, look: bool = False) -> FinishedStep:
        """Training step `number`, counted from 0; with `look`, under the microscope."""
        gathered = self.gather(number, watch)
        if not gathered.problems:
            return FinishedStep(gathered.rollouts_used, state, None, {})
        planned = self.plan(number, gathered, state, watch)
        gathered = planned.gathered
        return FinishedStep(gathered.rollouts_used, planned.state, self.take(number, planned, watch, look=look), gathered.extra)


def check_visible(config: TrainConfig) -> None:
    if config.weights != "float32":
        raise ConfigError(
            f"weights is {config.weights!r}, and the change that an update makes to log-probs is lost in the rounding of bfloat16; "
            "only updates of float32 weights can be looked at"
        )


class Updated(NamedTuple):
    result: StepResult
    look: Microscope | None


def update(
    policy: Policy,
    optimizer: torch.optim.AdamW,
    credited: Credited,
    plan: StepPlan,
    built: AggregatedObjective,
    config: TrainConfig,
    *,
    number: int,
    look: bool,
    passes: ForwardMode | None = None,
    stopwatch: Stopwatch | None = None,
    taken: list[OptimizerStepResult] | None = None,
    stop_asked: Callable[[], bool] = lambda: False,
    notify: Notify = ignore,
) -> Updated:
    """The optimizer steps of training step `number`, watched where asked; `passes` where somebody has chosen them already."""
    if look:
        check_visible(config)
    stopwatch = stopwatch or Stopwatch()
    seed = derive_seed(config.seed, "objective", number)
    microscope = None
    if look:
        # Looking must not refuse what training would take: the bad step is refused when its turn comes.
        with stopwatch.stage("diagnose"), memory_for_a_look(), suppress(BadNumbersError):
            microscope = Microscope(policy, optimizer, credited, plan, built, make_lens(config, seed=seed))
    with stopwatch.stage("update"):
        result = run_plan(
            policy,
            credited,
            plan,
            built,
            optimizer,
            temperature=config.sampling.temperature,
            gradient_clip=config.optimizer.gradient_clip,
            dtype=config.dtype,
            recompute=config.optimizer.gradient_checkpointing,
            passes=passes or choose_forward_mode(config, policy.model),
            max_tokens=config.optimizer.max_tokens,
            seed=seed,
            watch=None if microscope is None else microscope.watch,
            taken=taken,
            stop_asked=stop_asked,
            notify=notify,
        )
    return Updated(result, microscope)


@dataclass(slots=True, kw_only=True)
class Attempt:
    number: int
    """Of the training step, counted from 0."""
    look: bool
    """Whether its update is watched; then it is not left half-way."""
    watch: Stopwatch = field(default_factory=Stopwatch)
    gathered: GatheredBatch | None = None
    planned: PlannedBatch | None = None
    taken: list[OptimizerStepResult] = field(default_factory=list)
    trained: TrainedBatch | None = None
    """None where nothing was learnt from: dynamic sampling or a balanced plan left nothing, or a guard refused all of it."""
    refusal: BadNumbersError | None = None

    def gather(self, stepper: Stepper, kept: "StoredBatch | None", notify: Notify) -> None:
        """A new batch, or the one that a checkpoint kept."""
        if kept is not None:
            self.gathered, self.planned, self.taken = kept.gathered, kept.planned, as_done(kept.taken)
            # What the steps already taken did cannot be looked at any more.
            self.look = self.look and not self.taken
            return
        try:
            self.gathered = stepper.gather(self.number, self.watch, notify)
        except BadNumbersError as bad:
            self.refusal = bad

    def plan(self, stepper: Stepper, state: MethodState) -> None:
        if self.gathered is None or not self.gathered.problems or self.planned is not None:
            return
        try:
            self.planned = stepper.plan(self.number, self.gathered, state, self.watch)
            self.gathered = self.planned.gathered
        except BadNumbersError as bad:
            self.refusal = bad

    def take(self, stepper: Stepper, stop_asked: Callable[[], bool], notify: Notify) -> None:
        """Optimizer steps that stand before a refused one are taken and stay taken."""
        if self.planned is None:
            return
        heed = (lambda: False) if self.look else stop_asked
        try:
            self.trained = stepper.take(
                self.number, self.planned, self.watch, look=self.look, taken=self.taken, stop_asked=heed, notify=notify
            )
        except BadNumbersError as bad:
            self.refusal = bad
            if self.taken:
                self.trained = TrainedBatch(
                    self.planned.gathered.problems, self.planned.credited, self.planned.plan, as_result(self.taken), None
                )

    def state(self, before: MethodState) -> MethodState:
        """What the methods remember: a batch that moved nothing is forgotten."""
        return before if self.planned is None or (self.refusal is not None and not self.taken) else self.planned.state

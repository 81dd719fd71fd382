"""One training step: its state, and the stages that fill it in.

    collect -> score -> extra rollouts -> credit -> plan -> update

Tokens are scored before rewards are shaped because a KL penalty in the reward needs their log-probs. In full precision
the sampler's own log-probs, entropies and hidden states are the scores; in bfloat16 a scoring pass finds them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import torch

from tokencredit.config import as_kwargs
from tokencredit.config.train import TrainConfig
from tokencredit.errors import BadNumbersError, ConfigError
from tokencredit.forward.memory import Notify, ignore
from tokencredit.forward.modes import ForwardMode, ForwardOptions, choose_forward_mode, recomputable_layers
from tokencredit.optim.microscope import Microscope, MicroscopeConfig, observation_memory_errors
from tokencredit.optim.optimizer import make_optimizer
from tokencredit.optim.update import OptimizerStepResult, UpdateOptions, as_result, optimizer_steps
from tokencredit.pipeline.build import AggregatedObjective, sampled_evidence
from tokencredit.pipeline.credit import BatchEvidence, MethodState
from tokencredit.policy.lora import load_trained
from tokencredit.policy.policy import Policy, choose_device, load_policy, set_threads
from tokencredit.policy.prompting import with_prompting
from tokencredit.rollout.collect import CollectedBatch, collect_rollouts
from tokencredit.rollout.extra import sample_extra
from tokencredit.rollout.sampler import with_sampler
from tokencredit.rollout.scoring import (
    check_budget,
    credit_pipeline,
    keeps_hidden_while_sampling,
    model_facts,
    needs_scoring_pass,
    plan_steps,
    score_tokens,
)
from tokencredit.seeds import derive_seed
from tokencredit.storage.run_dir import RunDir
from tokencredit.tasks import TASKS, GoldReport, Task
from tokencredit.timing import Stopwatch
from tokencredit.trainer.preflight import check_gold
from tokencredit.types import Credited, Rollouts, StepPlan, StepResult, TokenScores


@dataclass(slots=True, kw_only=True)
class StepState:
    """One training step in progress: what a checkpoint in the middle of a batch keeps, and what the record is made from."""

    number: int
    """Of the training step, counted from 0."""
    observe: bool = False
    """Whether the microscope observes the update; an observed update is not interrupted half-way."""
    watch: Stopwatch = field(default_factory=Stopwatch)
    collected: CollectedBatch | None = None
    credited: Credited | None = None
    plan: StepPlan | None = None
    method_state: MethodState | None = None
    """State of the methods after this batch."""
    done: list[OptimizerStepResult] = field(default_factory=list)
    """The optimizer steps taken so far."""
    observation: Microscope | None = None
    refusal: BadNumbersError | None = None
    """Why a guard refused the rest of this step."""

    @contextmanager
    def refuse_bad_numbers(self) -> Iterator[None]:
        """Record a guard's refusal; optimizer steps before the refused one stay in effect."""
        try:
            yield
        except BadNumbersError as problem:
            self.refusal, self.observation = problem, None

    @property
    def has_rollouts(self) -> bool:
        """False where dynamic sampling left no group to learn from."""
        return self.collected is not None and bool(self.collected.problems)

    @property
    def trained(self) -> bool:
        """Whether the plan had optimizer steps and not all of them were refused."""
        return self.plan is not None and bool(self.plan.steps) and (self.refusal is None or bool(self.done))

    @property
    def result(self) -> StepResult:
        return as_result(self.done)

    def methods_after(self, before: MethodState) -> MethodState:
        """The methods' state after this step; a refused batch without any optimizer step leaves it unchanged."""
        if self.method_state is None or (self.refusal is not None and not self.done):
            return before
        return self.method_state

    def assigned(self) -> tuple[CollectedBatch, Credited, StepPlan]:
        """Rollouts, credit and plan of a planned batch."""
        assert self.collected is not None
        assert self.credited is not None
        assert self.plan is not None, "the batch is not planned yet"
        return self.collected, self.credited, self.plan


def learning_rate(config: TrainConfig, step: int) -> float:
    """Linear warm-up, then linear decay to `final_rate` of the peak; `step` counts from 0."""
    optimizer = config.optimizer
    rise = min(1.0, (step + 1) / (optimizer.warmup_steps + 1))
    done = step / max(1, config.steps - 1)
    return optimizer.learning_rate * rise * (1 - (1 - optimizer.final_rate) * done)


class PolicyTrainer:
    """Policy, reference, task, pipeline and optimizer of one run; `source` is where the policy's weights are loaded from."""

    def __init__(self, config: TrainConfig, *, source: str, task: Task | None = None) -> None:
        self.config = config
        device = choose_device(config.device)
        self.policy = load_trained(config, source, device=device)
        if config.optimizer.gradient_checkpointing:
            recomputable_layers(self.policy.model)
        set_threads(config.threads, self.policy.model)
        self.reference = None
        if config.kl.beta > 0:
            trusted = config.trust_remote_code
            self.reference = load_policy(config.model, device=device, dtype=config.dtype, weights=config.weights, trust_remote_code=trusted)
        self.task: Task = TASKS[config.task.type](**as_kwargs(config.task)) if task is None else task
        prompting = with_prompting(self.policy, config, self.task)
        self.policy = with_sampler(prompting, config.sampler, dtype=config.dtype, memory=config.vllm_memory)
        self.mode = choose_forward_mode(config, self.policy.model)
        self.pipeline = credit_pipeline(config)
        self.optimizer = make_optimizer(config, self.policy.model)

    def check_gold(self, folder: RunDir) -> GoldReport | None:
        """Grade the task's gold answers; rows that fail are neither sampled nor used as few-shot examples."""
        report = check_gold(self.task, folder)
        self.policy = with_prompting(self.policy, self.config, self.task)
        return report

    def score_rollouts(self, rollouts: Rollouts, *, keep_hidden: bool, notify: Notify = ignore) -> TokenScores:
        """A scoring pass of the policy."""
        policy = self.policy
        return score_tokens(
            self.config, policy.model, rollouts, keep_hidden=keep_hidden, mode=self.mode, notify=notify, free_memory=policy.release
        )

    def collect(self, batch: StepState, notify: Notify = ignore) -> None:
        """Sample and grade. Child processes may grade while the device scores."""

        def score(rollouts: Rollouts) -> TokenScores:
            check_budget(self.config, rollouts)
            return self.score_rollouts(rollouts, keep_hidden=self.pipeline.keeps_hidden, notify=notify)

        batch.collected = collect_rollouts(
            self.policy,
            self.task,
            self.config,
            step=batch.number,
            watch=batch.watch,
            keep_hidden=keeps_hidden_while_sampling(self.config, self.pipeline),
            score=score if needs_scoring_pass(self.config) else None,
        )

    def score(self, batch: StepState, notify: Notify = ignore) -> None:
        """Log-probs and evidence of every token, by the policy and, where there is one, by the reference."""
        collected, config = batch.collected, self.config
        if collected is None or not collected.problems:
            return
        rollouts = collected.rollouts
        check_budget(config, rollouts)
        with batch.watch.stage("score"):
            evidence, reference = collected.evidence, None
            if needs_scoring_pass(config) and not collected.scored:
                evidence = self.score_rollouts(rollouts, keep_hidden=self.pipeline.keeps_hidden, notify=notify)
            if config.source == "demonstrations":
                rollouts = replace(rollouts, behavior_logp=evidence.logp)
            if self.reference is not None:
                reference = score_tokens(
                    config,
                    self.reference.model,
                    collected.rollouts,
                    keep_hidden=False,
                    mode=self.mode,
                    notify=notify,
                    free_memory=self.policy.release,
                ).logp
        batch.collected = collected._replace(rollouts=rollouts, evidence=evidence, reference_logp=reference)

    def sample_extra(self, batch: StepState) -> None:
        """Evidence that costs rollouts of its own, counted apart."""
        if batch.collected is None or not batch.collected.problems or not sampled_evidence(self.config):
            return
        with batch.watch.stage("extra"):
            seed = derive_seed(self.config.seed, "extra", batch.number)
            batch.collected = sample_extra(self.policy, self.task, self.config, batch.collected, seed=seed)

    def credit(self, batch: StepState, methods: MethodState) -> None:
        """Shape, advantage, credit; the first number that is not finite refuses the batch."""
        collected = batch.collected
        if collected is None or not collected.problems:
            return
        with batch.watch.stage("credit"):
            evidence = BatchEvidence(collected.evidence, collected.reference_logp, collected.sampled, model_facts(self.policy))
            batch.credited, batch.method_state = self.pipeline.credit(
                collected.rollouts,
                collected.score,
                evidence,
                methods,
                seed=derive_seed(self.config.seed, "credit", batch.number),
                bonus=collected.bonus,
            )

    def plan(self, batch: StepState) -> None:
        if batch.credited is None or batch.collected is None:
            return
        with batch.watch.stage("plan"):
            seed = derive_seed(self.config.seed, "plan", batch.number)
            batch.plan = plan_steps(self.pipeline, self.config, batch.credited, seed=seed, packed=self.mode.packed)
        batch.collected = batch.collected.without_hidden()

    def update(self, batch: StepState, *, stop_requested: Callable[[], bool] = lambda: False, notify: Notify = ignore) -> None:
        """Take the optimizer steps of the plan that are not done yet."""
        if batch.plan is None or not batch.plan.steps:
            return
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, batch.number)
        stop = (lambda: False) if batch.observe else stop_requested
        update_policy(
            self.policy, self.optimizer, batch, self.pipeline.objective, self.config, mode=self.mode, stop_requested=stop, notify=notify
        )


def check_visible(config: TrainConfig) -> None:
    if config.weights != "float32":
        raise ConfigError(
            f"weights is {config.weights!r}, and the change that an update makes to log-probs is lost in the rounding of bfloat16; "
            "only updates of float32 weights can be observed"
        )


def update_policy(
    policy: Policy,
    optimizer: torch.optim.AdamW,
    batch: StepState,
    objective: AggregatedObjective,
    config: TrainConfig,
    *,
    mode: ForwardMode | None = None,
    stop_requested: Callable[[], bool] = lambda: False,
    notify: Notify = ignore,
) -> None:
    """The optimizer steps that are not in `batch.done` yet, observed by the microscope if `batch.observe` is set."""
    seed = derive_seed(config.seed, "objective", batch.number)
    assert batch.credited is not None
    assert batch.plan is not None
    mode = mode or choose_forward_mode(config, policy.model)
    if batch.observe:
        check_visible(config)
        # The microscope must not refuse a step that training would take; training refuses a bad step itself.
        with batch.watch.stage("diagnose"), observation_memory_errors(), suppress(BadNumbersError):
            settings = microscope_config(config, seed=seed)
            batch.observation = Microscope(policy, optimizer, batch.credited, batch.plan, objective, settings)
    options = UpdateOptions(forward=ForwardOptions.from_config(config, mode), gradient_clip=config.optimizer.gradient_clip, seed=seed)
    first = len(batch.done)
    with batch.watch.stage("update"):
        steps = optimizer_steps(policy, batch.credited, batch.plan, objective, optimizer, options, first=first, notify=notify)
        for number, done in enumerate(steps, first):
            batch.done.append(done)
            if batch.observation is not None:
                batch.observation.after_optimizer_step(number, done.gradient_norm)
            if stop_requested():
                break


def microscope_config(config: TrainConfig, *, seed: int) -> MicroscopeConfig:
    return MicroscopeConfig(
        temperature=config.sampling.temperature,
        max_tokens=config.optimizer.max_tokens,
        gradient_clip=config.optimizer.gradient_clip,
        dtype=config.dtype,
        seed=seed,
        groups=config.diagnose.groups * (config.sampling.siblings // config.sampling.group_size),
        recompute=config.optimizer.gradient_checkpointing,
    )

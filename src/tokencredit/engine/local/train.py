"""The whole loop in one place:

    sample -> grade -> score tokens -> (revise, branch) -> shape -> advantage -> credit -> plan -> update -> record -> evaluate

Tokens are scored before rewards are shaped because a KL penalty in the reward needs their log-probs. In full precision
the sampler's own log-probs, entropies and hidden states are the scores; in bfloat16 a pass of its own finds them.
Everything random follows from (seed, purpose, step), so a resumed run needs weights, optimizer and step number only.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from tokencredit.build import needed_evidence
from tokencredit.compose import to_toml
from tokencredit.config import TrainConfig
from tokencredit.engine.local import metrics
from tokencredit.engine.local.checkpoint import Progress, load_optimizer, load_progress, restore_swapped, save_checkpoint, save_model
from tokencredit.engine.local.collect import collect
from tokencredit.engine.local.evaluate import Accuracy, evaluate
from tokencredit.engine.local.extra import gather_extra
from tokencredit.engine.local.pipeline import Pipeline, StageState
from tokencredit.engine.local.policy import Policy, choose_device, load_policy, set_threads
from tokencredit.engine.local.signals import StopRequest
from tokencredit.engine.local.stopwatch import Stopwatch
from tokencredit.engine.local.update import run_plan
from tokencredit.errors import ConfigError
from tokencredit.record import RunFolder
from tokencredit.seeds import derive_seed
from tokencredit.stages import knobs
from tokencredit.tasks import TASKS, Problem, Task, marks_steps, revision_prompt
from tokencredit.types import Credited, StepPlan, StepResult


class Listener(Protocol):
    """Whoever watches a run. Watching never changes it."""

    def began(self, policy: Policy, before: Accuracy, step: int) -> None:
        """`step` training steps are done already: 0, or more for a resumed run."""
        ...

    def stepped(self, row: dict[str, Any], seconds: float) -> None: ...


class NobodyWatching:
    def began(self, policy: Policy, before: Accuracy, step: int) -> None:
        pass

    def stepped(self, row: dict[str, Any], seconds: float) -> None:
        pass


class Outcome(NamedTuple):
    policy: Policy
    task: Task
    state: StageState
    result: dict[str, Any]
    interrupted: bool


def learning_rate(config: TrainConfig, step: int) -> float:
    """Linear warm-up, then linear decay to `final_rate` of the peak; `step` counts from 0."""
    optimizer = config.optimizer
    rise = min(1.0, (step + 1) / (optimizer.warmup_steps + 1))
    done = step / max(1, config.steps - 1)
    return optimizer.learning_rate * rise * (1 - (1 - optimizer.final_rate) * done)


def check_fit(policy: Policy, task: Task, problems: Sequence[Problem], config: TrainConfig) -> None:
    """Refuse, before anything is written, a model that cannot read the task or a budget that cannot hold its prompts."""
    prompts = [policy.encode(problem.prompt) for problem in problems]
    unknown = policy.tokenizer.unk_token_id
    if unknown is not None and any(unknown in prompt for prompt in prompts):
        raise ConfigError(f"model {config.model!r} has no tokens for prompts of task {config.task.type!r}, such as {problems[0].prompt!r}")
    if config.shape.type == "ibpo":
        asked = revision_prompt(task, problems[0], problems[0].answer, problems[0].answer)
        if unknown is not None and unknown in policy.encode(asked):
            raise ConfigError(f"model {config.model!r} has no tokens for revision prompts of task {config.task.type!r}, such as {asked!r}")
    if config.credit.type == "process" and config.credit.boundary == "steps" and not marks_steps(task):
        raise ConfigError(f"task {config.task.type!r} does not mark where steps begin; use credit.boundary 'tokens'")
    longest = max(len(prompt) for prompt in prompts) + config.sampling.max_new_tokens
    if longest > config.optimizer.max_tokens:
        raise ConfigError(
            f"optimizer.max_tokens is {config.optimizer.max_tokens} but a prompt with its response may take {longest} tokens; "
            "give at least that"
        )


class Trainer:
    """Holds what a run needs; `run` is the loop."""

    def __init__(self, config: TrainConfig, folder: RunFolder, *, resume: bool = False) -> None:
        self.config, self.folder = config, folder
        self.device = choose_device(config.device)
        self.last = folder.checkpoints / "last"
        if resume:
            restore_swapped(self.last)
        source = str(self.last) if resume else config.model
        self.policy = load_policy(source, device=self.device, dtype=config.dtype)
        set_threads(config.threads, self.policy.model)
        needs_reference = config.kl.beta > 0
        self.reference = load_policy(config.model, device=self.device, dtype=config.dtype) if needs_reference else None
        self.task: Task = TASKS[config.task.type](**knobs(config.task))
        self.held_out = self.task.problems(
            max(config.evaluation.final_problems, config.evaluation.problems),
            split="held-out",
            seed=derive_seed(config.seed, "held-out"),
        )
        check_fit(self.policy, self.task, self.held_out, config)
        self.pipeline = Pipeline(config)
        chosen = config.optimizer
        self.optimizer = torch.optim.AdamW(
            self.policy.model.parameters(),
            lr=chosen.learning_rate,
            betas=(chosen.beta1, chosen.beta2),
            weight_decay=chosen.weight_decay,
        )
        self.resumed = load_progress(self.last) if resume else None
        if self.resumed is not None:
            load_optimizer(self.optimizer, self.last)
            folder.rewind(self.resumed.step)

    def evaluate(self, *, final: bool) -> Accuracy:
        """The same held-out problems and the same draws every time, so that differences are the policy's."""
        chosen = self.config.evaluation
        return evaluate(
            self.policy,
            self.task,
            self.held_out[: chosen.final_problems if final else chosen.problems],
            samples=chosen.final_samples if final else chosen.samples,
            max_new_tokens=self.config.sampling.max_new_tokens,
            seed=derive_seed(self.config.seed, "evaluate"),
            temperature=self.config.sampling.temperature,
            dtype=self.config.dtype,
        )

    def step(self, number: int, state: StageState, watch: Stopwatch) -> "FinishedStep":
        """One training step: a batch of rollouts and the optimizer steps taken on it."""
        config, policy, pipeline = self.config, self.policy, self.pipeline
        batch = collect(policy, self.task, config, step=number, watch=watch, keep_hidden=pipeline.keeps_hidden_while_sampling)
        if not batch.problems:
            return FinishedStep(batch.rollouts_used, state, None, {})
        pipeline.check_budget(batch.rollouts)
        with watch.stage("score"):
            evidence = batch.evidence
            if pipeline.scores_in_a_pass:
                evidence = pipeline.score_tokens(policy.model, batch.rollouts, keep_hidden=pipeline.keeps_hidden)
            reference = None
            if self.reference is not None:
                reference = pipeline.score_tokens(self.reference.model, batch.rollouts, keep_hidden=False).logp
        # Told as a stage of its own only by recipes that sample something here.
        with watch.stage("extra") if needed_evidence(config) - {"hidden"} else nullcontext():
            seed = derive_seed(config.seed, "extra", number)
            extra = gather_extra(policy, self.task, config, batch.problems, batch.rollouts, batch.score, seed=seed)
        used = batch.rollouts_used + extra.rollouts_used
        with watch.stage("credit"):
            scored = pipeline.shape_reward(batch.rollouts, batch.score, evidence.logp, reference, extra)
            credited, state = pipeline.credit_tokens(
                policy, scored, evidence, reference, state, seed=derive_seed(config.seed, "credit", number), extra=extra
            )
        with watch.stage("plan"):
            plan = pipeline.plan(credited, seed=derive_seed(config.seed, "plan", number))
        if not plan.steps:
            return FinishedStep(used, state, None, extra.metrics)
        with watch.stage("update"):
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(config, number)
            result = run_plan(
                policy,
                credited,
                plan,
                pipeline.objective,
                self.optimizer,
                temperature=config.sampling.temperature,
                gradient_clip=config.optimizer.gradient_clip,
                dtype=config.dtype,
                seed=derive_seed(config.seed, "objective", number),
            )
        trained = TrainedBatch(credited, plan, result)
        with watch.stage("record"):
            self.folder.append("plans.jsonl", {"step": number + 1, "digest": plan.digest, **plan.to_json()})
            if config.tokens_every and ((number + 1) % config.tokens_every == 0 or number in (0, config.steps - 1)):
                columns = metrics.token_columns(number + 1, credited, plan, policy, self.task, batch.problems)
                self.folder.write_tokens(number + 1, columns)
        return FinishedStep(used, state, trained, extra.metrics)

    def run(self, listener: Listener, stop: StopRequest) -> Outcome:
        config, folder, watch = self.config, self.folder, Stopwatch()
        if self.resumed is None:
            folder.begin(to_toml(config))
            with watch.stage("evaluate"):
                before = self.evaluate(final=True)
            progress = Progress(
                step=0, rollouts_used=0, best_step=0, best_accuracy=-1.0, before=before.to_json(), stage_state={}, seconds={}
            )
        else:
            progress = self.resumed
            watch.seconds = dict(progress.seconds)
        state = StageState(**progress.stage_state)
        listener.began(self.policy, Accuracy(**progress.before), progress.step)  # pyright: ignore[reportArgumentType]
        rollouts_used, best_step, best_accuracy = progress.rollouts_used, progress.best_step, progress.best_accuracy
        for number in range(progress.step, config.steps):
            step_watch = Stopwatch()
            finished = self.step(number, state, step_watch)
            state = finished.state
            rollouts_used += finished.rollouts_used
            row = {"step": number + 1, "rollouts_used": rollouts_used, "learning_rate": learning_rate(config, number)}
            row |= metrics.state_metrics(state) | dict(finished.extra)
            if (trained := finished.trained) is not None:
                level = config.correction.level
                row |= metrics.step_metrics(trained.credited, trained.plan, trained.result, correction_level=level)
            last_step = number + 1 == config.steps
            if config.evaluation.every and ((number + 1) % config.evaluation.every == 0 or last_step):
                with step_watch.stage("evaluate"):
                    accuracy = self.evaluate(final=False)
                row |= {f"held_out/{name}": value for name, value in accuracy.to_json().items()}
                if accuracy.sampled > best_accuracy:
                    best_step, best_accuracy = number + 1, accuracy.sampled
                    save_model(self.policy, folder.checkpoints / "best")
            watch.add(step_watch)
            folder.append("metrics.jsonl", row)
            folder.append("timing.jsonl", {"step": number + 1, "seconds": step_watch.seconds})
            listener.stepped(row, step_watch.total)
            interrupted = stop.number is not None and not last_step
            if interrupted or last_step or (config.save_every and (number + 1) % config.save_every == 0):
                progress = Progress(
                    step=number + 1,
                    rollouts_used=rollouts_used,
                    best_step=best_step,
                    best_accuracy=best_accuracy,
                    before=progress.before,
                    stage_state={name: dict(value) for name, value in state._asdict().items()},
                    seconds=watch.seconds,
                )
                save_checkpoint(self.policy, self.optimizer, progress, self.last)
            if interrupted:
                return Outcome(self.policy, self.task, state, {}, interrupted=True)
        with watch.stage("evaluate"):
            after = self.evaluate(final=True)
        if best_step == 0:
            best_step = config.steps
            save_model(self.policy, folder.checkpoints / "best")
        result = {
            "recipe": config.recipe,
            "seed": config.seed,
            "steps": config.steps,
            "before": progress.before,
            "after": after.to_json(),
            "rollouts_used": rollouts_used,
            "best_step": best_step,
            "seconds": watch.seconds,
        }
        folder.write_json("result.json", result)
        return Outcome(self.policy, self.task, state, result, interrupted=False)


class TrainedBatch(NamedTuple):
    credited: Credited
    plan: StepPlan
    result: StepResult


class FinishedStep(NamedTuple):
    rollouts_used: int
    state: StageState
    trained: TrainedBatch | None
    """None where dynamic sampling or a balanced plan left nothing to learn from: no update."""
    extra: Mapping[str, float]
    """What evidence beyond the rollouts was sampled."""


def train(
    config: TrainConfig, path: Path, listener: Listener | None = None, stop: StopRequest | None = None, *, resume: bool = False
) -> Outcome:
    """Train a configuration into the run folder at `path`; with `resume`, go on from its last checkpoint."""
    return Trainer(config, RunFolder(path), resume=resume).run(listener or NobodyWatching(), stop or StopRequest())

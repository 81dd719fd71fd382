"""The whole loop in one place:

    evaluate -> [step -> record -> evaluate -> checkpoint] -> evaluate

A step (`step.py`) is a batch of rollouts and the optimizer steps taken on it.
Everything random follows from (seed, purpose, step), so a resumed run needs weights, optimizer and step number only.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tokencredit.compose import to_toml
from tokencredit.config import TrainConfig
from tokencredit.engine.crediting import StageState
from tokencredit.engine.local import metrics
from tokencredit.engine.local.checkpoint import (
    Progress,
    kept_name,
    load_optimizer,
    load_progress,
    restore_swapped,
    save_checkpoint,
    save_model,
)
from tokencredit.engine.local.evaluate import Accuracy, evaluate
from tokencredit.engine.local.look import judge
from tokencredit.engine.local.policy import Policy
from tokencredit.engine.local.signals import StopRequest
from tokencredit.engine.local.step import FinishedStep, Stepper, learning_rate
from tokencredit.engine.local.stopwatch import Stopwatch
from tokencredit.engine.local.tokens import label_tokens, token_columns
from tokencredit.engine.metrics import state_metrics
from tokencredit.errors import ConfigError
from tokencredit.record import RunFolder
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Problem, Task, marks_steps, revision_prompt


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


def _is_due(every: int, step: int, steps: int) -> bool:
    """Whether something done every few training steps, and at the first and the last, is done after `step`, counted from 1."""
    return every > 0 and (step % every == 0 or step in (1, steps))


def entropy_history(folder: RunFolder, before: int | None = None) -> list[tuple[int, float]]:
    """(training step, mean entropy) as recorded, up to a step that is not included."""
    rows = [row for row in folder.read("metrics.jsonl") if "entropy" in row]
    return [(row["step"], row["entropy"]) for row in rows if before is None or row["step"] < before]


def diagnosis_rollouts(folder: RunFolder) -> int:
    """What looks sampled by themselves; none of it was trained on."""
    files = (file for _, file in folder.step_files("findings") if file.suffix == ".json")
    return sum(json.loads(file.read_text(encoding="utf-8"))["rollouts_used"] for file in files)


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
        self.last = folder.checkpoints / "last"
        if resume:
            restore_swapped(self.last)
        self.stepper = Stepper(config, source=str(self.last) if resume else config.model)
        self.policy, self.task = self.stepper.policy, self.stepper.task
        self.held_out = self.task.problems(
            max(config.evaluation.final_problems, config.evaluation.problems),
            split="held-out",
            seed=derive_seed(config.seed, "held-out"),
        )
        check_fit(self.policy, self.task, self.held_out, config)
        self.resumed = load_progress(self.last) if resume else None
        if self.resumed is not None:
            load_optimizer(self.stepper.optimizer, self.last)
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

    def record(self, step: int, finished: FinishedStep) -> None:
        """Plan, tokens and findings of training step `step`, counted from 1."""
        config, folder, trained = self.config, self.folder, finished.trained
        if trained is None:
            return
        folder.append_plan(step, trained.plan)
        if trained.look is None and not _is_due(config.tokens_every, step, config.steps):
            return
        labels = label_tokens(self.policy, self.task, trained.problems, trained.credited.rollouts)
        folder.write_tokens(step, token_columns(step, trained.credited, trained.plan, labels, trained.problems))
        if trained.look is not None:
            history = [*entropy_history(folder), (step, metrics.mean_entropy(trained.credited))]
            found = judge(trained, labels, self.task, config, step=step, history=history)
            folder.write_findings(step, found.to_json(step), found.columns)

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
            look = _is_due(config.diagnose.every, number + 1, config.steps)
            finished = self.stepper.step(number, state, step_watch, look=look)
            with step_watch.stage("diagnose") if look else step_watch.stage("record"):
                self.record(number + 1, finished)
            finished = finished.without_look()
            state = finished.state
            rollouts_used += finished.rollouts_used
            row = {"step": number + 1, "rollouts_used": rollouts_used, "learning_rate": learning_rate(config, number)}
            row |= state_metrics(state) | dict(finished.extra)
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
            kept = config.keep_every and (number + 1) % config.keep_every == 0
            if interrupted or last_step or kept or (config.save_every and (number + 1) % config.save_every == 0):
                progress = Progress(
                    step=number + 1,
                    rollouts_used=rollouts_used,
                    best_step=best_step,
                    best_accuracy=best_accuracy,
                    before=progress.before,
                    stage_state={name: dict(value) for name, value in state._asdict().items()},
                    seconds=watch.seconds,
                )
                save_checkpoint(self.policy, self.stepper.optimizer, progress, self.last)
                if kept:
                    save_checkpoint(self.policy, self.stepper.optimizer, progress, folder.checkpoints / kept_name(number + 1))
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
        if sampled := diagnosis_rollouts(folder):
            result["diagnosis_rollouts"] = sampled
        folder.write_json("result.json", result)
        return Outcome(self.policy, self.task, state, result, interrupted=False)


def train(
    config: TrainConfig, path: Path, listener: Listener | None = None, stop: StopRequest | None = None, *, resume: bool = False
) -> Outcome:
    """Train a configuration into the run folder at `path`; with `resume`, go on from its last checkpoint."""
    if config.engine != "local":
        raise ConfigError(f"engine is {config.engine!r}, but this is the local engine; call tokencredit.engine.{config.engine}.run.train")
    return Trainer(config, RunFolder(path), resume=resume).run(listener or NobodyWatching(), stop or StopRequest())

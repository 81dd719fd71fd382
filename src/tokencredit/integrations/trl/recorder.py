"""Record a TRL run in a run folder: metrics, plans and token files per training step, in the local engine's format."""

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError, GuardError
from tokencredit.integrations.trl.batch import PlannedBatch
from tokencredit.integrations.trl.trainer import CreditGRPOTrainer
from tokencredit.pipeline.metrics import state_metrics, step_metrics
from tokencredit.policy.policy import Policy
from tokencredit.rollout.grading import part_means, reward_parts
from tokencredit.storage.atomic import remove_folder
from tokencredit.storage.checkpoints import CheckpointPosition, checkpoints_in
from tokencredit.storage.manifest import MANIFEST, damage, write_manifest
from tokencredit.storage.run_dir import RunDir
from tokencredit.tasks import Problem, Task
from tokencredit.timing import Stopwatch
from tokencredit.trainer.callbacks import Callback
from tokencredit.trainer.checkpoint import TrainState, save_model
from tokencredit.trainer.evaluate import Accuracy
from tokencredit.trainer.signals import StopSignal
from tokencredit.trainer.token_table import label_tokens, token_columns
from tokencredit.types import StepResult

PROGRESS_FILE = "run.json"
"""Written last but for the manifest: a checkpoint whose manifest does not verify is skipped."""
UNKNOWN_TO_TRL = ("sampling/sampling_logp_difference/mean",)
"""The trainer is the sampler and keeps no log-probs of sampling."""


class RunTrainer(CreditGRPOTrainer):
    """Tokenizes prompts as the local engine does, keeps the last batch for the recorder, and stops at a non-finite gradient norm."""

    def __init__(self, *given: Any, policy: Policy, **named: Any) -> None:
        self.policy, self.stopwatch = policy, Stopwatch()
        self.batch: PlannedBatch | None = None
        super().__init__(*given, **named)

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [self.policy.ask(prompt) for prompt in prompts], None, {}

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> PlannedBatch:
        with self.stopwatch.stage("rollouts"):
            batch = super()._generate_and_score_completions(inputs)
        self.batch = batch
        return batch

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """The run folder already records model, data and configuration."""

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Weights that share their storage with others are saved once, which is no reason to warn."""
        shared = getattr(self.model, "_tied_weights_keys", None) or ()
        missing = [name for name in load_result.missing_keys if name not in shared]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def _clip_grad_norm(self, model: Any) -> Any:
        norm: Any = super()._clip_grad_norm(model)
        if not math.isfinite(norm):
            raise GuardError(f"gradient norm is {float(norm)} in optimizer step {self.state.global_step + 1}; this step was not taken")
        return norm


class Recorder(TrainerCallback):
    """Receives the logs of every optimizer step and records after the last one of a batch. Every process evaluates; the first writes."""

    def __init__(
        self,
        config: TrainConfig,
        folder: RunDir,
        task: Task,
        problems: Sequence[Sequence[Problem]],
        progress: TrainState,
        evaluate: Callable[[], Accuracy],
        callback: Callback,
        stop: StopSignal,
    ) -> None:
        self.config, self.folder, self.task, self.problems, self.progress = config, folder, task, problems, progress
        self.evaluate, self.callback, self.stop = evaluate, callback, stop
        self.logs: list[dict[str, float]] = []
        self.interrupted = False
        self.watch = Stopwatch()
        self.watch.seconds = dict(progress.seconds)
        self.began = time.perf_counter()
        self.trainer: RunTrainer

    def attach(self, trainer: RunTrainer) -> None:
        self.trainer = trainer
        trainer.add_callback(self)

    @property
    def writes(self) -> bool:
        return self.trainer.ranks.index == 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The checkpoint has been loaded by now, so later rows can be truncated."""
        if self.writes:
            self.folder.truncate_after(self.progress.step)
        self.began = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if logs is None or "loss" not in logs:
            return
        self.logs.append(dict(logs))
        step, between = divmod(state.global_step, self.config.optimizer.steps_per_batch)
        if between:
            return
        self._finish(step)
        self.logs.clear()
        signals = [number for number in self.trainer.ranks.gather(self.stop.number) if number is not None]
        if signals and step < self.config.steps:
            self.stop.number, self.interrupted = signals[0], True
            control.should_save = control.should_training_stop = True

    def _finish(self, step: int) -> None:
        config, batch, watch = self.config, self.trainer.batch, self.trainer.stopwatch
        assert batch is not None
        self._check_prompts(step, batch)
        rollouts_used = step * config.sampling.prompts * config.sampling.group_size
        row = {"step": step, "rollouts_used": rollouts_used, "learning_rate": self.logs[-1]["learning_rate"]}
        row |= state_metrics(self.trainer.stage_state) | _measured(batch, self.logs, config) | self._earned(batch)
        with watch.stage("record"):
            if self.writes:
                self._record(step, batch)
        best_step, best_accuracy = self.progress.best_step, self.progress.best_accuracy
        if config.evaluation.every and (step % config.evaluation.every == 0 or step == config.steps):
            with watch.stage("evaluate"):
                accuracy = self.evaluate()
            row |= {f"held_out/{name}": value for name, value in accuracy.to_json().items()}
            if accuracy.sampled > best_accuracy:
                best_step, best_accuracy = step, accuracy.sampled
                if self.writes and config.save_best:
                    save_best(self.trainer.policy, self.folder, step)
        now = time.perf_counter()
        watch.seconds["update"] = now - self.began - watch.total
        self.watch.add(watch)
        if self.writes:
            self.folder.append("metrics.jsonl", row)
            self.folder.append("timing.jsonl", {"step": step, "seconds": watch.seconds})
        self.callback.on_step_end(row, watch.total)
        self.progress = TrainState(
            step=step,
            rollouts_used=rollouts_used,
            best_step=best_step,
            best_accuracy=best_accuracy,
            before=self.progress.before,
            stage_state={name: dict(value) for name, value in self.trainer.stage_state._asdict().items()},
            seconds=self.watch.seconds,
        )
        self.trainer.stopwatch, self.began = Stopwatch(), now

    def _earned(self, batch: PlannedBatch) -> dict[str, float]:
        scored = batch.credited.scored
        return part_means(reward_parts(self.trainer.policy, scored.rollouts, scored.score, limit=self.config.sampling.max_new_tokens))

    def _check_prompts(self, step: int, batch: PlannedBatch) -> None:
        """TRL must have sampled the prompts of the local engine, in the same order and with the same ids."""
        prompts = batch.credited.rollouts.prompts[:: self.config.sampling.group_size]
        for index, problem in enumerate(self.problems[step - 1]):
            if list(prompts[index]) != self.trainer.policy.ask(problem.prompt):
                raise GuardError(f"TRL sampled another prompt than number {index} of training step {step}, {problem.prompt!r}")

    def _record(self, step: int, batch: PlannedBatch) -> None:
        config, problems = self.config, self.problems[step - 1]
        self.folder.append_plan(step, batch.plan)
        if not config.tokens_every or not (step % config.tokens_every == 0 or step in (1, config.steps)):
            return
        labels = label_tokens(self.trainer.policy, self.task, problems, batch.credited.rollouts)
        columns = token_columns(step, batch.credited, batch.plan, labels, problems)
        unknown = ("behavior_logp",) if _is_scored(batch) else ("behavior_logp", "logp", "entropy")
        self.folder.write_tokens(step, columns | {name: [None] * len(columns[name]) for name in unknown})

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.accelerator.wait_for_everyone()
        if self.writes:
            checkpoint = self.folder.checkpoints / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            fields = {name: getattr(self.progress, name) for name in TrainState.__dataclass_fields__}
            (checkpoint / MANIFEST).unlink(missing_ok=True)
            (checkpoint / PROGRESS_FILE).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
            write_manifest(checkpoint)
        self.began = time.perf_counter()


def save_best(policy: Policy, folder: RunDir, step: int) -> None:
    """Saved next to TRL's checkpoints under the local engine's name; the previous best is removed afterwards."""
    best = folder.checkpoints / CheckpointPosition(step).name
    if best.exists():
        remove_folder(best)
    save_model(policy, best)
    for position, path in checkpoints_in(folder.checkpoints):
        if position.step != step:
            remove_folder(path)


def _is_scored(batch: PlannedBatch) -> bool:
    """Exactly on policy, a recipe that reads no log-probs gets no scoring pass, so log-probs and entropies are unknown."""
    return "scored_logp" in batch.rows


def _measured(batch: PlannedBatch, logged: Sequence[dict[str, float]], config: TrainConfig) -> dict[str, float]:
    """The row of a batch; `logged` is what TRL logged at each of its optimizer steps, including the empty ones of a short plan."""
    taken = logged[: len(batch.plan.steps)]
    if not taken:
        return {}

    def each(name: str) -> tuple[float, ...]:
        return tuple(logs[name] for logs in taken)

    result = StepResult(
        loss=each("loss"),
        gradient_norm=each("grad_norm"),
        silenced_share=each("tokencredit/silenced_share"),
        ratio_mean=each("tokencredit/ratio_mean"),
    )
    row = step_metrics(batch.credited, batch.plan, result, correction_level=config.correction.level)
    row = {name: value for name, value in row.items() if name not in UNKNOWN_TO_TRL}
    return row if _is_scored(batch) else row | {name: taken[0][name] for name in ("entropy", "kl") if name in row}


def last_intact_checkpoint(folder: RunDir) -> tuple[Path, TrainState]:
    found = folder.checkpoints.glob(f"{PREFIX_CHECKPOINT_DIR}-*/{PROGRESS_FILE}")
    numbered = {int(file.parent.name.rsplit("-", 1)[1]): file for file in found}
    for number in sorted(numbered, reverse=True):
        if damage(numbered[number].parent) is not None:
            continue
        try:
            return numbered[number].parent, TrainState(**json.loads(numbered[number].read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue
    raise ConfigError(f"resume {folder.path} has no checkpoint to continue from; start it again")

"""The whole loop in one place:

    evaluate -> [gather -> plan -> take -> record -> evaluate -> checkpoint] -> evaluate

A training step (`step.py`) is a batch of rollouts and the optimizer steps taken on it. Everything random follows from
(seed, purpose, step), so a resumed run needs weights, optimizer, step number and the batch it was working on.
A stop that is asked for waits for an optimizer step at most; a guard refuses an update before it moves the weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tokencredit.config.resolve import to_toml
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError, GuardError
from tokencredit.forward.memory import oom_as_guard_error
from tokencredit.forward.padded import trainable_parameters
from tokencredit.optim.update import as_result
from tokencredit.pipeline import metrics
from tokencredit.pipeline.credit import MethodState
from tokencredit.pipeline.metrics import state_metrics
from tokencredit.policy.policy import Policy
from tokencredit.seeds import derive_seed
from tokencredit.storage.lock import locked
from tokencredit.storage.run_dir import RunDir
from tokencredit.tasks import HasWarnings, HeldOut, Problem, Task
from tokencredit.timing import Stopwatch
from tokencredit.trainer.callbacks import Callback, NoCallback
from tokencredit.trainer.checkpoint import (
    BufferedBatch,
    Progress,
    load_buffered,
    load_generators,
    load_optimizer,
    prune,
    save_checkpoint,
)
from tokencredit.trainer.evaluate import Accuracy, evaluate
from tokencredit.trainer.failed_batch import dump_failed_batch
from tokencredit.trainer.fast_paths import explain_fast_paths, slow_path_warnings
from tokencredit.trainer.health import RunHealth, describe_silence, describe_ungraded
from tokencredit.trainer.preflight import (
    check_model_and_task,
    fingerprint,
    first_problems,
    held_out_problems,
    keep_fingerprint,
    refuse_leaks,
    write_gold,
)
from tokencredit.trainer.recorder import diagnosis_rollouts, is_due, record_step
from tokencredit.trainer.resume import continue_from, find_resume_point
from tokencredit.trainer.rng_state import generator_states, seed_generators
from tokencredit.trainer.signals import StopSignal, StopTraining
from tokencredit.trainer.step import Attempt, Stepper, learning_rate


class Outcome(NamedTuple):
    policy: Policy
    task: Task
    state: MethodState
    result: dict[str, Any]
    interrupted: bool


class Trainer:
    """Holds what a run needs; `run` is the loop."""

    def __init__(self, config: TrainConfig, folder: RunDir, *, resume: bool = False) -> None:
        self.config, self.folder = config, folder
        point = find_resume_point(folder, config) if resume else None
        checkpoint = None if point is None else point.checkpoint
        self.stepper = Stepper(config, source=config.model if checkpoint is None else str(checkpoint))
        self.gold = self.stepper.check_gold(folder)
        self.policy, self.task = self.stepper.policy, self.stepper.task
        self.held_out = held_out_problems(config, self.task)
        check_model_and_task(self.policy, self.task, self.held_out, config)
        self.known = HeldOut(self.held_out)
        shown = [Problem(prompt=shot.prompt, answer="") for shot in self.policy.prompting.shots]
        refuse_leaks(self.known, [*shown, *first_problems(config, self.task)], error=ConfigError)
        self.data = fingerprint(config, self.task, self.held_out)
        if resume:
            keep_fingerprint(folder, self.data)
        self.progress: Progress | None = None if point is None else point.progress
        self.kept_batch = None if checkpoint is None else load_buffered(checkpoint, self.policy.device)
        seed_generators(config.seed)
        if checkpoint is not None:
            load_optimizer(self.stepper.optimizer, checkpoint)
            load_generators(checkpoint)
        self.ways = explain_fast_paths(config, self.policy, self.stepper.passes, self.stepper.pipeline)
        self.told_at_resume = [] if point is None else continue_from(point, folder, config, self.ways)
        self.generators = generator_states()
        self.callback: Callback = NoCallback()
        self.stop = StopSignal()
        self.watch = Stopwatch()

    def run(self, callback: Callback, stop: StopSignal) -> Outcome:
        self.callback, self.stop = callback, stop
        progress, state = self.progress, MethodState()
        keep_fingerprint(self.folder, self.data)
        self._tell_of_the_task()
        try:
            progress = progress or self._measure_base()
            self.watch.seconds = dict(progress.seconds)
            callback.on_train_begin(self.policy, Accuracy(**progress.before), progress.step)  # pyright: ignore[reportArgumentType]
            for said in self.told_at_resume:
                callback.on_event(progress.step, "damaged", said)
            state = MethodState(**progress.stage_state)
            for number in range(progress.step, self.config.steps):
                progress = self._train_step(number, progress)
                state = MethodState(**progress.stage_state)
            with stop.interruptible(), self.watch.stage("evaluate"):
                after = self.evaluate(final=True)
        except StopTraining:
            return Outcome(self.policy, self.task, state, {}, interrupted=True)
        except GuardError as problem:
            # For the report; a person hears it from the error itself.
            self.folder.append_event(0 if progress is None else progress.step + 1, "stopped", str(problem))
            raise
        result = self._result(progress, after)
        self.folder.write_json("result.json", result)
        return Outcome(self.policy, self.task, state, result, interrupted=False)

    def _tell_of_the_task(self) -> None:
        """Once, at the very beginning of a run; again where it goes on and something has changed."""
        if self.gold is not None and (said := write_gold(self.gold, self.folder)) is not None:
            self.callback.on_event(0, "gold", said)
        told = {event.get("message") for event in self.folder.read("events.jsonl")}
        cautions = self.task.cautions if isinstance(self.task, HasWarnings) else ()
        for said in (*cautions, *slow_path_warnings(self.config, self.policy)):
            if said not in told:
                self._tell(-1, "warning", said)

    def _measure_base(self) -> Progress:
        with self.stop.interruptible(), self.watch.stage("evaluate"):
            before = self.evaluate(final=True).to_json()
        seconds = dict(self.watch.seconds)
        return Progress(step=0, rollouts_used=0, best_step=0, best_accuracy=-1.0, before=before, stage_state={}, seconds=seconds)

    def _train_step(self, number: int, progress: Progress) -> Progress:
        """Training step `number`, counted from 0; returns where the run stands after it."""
        config, state = self.config, MethodState(**progress.stage_state)
        attempt = Attempt(number=number, look=is_due(config.diagnose.every, number + 1, config.steps))
        self.generators = generator_states()
        retries: list[str] = []
        with self.save_on_interrupt(progress):
            kept, self.kept_batch = self.kept_batch, None
            attempt.gather(self.stepper, kept, retries.append)
            attempt.plan(self.stepper, state)
        if attempt.gathered is not None:
            refuse_leaks(self.known, attempt.gathered.problems)
        # Written down only now: what may be abandoned writes no file.
        self._check_graded(attempt, progress)
        try:
            attempt.take(self.stepper, lambda: self.stop.asked, retries.append)
        finally:
            for said in retries:
                self._tell(number, "out-of-memory", said)
        if attempt.taken:
            self.generators = generator_states()
        self._keep_refused(attempt, progress)
        if self.stop.asked and not attempt.look:
            self._publish_between(progress, attempt)
            raise StopTraining
        self._record(attempt)
        row = self._row(attempt, progress, attempt.state(state))
        best_step, best_accuracy = progress.best_step, progress.best_accuracy
        if config.evaluation.every and ((number + 1) % config.evaluation.every == 0 or number + 1 == config.steps):
            with self.save_on_interrupt(progress, attempt), attempt.watch.stage("evaluate"):
                accuracy = self.evaluate(final=False)
            row |= {f"held_out/{name}": value for name, value in accuracy.to_json().items()}
            if accuracy.sampled > best_accuracy:
                best_step, best_accuracy = number + 1, accuracy.sampled
        self.watch.add(attempt.watch)
        self.folder.append("metrics.jsonl", row)
        self.folder.append("timing.jsonl", {"step": number + 1, "seconds": attempt.watch.seconds})
        self.callback.on_step_end(row, attempt.watch.total)
        watchdog = self._judge(attempt, row, RunHealth.from_json(progress.guard))
        done = Progress(
            step=number + 1,
            rollouts_used=row["rollouts_used"],
            best_step=best_step,
            best_accuracy=best_accuracy,
            before=progress.before,
            stage_state={name: dict(value) for name, value in attempt.state(state)._asdict().items()},
            guard=watchdog.to_json(),
            seconds=dict(self.watch.seconds),
        )
        self._end_step(done, watchdog, row)
        return done

    def evaluate(self, *, final: bool) -> Accuracy:
        """The same held-out problems and the same draws every time, so that differences are the policy's."""
        chosen = self.config.evaluation
        return evaluate(
            self.policy,
            self.task,
            self.held_out[: None if final else chosen.problems],
            samples=chosen.final_samples if final else chosen.samples,
            max_new_tokens=self.config.sampling.max_new_tokens,
            seed=derive_seed(self.config.seed, "evaluate"),
            temperature=self.config.sampling.temperature,
            dtype=self.config.dtype,
        )

    @contextmanager
    def save_on_interrupt(self, progress: Progress, attempt: Attempt | None = None) -> Iterator[None]:
        """For work that can be done again: where a stop is asked for, or a problem cannot be asked, publish where the run stands."""
        try:
            with self.stop.interruptible(allowed=attempt is None or not attempt.look):
                yield
        except (StopTraining, ConfigError):
            self._publish_between(progress, attempt)
            raise

    def _publish_between(self, progress: Progress, attempt: Attempt | None) -> None:
        """Optimizer steps of a batch may be behind us and others ahead: then the batch is kept too."""
        if attempt is None or attempt.gathered is None or attempt.planned is None or not attempt.taken:
            self._publish(progress)
            return
        buffered = BufferedBatch(attempt.gathered, attempt.planned, as_result(attempt.taken))
        self._publish(replace(progress, optimizer_step=len(attempt.taken)), buffered)

    def _publish(self, progress: Progress, buffered: BufferedBatch | None = None) -> None:
        """With the generators as they were at that place. Weights that are spoilt would push the good ones out."""
        if not all(bool(parameter.isfinite().all()) for parameter in trainable_parameters(self.policy.model).values()):
            raise GuardError("weights are not finite, so they are not saved; the newest checkpoint is from before")
        self.folder.sync()
        save_checkpoint(self.policy, self.stepper.optimizer, progress, self.folder.checkpoints, buffered, self.generators)
        prune(self.folder.checkpoints, last=self.config.keep_last, every=self.config.keep_every)

    def _tell(self, number: int, kind: str, said: str, more: dict[str, Any] | None = None) -> None:
        self.folder.append_event(number + 1, kind, said, more)
        self.callback.on_event(number + 1, kind, said)

    def _check_graded(self, attempt: Attempt, progress: Progress) -> None:
        gathered = attempt.gathered
        if gathered is None or not gathered.ungraded:
            return
        share = sum(gathered.ungraded.values()) / gathered.responses
        said = describe_ungraded(gathered.ungraded, share)
        self._tell(attempt.number, "ungraded", said, {"share": share, "reasons": dict(gathered.ungraded)})
        if share > self.config.guard.ungraded_share:
            self._publish(progress)
            raise GuardError(f"{said}; that is more than guard.ungraded_share allows")

    def _keep_refused(self, attempt: Attempt, progress: Progress) -> None:
        if (bad := attempt.refusal) is None:
            return
        dump = dump_failed_batch(self.stepper, progress, attempt, bad, self.folder.path, self.generators)
        told = {"stage": bad.stage, "rows": list(bad.rows), "dump": f"guards/{dump.name}"}
        self._tell(attempt.number, "guard", f"{bad}. The update is refused; take it again with: tokencredit replay {dump}", told)

    def _record(self, attempt: Attempt) -> None:
        with attempt.watch.stage("diagnose" if attempt.look else "record"):
            if attempt.trained is not None:
                record_step(self.folder, self.policy, self.task, self.config, attempt.number + 1, attempt.trained)
        # A look holds copies of the weights.
        attempt.trained = None if attempt.trained is None else attempt.trained._replace(look=None)

    def _row(self, attempt: Attempt, progress: Progress, state: MethodState) -> dict[str, Any]:
        gathered, used = attempt.gathered, progress.rollouts_used
        row: dict[str, Any] = {
            "step": attempt.number + 1,
            "rollouts_used": used if gathered is None else used + gathered.rollouts_used,
            "learning_rate": learning_rate(self.config, attempt.number),
            **state_metrics(state),
            **({} if gathered is None else gathered.extra),
        }
        if (trained := attempt.trained) is not None:
            row |= metrics.step_metrics(trained.credited, trained.plan, trained.result, correction_level=self.config.correction.level)
        return row if attempt.refusal is None else row | {"refused": 1}

    def _judge(self, attempt: Attempt, row: dict[str, Any], watchdog: RunHealth) -> RunHealth:
        trained = attempt.trained
        silent = attempt.refusal is None and (trained is None or not bool((trained.credited.credit != 0).any()))
        watchdog.count(refused=attempt.refusal is not None, silent=silent)
        for said in watchdog.warnings(row, self.config.guard):
            self._tell(attempt.number, "warning", said)
        return watchdog

    def _end_step(self, done: Progress, watchdog: RunHealth, row: dict[str, Any]) -> None:
        """Publish where that is due; stop where going on is hopeless or somebody asked."""
        config, guard = self.config, self.config.guard
        if watchdog.refused >= guard.refused_steps:
            # Not published: the newest checkpoint is from before the trouble.
            raise GuardError(f"the updates of {watchdog.refused} training steps in a row were refused; events.jsonl says why")
        speechless = bool(guard.silent_steps) and watchdog.silent >= guard.silent_steps
        # After a refused update nothing new is worth a checkpoint, and those of refused steps would push the good ones out.
        regular = not watchdog.refused and (
            (config.save_best and done.step == done.best_step)
            or any(every and done.step % every == 0 for every in (config.save_every, config.keep_every))
        )
        stopping = self.stop.asked
        self.generators = generator_states()
        if regular or stopping or speechless or done.step == config.steps:
            self._publish(done)
        if speechless:
            raise GuardError(describe_silence(row.get("score", float("nan")), watchdog.silent))
        if stopping:
            raise StopTraining

    def _result(self, progress: Progress, after: Accuracy) -> dict[str, Any]:
        result = {
            "recipe": self.config.recipe,
            "seed": self.config.seed,
            "steps": self.config.steps,
            "before": progress.before,
            "after": after.to_json(),
            "rollouts_used": progress.rollouts_used,
            "best_step": progress.best_step or self.config.steps,
            "seconds": self.watch.seconds,
        }
        sampled = diagnosis_rollouts(self.folder)
        return result | {"diagnosis_rollouts": sampled} if sampled else result


def train(
    config: TrainConfig, path: Path, callback: Callback | None = None, stop: StopSignal | None = None, *, resume: bool = False
) -> Outcome:
    """Train a configuration into the run folder at `path`; with `resume`, go on from its newest whole checkpoint."""
    if config.engine != "local":
        raise ConfigError(
            f"engine is {config.engine!r}, but this is the local engine; call tokencredit.integrations.{config.engine}.run.train"
        )
    folder, callback, stop = RunDir(path), callback or NoCallback(), stop or StopSignal()
    with oom_as_guard_error():
        if resume:
            with locked(path):
                return Trainer(config, folder, resume=True).run(callback, stop)
        trainer = Trainer(config, folder)
        folder.create(to_toml(config), trainer.ways)
        with locked(path):
            return trainer.run(callback, stop)

"""A training run in its folder: opening it, what is recorded after each step, checkpoints, guards and the result."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokencredit.config.resolve import to_toml
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError, GuardError
from tokencredit.forward.padded import trainable_parameters
from tokencredit.pipeline import metrics
from tokencredit.policy.policy import Policy
from tokencredit.storage.lock import locked
from tokencredit.storage.run_dir import RunDir
from tokencredit.tasks import HasWarnings, HeldOut, Problem, Task
from tokencredit.timing import Stopwatch
from tokencredit.trainer.callbacks import Callback
from tokencredit.trainer.checkpoint import TrainState, load_generators, load_optimizer, load_pending, prune, save_checkpoint
from tokencredit.trainer.evaluate import HELD_OUT_ACCURACY, Accuracy, evaluate_held_out
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
from tokencredit.trainer.step import PolicyTrainer, StepState, learning_rate


def run_result(config: TrainConfig, state: TrainState, final: Accuracy, seconds: Mapping[str, float]) -> dict[str, Any]:
    """What every engine writes to result.json."""
    return {
        "recipe": config.recipe,
        "seed": config.seed,
        "steps": config.steps,
        "before": state.before,
        "after": final.to_json(),
        "rollouts_used": state.rollouts_used,
        "best_step": state.best_step or config.steps,
        "seconds": dict(seconds),
    }


@contextmanager
def open_run(config: TrainConfig, path: Path, callback: Callback, stop: StopSignal, *, resume: bool = False) -> Iterator["Run"]:
    """Load and check everything a run needs, then hold the lock of its folder. A new folder appears only after every check."""
    if config.engine != "local":
        raise ConfigError(
            f"engine is {config.engine!r}, but this is the local engine; call tokencredit.integrations.{config.engine}.run.train"
        )
    folder = RunDir(path)
    if resume:
        with locked(path):
            run = Run(config, folder, callback, stop, resume=True)
            run.prepare()
            yield run
        return
    run = Run(config, folder, callback, stop)
    folder.create(to_toml(config), run.fast_paths)
    with locked(path):
        run.prepare()
        yield run


class Run:
    """The folder, checks, records and checkpoints of a run; the loop calls its methods in order."""

    def __init__(self, config: TrainConfig, folder: RunDir, callback: Callback, stop: StopSignal, *, resume: bool = False) -> None:
        self.config, self.folder, self.callback, self.stop = config, folder, callback, stop
        point = find_resume_point(folder, config) if resume else None
        checkpoint = None if point is None else point.checkpoint
        self.trainer = PolicyTrainer(config, source=config.model if checkpoint is None else str(checkpoint))
        self.gold = self.trainer.check_gold(folder)
        self.held_out = held_out_problems(config, self.task)
        check_model_and_task(self.policy, self.task, self.held_out, config)
        self.known = HeldOut(self.held_out)
        shown = [Problem(prompt=shot.prompt, answer="") for shot in self.policy.prompting.shots]
        refuse_leaks(self.known, [*shown, *first_problems(config, self.task)], error=ConfigError)
        self.data = fingerprint(config, self.task, self.held_out)
        if resume:
            keep_fingerprint(folder, self.data)
        self.state: TrainState | None = None if point is None else point.state
        self._pending = None if checkpoint is None else load_pending(checkpoint, self.policy.device)
        seed_generators(config.seed)
        if checkpoint is not None:
            load_optimizer(self.trainer.optimizer, checkpoint)
            load_generators(checkpoint)
        self.fast_paths = explain_fast_paths(config, self.policy, self.trainer.mode, self.trainer.pipeline)
        self.notes = [] if point is None else continue_from(point, folder, config, self.fast_paths)
        """Messages about the checkpoint the run resumes from."""
        self.generators = generator_states()
        """The global generators at the position a checkpoint would be saved for."""
        self.watch = Stopwatch()
        self.retries: list[str] = []
        """Messages about passes that were tried again with half the tokens; written once the step may write files."""

    @property
    def policy(self) -> Policy:
        return self.trainer.policy

    @property
    def task(self) -> Task:
        return self.trainer.task

    # --- beginning

    def measure_base(self) -> TrainState:
        before = self.evaluate(final=True).to_json()
        seconds = dict(self.watch.seconds)
        return TrainState(step=0, rollouts_used=0, best_step=0, best_accuracy=-1.0, before=before, stage_state={}, seconds=seconds)

    def prepare(self) -> None:
        """Warnings of the task and of slow paths: once at the beginning, and on resume where they changed."""
        keep_fingerprint(self.folder, self.data)
        if self.gold is not None and (message := write_gold(self.gold, self.folder)) is not None:
            self.callback.on_event(0, "gold", message)
        known = {event.get("message") for event in self.folder.read("events.jsonl")}
        warnings = self.task.cautions if isinstance(self.task, HasWarnings) else ()
        for message in (*warnings, *slow_path_warnings(self.config, self.policy)):
            if message not in known:
                self.notify(-1, "warning", message)

    def begin(self, state: TrainState) -> None:
        self.watch.seconds = dict(state.seconds)
        self.callback.on_train_begin(self.policy, Accuracy(**state.before), state.step)  # pyright: ignore[reportArgumentType]
        for message in self.notes:
            self.callback.on_event(state.step, "damaged", message)

    def next_batch(self, number: int) -> StepState:
        """A new batch, or the one that the checkpoint kept."""
        batch, self._pending = self._pending or StepState(number=number), None
        # Optimizer steps that are already taken cannot be observed.
        batch.observe = is_due(self.config.diagnose.every, number + 1, self.config.steps) and not batch.done
        self.generators, self.retries = generator_states(), []
        return batch

    # --- interrupting and saving

    @contextmanager
    def save_on_interrupt(self, state: TrainState, batch: StepState | None = None) -> Iterator[None]:
        """For work that can be done again: on a stop signal, or a problem that cannot be sampled, save and leave."""
        try:
            with self.stop.interruptible(allowed=batch is None or not batch.observe):
                yield
        except (StopTraining, ConfigError):
            self.save_batch(state, batch)
            raise

    def save_batch(self, state: TrainState, batch: StepState | None) -> None:
        """Save between two training steps, or in the middle of a batch: then the checkpoint keeps the batch too."""
        if batch is None or batch.plan is None or not batch.done:
            self.save(state)
        else:
            self.save(replace(state, optimizer_step=len(batch.done)), batch)

    def save(self, state: TrainState, pending: StepState | None = None) -> None:
        """Save a checkpoint. Weights that are not finite would push the good ones out, so they are refused."""
        if not all(bool(parameter.isfinite().all()) for parameter in trainable_parameters(self.policy.model).values()):
            raise GuardError("weights are not finite, so they are not saved; the newest checkpoint is from before")
        self.folder.sync()
        save_checkpoint(self.policy, self.trainer.optimizer, state, self.folder.checkpoints, pending, self.generators)
        prune(self.folder.checkpoints, last=self.config.keep_last, every=self.config.keep_every)

    # --- guards

    def notify(self, number: int, kind: str, message: str, more: Mapping[str, Any] | None = None) -> None:
        """Write an event and pass it to the callback."""
        self.folder.append_event(number + 1, kind, message, more)
        self.callback.on_event(number + 1, kind, message)

    def check_collected(self, batch: StepState, state: TrainState) -> None:
        """Refuse a batch that holds held-out problems, and one of which too much could not be graded."""
        collected = batch.collected
        if collected is None:
            return
        refuse_leaks(self.known, collected.problems)
        if not collected.ungraded:
            return
        share = sum(collected.ungraded.values()) / collected.responses
        message = describe_ungraded(collected.ungraded, share)
        self.notify(batch.number, "ungraded", message, {"share": share, "reasons": dict(collected.ungraded)})
        if share > self.config.guard.ungraded_share:
            self.save(state)
            raise GuardError(f"{message}; that is more than guard.ungraded_share allows")

    @contextmanager
    def report_retries(self, batch: StepState) -> Iterator[None]:
        """Write the retries of a step, even where it fails."""
        try:
            yield
        finally:
            for message in self.retries:
                self.notify(batch.number, "out-of-memory", message)
            if batch.done:
                self.generators = generator_states()

    def dump_failed_batch(self, batch: StepState, state: TrainState) -> None:
        """Keep a refused batch where `tokencredit replay` finds it."""
        refusal = batch.refusal
        assert refusal is not None
        dump = dump_failed_batch(self.trainer, state, batch, self.folder.path, self.generators)
        more = {"stage": refusal.stage, "rows": list(refusal.rows), "dump": f"guards/{dump.name}"}
        self.notify(batch.number, "guard", f"{refusal}. The update is refused; take it again with: tokencredit replay {dump}", more)

    def record_guard(self, state: TrainState | None, problem: GuardError) -> None:
        """For the report; the user reads the error itself."""
        self.folder.append_event(0 if state is None else state.step + 1, "stopped", str(problem))

    # --- recording

    def record(self, batch: StepState) -> None:
        with batch.watch.stage("diagnose" if batch.observe else "record"):
            if batch.trained:
                record_step(self.folder, self.policy, self.task, self.config, batch)
        # An observation holds copies of the weights.
        batch.observation = None

    def step_metrics(self, batch: StepState, state: TrainState) -> dict[str, Any]:
        collected = batch.collected
        row: dict[str, Any] = {
            "step": batch.number + 1,
            "rollouts_used": state.rollouts_used + (0 if collected is None else collected.rollouts_used),
            "learning_rate": learning_rate(self.config, batch.number),
            **metrics.state_metrics(batch.methods_after(state.methods)),
            **({} if collected is None else collected.extra),
        }
        if batch.trained:
            _, credited, plan = batch.assigned()
            row |= metrics.step_metrics(credited, plan, batch.result, correction_level=self.config.correction.level)
        return row if batch.refusal is None else row | {"refused": 1}

    def evaluation_is_due(self, number: int) -> bool:
        every = self.config.evaluation.every
        return bool(every) and ((number + 1) % every == 0 or number + 1 == self.config.steps)

    def evaluate(self, *, final: bool = False, watch: Stopwatch | None = None) -> Accuracy:
        """Measure the policy on held-out problems; `watch` is the step's clock, where the evaluation belongs to one."""
        if watch is not None:
            with watch.stage("evaluate"):
                return evaluate_held_out(self.policy, self.task, self.held_out, self.config, final=final)
        with self.stop.interruptible(), self.watch.stage("evaluate"):
            return evaluate_held_out(self.policy, self.task, self.held_out, self.config, final=final)

    def log(self, row: dict[str, Any], batch: StepState) -> None:
        self.watch.add(batch.watch)
        self.folder.append("metrics.jsonl", row)
        self.folder.append("timing.jsonl", {"step": batch.number + 1, "seconds": batch.watch.seconds})
        self.callback.on_step_end(row, batch.watch.total)

    # --- the end of a step and of the run

    def advance(self, state: TrainState, batch: StepState, row: Mapping[str, Any]) -> TrainState:
        """The state after a step, with the health of the run; new warnings are written."""
        health = RunHealth.from_json(state.guard)
        silent = batch.refusal is None and not (batch.trained and batch.credited is not None and bool((batch.credited.credit != 0).any()))
        health.count(refused=batch.refusal is not None, silent=silent)
        for message in health.warnings(row, self.config.guard):
            self.notify(batch.number, "warning", message)
        accuracy = row.get(HELD_OUT_ACCURACY, -1.0)
        improved = accuracy > state.best_accuracy
        return TrainState(
            step=batch.number + 1,
            rollouts_used=row["rollouts_used"],
            best_step=batch.number + 1 if improved else state.best_step,
            best_accuracy=accuracy if improved else state.best_accuracy,
            before=state.before,
            stage_state={name: dict(value) for name, value in batch.methods_after(state.methods)._asdict().items()},
            guard=health.to_json(),
            seconds=dict(self.watch.seconds),
        )

    def save_if_due(self, state: TrainState, row: Mapping[str, Any]) -> None:
        """Save a checkpoint where one is due; end the run where continuing is hopeless or a stop was requested."""
        config, guard, health = self.config, self.config.guard, RunHealth.from_json(state.guard)
        if health.refused >= guard.refused_steps:
            # Not saved: the newest checkpoint is from before the trouble.
            raise GuardError(f"the updates of {health.refused} training steps in a row were refused; events.jsonl says why")
        without_credit = bool(guard.silent_steps) and health.silent >= guard.silent_steps
        # After a refused update nothing new is worth a checkpoint, and those of refused steps would push the good ones out.
        regular = not health.refused and (
            (config.save_best and state.step == state.best_step)
            or any(every and state.step % every == 0 for every in (config.save_every, config.keep_every))
        )
        stopping = self.stop.requested
        self.generators = generator_states()
        if regular or stopping or without_credit or state.step == config.steps:
            self.save(state)
        if without_credit:
            raise GuardError(describe_silence(row.get("score", float("nan")), health.silent))
        if stopping:
            raise StopTraining

    def finish(self, state: TrainState, final: Accuracy) -> dict[str, Any]:
        """Write result.json."""
        result = run_result(self.config, state, final, self.watch.seconds)
        sampled = diagnosis_rollouts(self.folder)
        result |= {"diagnosis_rollouts": sampled} if sampled else {}
        self.folder.write_json("result.json", result)
        return result

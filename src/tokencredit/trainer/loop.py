"""The training loop: collect -> score -> credit -> plan -> update -> record -> evaluate -> save.

A training step is one batch of rollouts and the optimizer steps taken on it. Everything random follows from
(seed, purpose, step), so a resumed run needs the weights, the optimizer, the step number and the batch in progress.
A stop signal waits for one optimizer step at most; a guard refuses an update before it moves the weights.
"""

from pathlib import Path
from typing import Any, NamedTuple

from tokencredit.config.train import TrainConfig
from tokencredit.errors import GuardError
from tokencredit.forward.memory import Notify, ignore, oom_as_guard_error
from tokencredit.pipeline.credit import MethodState
from tokencredit.policy.policy import Policy
from tokencredit.tasks import Task
from tokencredit.timing import Stopwatch
from tokencredit.trainer.callbacks import Callback, NoCallback
from tokencredit.trainer.checkpoint import TrainState
from tokencredit.trainer.run import Run, open_run
from tokencredit.trainer.signals import StopSignal, StopTraining
from tokencredit.trainer.step import PolicyTrainer, StepState


class TrainResult(NamedTuple):
    policy: Policy
    task: Task
    state: MethodState
    result: dict[str, Any]
    """As written to result.json; empty where a stop signal ended the run."""
    interrupted: bool


def train(
    config: TrainConfig, path: Path, callback: Callback | None = None, stop: StopSignal | None = None, *, resume: bool = False
) -> TrainResult:
    """Train a configuration into the run folder at `path`; with `resume`, continue from its newest intact checkpoint."""
    with oom_as_guard_error(), open_run(config, path, callback or NoCallback(), stop or StopSignal(), resume=resume) as run:
        state: TrainState | None = run.state
        try:
            state = state or run.measure_base()
            run.begin(state)
            for number in range(state.step, config.steps):
                state = train_step(run, state, number)
            final = run.evaluate(final=True)
        except StopTraining:  # a checkpoint was saved where it was raised
            return TrainResult(run.policy, run.task, MethodState() if state is None else state.methods, {}, interrupted=True)
        except GuardError as problem:
            run.record_guard(state, problem)
            raise
        return TrainResult(run.policy, run.task, state.methods, run.finish(state, final), interrupted=False)


def train_step(run: Run, state: TrainState, number: int) -> TrainState:
    """Training step `number`, counted from 0; returns the state of the run after it."""
    batch = run.next_batch(number)
    with run.save_on_interrupt(state), batch.refuse_bad_numbers():  # moves no weights, writes no file
        prepare_batch(run.trainer, batch, state.methods, run.retries.append)
    run.check_collected(batch, state)

    with run.report_retries(batch), batch.refuse_bad_numbers():  # nothing that is not finite reaches the weights
        run.trainer.update(batch, stop_requested=lambda: run.stop.requested, notify=run.retries.append)
    if batch.refusal is not None:
        run.dump_failed_batch(batch, state)
    if run.stop.requested and not batch.observe:
        run.save_batch(state, batch)
        raise StopTraining

    run.record(batch)  # plans.jsonl, tokens/, findings/
    row = run.step_metrics(batch, state)
    if run.evaluation_is_due(number):
        with run.save_on_interrupt(state, batch):
            row |= run.evaluate(watch=batch.watch).as_metrics()
    run.log(row, batch)  # metrics.jsonl, timing.jsonl, callback

    state = run.advance(state, batch, row)
    run.save_if_due(state, row)  # also where the guard or a stop signal ends the run
    return state


def prepare_batch(trainer: PolicyTrainer, batch: StepState, methods: MethodState, notify: Notify) -> None:
    """Everything before the weights move; a batch that a checkpoint kept continues where it was."""
    if batch.collected is None:
        trainer.collect(batch, notify)  # sample, grade, filter groups
        trainer.score(batch, notify)  # log-probs, entropies, hidden states, reference
        trainer.sample_extra(batch)  # revisions, branches, greedy responses: where a stage needs them
    if batch.plan is None:
        trainer.credit(batch, methods)  # shape, advantage, credit
        trainer.plan(batch)  # which tokens meet in which optimizer step, and the denominators


def step_once(
    trainer: PolicyTrainer, number: int, methods: MethodState, *, observe: bool = False, watch: Stopwatch | None = None
) -> StepState:
    """One training step with nothing recorded: for replays and benchmarks."""
    batch = StepState(number=number, observe=observe, watch=watch or Stopwatch())
    prepare_batch(trainer, batch, methods, ignore)
    trainer.update(batch)
    return batch

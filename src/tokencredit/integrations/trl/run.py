"""`tokencredit train --engine trl`: a configuration trained by TRL into a run folder like the local engine's.

evaluate -> TRL's loop with a recorder as callback -> evaluate
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import metadata
from pathlib import Path

import torch
from accelerate.utils import broadcast_object_list
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback

from tokencredit.config import as_kwargs
from tokencredit.config.resolve import to_toml
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.integrations.trl.config import as_dataset, grpo_config, refuse, reward_function, training_problems
from tokencredit.integrations.trl.recorder import Recorder, RunTrainer, last_intact_checkpoint, save_best
from tokencredit.optim.optimizer import make_optimizer
from tokencredit.policy.policy import Policy, load_policy, set_threads
from tokencredit.policy.prompting import with_prompting
from tokencredit.storage.lock import locked
from tokencredit.storage.run_dir import RunDir, describe_environment
from tokencredit.tasks import TASKS, HeldOut, MultiTurn, Problem, Task
from tokencredit.timing import Stopwatch
from tokencredit.trainer.callbacks import Callback, NoCallback
from tokencredit.trainer.checkpoint import TrainState
from tokencredit.trainer.evaluate import Accuracy, evaluate_held_out
from tokencredit.trainer.loop import TrainResult
from tokencredit.trainer.preflight import (
    check_gold,
    check_model_and_task,
    fingerprint,
    held_out_problems,
    keep_fingerprint,
    refuse_leaks,
    write_gold,
)
from tokencredit.trainer.run import run_result
from tokencredit.trainer.signals import StopSignal
from tokencredit.trainer.step import learning_rate

PACKAGES = ("trl", "accelerate", "datasets")


def train(
    config: TrainConfig, path: Path, callback: Callback | None = None, stop: StopSignal | None = None, *, resume: bool = False
) -> TrainResult:
    """Like the local engine's `train`. With several processes, each calls it; only the first writes, into its own folder."""
    refuse(config)
    policy = load_policy(config.model, device=torch.device("cpu"), dtype=config.dtype, trust_remote_code=config.trust_remote_code)
    task: Task = TASKS[config.task.type](**as_kwargs(config.task))
    if isinstance(task, MultiTurn):
        raise ConfigError(f"task.type is {config.task.type!r}, which converses in turns; TRL samples one response, use engine 'local'")
    gold = check_gold(task, RunDir(path))
    held_out = held_out_problems(config, task)
    policy = with_prompting(policy, config, task)
    check_model_and_task(policy, task, held_out, config)
    problems = training_problems(config, task)
    refuse_leaks(HeldOut(held_out), [problem for batch in problems for problem in batch], error=ConfigError)
    longest = max(len(policy.ask(problem.prompt)) for batch in problems for problem in batch) + config.sampling.max_new_tokens
    args = grpo_config(config, path, longest=longest)
    folder = RunDir(Path(broadcast_object_list([str(path)])[0]))
    args.output_dir = str(folder.checkpoints)
    checkpoint, resumed = last_intact_checkpoint(folder) if resume else (None, None)
    data = fingerprint(config, task, held_out)
    if resumed is not None:
        keep_fingerprint(folder, data)
    optimizer = make_optimizer(config, policy.model)
    with _removed_on_failure(folder):
        trainer = RunTrainer(
            policy.model,
            reward_function(policy, task),
            args,
            train_dataset=as_dataset(problems),
            processing_class=policy.tokenizer,
            optimizers=(optimizer, LambdaLR(optimizer, lambda taken: _share_of_rate(config, taken))),
            recipe=config,
            policy=policy,
        )
    trainer.remove_callback(PrinterCallback)
    set_threads(config.threads, policy.model)
    first = trainer.ranks.index == 0

    def measure(*, final: bool = False) -> Accuracy:
        return _evaluate(config, policy, task, held_out, final=final)

    if resumed is None:
        if first:
            _begin(folder, config, processes=trainer.ranks.count)
            keep_fingerprint(folder, data)
            if gold is not None:
                write_gold(gold, folder)
        watch = Stopwatch()
        with watch.stage("evaluate"):
            before = measure(final=True).to_json()
        resumed = TrainState(step=0, rollouts_used=0, best_step=0, best_accuracy=-1.0, before=before, stage_state={}, seconds=watch.seconds)
    callback = callback or NoCallback()
    callback.on_train_begin(policy, Accuracy(**resumed.before), resumed.step)  # pyright: ignore[reportArgumentType]
    recorder = Recorder(config, folder, task, problems, resumed, measure, callback, stop or StopSignal())
    recorder.attach(trainer)
    with locked(folder.path) if first else nullcontext():
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    policy.model.eval()
    if recorder.interrupted:
        return TrainResult(policy, task, trainer.stage_state, {}, interrupted=True)
    with recorder.watch.stage("evaluate"):
        after = measure(final=True)
    result = run_result(config, recorder.progress, after, recorder.watch.seconds)
    if first:
        if recorder.progress.best_step == 0 or not config.save_best:
            save_best(policy, folder, config.steps)
        folder.write_json("result.json", result)
    return TrainResult(policy, task, trainer.stage_state, result, interrupted=False)


@contextmanager
def _removed_on_failure(folder: RunDir) -> Iterator[None]:
    """Remove the empty output folder when TRL's trainer fails, because it creates the folder before its checks."""
    try:
        yield
    except Exception:
        for made in (folder.checkpoints, folder.path):
            with suppress(OSError):
                made.rmdir()
        raise


def _share_of_rate(config: TrainConfig, taken: int) -> float:
    """Learning rate as a fraction of the peak, after `taken` optimizer steps."""
    step = min(taken // config.optimizer.steps_per_batch, config.steps - 1)
    return learning_rate(config, step) / config.optimizer.learning_rate


def _begin(folder: RunDir, config: TrainConfig, *, processes: int) -> None:
    folder.create(to_toml(config))
    environment = describe_environment()
    environment["packages"] |= {name: metadata.version(name) for name in PACKAGES}
    folder.write_json("env.json", environment | {"processes": processes})


def _evaluate(config: TrainConfig, policy: Policy, task: Task, held_out: list[Problem], *, final: bool) -> Accuracy:
    """The local engine's evaluation, in eval mode; it does not draw from TRL's generators."""
    training = policy.model.training
    policy.model.eval()
    found = evaluate_held_out(policy, task, held_out, config, final=final)
    policy.model.train(training)
    return found

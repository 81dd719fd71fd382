"""`tokencredit train --engine trl`: a configuration trained by TRL into a run folder like the local engine's.

evaluate -> TRL's loop, with a recorder listening -> evaluate

The adapter's trainer as `tokencredit train --engine trl` uses it.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback

from tokencredit.config import knobs
from tokencredit.config.resolve import to_toml
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError, GuardError
from tokencredit.integrations.trl.batch import PlannedBatch
from tokencredit.integrations.trl.config import as_dataset, grpo_config, refuse, reward_function, training_problems
from tokencredit.integrations.trl.recorder import Recorder, last_whole_checkpoint, save_best
from tokencredit.integrations.trl.trainer import CreditGRPOTrainer
from tokencredit.optim.optimizer import make_optimizer
from tokencredit.policy.policy import Policy, load_policy, set_threads
from tokencredit.policy.prompting import prompted
from tokencredit.seeds import derive_seed
from tokencredit.storage.lock import locked
from tokencredit.storage.run_dir import RunFolder, describe_environment
from tokencredit.tasks import TASKS, Conversing, HeldOut, Problem, Task
from tokencredit.timing import Stopwatch
from tokencredit.trainer.callbacks import Listener, NobodyWatching
from tokencredit.trainer.checkpoint import Progress
from tokencredit.trainer.evaluate import Accuracy, evaluate
from tokencredit.trainer.loop import Outcome
from tokencredit.trainer.preflight import check_fit, check_gold, fingerprint, held_out_problems, keep_fingerprint, refuse_leaks, write_gold
from tokencredit.trainer.signals import StopRequest
from tokencredit.trainer.step import learning_rate


class RunTrainer(CreditGRPOTrainer):
    """Reads prompts as the local engine does, keeps the last batch for the record, and stops where a number broke down."""

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
        """The run folder says what was trained, on what and how."""

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


PACKAGES = ("trl", "accelerate", "datasets")


def train(
    config: TrainConfig, path: Path, listener: Listener | None = None, stop: StopRequest | None = None, *, resume: bool = False
) -> Outcome:
    """As the local engine's `train`. With several processes all call it; the folder is the first one's, which alone writes."""
    refuse(config)
    policy = load_policy(config.model, device=torch.device("cpu"), dtype=config.dtype, trust_remote_code=config.trust_remote_code)
    task: Task = TASKS[config.task.type](**knobs(config.task))
    if isinstance(task, Conversing):
        raise ConfigError(f"task.type is {config.task.type!r}, which converses in turns; TRL samples one response, use engine 'local'")
    gold = check_gold(task, RunFolder(path))
    held_out = held_out_problems(config, task)
    policy = prompted(policy, config, task)
    check_fit(policy, task, held_out, config)
    problems = training_problems(config, task)
    refuse_leaks(HeldOut(held_out), [problem for batch in problems for problem in batch], error=ConfigError)
    longest = max(len(policy.ask(problem.prompt)) for batch in problems for problem in batch) + config.sampling.max_new_tokens
    args = grpo_config(config, path, longest=longest)
    folder = RunFolder(Path(broadcast_object_list([str(path)])[0]))
    args.output_dir = str(folder.checkpoints)
    checkpoint, resumed = last_whole_checkpoint(folder) if resume else (None, None)
    data = fingerprint(config, task, held_out)
    if resumed is not None:
        keep_fingerprint(folder, data)
    optimizer = make_optimizer(config, policy.model)
    with _nothing_left_behind(folder):
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
        resumed = Progress(step=0, rollouts_used=0, best_step=0, best_accuracy=-1.0, before=before, stage_state={}, seconds=watch.seconds)
    listener = listener or NobodyWatching()
    listener.began(policy, Accuracy(**resumed.before), resumed.step)  # pyright: ignore[reportArgumentType]
    recorder = Recorder(config, folder, task, problems, resumed, measure, listener, stop or StopRequest())
    recorder.attach(trainer)
    with locked(folder.path) if first else nullcontext():
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    policy.model.eval()
    if recorder.interrupted:
        return Outcome(policy, task, trainer.stage_state, {}, interrupted=True)
    with recorder.watch.stage("evaluate"):
        after = measure(final=True)
    result = _result(config, recorder.progress, after, recorder.watch.seconds)
    if first:
        if recorder.progress.best_step == 0 or not config.save_best:
            save_best(policy, folder, config.steps)
        folder.write_json("result.json", result)
    return Outcome(policy, task, trainer.stage_state, result, interrupted=False)


@contextmanager
def _nothing_left_behind(folder: RunFolder) -> Iterator[None]:
    """A trainer makes its output folder before it checks anything."""
    try:
        yield
    except Exception:
        for made in (folder.checkpoints, folder.path):
            with suppress(OSError):
                made.rmdir()
        raise


def _share_of_rate(config: TrainConfig, taken: int) -> float:
    """Of the peak, after `taken` optimizer steps."""
    step = min(taken // config.optimizer.steps_per_batch, config.steps - 1)
    return learning_rate(config, step) / config.optimizer.learning_rate


def _begin(folder: RunFolder, config: TrainConfig, *, processes: int) -> None:
    folder.begin(to_toml(config))
    environment = describe_environment()
    environment["packages"] |= {name: metadata.version(name) for name in PACKAGES}
    folder.write_json("env.json", environment | {"processes": processes})


def _evaluate(config: TrainConfig, policy: Policy, task: Task, held_out: list[Problem], *, final: bool) -> Accuracy:
    """The local engine's evaluation: the same problems and draws every time, and nothing of TRL's randomness used up."""
    chosen, training = config.evaluation, policy.model.training
    policy.model.eval()
    found = evaluate(
        policy,
        task,
        held_out[: None if final else chosen.problems],
        samples=chosen.final_samples if final else chosen.samples,
        max_new_tokens=config.sampling.max_new_tokens,
        seed=derive_seed(config.seed, "evaluate"),
        temperature=config.sampling.temperature,
        dtype=config.dtype,
    )
    policy.model.train(training)
    return found


def _result(config: TrainConfig, progress: Progress, after: Accuracy, seconds: dict[str, float]) -> dict[str, Any]:
    return {
        "recipe": config.recipe,
        "seed": config.seed,
        "steps": config.steps,
        "before": progress.before,
        "after": after.to_json(),
        "rollouts_used": progress.rollouts_used,
        "best_step": progress.best_step or config.steps,
        "seconds": seconds,
    }

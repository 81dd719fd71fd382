"""Runs the credit benchmark on checkpoints and builds its record: settings, environment, results per checkpoint."""

import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tokencredit.config import as_kwargs
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.lab.credit.batch import Facts
from tokencredit.lab.credit.compare_gradients import compare
from tokencredit.lab.credit.measure import Clock, Notify, Subject, measure_credit
from tokencredit.lab.credit.prefix_tree import CERTAIN
from tokencredit.lab.credit.recipes import BASELINE, CONTROL, ORACLE, CreditOrder, Field
from tokencredit.policy.policy import choose_device, load_policy, set_threads
from tokencredit.policy.prompting import with_prompting
from tokencredit.rollout.sampler import with_sampler
from tokencredit.storage.run_dir import describe_environment
from tokencredit.tasks import TASKS, GoldChecking, MultiTurn, Task
from tokencredit.trainer.preflight import check_model_and_task


def load_subject(config: TrainConfig) -> Subject:
    """Load the task before the model: an error in the task must not wait for the model."""
    task: Task = TASKS[config.task.type](**as_kwargs(config.task))
    if isinstance(task, MultiTurn):
        raise ConfigError(f"task {config.task.type!r} is multi-turn, but continuations are single-turn; use another task")
    if isinstance(task, GoldChecking):
        task.leave_out(task.check_gold().failed)
    policy = load_policy(
        config.model,
        device=choose_device(config.device),
        dtype=config.dtype,
        weights=config.weights,
        trust_remote_code=config.trust_remote_code,
    )
    set_threads(config.threads, policy.model)
    policy = with_sampler(with_prompting(policy, config, task), config.sampler, dtype=config.dtype, memory=config.vllm_memory)
    check_model_and_task(policy, task, task.problems(2, split="train", seed=config.seed), config)
    return Subject(policy, task, config)


def run_checkpoint(config: TrainConfig, order: CreditOrder, field: Field, notify: Notify) -> dict[str, Any]:
    began, clock = time.perf_counter(), Clock()
    subject = load_subject(config)
    clock.lap("load")
    measured = measure_credit(subject, order, field, notify, clock)
    gradient = compare(subject, order, field, measured, notify, clock) if order.reference else None
    left_out = measured.left_out + ([] if gradient is None else gradient.pop("left_out"))
    return {
        "model": config.model,
        "task": config.task.model_dump(mode="json"),
        "sampling": config.sampling.model_dump(mode="json", exclude={"prompts"}),
        "parameters": sum(parameter.numel() for parameter in subject.policy.model.parameters()),
        "dtype": config.dtype,
        "device": subject.policy.device.type,
        "policy": Facts().with_batch(measured.batch).to_json() if gradient is None else gradient.pop("policy"),
        **measured.record,
        "gradient": gradient,
        "left_out": [one._asdict() for one in left_out],
        "seconds": clock.seconds | {"all": time.perf_counter() - began},
    }


def run_credit(
    configs: Sequence[TrainConfig],
    order: CreditOrder,
    field: Field,
    *,
    notify: Callable[[str, str, int, int], None],
    finished: Callable[[Mapping[str, Any]], None],
) -> dict[str, Any]:
    """Measure one checkpoint after another; `finished` receives the record after each."""
    result: dict[str, Any] = {
        "benchmark": "credit",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": describe_environment(),
        "machine": {"processor": _processor(), "cores": os.cpu_count()},
        "threads": torch.get_num_threads(),
        "seed": configs[0].seed,
        "order": order._asdict() | {"certain": CERTAIN, "group_size": configs[0].sampling.group_size},
        "rows": {"baseline": BASELINE, "control": CONTROL, "oracle": ORACLE},
        "checkpoints": [],
    }
    for config in configs:

        def notify_model(what: str, done: int, total: int, model: str = config.model) -> None:
            notify(model, what, done, total)

        result["checkpoints"].append(in_json(run_checkpoint(config, order, field, notify_model)))
        result["threads"] = torch.get_num_threads()
        finished(result)
    return result


def _processor() -> str:
    """The processor's name from /proc/cpuinfo, if available."""
    notify_model = Path("/proc/cpuinfo")
    lines = notify_model.read_text(errors="replace").splitlines() if notify_model.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


def in_json(value: Any) -> Any:
    """Convert to JSON types: NaN becomes null, infinity "inf"."""
    if isinstance(value, Mapping):
        return {key: in_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [in_json(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value

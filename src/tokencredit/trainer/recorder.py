"""Record a training step in the run folder: plan, tokens, findings. The loop writes the row of metrics."""

import json
from pathlib import Path

from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.pipeline import metrics
from tokencredit.policy.policy import Policy
from tokencredit.storage.run_dir import RunDir
from tokencredit.tasks import Task
from tokencredit.trainer.findings import diagnose_step
from tokencredit.trainer.step import StepState
from tokencredit.trainer.token_table import label_tokens, token_columns


def is_due(every: int, step: int, steps: int) -> bool:
    """Whether `step`, counted from 1, is a multiple of `every`, the first or the last; never with `every` 0."""
    return every > 0 and (step % every == 0 or step in (1, steps))


def entropy_history(folder: RunDir, before: int | None = None) -> list[tuple[int, float]]:
    """(training step, mean entropy) as recorded, for steps below `before`."""
    rows = [row for row in folder.read("metrics.jsonl") if "entropy" in row]
    return [(row["step"], row["entropy"]) for row in rows if before is None or row["step"] < before]


def diagnosis_rollouts(folder: RunDir) -> int:
    """Rollouts sampled for findings; training never uses them."""
    return sum(_rollouts_of(file) for _, file in folder.step_files("findings") if file.suffix == ".json")


def _rollouts_of(file: Path) -> int:
    try:
        return int(json.loads(file.read_text(encoding="utf-8"))["rollouts_used"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise ConfigError(f"{file} is damaged: {problem}; remove it to continue without its count") from None


def record_step(folder: RunDir, policy: Policy, task: Task, config: TrainConfig, batch: StepState) -> None:
    """Write the plan of every step, and its tokens and findings where they are due."""
    step, (collected, credited, plan) = batch.number + 1, batch.assigned()
    folder.append_plan(step, plan)
    if batch.observation is None and not is_due(config.tokens_every, step, config.steps):
        return
    labels = label_tokens(policy, task, collected.problems, credited.rollouts)
    folder.write_tokens(step, token_columns(step, credited, plan, labels, collected.problems))
    if batch.observation is not None:
        history = [*entropy_history(folder), (step, metrics.mean_entropy(credited))]
        found = diagnose_step(batch, labels, task, config, step=step, history=history)
        folder.write_findings(step, found.to_json(step), found.columns)

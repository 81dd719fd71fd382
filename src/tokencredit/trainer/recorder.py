"""What a training step leaves in the run folder besides its row of metrics: plan, tokens, findings.

One row per token: its text, what it is, and what it received.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tokencredit.config.train import TrainConfig
from tokencredit.diagnose.table import token_table
from tokencredit.errors import ConfigError
from tokencredit.pipeline import metrics
from tokencredit.policy.policy import Policy
from tokencredit.rollout.multi_turn import turn_tokens
from tokencredit.storage.run_dir import RunFolder
from tokencredit.tasks import Problem, Task, step_verdicts
from tokencredit.trainer.findings import judge
from tokencredit.trainer.step import TrainedBatch
from tokencredit.types import Credited, Rollouts, StepPlan

THINKING = "thinking"


class TokenLabels(NamedTuple):
    """An entry per sampled token, row after row."""

    text: list[str]
    token_class: list[str]
    step_right: list[bool | None]


def label_tokens(policy: Policy, task: Task, problems: Sequence[Problem], rollouts: Rollouts) -> TokenLabels:
    """A token takes the class and the verdict of its first character; the end token is `end`, a stop string `stop`.

    What stands outside of the answer tags, where they are asked for, is `thinking`. Each turn is read by itself.
    """
    labels = TokenLabels([], [], [])
    for row, group in enumerate(rollouts.group.tolist()):
        for ids in turn_tokens(rollouts, row):
            _label_turn(labels, policy, task, problems[group], ids)
    return labels


def _label_turn(labels: TokenLabels, policy: Policy, task: Task, problem: Problem, ids: list[int]) -> None:
    pieces = policy.pieces(ids)
    labels.text.extend(pieces)
    ended = ids[-1] in policy.end_tokens
    body = pieces[:-1] if ended else pieces
    response = "".join(body)
    read = policy.up_to_stop(response)
    start, end = policy.prompting.answer_in(read)
    answer, after = read[start:end], len(read) - end
    classes = [THINKING] * start + list(task.token_class(problem, answer)) + [THINKING] * after
    verdicts = [None] * start + step_verdicts(task, problem, answer)
    labels.token_class.extend(_of_first_character(body, classes, "stop" if len(read) < len(response) else "other") + ["end"] * ended)
    labels.step_right.extend(_of_first_character(body, verdicts, None) + [None] * ended)


def _of_first_character(pieces: Sequence[str], per_character: Sequence[Any], otherwise: Any) -> list[Any]:
    found: list[Any] = []
    at = 0
    for piece in pieces:
        found.append(per_character[at] if at < len(per_character) else otherwise)
        at += len(piece)
    return found


def token_columns(step: int, credited: Credited, plan: StepPlan, labels: TokenLabels, problems: Sequence[Problem]) -> dict[str, list[Any]]:
    """The token file of one training step, column by column, in the order of record.TOKEN_COLUMNS."""
    table = token_table(credited, plan, text=labels.text, token_class=labels.token_class)
    rollouts = credited.rollouts
    mask, rows = rollouts.mask, table.row.tolist()

    def per_token(value: torch.Tensor) -> list[float]:
        return value[mask].double().tolist()

    return {
        "step": [step] * len(table),
        "row": rows,
        "group": table.group.tolist(),
        "position": table.position.tolist(),
        "prompt": [problems[group].prompt for group in table.group.tolist()],
        "text": labels.text,
        "token_class": labels.token_class,
        "step_right": labels.step_right,
        "token_id": table.token.tolist(),
        "logp": table.logp.double().tolist(),
        "behavior_logp": per_token(rollouts.behavior_logp),
        "entropy": table.entropy.double().tolist(),
        "score": table.score.double().tolist(),
        "reward": credited.scored.reward.cpu()[rows].double().tolist(),
        "advantage": table.advantage.double().tolist(),
        "coefficient": [None] * len(table) if credited.coefficient is None else per_token(credited.coefficient),
        "credit": table.credit.double().tolist(),
        "optimizer_step": table.optimizer_step.tolist(),
    }


def is_due(every: int, step: int, steps: int) -> bool:
    """Whether something done every few training steps, and at the first and the last, is done after `step`, counted from 1."""
    return every > 0 and (step % every == 0 or step in (1, steps))


def entropy_history(folder: RunFolder, before: int | None = None) -> list[tuple[int, float]]:
    """(training step, mean entropy) as recorded, up to a step that is not included."""
    rows = [row for row in folder.read("metrics.jsonl") if "entropy" in row]
    return [(row["step"], row["entropy"]) for row in rows if before is None or row["step"] < before]


def diagnosis_rollouts(folder: RunFolder) -> int:
    """What looks sampled by themselves; none of it was trained on."""
    return sum(_rollouts_of(file) for _, file in folder.step_files("findings") if file.suffix == ".json")


def _rollouts_of(file: Path) -> int:
    try:
        return int(json.loads(file.read_text(encoding="utf-8"))["rollouts_used"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise ConfigError(f"{file} is damaged: {problem}; remove it to go on without its count") from None


def record_step(folder: RunFolder, policy: Policy, task: Task, config: TrainConfig, step: int, trained: TrainedBatch) -> None:
    """Of training step `step`, counted from 1."""
    folder.append_plan(step, trained.plan)
    if trained.look is None and not is_due(config.tokens_every, step, config.steps):
        return
    labels = label_tokens(policy, task, trained.problems, trained.credited.rollouts)
    folder.write_tokens(step, token_columns(step, trained.credited, trained.plan, labels, trained.problems))
    if trained.look is not None:
        history = [*entropy_history(folder), (step, metrics.mean_entropy(trained.credited))]
        found = judge(trained, labels, task, config, step=step, history=history)
        folder.write_findings(step, found.to_json(step), found.columns)

"""The token table of a training step, one row per token: text, class, verdict, log-probs and credit."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from tokencredit.diagnose.table import token_table
from tokencredit.policy.policy import Policy
from tokencredit.rollout.multi_turn import turn_tokens
from tokencredit.tasks import Problem, Task, step_verdicts
from tokencredit.types import Credited, Rollouts, StepPlan

THINKING = "thinking"


class TokenLabels(NamedTuple):
    """One entry per sampled token, row by row."""

    text: list[str]
    token_class: list[str]
    step_right: list[bool | None]


def label_tokens(policy: Policy, task: Task, problems: Sequence[Problem], rollouts: Rollouts) -> TokenLabels:
    """A token takes the class and the verdict of its first character; the end token is `end`, a stop string `stop`.

    With answer tags, tokens outside of them are `thinking`. Each turn is labelled separately.
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
    """The token file of one training step, column by column, in the order of run_dir.TOKEN_COLUMNS."""
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

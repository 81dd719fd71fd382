"""Credit of stored rollouts as a table: one row per sampled token, in the columns of a run's token files."""

from typing import Any

from torch import Tensor

from tokencredit.analysis.offline import TokenCredit
from tokencredit.policy.policy import Policy
from tokencredit.rollout_io.read import StoredRollouts
from tokencredit.types import Credited

GIVEN_ADVANTAGE = "given_advantage"
"""Beside record.TOKEN_COLUMNS: the advantage that the file brought along."""


def stored_texts(policy: Policy, stored: StoredRollouts) -> list[str]:
    """Of every sampled token, row after row."""
    tokens, mask = stored.rollouts.tokens, stored.rollouts.mask
    return [piece for row in range(len(mask)) for piece in policy.pieces(tokens[row][mask[row]].tolist())]


def offline_columns(stored: StoredRollouts, found: Credited | TokenCredit, policy: Policy | None) -> dict[str, list[Any]]:
    """None where something is not known: what only a task can tell, and without a model what only a model can tell."""
    scored = found.scored
    rollouts = stored.rollouts
    mask = rollouts.mask
    row, position = (index.tolist() for index in mask.nonzero(as_tuple=True))
    nothing: list[Any] = [None] * len(row)

    def per_token(value: Tensor | None) -> list[Any]:
        return nothing if value is None else value.cpu()[mask].double().tolist()

    def per_response(value: Tensor | None) -> list[Any]:
        return nothing if value is None else value.cpu().double()[row].tolist()

    classes = stored.token_class
    ids = rollouts.tokens[mask].tolist()
    return {
        "step": [stored.step] * len(row),
        "row": row,
        "group": rollouts.group[row].tolist(),
        "position": position,
        "prompt": [stored.prompts[index] for index in row],
        "text": nothing if policy is None else stored_texts(policy, stored),
        "token_class": nothing if classes is None else [name for names in classes for name in names],
        "step_right": nothing,
        "token_id": ids,
        "logp": per_token(found.old_logp if isinstance(found, Credited) else None),
        "behavior_logp": per_token(rollouts.behavior_logp if stored.logp_known else None),
        "entropy": per_token(found.entropy if isinstance(found, Credited) else None),
        "score": per_response(scored.score),
        "reward": per_response(scored.reward),
        "advantage": per_response(found.advantage),
        "coefficient": per_token(found.coefficient),
        "credit": per_token(found.credit),
        "optimizer_step": nothing,
        GIVEN_ADVANTAGE: per_response(stored.advantage),
    }

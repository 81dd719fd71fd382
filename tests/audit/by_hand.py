"""The audit again in plain loops: numeric derivatives instead of autograd, groups and positions one at a time."""

from collections.abc import Callable

import torch

Loss = Callable[[torch.Tensor], float]
"""Log-probs of one optimizer step, [row, token], to its loss."""


def numeric_kappa(loss: Loss, logp: torch.Tensor, step: float = 1e-5) -> list[list[float]]:
    """Central differences, one log-prob at a time."""
    kappa = [[0.0] * logp.shape[1] for _ in range(logp.shape[0])]
    for row in range(logp.shape[0]):
        for token in range(logp.shape[1]):
            up, down = logp.clone(), logp.clone()
            up[row, token] += step
            down[row, token] -= step
            kappa[row][token] = (loss(up) - loss(down)) / (2 * step)
    return kappa


def residual_by_loops(kappas: list[list[list[float]]], groups: list[list[int]], shared: int) -> float | None:
    """`kappas[step][row][token]`, `groups[step][row]`: |sum over siblings| over sum of |each|, for every step and shared token."""
    left, total = 0.0, 0.0
    for kappa, group in zip(kappas, groups, strict=True):
        for name in sorted(set(group)):
            for token in range(shared):
                own = [kappa[row][token] for row in range(len(group)) if group[row] == name]
                left += abs(sum(own))
                total += sum(abs(value) for value in own)
    return left / total if total else None

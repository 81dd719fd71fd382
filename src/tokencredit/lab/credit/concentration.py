"""On how few tokens the true advantage sits, and of which class, with what the estimate's own noise adds taken away."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

THRESHOLDS = (0.05, 0.1, 0.2, 0.3)
HELD = 0.8


def corrected_square(truth: Float[Tensor, " tok"], variance: Float[Tensor, " tok"]) -> Float[Tensor, " tok"]:
    """An unbiased estimate of A*^2: E[(A* + noise)^2] = A*^2 + variance. Of a single token it may be negative."""
    return truth.double().square() - variance.double()


def reliability(truth: Float[Tensor, " tok"], variance: Float[Tensor, " tok"]) -> float:
    """Part of the measured spread of A* that is no noise: the square of the highest correlation anything can have with it."""
    centred = truth.double() - truth.double().mean()
    whole = float(centred.square().sum())
    return (whole - float(variance.double().sum())) / whole if whole > 0 else float("nan")


def tokens_holding(square: Float[Tensor, " tok"], order: Float[Tensor, " tok"], part: float) -> float:
    """Share of tokens that hold `part` of the sum of `square`, those with the largest `order` first."""
    total = float(square.sum())
    if total <= 0:
        return float("nan")
    held = square[order.argsort(descending=True, stable=True)].cumsum(0)
    return (int((held >= part * total).double().argmax()) + 1) / len(square)


def concentration(truth: Float[Tensor, " tok"], variance: Float[Tensor, " tok"], token_class: list[str]) -> dict[str, Any]:
    """Shares by threshold, tokens that hold most of sum A*^2, and each class's part of that sum."""
    square = corrected_square(truth, variance)
    total = float(square.sum())
    classes = {}
    for name in sorted(set(token_class)):
        inside = torch.tensor([one == name for one in token_class])
        classes[name] = {
            "tokens": int(inside.sum()),
            "share_of_tokens": float(inside.double().mean()),
            "share_of_square": float(square[inside].sum()) / total if total > 0 else float("nan"),
            "root_mean_square": float(square[inside].mean().clamp(min=0).sqrt()),
            "decisive": {str(limit): float((truth[inside].abs() > limit).double().mean()) for limit in THRESHOLDS},
        }
    return {
        "tokens": len(truth),
        "share_above": {str(limit): float((truth.abs() > limit).double().mean()) for limit in THRESHOLDS},
        "tokens_holding_80_percent": tokens_holding(square, truth.abs(), HELD),
        "sum_of_squares": total,
        "sum_of_squares_with_noise": float(truth.double().square().sum()),
        "noise_sd": float(variance.double().mean().sqrt()),
        "reliability": reliability(truth, variance),
        "classes": classes,
    }

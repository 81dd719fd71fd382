"""How a credit goes with the true advantage of tokens: correlation, ranking, shares, signs. Prompts are redrawn for intervals.

The tokens that a credit can be held against: sampled, in the loss, and with a known true advantage.

On how few tokens the true advantage sits, and of which class, with what the estimate's own noise adds taken away.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.lab.credit.batch import Drawn
from tokencredit.lab.credit.prefix_tree import Truth
from tokencredit.lab.credit.quality import Bounded, bounded


class Agreement(NamedTuple):
    pearson: Bounded
    auroc: Bounded
    on_decisive: Bounded
    """Share of all |credit| that decisive tokens hold."""
    on_format: Bounded
    """Share of all |credit| that tokens of free format hold; NaN where the task names none."""
    same_sign: Bounded
    """Of decisive tokens with credit: share whose credit has the sign of the truth."""


def agreement(
    credit: Float[Tensor, " tok"],
    advantage: Float[Tensor, " tok"],
    truth: Float[Tensor, " tok"],
    decisive: Bool[Tensor, " tok"],
    format_token: Bool[Tensor, " tok"] | None,
    group: Int[Tensor, " tok"],
    times: Float[Tensor, "draw grp"],
) -> Agreement:
    """`advantage` is that of the token's response; `group` numbers prompts from 0; `times` says how often each is drawn."""
    credit, advantage, truth = credit.double(), advantage.double(), truth.double()
    size = credit.abs()
    asked = decisive & (credit != 0)
    told = advantage != 0
    relative = size[told] / advantage[told].abs()
    nothing = torch.full_like(times[:, 0], torch.nan)
    return Agreement(
        pearson=bounded(pearson(credit, truth, group, times)),
        auroc=bounded(auroc(relative, decisive[told], group[told], times)),
        on_decisive=bounded(share(size, decisive, group, times)),
        on_format=bounded(nothing if format_token is None else share(size, format_token, group, times)),
        same_sign=bounded(share(asked.double(), asked & (credit.sign() == truth.sign()), group, times)),
    )


def per_prompt(value: Float[Tensor, " tok"], group: Int[Tensor, " tok"], prompts: int) -> Float[Tensor, " grp"]:
    return torch.zeros(prompts, dtype=torch.float64).index_add_(0, group, value.double())


def pearson(
    one: Float[Tensor, " tok"], other: Float[Tensor, " tok"], group: Int[Tensor, " tok"], times: Float[Tensor, "draw grp"]
) -> Float[Tensor, " draw"]:
    """Correlation over tokens under each draw; NaN where either does not vary."""
    # Centred first: sums of squares of large numbers would cancel.
    one, other = (value.double() - value.double().mean() for value in (one, other))
    terms = (torch.ones_like(one), one, other, one * one, other * other, one * other)
    count, a, b, aa, bb, ab = (times @ per_prompt(term, group, times.shape[1]) for term in terms)
    first, second = aa - a * a / count, bb - b * b / count
    flat = (first <= 1e-12 * aa.clamp(min=1e-300)) | (second <= 1e-12 * bb.clamp(min=1e-300))
    return ((ab - a * b / count) / (first * second).sqrt()).where(~flat, torch.nan)


def auroc(
    score: Float[Tensor, " tok"], positive: Bool[Tensor, " tok"], group: Int[Tensor, " tok"], times: Float[Tensor, "draw grp"]
) -> Float[Tensor, " draw"]:
    """P(score of a positive token > score of another one), ties counting half; NaN where either kind is missing.

    Scores that differ by rounding alone are ties: a method that gives every token the same must come out at exactly one half.
    """
    _, level = torch.unique((score.double() * 1e6).round(), return_inverse=True)
    cells = level * times.shape[1] + group
    size = (int(level.max()) + 1 if len(level) else 0) * times.shape[1]

    def weight(kind: Tensor) -> Tensor:
        """Of each level, under each draw."""
        table = torch.zeros(size, dtype=torch.float64).index_add_(0, cells, kind.double())
        return times @ table.view(-1, times.shape[1]).T

    above, below = weight(positive), weight(~positive)
    beaten = below.cumsum(1) - below / 2
    return (above * beaten).sum(1) / (above.sum(1) * below.sum(1))


def share(
    weight: Float[Tensor, " tok"], chosen: Bool[Tensor, " tok"], group: Int[Tensor, " tok"], times: Float[Tensor, "draw grp"]
) -> Float[Tensor, " draw"]:
    """Part of the weight that lies on chosen tokens; NaN where there is no weight."""
    inside, whole = (times @ per_prompt(value, group, times.shape[1]) for value in (weight.double() * chosen, weight))
    return inside / whole


def coefficient_table(
    credit: Float[Tensor, " tok"], advantage: Float[Tensor, " tok"], token_class: list[str]
) -> dict[str, dict[str, float | None]]:
    """Class -> side -> mean of credit / advantage over the tokens of responses of that side; None where there is none.

    A credit that treats both sides alike has equal columns; one that does not pushes shared tokens with what does not cancel.
    """
    found: dict[str, dict[str, float | None]] = {}
    coefficient = credit.double() / advantage.double()
    for name in sorted(set(token_class)):
        inside = torch.tensor([one == name for one in token_class])
        sides = {"positive": inside & (advantage > 0), "negative": inside & (advantage < 0)}
        found[name] = {side: float(coefficient[chosen].mean()) if bool(chosen.any()) else None for side, chosen in sides.items()}
    return found


def known_tokens(batch: Drawn, truth: Truth) -> Bool[Tensor, "seq tok"]:
    return ~truth.advantage.isnan() & batch.rollouts.loss_mask.cpu()


def flat(value: Tensor, known: Bool[Tensor, "seq tok"]) -> Float[Tensor, " tok"]:
    """Row after row; what is one number per response is that of each of its tokens."""
    value = value.cpu()
    return (value if value.dim() == 2 else value[:, None].expand(known.shape))[known].double()


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

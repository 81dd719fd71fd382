"""DFPO (2604.13088v1): sequence weights exchangeable within a group, so that a token shared by all responses gets no net update."""

from functools import partial
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.masked import group_statistics
from tokencredit.objective.base import Objective, TokenInputs, importance_ratio
from tokencredit.objective.covariance import join_step, response_ids

Transform = Literal["min-replace", "orthogonal", "none"]
SequenceWeight = Literal["mean", "product"]


def _check_choice(field: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{field} is {value!r}; it must be one of {', '.join(known)}")


def exchangeable_weights(
    weight: Float[Tensor, " seq"],
    advantage: Float[Tensor, " seq"],
    group: Int[Tensor, " seq"],
    *,
    transform: Transform = "min-replace",
    floor: bool = False,
) -> Float[Tensor, " seq"]:
    """Change each group's weights so that A.wt = 0, given that its advantages sum to 0.

    min-replace: wt_i = min_j w_j;  orthogonal: wt = w - (A.w / |A|^2) A;  none: wt = w.

    A NaN weight marks a response without tokens or without a grade: the minimum ignores it, the other two set it to 1; a group of
    only such responses gets 1. |A| = 0 leaves orthogonal weights unchanged. `floor` raises negative weights to 0, and A.wt = 0 is lost.
    """
    _check_choice("transform", transform, get_args(Transform))
    index = torch.unique(group, return_inverse=True)[1]
    if transform == "min-replace":
        known = weight.nan_to_num(nan=torch.inf)
        smallest = known.scatter_reduce(0, index, known, "amin", include_self=False)[index]
        return smallest.where(smallest.isfinite(), 1.0)
    weight = weight.nan_to_num(nan=1.0)
    if transform == "none":
        return weight
    overlap, square = (torch.zeros_like(weight).index_add_(0, index, advantage * by)[index] for by in (weight, advantage))
    weight = weight - torch.where(square > 0, overlap / square, 0.0) * advantage
    return weight.clamp(min=0) if floor else weight


class _Responses(NamedTuple):
    row: Int[Tensor, " seq"]
    group: Int[Tensor, " seq"]
    advantage: Float[Tensor, " seq"]
    log_ratio: Float[Tensor, " seq"]
    """Sum over the response's tokens."""
    length: Float[Tensor, " seq"]


class StepWeights(NamedTuple):
    """The finished statistic: one weight per response of the optimizer step, sorted by id."""

    row: Int[Tensor, " seq"]
    weight: Float[Tensor, " seq"]

    def of(self, row: Int[Tensor, " some"]) -> Float[Tensor, " some"]:
        index = torch.searchsorted(self.row, row).clamp(max=len(self.row) - 1)
        if bool((self.row[index] != row).any()):
            raise ValueError("row contains the id of a response that is not in the statistic of this optimizer step")
        return self.weight[index]


class WeightStatistic:
    """Statistic: the sequence weights of an optimizer step, in float64 and without gradient."""

    def __init__(self, *, transform: Transform, weight: SequenceWeight, fold_length: bool, floor: bool) -> None:
        self.transform: Transform = transform
        self.weight: SequenceWeight = weight
        self.fold_length = fold_length
        self.floor = floor
        self._micro_batches: list[_Responses] = []

    def add(self, inputs: TokenInputs) -> None:
        if inputs.advantage is None:
            raise ValueError("advantage is missing; dfpo weighs the responses of a group by their advantages")
        log_ratio = (inputs.logp - inputs.old_logp).detach().double()
        self._micro_batches.append(
            _Responses(
                row=response_ids(inputs),
                group=inputs.group,
                advantage=inputs.advantage.detach().double(),
                log_ratio=log_ratio.where(inputs.mask, 0.0).sum(-1),
                length=inputs.mask.sum(-1).double(),
            )
        )

    def finish(self) -> StepWeights:
        row, group, advantage, log_ratio, length = join_step(self._micro_batches)
        length = length.where((length > 0) & ~advantage.isnan(), torch.nan)
        exponent = log_ratio if self.weight == "product" else log_ratio / length
        weight = importance_ratio(exponent, torch.zeros_like(exponent)).where(length > 0, torch.nan)
        if self.fold_length:
            weight = weight * group_statistics(length, group).mean / length
        return StepWeights(row, exchangeable_weights(weight, advantage.nan_to_num(), group, transform=self.transform, floor=self.floor))


def dfpo(
    *, transform: Transform = "min-replace", weight: SequenceWeight = "mean", fold_length: bool = False, floor: bool = False
) -> Objective:
    """L_it = -sg[wt_i] a_it logp_it; `exchangeable_weights` turns w_i = exp(mean_t log rho), or exp(sum_t log rho), into wt_i.

    `fold_length` first multiplies w_i by (mean length of the group's responses) / T_i. A group is its responses in this optimizer
    step; one without tokens or without a grade (NaN advantage) is ignored. The mean or sum of log-ratios is clamped to +-20.
    """
    _check_choice("transform", transform, get_args(Transform))
    _check_choice("weight", weight, get_args(SequenceWeight))

    def token_loss(inputs: TokenInputs, statistic: StepWeights) -> Tensor:
        weight = statistic.of(response_ids(inputs)).to(inputs.logp.dtype)
        return -weight[:, None] * inputs.credit.detach() * inputs.logp

    statistic_of_step = partial(WeightStatistic, transform=transform, weight=weight, fold_length=fold_length, floor=floor)
    return Objective(token_loss=token_loss, statistic=statistic_of_step, silent_without_credit=True)

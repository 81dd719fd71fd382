"""DelTA from stored features on a GPU with few launches: `layout` and `batched` through the Triton kernels of `kernels.delta`.

A small batch costs the time of its launches: seven, and seven more in each of the K + 1 rounds, for any number of scopes.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.credit.delta.accumulators import Temperature
from tokencredit.credit.delta.algorithm import DeltaOptions, this_rank_only
from tokencredit.credit.delta.batched import DeviceTemperatures, SideMoments
from tokencredit.credit.delta.layout import TensorSum, find_scopes
from tokencredit.types import FeatureSource


class FusedBatch(NamedTuple):
    """A batch, its features, and their layout."""

    logp: Float[Tensor, "seq tok"]
    advantage: Float[Tensor, " seq"]
    mask: Bool[Tensor, "seq tok"]
    scope: Int[Tensor, " seq"]
    max_scopes: int
    source: FeatureSource
    response_stride: int
    """Rows of features from one response to the next; 0 for packed features."""


class MeasuredMoments(NamedTuple):
    """Moments of the margins, from which `table` computes the temperatures."""

    moments: Float[Tensor, "side 4"]
    fixed: Temperature | None
    scale: float

    def table(self) -> Float[Tensor, "scope 3"]:
        if self.fixed is not None:
            return self.moments.new_tensor(self.fixed).expand(len(self.moments) // 2, 3)
        tokens, _, mean, deviation = self.moments.unbind(1)
        flip = 1 - 2 * (torch.arange(len(tokens), device=mean.device) % 2)
        sides = SideMoments(tokens, flip * mean, deviation)
        return DeviceTemperatures(self.scale * sides.spread(), sides, self.scale).table()


class FusedResult(NamedTuple):
    coefficient: Float[Tensor, "seq tok"]
    measured: MeasuredMoments
    exists: Bool[Tensor, " scope"]


def can_fuse(logp: Tensor, mask: Tensor, options: DeltaOptions) -> bool:
    """Whether the kernels can run: contrast scores of stored vectors (row or hidden-gradient proxy), and at most float32.

    Cells and rows of features have 32-bit indices. Features may be in chunks, and ranks may be several.
    """
    return options.score == "contrast" and options.proxy != "head" and logp.dtype != torch.float64 and 0 < mask.numel() < 1 << 31


def fused_coefficients(batch: FusedBatch, options: DeltaOptions, layout: Any, kernels: Any) -> FusedResult:
    """`layout` and `kernels` are the modules `triton_layout` and `triton_scores` of `kernels.delta`."""
    batch = batch._replace(
        logp=_unit_stride(batch.logp),
        advantage=_unit_stride(batch.advantage),
        mask=_unit_stride(batch.mask),
        scope=_unit_stride(batch.scope),
    )
    one_rank = options.reduce is this_rank_only
    rows, scopes, exists = _number_scopes(batch, options, layout)
    slots = layout.fill_slots(
        rows,
        batch.advantage,
        batch.mask,
        batch.logp,
        runs=list(batch.source.runs),
        scopes=scopes,
        response_stride=batch.response_stride,
        scaled=options.proxy == "row",
    )
    device, width = batch.mask.device, batch.source.width
    raw, parts = torch.empty_like(slots.size), kernels.new_parts(slots)
    score = torch.empty(batch.mask.numel(), dtype=torch.float32, device=device)
    values = torch.empty(len(slots.feature_row), width, dtype=torch.float32, device=device)
    score_options = kernels.ScoreOptions(
        options.fixed_temperature, options.gamma_scale, options.assignment == "hard", options.coefficient_map == "symmetric"
    )
    weight, mass = slots.size, slots.mass
    lagged: Tensor | None = None
    for refinement in range(options.refinements + 1):
        mass = options.reduce(TensorSum(mass)).total
        for number, features in batch.source.chunks():
            kernels.sums(slots, weight, features, number, values)
        direction = options.reduce(TensorSum(kernels.direction(slots, values, mass, torch.float32 if one_rank else torch.float64))).total
        for number, features in batch.source.chunks():
            kernels.dots(slots, weight, features, number, direction, raw, parts)
        found = kernels.moments(slots, parts)
        found = found if one_rank else _merge_ranks(found, options)
        # The lag: margins are divided by the previous margins' temperature, the first ones by their own.
        temperature_moments = found if lagged is None else lagged
        last = refinement == options.refinements
        weight = score if last else raw
        sums = kernels.score_margins(slots, raw, mass, found, temperature_moments, score_options, out=weight, last=last)
        raw = raw if last else torch.empty_like(raw)
        mass, lagged = sums, temperature_moments if last else found
    assert lagged is not None
    totals, tokens = mass, slots.tokens
    if not one_rank and options.normalize:
        totals, tokens = (options.reduce(TensorSum(each)).total for each in (totals, tokens))
    low, high = (0.0, 1.0) if options.coefficient_map == "raw" else (options.lam_min, options.lam_max)
    coefficient = kernels.coefficients(
        score,
        batch.mask,
        rows,
        totals,
        tokens,
        low=low,
        high=high,
        normalize=options.normalize,
        expected=len(batch.source) if batch.response_stride == 0 else -1,
    )
    measured = MeasuredMoments(lagged, options.fixed_temperature, options.gamma_scale)
    return FusedResult(coefficient, measured, slots.exists if exists is None else exists)


def _number_scopes(batch: FusedBatch, options: DeltaOptions, layout: Any) -> tuple[Any, int, Bool[Tensor, " scope"] | None]:
    """Scope and side of each response, the bound of scopes, and which scopes exist (None: `fill_slots` finds out)."""
    if options.reduce is this_rank_only:
        # A two-sided scope has at least two responses.
        max_scopes = max(1, min(batch.max_scopes, len(batch.mask) // 2))
        return layout.number_scopes(batch.scope, batch.advantage, batch.mask, max_scopes), max_scopes, None
    found = find_scopes(batch.scope, batch.advantage, batch.mask, batch.max_scopes, options.reduce)
    length = layout.response_lengths(batch.mask)
    before = torch.cat([torch.zeros_like(length[:1]), length.cumsum(0)])
    scored = (batch.advantage != 0) & (found.of_row < found.max_scopes)
    key = (2 * found.of_row + (batch.advantage < 0)).where(scored, -1)
    return layout.ResponseLayout(found.of_row.to(torch.int32), key.to(torch.int32), length, before), found.max_scopes, found.exists


def _merge_ranks(found: Float[Tensor, "side 4"], options: DeltaOptions) -> Float[Tensor, "side 4"]:
    tokens, weighted, mean, deviation = found.unbind(1)
    moments = options.reduce(SideMoments(tokens, mean, deviation))
    return torch.stack([moments.tokens, options.reduce(TensorSum(weighted)).total, moments.mean, moments.deviation], 1)


def _unit_stride(tensor: Tensor) -> Tensor:
    """The tensor with a unit stride along its last axis."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()

"""The batched form of DelTA: lay the tokens out in tiles, score them by sweeps over the features, and scatter the scores back."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.credit.delta.accumulators import Temperature
from tokencredit.credit.delta.algorithm import DeltaOptions
from tokencredit.credit.delta.batched import DeviceTemperatures, LazyTemperatures, MarginScores, margin_scores
from tokencredit.credit.delta.batched_vectors import ChunkTiles, HeadSweeps, RowSweeps
from tokencredit.credit.delta.layout import RowScopes, TensorSum, find_scopes, lay_out
from tokencredit.credit.delta.triton import FusedBatch, can_fuse, fused_coefficients
from tokencredit.credit.delta.vectors import check_head_explains_logp, hidden_gradient_features
from tokencredit.credit.features import DeviceFeatures, PickedFeatures
from tokencredit.kernels import at_least_float32
from tokencredit.kernels.delta import fused_scoring, scope_sums
from tokencredit.kernels.lm_head import HeadRule
from tokencredit.types import FeatureSource

HEAD_TILE = 16


class DeltaBatch(NamedTuple):
    """One batch of responses as the batched form reads it."""

    logp: Float[Tensor, "seq tok"]
    hidden: Float[Tensor, "seq tok hid"] | FeatureSource
    advantage: Float[Tensor, " seq"]
    mask: Bool[Tensor, "seq tok"]
    scope: Int[Tensor, " seq"]
    """The id of each response's scope."""
    max_scopes: int
    """Upper bound of the number of scopes."""
    tokens: Int[Tensor, "seq tok"] | None = None
    head: Float[Tensor, "vocab hid"] | None = None
    temperature: float = 1.0


class BatchedResult(NamedTuple):
    coefficient: Float[Tensor, "seq tok"]
    temperatures: Sequence[Temperature]


def uses_batched_form(hidden: Tensor | FeatureSource) -> bool:
    """True for half-precision features, features on a GPU, and a `FeatureSource`; float32 on the CPU keeps the plain form."""
    if not isinstance(hidden, Tensor):
        return True
    return hidden.dtype in (torch.bfloat16, torch.float16) or (hidden.is_cuda and hidden.dtype != torch.float64)


def _token_dtype(batch: DeltaBatch) -> torch.dtype:
    """Type of per-token numbers: float32 on a GPU, float64 on the CPU. Sums are float64 on both."""
    return torch.float32 if batch.mask.is_cuda and batch.logp.dtype != torch.float64 else torch.float64


def batched_coefficients(batch: DeltaBatch, options: DeltaOptions) -> BatchedResult:
    """Coefficients of a batch. On one rank with the row proxy no step waits for the device; reading the temperatures does, once."""
    kernels = fused_scoring(batch.mask) if can_fuse(batch.logp, batch.mask, options) else None
    if kernels is not None:
        return _sweep_fused(batch, options, *kernels)
    scopes = find_scopes(batch.scope, batch.advantage, batch.mask, batch.max_scopes, options.reduce)
    scored = (batch.advantage != 0) & (scopes.of_row < scopes.max_scopes)
    active = batch.mask & scored[:, None]
    score = torch.zeros(batch.mask.numel() + 1, dtype=_token_dtype(batch), device=batch.mask.device)
    if options.proxy != "row":
        _check_head(batch)
    if options.proxy == "head":
        gammas = _score_by_head(batch, scopes, active, options, score)
    else:
        gammas = [_score_by_rows(batch, scopes, active, options, score)]
    coefficient = _coefficients(score[:-1].view(batch.mask.shape), scopes, batch.mask, options)
    if not isinstance(batch.hidden, Tensor):
        # NaN if the source holds another number of tokens than the mask; the engine raises on coefficients that are not finite.
        coefficient = coefficient.where(batch.mask.sum() == len(batch.hidden), torch.nan)
    kept = coefficient.to(at_least_float32(batch.logp).dtype).where(batch.mask, 0.0)
    return BatchedResult(kept, LazyTemperatures(gammas, scopes.exists))


def _sweep_fused(batch: DeltaBatch, options: DeltaOptions, layout: Any, kernels: Any) -> BatchedResult:
    if options.proxy == "row" and isinstance(batch.hidden, Tensor):
        features, response_stride = _padded_rows(batch.hidden)
        source: FeatureSource = DeviceFeatures(features)
    else:
        source, response_stride = _packed(batch), 0
    if options.proxy != "row":
        _check_head(batch)
        source = _hidden_gradient(batch, source, _packed_index(batch.mask), options)
    rows = FusedBatch(batch.logp, batch.advantage, batch.mask, batch.scope, batch.max_scopes, source, response_stride)
    found = fused_coefficients(rows, options, layout, kernels)
    return BatchedResult(found.coefficient, LazyTemperatures([found.measured], found.exists))


def _coefficients(score: Tensor, scopes: RowScopes, mask: Tensor, options: DeltaOptions) -> Float[Tensor, "seq tok"]:
    """Map scores to [low, high] and divide by their mean over a scope; 1 in a one-sided scope. Twin: `algorithm._coefficient`."""
    low, high = (0.0, 1.0) if options.coefficient_map == "raw" else (options.lam_min, options.lam_max)
    coefficient = low + (high - low) * score
    if options.normalize:
        total, count = options.reduce(TensorSum(_scores_and_tokens(score, scopes, mask))).total.unbind(1)
        mean = low + (high - low) * total / count.clamp(min=1)
        mean = torch.cat([mean.where(mean > 0, 1.0), mean.new_ones(1)])
        coefficient = coefficient / mean[scopes.of_row].to(score.dtype)[:, None]
    return coefficient.where((scopes.of_row < scopes.max_scopes)[:, None], 1.0)


def _scores_and_tokens(score: Tensor, scopes: RowScopes, mask: Tensor) -> Float[Tensor, "scope 2"]:
    by_row = torch.stack([score.sum(1, dtype=torch.float64), mask.sum(1)], 1)
    if scopes.max_scopes == 1:
        return by_row.where((scopes.of_row == 0)[:, None], 0.0).sum(0, keepdim=True)
    of_row, order = scopes.of_row.sort(stable=True)
    return scope_sums(by_row[order], torch.searchsorted(of_row, torch.arange(scopes.max_scopes + 1, device=mask.device)))


def _score_by_rows(batch: DeltaBatch, scopes: RowScopes, active: Tensor, options: DeltaOptions, score: Tensor) -> DeviceTemperatures:
    """Score all scopes at once; the row proxy reads the stored features, the hidden-gradient proxy first stores its vectors."""
    by_row = options.proxy == "row"
    if by_row and isinstance(batch.hidden, Tensor):
        features, feature_row = _rows_of(batch.hidden)
        source: FeatureSource = DeviceFeatures(features)
    else:
        source, feature_row = _packed(batch), _packed_index(batch.mask)
    if not by_row:
        source = _hidden_gradient(batch, source, feature_row, options)
    side, sizes = 2 * scopes.of_row + (batch.advantage < 0), _sizes(batch)
    chunks = []
    for number, run in enumerate(source.runs):
        in_chunk = active & (feature_row >= run.start) & (feature_row < run.stop)
        tiles = lay_out(
            in_chunk, side, 2 * scopes.max_scopes, feature_row - run.start, max_tokens=min(run.stop - run.start, active.numel())
        )
        chunks.append(ChunkTiles(number, tiles, sizes[tiles.cell // max(1, batch.mask.shape[1])]))
    logp = _cell_values(batch.logp).to(_token_dtype(batch))
    scales = [-logp[chunk.tiles.cell].expm1() for chunk in chunks] if by_row else None
    found = margin_scores(RowSweeps(source, chunks, scales), chunks, options)
    _scatter_scores(found, chunks, score)
    return found.gammas


def _hidden_gradient(batch: DeltaBatch, source: FeatureSource, feature_row: Tensor, options: DeltaOptions) -> FeatureSource:
    assert batch.tokens is not None
    assert batch.head is not None
    ids = batch.tokens.flatten()[_cells_of_tokens(batch.mask, feature_row, len(source))]
    return hidden_gradient_features(source, ids, batch.head, temperature=batch.temperature, top_k=options.top_k)


def _score_by_head(batch: DeltaBatch, scopes: RowScopes, active: Tensor, options: DeltaOptions, score: Tensor) -> list[DeviceTemperatures]:
    """Score one scope at a time, so that one matrix of the head's size is in memory. One sync finds which chunks hold which scope."""
    assert batch.tokens is not None
    assert batch.head is not None
    source, feature_row = _packed(batch), _packed_index(batch.mask)
    chunk_of = torch.bucketize(feature_row, torch.tensor([run.stop for run in source.runs], device=feature_row.device), right=True)
    width = len(source.runs) + 1
    cell = (scopes.of_row[:, None] * width + chunk_of.clamp(max=width - 1))[active]
    held = torch.bincount(cell, minlength=scopes.max_scopes * width).view(scopes.max_scopes, width).tolist()
    sizes, tokens = _sizes(batch), _cell_values(batch.tokens)
    gammas = []
    for scope in scopes.exists.nonzero()[:, 0].tolist():
        chunks = []
        wanted = [number for number in range(len(source.runs)) if held[scope][number]]
        for number in wanted or [0]:
            run = source.runs[number]
            in_chunk = active & (scopes.of_row == scope)[:, None] & (chunk_of == number)
            tiles = lay_out(
                in_chunk, (batch.advantage < 0).long(), 2, feature_row - run.start, max_tokens=held[scope][number], tile=HEAD_TILE
            )
            chunks.append(ChunkTiles(number, tiles, sizes[tiles.cell // max(1, batch.mask.shape[1])]))
        ids = [tokens[chunk.tiles.cell] for chunk in chunks]
        found = margin_scores(HeadSweeps(source, chunks, ids, batch.head, HeadRule(batch.temperature)), chunks, options)
        _scatter_scores(found, chunks, score)
        gammas.append(found.gammas)
    return gammas


def _check_head(batch: DeltaBatch) -> None:
    assert batch.tokens is not None
    assert batch.head is not None
    source = _packed(batch)
    _, features = next(iter(source.chunks([0])))
    sample = features[:64]
    cells = _cells_of_tokens(batch.mask, _packed_index(batch.mask), len(source))[: len(sample)]
    head = at_least_float32(batch.head.to(sample.dtype))
    check_head_explains_logp(batch.logp.flatten()[cells], at_least_float32(sample), batch.tokens.flatten()[cells], head, batch.temperature)


def _scatter_scores(found: MarginScores, chunks: Sequence[ChunkTiles], score: Tensor) -> None:
    for values, chunk in zip(found.score, chunks, strict=True):
        score.scatter_(0, chunk.tiles.cell.flatten(), values.flatten().to(score.dtype))


def _sizes(batch: DeltaBatch) -> Float[Tensor, " row"]:
    """|A| of each response, and a final 0 for empty slots."""
    return torch.cat([batch.advantage.abs(), batch.advantage.new_zeros(1)]).to(_token_dtype(batch))


def _cell_values(value: Tensor) -> Tensor:
    """The values flattened row by row, and a final 0 for empty slots."""
    return torch.cat([value.flatten(), value.new_zeros(1)])


def _packed_index(mask: Tensor) -> Int[Tensor, "seq tok"]:
    """Index of each valid token among the packed tokens."""
    return (mask.flatten().cumsum(0) - 1).view(mask.shape)


def _cells_of_tokens(mask: Tensor, feature_row: Tensor, length: int) -> Int[Tensor, " tok"]:
    """Index of each packed token in the flattened [seq, tok]."""
    at = feature_row.where(mask, length).clamp(max=length).flatten()
    return torch.zeros(length + 1, dtype=torch.long, device=mask.device).scatter_(0, at, torch.arange(len(at), device=mask.device))[:-1]


def _packed(batch: DeltaBatch) -> FeatureSource:
    if not isinstance(batch.hidden, Tensor):
        # A source without tokens may have no chunks, but a rank without tokens still takes part in the sweeps.
        return batch.hidden if len(batch.hidden) else DeviceFeatures(batch.logp.new_zeros(0, batch.hidden.width))
    features, row = _rows_of(batch.hidden)
    return PickedFeatures(features, row[batch.mask])


def _rows_of(hidden: Float[Tensor, "seq tok hid"]) -> tuple[Float[Tensor, "row hid"], Int[Tensor, "seq tok"]]:
    """Padded states as rows of features, and the row of each cell."""
    rows, response_stride = _padded_rows(hidden)
    seq, tok, _ = hidden.shape
    return rows, torch.arange(seq, device=hidden.device)[:, None] * response_stride + torch.arange(tok, device=hidden.device)


def _padded_rows(hidden: Float[Tensor, "seq tok hid"]) -> tuple[Float[Tensor, "row hid"], int]:
    """Padded states as rows of features, and the number of rows between responses.

    Columns sliced from a longer array need no copy.
    """
    seq, tok, width = hidden.shape
    if hidden.stride(2) != 1 or hidden.stride(1) < width or hidden.stride(0) % max(1, hidden.stride(1)):
        hidden = hidden.contiguous()
    response_stride = hidden.stride(0) // max(1, hidden.stride(1))
    return hidden.as_strided(((seq - 1) * response_stride + tok if seq and tok else 0, width), (hidden.stride(1), 1)), response_stride

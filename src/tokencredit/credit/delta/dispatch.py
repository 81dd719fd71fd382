"""DelTA from features that nobody copies: tokens laid out in tiles, scored by sweeps, and put back where they stand in the batch."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.credit.delta.accumulators import Temperature
from tokencredit.credit.delta.algorithm import DeltaOptions
from tokencredit.credit.delta.batched import Gammas, LazyTemperatures, Scores, score_tokens
from tokencredit.credit.delta.batched_vectors import HeadSweeps, Piece, RowSweeps
from tokencredit.credit.delta.layout import RowScopes, TensorSum, find_scopes, lay_out
from tokencredit.credit.delta.triton import FusedRows, fused_coefficients, serves
from tokencredit.credit.delta.vectors import check_head_explains_logp, hidden_gradient_features
from tokencredit.credit.features import DeviceFeatures, PickedFeatures
from tokencredit.kernels import at_least_float32
from tokencredit.kernels.delta import fused_scoring, scope_sums
from tokencredit.kernels.lm_head import HeadRule
from tokencredit.types import FeatureSource

HEAD_TILE = 16


class SweptBatch(NamedTuple):
    logp: Float[Tensor, "seq tok"]
    hidden: Float[Tensor, "seq tok hid"] | FeatureSource
    advantage: Float[Tensor, " seq"]
    mask: Bool[Tensor, "seq tok"]
    scope: Int[Tensor, " seq"]
    """The id of each response's scope."""
    most_scopes: int
    tokens: Int[Tensor, "seq tok"] | None = None
    head: Float[Tensor, "vocab hid"] | None = None
    temperature: float = 1.0


class Swept(NamedTuple):
    coefficient: Float[Tensor, "seq tok"]
    temperatures: Sequence[Temperature]


def is_swept(hidden: Tensor | FeatureSource) -> bool:
    """Half-precision features, those on a GPU, and those of a store; float32 on the CPU keeps the plain twin and its bits."""
    if not isinstance(hidden, Tensor):
        return True
    return hidden.dtype in (torch.bfloat16, torch.float16) or (hidden.is_cuda and hidden.dtype != torch.float64)


def _token_dtype(batch: SweptBatch) -> torch.dtype:
    """Of one number per token; what is summed is summed in float64 everywhere, and the CPU has no reason to round at all."""
    return torch.float32 if batch.mask.is_cuda and batch.logp.dtype != torch.float64 else torch.float64


def sweep_coefficients(batch: SweptBatch, options: DeltaOptions) -> Swept:
    """On one rank and with the row proxy nothing here waits for the device; the temperatures do once, when somebody reads them."""
    kernels = fused_scoring(batch.mask) if serves(batch.logp, batch.mask, options) else None
    if kernels is not None:
        return _sweep_fused(batch, options, *kernels)
    scopes = find_scopes(batch.scope, batch.advantage, batch.mask, batch.most_scopes, options.reduce)
    judged = (batch.advantage != 0) & (scopes.of_row < scopes.most)
    active = batch.mask & judged[:, None]
    score = torch.zeros(batch.mask.numel() + 1, dtype=_token_dtype(batch), device=batch.mask.device)
    if options.proxy != "row":
        _check_head(batch)
    if options.proxy == "head":
        gammas = _score_by_head(batch, scopes, active, options, score)
    else:
        gammas = [_score_by_rows(batch, scopes, active, options, score)]
    coefficient = _coefficients(score[:-1].view(batch.mask.shape), scopes, batch.mask, options)
    if not isinstance(batch.hidden, Tensor):
        # Features of another number of tokens are nobody's; the engine refuses what is not finite.
        coefficient = coefficient.where(batch.mask.sum() == len(batch.hidden), torch.nan)
    kept = coefficient.to(at_least_float32(batch.logp).dtype).where(batch.mask, 0.0)
    return Swept(kept, LazyTemperatures(gammas, scopes.exists))


def _sweep_fused(batch: SweptBatch, options: DeltaOptions, layout: Any, kernels: Any) -> Swept:
    if options.proxy == "row" and isinstance(batch.hidden, Tensor):
        features, apart = _padded_rows(batch.hidden)
        source: FeatureSource = DeviceFeatures(features)
    else:
        source, apart = _packed(batch), 0
    if options.proxy != "row":
        _check_head(batch)
        source = _hidden_gradient(batch, source, _packed_place(batch.mask), options)
    rows = FusedRows(batch.logp, batch.advantage, batch.mask, batch.scope, batch.most_scopes, source, apart)
    found = fused_coefficients(rows, options, layout, kernels)
    return Swept(found.coefficient, LazyTemperatures([found.measured], found.exists))


def _coefficients(score: Tensor, scopes: RowScopes, mask: Tensor, options: DeltaOptions) -> Float[Tensor, "seq tok"]:
    """Map scores to the range and divide by their mean over a scope; 1 in a scope with one side. See `discriminator`."""
    low, high = (0.0, 1.0) if options.coefficient_map == "raw" else (options.lam_min, options.lam_max)
    coefficient = low + (high - low) * score
    if options.normalize:
        total, count = options.reduce(TensorSum(_scores_and_tokens(score, scopes, mask))).total.unbind(1)
        mean = low + (high - low) * total / count.clamp(min=1)
        mean = torch.cat([mean.where(mean > 0, 1.0), mean.new_ones(1)])
        coefficient = coefficient / mean[scopes.of_row].to(score.dtype)[:, None]
    return coefficient.where((scopes.of_row < scopes.most)[:, None], 1.0)


def _scores_and_tokens(score: Tensor, scopes: RowScopes, mask: Tensor) -> Float[Tensor, "scope 2"]:
    by_row = torch.stack([score.sum(1, dtype=torch.float64), mask.sum(1)], 1)
    if scopes.most == 1:
        return by_row.where((scopes.of_row == 0)[:, None], 0.0).sum(0, keepdim=True)
    of_row, order = scopes.of_row.sort(stable=True)
    return scope_sums(by_row[order], torch.searchsorted(of_row, torch.arange(scopes.most + 1, device=mask.device)))


def _score_by_rows(batch: SweptBatch, scopes: RowScopes, active: Tensor, options: DeltaOptions, score: Tensor) -> Gammas:
    """All scopes at once; the row proxy reads features where they are, the hidden gradient makes and keeps vectors of its own."""
    by_row = options.proxy == "row"
    if by_row and isinstance(batch.hidden, Tensor):
        features, place = _rows_of(batch.hidden)
        source: FeatureSource = DeviceFeatures(features)
    else:
        source, place = _packed(batch), _packed_place(batch.mask)
    if not by_row:
        source = _hidden_gradient(batch, source, place, options)
    side, sizes = 2 * scopes.of_row + (batch.advantage < 0), _sizes(batch)
    pieces = []
    for number, run in enumerate(source.runs):
        own = active & (place >= run.start) & (place < run.stop)
        tiles = lay_out(own, side, 2 * scopes.most, place - run.start, most=min(run.stop - run.start, active.numel()))
        pieces.append(Piece(number, tiles, sizes[tiles.cell // max(1, batch.mask.shape[1])]))
    logp = _cell_values(batch.logp).to(_token_dtype(batch))
    scales = [-logp[piece.tiles.cell].expm1() for piece in pieces] if by_row else None
    found = score_tokens(RowSweeps(source, pieces, scales), pieces, options)
    _put_back(found, pieces, score)
    return found.gammas


def _hidden_gradient(batch: SweptBatch, source: FeatureSource, place: Tensor, options: DeltaOptions) -> FeatureSource:
    assert batch.tokens is not None
    assert batch.head is not None
    ids = batch.tokens.flatten()[_cells_of_tokens(batch.mask, place, len(source))]
    return hidden_gradient_features(source, ids, batch.head, temperature=batch.temperature, top_k=options.top_k)


def _score_by_head(batch: SweptBatch, scopes: RowScopes, active: Tensor, options: DeltaOptions, score: Tensor) -> list[Gammas]:
    """One scope after the other, so that one matrix of the head's size is held; which chunks hold its tokens is asked once."""
    assert batch.tokens is not None
    assert batch.head is not None
    source, place = _packed(batch), _packed_place(batch.mask)
    chunk = torch.bucketize(place, torch.tensor([run.stop for run in source.runs], device=place.device), right=True)
    width = len(source.runs) + 1
    cell = (scopes.of_row[:, None] * width + chunk.clamp(max=width - 1))[active]
    held = torch.bincount(cell, minlength=scopes.most * width).view(scopes.most, width).tolist()
    sizes, tokens = _sizes(batch), _cell_values(batch.tokens)
    gammas = []
    for scope in scopes.exists.nonzero()[:, 0].tolist():
        pieces = []
        wanted = [number for number in range(len(source.runs)) if held[scope][number]]
        for number in wanted or [0]:
            run = source.runs[number]
            own = active & (scopes.of_row == scope)[:, None] & (chunk == number)
            tiles = lay_out(own, (batch.advantage < 0).long(), 2, place - run.start, most=held[scope][number], tile=HEAD_TILE)
            pieces.append(Piece(number, tiles, sizes[tiles.cell // max(1, batch.mask.shape[1])]))
        ids = [tokens[piece.tiles.cell] for piece in pieces]
        found = score_tokens(HeadSweeps(source, pieces, ids, batch.head, HeadRule(batch.temperature)), pieces, options)
        _put_back(found, pieces, score)
        gammas.append(found.gammas)
    return gammas


def _check_head(batch: SweptBatch) -> None:
    assert batch.tokens is not None
    assert batch.head is not None
    source = _packed(batch)
    _, features = next(iter(source.chunks([0])))
    some = features[:64]
    cells = _cells_of_tokens(batch.mask, _packed_place(batch.mask), len(source))[: len(some)]
    head = at_least_float32(batch.head.to(some.dtype))
    check_head_explains_logp(batch.logp.flatten()[cells], at_least_float32(some), batch.tokens.flatten()[cells], head, batch.temperature)


def _put_back(found: Scores, pieces: Sequence[Piece], score: Tensor) -> None:
    for own, piece in zip(found.score, pieces, strict=True):
        score.scatter_(0, piece.tiles.cell.flatten(), own.flatten().to(score.dtype))


def _sizes(batch: SweptBatch) -> Float[Tensor, " row"]:
    """|A| of each response, and 0 for the row that empty slots name."""
    return torch.cat([batch.advantage.abs(), batch.advantage.new_zeros(1)]).to(_token_dtype(batch))


def _cell_values(value: Tensor) -> Tensor:
    """Read row after row, and 0 for the cell that empty slots name."""
    return torch.cat([value.flatten(), value.new_zeros(1)])


def _packed_place(mask: Tensor) -> Int[Tensor, "seq tok"]:
    """The number of each valid token among all, row after row."""
    return (mask.flatten().cumsum(0) - 1).view(mask.shape)


def _cells_of_tokens(mask: Tensor, place: Tensor, length: int) -> Int[Tensor, " tok"]:
    """Where each packed token stands in [seq, tok] read row after row."""
    at = place.where(mask, length).clamp(max=length).flatten()
    return torch.zeros(length + 1, dtype=torch.long, device=mask.device).scatter_(0, at, torch.arange(len(at), device=mask.device))[:-1]


def _packed(batch: SweptBatch) -> FeatureSource:
    if not isinstance(batch.hidden, Tensor):
        # No tokens may be no chunks; a rank without any still takes part.
        return batch.hidden if len(batch.hidden) else DeviceFeatures(batch.logp.new_zeros(0, batch.hidden.width))
    features, row = _rows_of(batch.hidden)
    return PickedFeatures(features, row[batch.mask])


def _rows_of(hidden: Float[Tensor, "seq tok hid"]) -> tuple[Float[Tensor, "row hid"], Int[Tensor, "seq tok"]]:
    """Padded states as rows, and the row of each cell."""
    rows, apart = _padded_rows(hidden)
    seq, tok, _ = hidden.shape
    return rows, torch.arange(seq, device=hidden.device)[:, None] * apart + torch.arange(tok, device=hidden.device)


def _padded_rows(hidden: Float[Tensor, "seq tok hid"]) -> tuple[Float[Tensor, "row hid"], int]:
    """Padded states as rows, without a copy even where they are the first columns of a wider array; and how far responses are apart."""
    seq, tok, width = hidden.shape
    if hidden.stride(2) != 1 or hidden.stride(1) < width or hidden.stride(0) % max(1, hidden.stride(1)):
        hidden = hidden.contiguous()
    apart = hidden.stride(0) // max(1, hidden.stride(1))
    return hidden.as_strided(((seq - 1) * apart + tok if seq and tok else 0, width), (hidden.stride(1), 1)), apart

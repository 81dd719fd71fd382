"""The scoring pass without padding and without full logits; `score_rows` of `padded.py` is the reference.

Hidden states are kept without padding, in the precision of the LM head's input. `FeatureRoom` decides where: on the device, on the
host, or nowhere; then they are recomputed whenever they are read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, NamedTuple, Protocol

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedModel

from tokencredit.batching.microbatch import cut_micro_batches
from tokencredit.credit.features import FeatureStore, RecomputedFeatures
from tokencredit.forward.packed import packed_hidden, packed_scores
from tokencredit.forward.packing import pack
from tokencredit.forward.padded import precision, response_extent, row_cost
from tokencredit.kernels.lm_head.precision import compute_dtype
from tokencredit.types import FeatureSource, Rollouts, TokenScores


class FeatureRoom(NamedTuple):
    """Where hidden states are kept: on the device while they fit into `device_bytes`, else on the host; or nowhere."""

    kept: Literal["auto", "host", "recompute"] = "auto"
    device_bytes: int = 8 * 2**30


class Halving(Protocol):
    """Runs `work(tokens in a pass)` and, when memory runs out, once more with fewer tokens, but never below the longest row."""

    def __call__(self, work: Callable[[int], Tensor], *, budget: int, longest: int) -> Tensor: ...


def _without_retry(work: Callable[[int], Tensor], *, budget: int, longest: int) -> Tensor:
    return work(budget)


class PassRunner(NamedTuple):
    """How passes run that come after the scoring pass."""

    context: Callable[[], AbstractContextManager[None]] = nullcontext
    """They start inside this context."""
    halving: Halving = _without_retry


class HostRows(NamedTuple):
    """Rollouts on the host, copied from the device once."""

    prompts: Sequence[Sequence[int]]
    tokens: Int[Tensor, "seq tok"]
    mask: Bool[Tensor, "seq tok"]
    valid: Bool[Tensor, "seq tok"]
    """Sampled tokens in the loss: those whose hidden states are kept."""
    extent: list[int]

    def cut(self, rows: Sequence[int]) -> "HostRows":
        index, width = torch.tensor(rows), max(1, *(self.extent[row] for row in rows))
        tokens, mask, valid = (each[index, :width] for each in (self.tokens, self.mask, self.valid))
        return HostRows([self.prompts[row] for row in rows], tokens, mask, valid, [self.extent[row] for row in rows])


def on_host(rollouts: Rollouts) -> HostRows:
    mask = rollouts.mask.cpu()
    return HostRows(rollouts.prompts, rollouts.tokens.cpu(), mask, rollouts.loss_mask.cpu(), response_extent(mask).tolist())


@torch.no_grad()
def score_packed_rows(
    model: PreTrainedModel,
    rollouts: Rollouts,
    *,
    temperature: float,
    max_tokens: int,
    keep_hidden: bool = False,
    dtype: str = "float32",
    room: FeatureRoom = FeatureRoom(),  # noqa: B008 (frozen)
    again: PassRunner = PassRunner(),  # noqa: B008 (frozen)
) -> TokenScores:
    """Score every response token once, in packed passes of at most `max_tokens`.

    Hidden states that are not kept are recomputed by the runner `again` at every sweep over them, in passes of this size too.
    """
    host, cost = on_host(rollouts), row_cost(rollouts)
    mask, device = rollouts.mask, rollouts.mask.device
    scored_dtype = torch.float64 if model.dtype == torch.float64 else torch.float32
    logp, entropy = (torch.zeros(mask.shape, dtype=scored_dtype, device=device) for _ in range(2))
    number = _loss_token_index(rollouts)
    store: FeatureStore | None = None
    for rows in cut_micro_batches([row for row, extent in enumerate(host.extent) if extent], cost, max_tokens=max_tokens, packed=True):
        part = host.cut(rows)
        width = part.tokens.shape[1]
        with precision(model, dtype):
            scores = packed_scores(model, part.prompts, part.tokens, part.mask, temperature=temperature)
            hidden = _in_head_precision(scores.hidden)
        index = torch.tensor(rows).to(device, non_blocking=True)
        logp[index, :width] = scores.logp.to(scored_dtype)
        entropy[index, :width] = scores.entropy.to(scored_dtype)
        if keep_hidden and room.kept != "recompute":
            if store is None:
                store = _store(hidden, int(host.valid.sum()), device, room)
            flat_index, hidden = (_valid(each, part) for each in (scores.layout.flat_index, hidden))
            store.put(number[index, :width].flatten()[flat_index], hidden)
    if keep_hidden and room.kept == "recompute":
        return TokenScores(logp, entropy, None, _recomputed_features(model, host, cost, max_tokens, dtype, again))
    return TokenScores(logp, entropy, None, None if store is None else store.source())


def _loss_token_index(rollouts: Rollouts) -> Int[Tensor, "seq tok"]:
    """Index of every loss token among all loss tokens, row by row."""
    return (rollouts.loss_mask.flatten().cumsum(0) - 1).view(rollouts.mask.shape)


def _valid(values: Tensor, part: HostRows) -> Tensor:
    """The values of loss tokens, from values of all sampled tokens; the selection is made on the host."""
    kept = part.valid[part.mask]
    return values if bool(kept.all()) else values[kept.nonzero()[:, 0].to(values.device, non_blocking=True)]


def _in_head_precision(hidden: Tensor) -> Tensor:
    """Cast to the dtype of the LM head's product: with float32 weights they are float32 even under autocast."""
    return hidden.to(compute_dtype(hidden))


def _store(hidden: Tensor, tokens: int, device: torch.device, room: FeatureRoom) -> FeatureStore:
    allowed = 0 if room.kept == "host" else room.device_bytes
    return FeatureStore(tokens, hidden.shape[1], hidden.dtype, device, device_bytes=allowed)


def _recomputed_features(
    model: PreTrainedModel, host: HostRows, cost: Sequence[int], max_tokens: int, dtype: str, runner: PassRunner
) -> FeatureSource:
    """Rows in order, as many as fit into a pass; after one pass ran out of memory, all later ones are smaller."""
    rows_of: dict[int, list[int]] = {}
    runs: list[slice] = []
    counts = host.valid.sum(-1).tolist()
    for rows in _cut_in_order((row for row, count in enumerate(counts) if count), cost, max_tokens):
        start = runs[-1].stop if runs else 0
        runs.append(slice(start, start + sum(counts[row] for row in rows)))
        rows_of[start] = rows
    most = max_tokens

    def hidden(rows: Sequence[int]) -> Tensor:
        part = host.cut(rows)
        with precision(model, dtype), runner.context():
            return _valid(_in_head_precision(packed_hidden(model, pack(part.prompts, part.tokens, part.mask, model.device))), part)

    @torch.no_grad()
    def again(run: slice) -> Tensor:
        rows = rows_of[run.start]
        longest = max(cost[row] for row in rows)
        budget = max(longest, min(most, sum(cost[row] for row in rows)))

        def work(tokens: int) -> Tensor:
            nonlocal most
            most = tokens if tokens < budget else most
            parts = [hidden(some) for some in _cut_in_order(rows, cost, tokens)]
            return parts[0] if len(parts) == 1 else torch.cat(parts)

        return runner.halving(work, budget=budget, longest=longest)

    return RecomputedFeatures(again, runs, model.config.get_text_config().hidden_size)


def _cut_in_order(rows: Iterable[int], cost: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    some: list[int] = []
    taken = 0
    for row in rows:
        if some and taken + cost[row] > max_tokens:
            yield some
            some, taken = [], 0
        some.append(row)
        taken += cost[row]
    if some:
        yield some

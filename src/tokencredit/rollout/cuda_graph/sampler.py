"""The fast sampler: the same results as `sample` in meaning, with its own random draws.

A draw is a function of the seed, the row number and the position. It does not depend on the other rows of the batch, on which rows
have ended, or on how many fit into memory at once.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokencredit.errors import BadNumbersError, ConfigError
from tokencredit.pipeline.guards import LOG_PROBS
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import Sampled, SamplingParams
from tokencredit.policy.token_text import StopWatcher
from tokencredit.rollout.cuda_graph.buffers import MOST_ENDS, Room, Weights, Workspace, bytes_for
from tokencredit.rollout.cuda_graph.polling import RowPoller
from tokencredit.rollout.cuda_graph.steps import Steps, draw_tokens, read_prompts, slot_counts
from tokencredit.rollout.cuda_graph.supported_models import decoder_weights, unsupported_kernel_reason, unsupported_model_reason
from tokencredit.rollout.sampler import sample_plainly
from tokencredit.types import Rollouts, TokenScores

Backend = Literal["fast", "plain"]
BACKENDS: dict[Backend, str] = {"fast": "triton_launch", "plain": "reference"}
"""Backend to its module in `kernels/decode`."""

INTERVAL = 16
"""Decode steps between two polls."""
MEMORY_SHARE = 0.5
"""Fraction of free memory for keys, values and logits; rows that do not fit are sampled in further lots."""


def unsupported_reason(policy: Policy, dtype: str) -> str | None:
    """Why `FastSampler` cannot sample from this policy; None: it can."""
    return _unsupported_policy_reason(policy) or unsupported_kernel_reason(decoder_weights(policy.model), _compute(policy, dtype))


def _unsupported_policy_reason(policy: Policy) -> str | None:
    if len(policy.end_tokens) > MOST_ENDS:
        return f"it has {len(policy.end_tokens)} end tokens; {MOST_ENDS} are the most"
    return unsupported_model_reason(policy.model)


def _compute(policy: Policy, dtype: str) -> torch.dtype:
    return torch.bfloat16 if dtype == "bfloat16" else policy.model.dtype


class _Lot:
    """The rows [first, first + rows) of a call, sampled together."""

    def __init__(self, first: int, prompts: Sequence[Sequence[int]]) -> None:
        self.first, self.rows = first, len(prompts)
        index_of: dict[tuple[int, ...], int] = {}
        self.prompt_of_row = [index_of.setdefault(tuple(prompt), len(index_of)) for prompt in prompts]
        self.prompts = list(index_of)

    def room(self, new_tokens: int, keep_hidden: bool) -> Room:
        return Room(len(self.prompts), max(map(len, self.prompts)), self.rows, new_tokens, keep_hidden)


class _Drawn:
    """The responses of a lot, copied from the workspace."""

    def __init__(self, space: Workspace, rows: int, cut: dict[int, int], keep_hidden: bool) -> None:
        written, device = space.written, space.x.device
        length = written.length[:rows].long()
        self.finished = written.ended[:rows] != 0
        if cut:
            stopped = torch.tensor(list(cut), device=device)
            length[stopped] = length[stopped].minimum(torch.tensor(list(cut.values()), device=device))
            self.finished[stopped] = True
        width = int(length.max())
        self.mask = torch.arange(width, device=device) < length[:, None]
        self.tokens = written.tokens[:rows, :width].where(self.mask, 0)
        self.logp, self.entropy = (value[:rows, :width].where(self.mask, 0.0) for value in (written.logp, written.entropy))
        kept = space.kept if keep_hidden else None
        self.hidden = None if kept is None else kept[:rows, :width].where(self.mask[..., None], 0.0)


class FastSampler:
    """Keeps its workspace, weight copies and captured steps between calls; `release` frees them."""

    def __init__(
        self, policy: Policy, *, backend: Backend = "fast", interval: int = INTERVAL, memory_share: float = MEMORY_SHARE, most_rows: int = 0
    ) -> None:
        """`most_rows` bounds the rows sampled at once in addition to memory; 0: no such bound."""
        reason = _unsupported_policy_reason(policy)
        if reason is not None:
            raise ConfigError(f"the fast sampler cannot run this model: {reason}")
        self.model = policy.model
        self.backend: Backend = backend
        self.kernels = import_module(f"tokencredit.kernels.decode.{BACKENDS[backend]}")
        self.interval, self.memory_share, self.most_rows = interval, memory_share, most_rows
        self._supported: dict[tuple[torch.device, torch.dtype], bool] = {}
        self._weights: Weights | None = None
        self._space: Workspace | None = None
        self._steps: Steps | None = None

    def release(self) -> None:
        """Free the memory; the next call allocates and captures again."""
        self._weights = self._space = self._steps = None

    @torch.no_grad()
    def sample(self, policy: Policy, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Sampled:
        """`group_size` responses to each prompt, rows of a prompt next to each other, `group` numbering the prompts.

        A policy with another model, or a dtype without kernels, falls back to the plain sampler.
        """
        if not self._supports(policy, params.dtype):
            return sample_plainly(policy, prompts, params)
        keep_hidden, max_new_tokens = params.keep_hidden, params.max_new_tokens
        prompt_of_row = [tuple(prompt) for prompt in prompts for _ in range(params.group_size)]
        weights = self._fresh_weights(_compute(policy, params.dtype))
        drawn: list[_Drawn] = []
        for first, last in self._cut(prompt_of_row, max_new_tokens, keep_hidden, weights):
            lot = _Lot(first, prompt_of_row[first:last])
            space = self._fitting_space(lot.room(max_new_tokens, keep_hidden), weights)
            space.set_knobs(temperature=params.temperature, greedy=params.greedy, seed=params.seed, first_row=first, ends=policy.end_tokens)
            cut = self._decode(lot, space, weights, StopWatcher(policy.tokenizer, policy.stops, lot.rows), max_new_tokens, keep_hidden)
            self._refuse_bad(space, lot)
            drawn.append(_Drawn(space, lot.rows, cut, keep_hidden))
        return _joined(drawn, prompt_of_row, params.group_size, policy.device)

    def _supports(self, policy: Policy, dtype: str) -> bool:
        if policy.model is not self.model or len(policy.end_tokens) > MOST_ENDS:
            return False
        if self.backend == "plain":
            return True
        key = (self.model.device, _compute(policy, dtype))
        if key not in self._supported:
            self._supported[key] = unsupported_kernel_reason(decoder_weights(self.model), key[1]) is None
        return self._supported[key]

    def _fresh_weights(self, compute: torch.dtype) -> Weights:
        kept = self._weights
        if kept is None or kept.compute != compute or not kept.still_of(self.model):
            self._steps = None
            if kept is not None and kept.compute != compute:
                self._space = None
            self._weights = Weights(self.model, compute)
            return self._weights
        kept.refresh()
        return kept

    def _cut(self, prompts: Sequence[tuple[int, ...]], new_tokens: int, keep_hidden: bool, weights: Weights) -> list[tuple[int, int]]:
        """Lots of rows that fit into memory, of about equal size."""
        rows = len(prompts)
        most = self.most_rows or rows
        if self.model.device.type == "cuda":
            everything = Room(len(set(prompts)), max(map(len, prompts)), rows, new_tokens, keep_hidden)
            most = min(most, max(1, self._budget(weights) * rows // bytes_for(weights.own, weights.compute, everything)))
        size = -(-rows // -(-rows // most))
        return [(first, min(first + size, rows)) for first in range(0, rows, size)]

    def _budget(self, weights: Weights) -> int:
        free, _ = torch.cuda.mem_get_info(self.model.device)
        held = torch.cuda.memory_reserved(self.model.device) - torch.cuda.memory_allocated(self.model.device)
        own = bytes_for(weights.own, weights.compute, self._space.room) if self._space is not None else 0
        return int(self.memory_share * (free + held + own))

    def _fitting_space(self, room: Room, weights: Weights) -> Workspace:
        """The workspace of the previous call where it is large enough, so that captured steps stay valid."""
        room = room.rounded()
        if self._space is None or not self._space.room.holds(room):
            larger = room if self._space is None else room.union(self._space.room)
            if self.model.device.type == "cuda" and bytes_for(weights.own, weights.compute, larger) <= self._budget(weights):
                room = larger
            self._steps = self._space = None
            self._space = Workspace(weights.own, room, weights.compute)
        if self._steps is None:
            self._steps = Steps(self.kernels, weights.used, self._space)
        return self._space

    def _decode(
        self, lot: _Lot, space: Workspace, weights: Weights, stops: StopWatcher, new_tokens: int, keep_hidden: bool
    ) -> dict[int, int]:
        """Decode until every row has ended or reached the limit; returns the lengths of rows that a stop string ended."""
        assert self._steps is not None
        counts = slot_counts(lot.rows)
        states = read_prompts(self.kernels, weights.used, space, lot.prompts)
        space.assign_slots(lot.prompt_of_row)
        first = states[space.slots.prompt[: lot.rows].long()]
        space.normed[: lot.rows] = first
        if keep_hidden and space.kept is not None:
            space.kept[: lot.rows, 0] = first.to(space.kept.dtype)
        draw_tokens(self.kernels, weights.used, space, counts[0])
        poller = RowPoller(space, lot.rows, stops)
        poller.request(1)
        position = 1
        while position < new_tokens:
            end = min(position + self.interval, new_tokens)
            for _ in range(position, end):
                self._steps.run(counts[0], keep_hidden)
            position = end
            poller.request(position)
            live = poller.collect()
            if live == 0:
                break
            # The count is one poll old: by now fewer rows may be unfinished, never more.
            fitting = [count for count in counts if live is None or count >= live]
            if fitting[-1] < counts[0]:
                counts = counts[len(fitting) - 1 :]
                space.compact(counts[0])
        poller.collect(late=0)
        return poller.cut

    def _refuse_bad(self, space: Workspace, lot: _Lot) -> None:
        bad = (space.written.bad[: lot.rows] != 0).nonzero()[:, 0].tolist()
        if bad:
            rows = [lot.first + row for row in bad]
            raise BadNumbersError(LOG_PROBS, "the policy's probabilities are not finite while sampling; it has broken down", rows)


def _joined(drawn: Sequence[_Drawn], prompts: Sequence[tuple[int, ...]], group_size: int, device: torch.device) -> Sampled:
    """Concatenate lots, padded to the longest response."""

    def stacked(values: Sequence[Tensor]) -> Tensor:
        width = max(value.shape[1] for value in values)
        return torch.cat([pad(value, (0, 0) * (value.dim() - 2) + (0, width - value.shape[1])) for value in values])

    hidden = [lot.hidden for lot in drawn if lot.hidden is not None]
    logp = stacked([lot.logp for lot in drawn])
    rollouts = Rollouts(
        prompts=tuple(prompts),
        tokens=stacked([lot.tokens for lot in drawn]),
        mask=stacked([lot.mask for lot in drawn]),
        group=torch.arange(len(prompts) // group_size, device=device).repeat_interleave(group_size),
        behavior_logp=logp,
        finished=torch.cat([lot.finished for lot in drawn]),
    )
    return Sampled(rollouts, TokenScores(logp, stacked([lot.entropy for lot in drawn]), stacked(hidden) if hidden else None))

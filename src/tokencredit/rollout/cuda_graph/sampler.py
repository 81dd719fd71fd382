"""Sampling as `sample` does it, fast: same meaning of every result, draws of its own.

What a row draws is a function of the seed, its number and the position, so it does not depend on who is sampled beside it, on who
has ended, or on how many fit into memory at once.
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
from tokencredit.rollout.cuda_graph.polling import Lookout
from tokencredit.rollout.cuda_graph.steps import Steps, draw_tokens, read_prompts, slot_counts
from tokencredit.rollout.cuda_graph.supported_models import anatomy, why_not_kernels, why_not_model
from tokencredit.rollout.sampler import sample_plainly
from tokencredit.types import Rollouts, TokenScores

Backend = Literal["fast", "plain"]
BACKENDS: dict[Backend, str] = {"fast": "triton_launch", "plain": "reference"}
"""Backend to the module of `kernels/decode` that has it."""

INTERVAL = 16
"""Steps between two looks of the host."""
MEMORY_SHARE = 0.5
"""Of the memory that is free, for keys, values and logits; more rows than fit are sampled one lot after the other."""


def why_not(policy: Policy, dtype: str) -> str | None:
    """Why `FastSampler` cannot sample from this policy; None: it can."""
    return _why_not_policy(policy) or why_not_kernels(anatomy(policy.model), _compute(policy, dtype))


def _why_not_policy(policy: Policy) -> str | None:
    if len(policy.end_tokens) > MOST_ENDS:
        return f"it has {len(policy.end_tokens)} end tokens; {MOST_ENDS} are the most"
    return why_not_model(policy.model)


def _compute(policy: Policy, dtype: str) -> torch.dtype:
    return torch.bfloat16 if dtype == "bfloat16" else policy.model.dtype


class _Lot:
    """Rows sampled together: [first, first + rows) of a call."""

    def __init__(self, first: int, prompts: Sequence[Sequence[int]]) -> None:
        self.first, self.rows = first, len(prompts)
        places: dict[tuple[int, ...], int] = {}
        self.prompt_of_row = [places.setdefault(tuple(prompt), len(places)) for prompt in prompts]
        self.different = list(places)

    def room(self, new_tokens: int, keep_hidden: bool) -> Room:
        return Room(len(self.different), max(map(len, self.different)), self.rows, new_tokens, keep_hidden)


class _Drawn:
    """What a lot drew, off the workspace."""

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
    """Keeps its workspace, copies of weights and captured steps from call to call; `release` gives them back."""

    def __init__(
        self, policy: Policy, *, backend: Backend = "fast", interval: int = INTERVAL, memory_share: float = MEMORY_SHARE, most_rows: int = 0
    ) -> None:
        """`most_rows` bounds the rows sampled at once beyond what memory does; 0: memory alone."""
        reason = _why_not_policy(policy)
        if reason is not None:
            raise ConfigError(f"the fast sampler cannot run this model: {reason}")
        self.model = policy.model
        self.backend: Backend = backend
        self.kernels = import_module(f"tokencredit.kernels.decode.{BACKENDS[backend]}")
        self.interval, self.memory_share, self.most_rows = interval, memory_share, most_rows
        self._known: dict[tuple[torch.device, torch.dtype], bool] = {}
        self._weights: Weights | None = None
        self._space: Workspace | None = None
        self._steps: Steps | None = None

    def release(self) -> None:
        """Give the memory back; the next call allocates and captures again."""
        self._weights = self._space = self._steps = None

    @torch.no_grad()
    def sample(self, policy: Policy, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Sampled:
        """`group_size` responses to each prompt, rows of a prompt next to each other, `group` numbering the prompts.

        A policy around another model, or a precision the kernels do not know, is sampled by the plain twin.
        """
        if not self._can(policy, params.dtype):
            return sample_plainly(policy, prompts, params)
        keep_hidden, max_new_tokens = params.keep_hidden, params.max_new_tokens
        asked = [tuple(prompt) for prompt in prompts for _ in range(params.group_size)]
        weights = self._fresh_weights(_compute(policy, params.dtype))
        drawn: list[_Drawn] = []
        for first, last in self._cut(asked, max_new_tokens, keep_hidden, weights):
            lot = _Lot(first, asked[first:last])
            space = self._fitting_space(lot.room(max_new_tokens, keep_hidden), weights)
            space.set_knobs(temperature=params.temperature, greedy=params.greedy, seed=params.seed, first_row=first, ends=policy.end_tokens)
            cut = self._decode(lot, space, weights, StopWatcher(policy.tokenizer, policy.stops, lot.rows), max_new_tokens, keep_hidden)
            self._refuse_bad(space, lot)
            drawn.append(_Drawn(space, lot.rows, cut, keep_hidden))
        return _joined(drawn, asked, params.group_size, policy.device)

    def _can(self, policy: Policy, dtype: str) -> bool:
        if policy.model is not self.model or len(policy.end_tokens) > MOST_ENDS:
            return False
        if self.backend == "plain":
            return True
        asked = (self.model.device, _compute(policy, dtype))
        if asked not in self._known:
            self._known[asked] = why_not_kernels(anatomy(self.model), asked[1]) is None
        return self._known[asked]

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

    def _cut(self, asked: Sequence[tuple[int, ...]], new_tokens: int, keep_hidden: bool, weights: Weights) -> list[tuple[int, int]]:
        """Lots of rows that fit into memory, about equally large."""
        rows = len(asked)
        most = self.most_rows or rows
        if self.model.device.type == "cuda":
            everything = Room(len(set(asked)), max(map(len, asked)), rows, new_tokens, keep_hidden)
            most = min(most, max(1, self._budget(weights) * rows // bytes_for(weights.own, weights.compute, everything)))
        size = -(-rows // -(-rows // most))
        return [(first, min(first + size, rows)) for first in range(0, rows, size)]

    def _budget(self, weights: Weights) -> int:
        free, _ = torch.cuda.mem_get_info(self.model.device)
        held = torch.cuda.memory_reserved(self.model.device) - torch.cuda.memory_allocated(self.model.device)
        own = bytes_for(weights.own, weights.compute, self._space.room) if self._space is not None else 0
        return int(self.memory_share * (free + held + own))

    def _fitting_space(self, room: Room, weights: Weights) -> Workspace:
        """The workspace of the call before where it is large enough, so that captured steps stay."""
        room = room.rounded()
        if self._space is None or not self._space.room.holds(room):
            larger = room if self._space is None else room.over(self._space.room)
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
        """Draw until every row has ended or is full; the lengths at which stop strings ended rows."""
        assert self._steps is not None
        counts = slot_counts(lot.rows)
        states = read_prompts(self.kernels, weights.used, space, lot.different)
        space.seat(lot.prompt_of_row)
        first = states[space.slots.prompt[: lot.rows].long()]
        space.normed[: lot.rows] = first
        if keep_hidden and space.kept is not None:
            space.kept[: lot.rows, 0] = first.to(space.kept.dtype)
        draw_tokens(self.kernels, weights.used, space, counts[0])
        lookout = Lookout(space, lot.rows, stops)
        lookout.ask(1)
        position = 1
        while position < new_tokens:
            upto = min(position + self.interval, new_tokens)
            for _ in range(position, upto):
                self._steps.run(counts[0], keep_hidden)
            position = upto
            lookout.ask(position)
            live = lookout.hear()
            if live == 0:
                break
            # Fewer may go on by now, never more.
            fitting = [count for count in counts if live is None or count >= live]
            if fitting[-1] < counts[0]:
                counts = counts[len(fitting) - 1 :]
                space.gather(counts[0])
        lookout.hear(late=0)
        return lookout.cut

    def _refuse_bad(self, space: Workspace, lot: _Lot) -> None:
        bad = (space.written.bad[: lot.rows] != 0).nonzero()[:, 0].tolist()
        if bad:
            rows = [lot.first + row for row in bad]
            raise BadNumbersError(LOG_PROBS, "the policy's probabilities are not finite while sampling; it has broken down", rows)


def _joined(drawn: Sequence[_Drawn], prompts: Sequence[tuple[int, ...]], group_size: int, device: torch.device) -> Sampled:
    """Lots one below the other, as wide as the longest response."""

    def below(values: Sequence[Tensor]) -> Tensor:
        width = max(value.shape[1] for value in values)
        return torch.cat([pad(value, (0, 0) * (value.dim() - 2) + (0, width - value.shape[1])) for value in values])

    hidden = [lot.hidden for lot in drawn if lot.hidden is not None]
    logp = below([lot.logp for lot in drawn])
    rollouts = Rollouts(
        prompts=tuple(prompts),
        tokens=below([lot.tokens for lot in drawn]),
        mask=below([lot.mask for lot in drawn]),
        group=torch.arange(len(prompts) // group_size, device=device).repeat_interleave(group_size),
        behavior_logp=logp,
        finished=torch.cat([lot.finished for lot in drawn]),
    )
    return Sampled(rollouts, TokenScores(logp, below([lot.entropy for lot in drawn]), below(hidden) if hidden else None))

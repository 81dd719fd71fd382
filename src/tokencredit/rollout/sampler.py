"""Batched sampling by the policy's sampler: the plain loop, the fast sampler or vLLM, all with the same interface.

The plain loop uses the model's own key-value cache and a private generator. It keeps each token's log-prob, entropy and hidden
state: with the same weights and precision a scoring pass would give the same values, so none is needed.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import DynamicCache

from tokencredit.errors import BadNumbersError, ConfigError
from tokencredit.forward.padded import pad_prompts, precision, watching_head
from tokencredit.kernels import at_least_float32, entropy_of
from tokencredit.pipeline.guards import LOG_PROBS
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import Sampled, SamplingParams
from tokencredit.policy.token_text import StopWatcher
from tokencredit.types import Rollouts, TokenScores

SamplerName = Literal["auto", "plain", "fast", "vllm"]


def with_sampler(policy: Policy, name: SamplerName, *, dtype: str, memory: float = 0.4) -> Policy:
    """The policy with the named sampler; auto chooses the fast one on a GPU in bfloat16, if it supports the model."""
    if name == "plain":
        return replace(policy, sampler=None)
    if name == "vllm":
        from tokencredit.rollout.vllm import VllmSampler

        return replace(policy, sampler=VllmSampler(policy, memory=memory))
    from tokencredit.rollout.cuda_graph import FastSampler, unsupported_reason

    reason = unsupported_reason(policy, dtype)
    if name == "auto" and (reason is not None or policy.device.type != "cuda" or dtype != "bfloat16"):
        return replace(policy, sampler=None)
    if reason is not None:
        raise ConfigError(f"sampler is 'fast' but {reason}; use 'plain' or 'auto'")
    return replace(policy, sampler=FastSampler(policy))


class _Decoder:
    """The cache and attention mask of unfinished rows."""

    def __init__(self, policy: Policy, prompts: Sequence[Sequence[int]], copies: int, dtype: str) -> None:
        self.policy, self.dtype = policy, dtype
        ids, attention = pad_prompts(prompts, policy.device)
        self.cache = DynamicCache(config=policy.model.config)
        inputs: dict[str, Any] = {"input_ids": ids}
        if attention is not None:
            inputs |= {"attention_mask": attention, "position_ids": (attention.cumsum(1) - 1).clamp(min=0)}
        # Each prompt runs once; its cache is copied to every response of the group.
        self.logits = self._forward(inputs).repeat_interleave(copies, 0)
        self.hidden = self.hidden.repeat_interleave(copies, 0)
        self.cache.batch_repeat_interleave(copies)
        self.attention = None if attention is None else attention.repeat_interleave(copies, 0)

    def _forward(self, inputs: dict[str, Any]) -> Tensor:
        with precision(self.policy.model, self.dtype), watching_head(self.policy.model) as seen:
            logits = self.policy.model(**inputs, past_key_values=self.cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        self.hidden = at_least_float32(seen[0][:, -1])
        return logits

    def append(self, tokens: Tensor) -> None:
        inputs: dict[str, Any] = {"input_ids": tokens[:, None]}
        if self.attention is not None:
            self.attention = torch.cat([self.attention, torch.ones_like(self.attention[:, :1])], 1)
            inputs |= {"attention_mask": self.attention, "position_ids": self.attention.sum(1, keepdim=True) - 1}
        self.logits = self._forward(inputs)

    def keep(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.logits, self.hidden = self.logits[rows], self.hidden[rows]
        self.attention = None if self.attention is None else self.attention[rows]


def sample(policy: Policy, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Sampled:
    """`group_size` responses to each prompt, rows of a prompt next to each other, `group` numbering the prompts."""
    if not all(prompts):
        raise ConfigError("a prompt has no tokens under this model's tokenizer; there is nothing to answer")
    draw = sample_plainly if policy.sampler is None else policy.sampler.sample
    return draw(policy, prompts, params)


@torch.no_grad()
def sample_plainly(policy: Policy, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Sampled:
    """The reference sampler: any model, device and precision."""
    group_size, keep_hidden = params.group_size, params.keep_hidden
    device = policy.device
    generator = torch.Generator(device=device).manual_seed(params.seed)
    rows = len(prompts) * group_size
    ends = torch.tensor(policy.end_tokens, device=device)
    decoder = _Decoder(policy, prompts, group_size, params.dtype)
    kept_dtype = at_least_float32(decoder.logits).dtype
    tokens = torch.zeros(rows, params.max_new_tokens, dtype=torch.long, device=device)
    logps, entropies = (torch.zeros(rows, params.max_new_tokens, dtype=kept_dtype, device=device) for _ in range(2))
    states = torch.zeros(rows, params.max_new_tokens, decoder.hidden.shape[-1] if keep_hidden else 0, dtype=kept_dtype, device=device)
    mask = torch.zeros(rows, params.max_new_tokens, dtype=torch.bool, device=device)
    finished = torch.zeros(rows, dtype=torch.bool, device=device)
    writing = torch.arange(rows, device=device)
    stops = StopWatcher(policy.tokenizer, policy.stops, rows)
    for position in range(params.max_new_tokens):
        logp = (at_least_float32(decoder.logits) / params.temperature).log_softmax(-1)
        if logp.isnan().any():
            rows = writing[logp.isnan().any(-1)].tolist()
            raise BadNumbersError(LOG_PROBS, "the policy's probabilities are not finite while sampling; it has broken down", rows)
        drawn = logp.argmax(-1) if params.greedy else torch.multinomial(logp.exp(), 1, generator=generator).squeeze(-1)
        tokens[writing, position] = drawn
        logps[writing, position] = logp.gather(-1, drawn[:, None]).squeeze(-1)
        entropies[writing, position] = entropy_of(logp)
        if keep_hidden:
            states[writing, position] = decoder.hidden
        mask[writing, position] = True
        ended = torch.isin(drawn, ends)
        if stops:
            ended |= torch.tensor(stops.ended(writing.tolist(), drawn.tolist()), device=device)
        finished[writing] = ended
        if position + 1 == params.max_new_tokens or bool(ended.all()):
            break
        if ended.any():
            unfinished = (~ended).nonzero()[:, 0]
            decoder.keep(unfinished)
            writing, drawn = writing[unfinished], drawn[unfinished]
        decoder.append(drawn)
    width = int(mask.any(0).sum())
    rollouts = Rollouts(
        prompts=tuple(tuple(prompt) for prompt in prompts for _ in range(group_size)),
        tokens=tokens[:, :width],
        mask=mask[:, :width],
        group=torch.arange(len(prompts), device=device).repeat_interleave(group_size),
        behavior_logp=logps[:, :width],
        finished=finished,
    )
    return Sampled(rollouts, TokenScores(logps[:, :width], entropies[:, :width], states[:, :width] if keep_hidden else None))

"""vLLM as the sampler, in this process and on the same GPU (extra vllm). The only place that knows it.

It keeps weights of its own, which are given the policy's before every draw: versions of tensors cannot tell whether they moved, since
fused optimizers do not raise them. What it remembers of prompts is forgotten then, because keys and values of older weights would be
read on. Entropies are not told by vLLM, so tokens are scored in a pass of their own.
"""

import importlib
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from tokencredit.errors import ConfigError
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import Sampled, SamplingParams
from tokencredit.policy.token_text import tokens_up_to_stop
from tokencredit.seeds import derive_seed
from tokencredit.types import Rollouts, TokenScores


def _load() -> Any:
    # In a process of its own vLLM could not be handed tensors.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    try:
        return importlib.import_module("vllm")
    except ImportError:
        raise ConfigError("sampler is 'vllm' but vllm is not installed; pip install \"tokencredit[vllm]\", or use sampler 'auto'") from None


class VllmSampler:
    """`memory` is the share of the GPU that vLLM may take for its weights and cache."""

    def __init__(self, policy: Policy, *, memory: float) -> None:
        self._vllm = _load()
        self._engine = self._vllm.LLM(
            model=policy.model.config._name_or_path,
            dtype="bfloat16",
            gpu_memory_utilization=memory,
            # Of what was drawn at the temperature it was drawn at.
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=True,
        )

    def sample(self, policy: Policy, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Sampled:
        if params.keep_hidden:
            raise ConfigError("scoring is 'sampler' but vLLM tells no hidden states; use scoring 'auto' or 'pass'")
        self._give_weights(policy)
        rows = [list(prompt) for prompt in prompts for _ in range(params.group_size)]
        # Each response has a seed of its own, so it does not depend on those beside it.
        asked = [
            self._vllm.SamplingParams(
                temperature=0.0 if params.greedy else params.temperature,
                max_tokens=params.max_new_tokens,
                seed=derive_seed(params.seed, "vllm", row) % 2**31,
                logprobs=0,
                ignore_eos=True,
                stop_token_ids=list(policy.end_tokens),
                stop=list(policy.stops) or None,
                include_stop_str_in_output=True,
                detokenize=bool(policy.stops),
                skip_special_tokens=False,
            )
            for row in range(len(rows))
        ]
        answered = self._engine.generate([{"prompt_token_ids": row} for row in rows], asked, use_tqdm=False)
        return _as_sampled(policy, prompts, params.group_size, [_read(policy, request.outputs[0]) for request in answered])

    def release(self) -> None:
        """What vLLM took it keeps: a share of the GPU that was set apart for it."""

    def _give_weights(self, policy: Policy) -> None:
        named = [(name, parameter.detach()) for name, parameter in policy.model.named_parameters()]
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": named})
        self._engine.reset_prefix_cache()


class _Written(NamedTuple):
    tokens: list[int]
    logp: list[float]
    ended: bool
    """By an end token or a stop string, not by the length limit."""


def _read(policy: Policy, output: Any) -> _Written:
    """What one response holds up to the token that ends it; NaN where vLLM told no log-prob: such a token leaves the loss."""
    tokens = list(output.token_ids)
    if not tokens:
        raise ConfigError("vLLM answered a prompt with no token at all; its version does not keep end tokens, use sampler 'auto'")
    stopped = tokens_up_to_stop(policy.tokenizer, policy.stops, tokens)
    tokens = tokens[:stopped]
    told = list(output.logprobs or ())[: len(tokens)] + [None] * (len(tokens) - len(output.logprobs or ()))
    logp = [
        math.nan if known is None or token not in known else min(known[token].logprob, 0.0)
        for token, known in zip(tokens, told, strict=True)
    ]
    return _Written(tokens, logp, stopped is not None or tokens[-1] in policy.end_tokens)


def _as_sampled(policy: Policy, prompts: Sequence[Sequence[int]], group_size: int, written: Sequence[_Written]) -> Sampled:
    device = policy.device
    tokens = pad_sequence([torch.tensor(row.tokens) for row in written], batch_first=True)
    mask = pad_sequence([torch.ones(len(row.tokens), dtype=torch.bool) for row in written], batch_first=True)
    logp = pad_sequence([torch.tensor(row.logp) for row in written], batch_first=True).to(device)
    rollouts = Rollouts(
        prompts=tuple(tuple(prompt) for prompt in prompts for _ in range(group_size)),
        tokens=tokens.to(device),
        mask=mask.to(device),
        group=torch.arange(len(prompts), device=device).repeat_interleave(group_size),
        behavior_logp=logp,
        finished=torch.tensor([row.ended for row in written], device=device),
    )
    return Sampled(rollouts, TokenScores(logp, torch.zeros_like(logp), None))

"""vLLM as the sampler, in this process and on the same GPU (extra vllm). The only module that imports it.

vLLM has its own copy of the weights, which is updated before every call: tensor versions cannot show whether weights changed,
because fused optimizers do not increase them. The prefix cache is reset too, because it holds keys and values of older weights.
vLLM returns no entropies, so a scoring pass follows.
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
    # vLLM in a separate process could not receive tensors.
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
            # Log-probs of the distribution that was sampled, temperature included.
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=True,
        )

    def sample(self, policy: Policy, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Sampled:
        if params.keep_hidden:
            raise ConfigError("scoring is 'sampler' but vLLM returns no hidden states; use scoring 'auto' or 'pass'")
        self._update_weights(policy)
        rows = [list(prompt) for prompt in prompts for _ in range(params.group_size)]
        # Each response has its own seed, so it does not depend on the other responses.
        requests = [
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
        outputs = self._engine.generate([{"prompt_token_ids": row} for row in rows], requests, use_tqdm=False)
        return _as_sampled(policy, prompts, params.group_size, [_read(policy, request.outputs[0]) for request in outputs])

    def release(self) -> None:
        """VLLM keeps its share of the GPU memory, which is reserved for it."""

    def _update_weights(self, policy: Policy) -> None:
        named = [(name, parameter.detach()) for name, parameter in policy.model.named_parameters()]
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": named})
        self._engine.reset_prefix_cache()


class _Written(NamedTuple):
    tokens: list[int]
    logp: list[float]
    ended: bool
    """By an end token or a stop string, not by the length limit."""


def _read(policy: Policy, output: Any) -> _Written:
    """One response up to the token that ends it; a token without a log-prob from vLLM gets NaN and leaves the loss."""
    tokens = list(output.token_ids)
    if not tokens:
        raise ConfigError("vLLM answered a prompt with no token at all; its version does not keep end tokens, use sampler 'auto'")
    stopped = tokens_up_to_stop(policy.tokenizer, policy.stops, tokens)
    tokens = tokens[:stopped]
    logprobs = list(output.logprobs or ())[: len(tokens)] + [None] * (len(tokens) - len(output.logprobs or ()))
    logp = [
        math.nan if known is None or token not in known else min(known[token].logprob, 0.0)
        for token, known in zip(tokens, logprobs, strict=True)
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

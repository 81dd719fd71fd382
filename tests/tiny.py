"""A random two-layer policy small enough to check by hand, and rollouts made up for it."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tokencredit.batching import make_plan
from tokencredit.forward.padded import row_cost
from tokencredit.policy.policy import Policy
from tokencredit.tasks.steps import ALPHABET
from tokencredit.tasks.tokenizer import character_tokenizer
from tokencredit.types import Aggregation, Credited, Rollouts, Scored, StepPlan

CONSTANT = 11
"""Divisor per response where the aggregation is constant."""


def tiny_policy(dtype: torch.dtype = torch.float64, seed: int = 0) -> Policy:
    tokenizer = character_tokenizer(ALPHABET)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        initializer_range=0.5,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config).to(dtype).eval()
    return Policy(model=model, tokenizer=tokenizer, end_tokens=(int(tokenizer.eos_token_id),))


def made_up_rollouts(seed: int = 0, groups: int = 4, group_size: int = 3, width: int = 9) -> Rollouts:
    """Prompts and responses of uneven length, a hole in a mask, an unscored token, one empty response."""
    generator = torch.Generator().manual_seed(seed)
    rows = groups * group_size
    prompts = tuple(
        tuple(torch.randint(3, 24, (2 + group % 3,), generator=torch.Generator().manual_seed(seed + group)).tolist())
        for group in range(groups)
        for _ in range(group_size)
    )
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    lengths[1], lengths[2] = width, 0
    mask = torch.arange(width) < lengths[:, None]
    mask[1, 2] = False
    behavior = -torch.rand(rows, width, generator=generator, dtype=torch.float64)
    behavior[0, 0] = float("nan")
    return Rollouts(
        prompts=prompts,
        tokens=torch.randint(3, 24, (rows, width), generator=generator),
        mask=mask,
        group=torch.arange(groups).repeat_interleave(group_size),
        behavior_logp=behavior,
        finished=torch.ones(rows, dtype=torch.bool),
    )


def made_up_credit(rollouts: Rollouts, seed: int = 0, dtype: torch.dtype = torch.float64) -> Credited:
    """Off-policy old log-probs and token credit of both signs; the last group receives none."""
    generator = torch.Generator().manual_seed(seed + 100)
    shape = rollouts.mask.shape
    advantage = torch.randn(shape[0], generator=generator, dtype=torch.float64)
    advantage[rollouts.group == rollouts.group.max()] = 0.0
    coefficient = 0.5 + torch.rand(shape, generator=generator, dtype=torch.float64)
    coefficient = coefficient * rollouts.loss_mask
    score = (advantage > 0).to(dtype)
    return Credited(
        scored=Scored(rollouts=rollouts, score=score, reward=score),
        old_logp=(-3 + torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype),
        entropy=torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype),
        advantage=advantage.to(dtype),
        coefficient=coefficient.to(dtype),
        credit=(coefficient * advantage[:, None]).to(dtype),
        reference_logp=(-3 + torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype),
    )


def plan_for(
    credited: Credited, max_tokens: int = 40, aggregation: Aggregation = "token-mean", optimizer_steps: int = 2, **choice: object
) -> StepPlan:
    """Optimizer steps over made-up responses."""
    rollouts = credited.rollouts
    return make_plan(
        rollouts.loss_mask.sum(-1),
        rollouts.group,
        optimizer_steps=optimizer_steps,
        max_tokens=max_tokens,
        seed=5,
        aggregation=aggregation,
        constant_length=CONSTANT,
        cost=row_cost(rollouts),
        **choice,
    )


def gradient_of(policy: Policy) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in policy.model.parameters() if parameter.grad is not None])

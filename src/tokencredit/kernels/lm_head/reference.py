"""The LM head over materialised [tok, vocab]: slow and large; every other backend must equal it."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.kernels.lm_head.rule import HeadRule, HeadStatistics
from tokencredit.kernels.logits import at_least_float32


def logits_of(hidden: Float[Tensor, "tok hid"], weight: Float[Tensor, "vocab hid"], rule: HeadRule) -> Float[Tensor, "tok vocab"]:
    logits = rule.scale * (at_least_float32(hidden) @ at_least_float32(weight).T)
    if rule.softcap is not None:
        logits = rule.softcap * torch.tanh(logits / rule.softcap)
    return logits / rule.temperature


def statistics(
    hidden: Float[Tensor, "tok hid"], weight: Float[Tensor, "vocab hid"], tokens: Int[Tensor, " tok"], rule: HeadRule
) -> HeadStatistics:
    logp = logits_of(hidden, weight, rule).log_softmax(-1)
    p = logp.detach().exp()
    return HeadStatistics(logp.gather(-1, tokens[:, None]).squeeze(-1), -(p * logp.detach()).sum(-1), p.square().sum(-1))


def errors(
    hidden: Float[Tensor, "tok hid"], weight: Float[Tensor, "vocab hid"], tokens: Int[Tensor, " tok"], rule: HeadRule, sloped: bool
) -> Float[Tensor, "tok vocab"]:
    """e_y - p, with `sloped` times d logit / d (hidden x weight)."""
    logits = logits_of(hidden, weight, rule)
    error = torch.nn.functional.one_hot(tokens, len(weight)) - logits.softmax(-1)
    if not sloped:
        return error
    bend = 1.0 if rule.softcap is None else 1 - (logits * rule.temperature / rule.softcap).square()
    return error * bend * rule.scale / rule.temperature


def weight_sum(hidden: Tensor, weight: Tensor, tokens: Tensor, share: Tensor, rule: HeadRule, sloped: bool) -> Float[Tensor, "vocab hid"]:
    error = errors(hidden, weight, tokens, rule, sloped)
    return (error * share.to(error.dtype)[:, None]).T @ at_least_float32(hidden)


def hidden_gradient(hidden: Tensor, weight: Tensor, tokens: Tensor, rule: HeadRule, sloped: bool) -> Float[Tensor, "tok hid"]:
    return errors(hidden, weight, tokens, rule, sloped) @ at_least_float32(weight)


def projection(hidden: Tensor, weight: Tensor, tokens: Tensor, matrix: Tensor, rule: HeadRule, sloped: bool) -> Float[Tensor, " tok"]:
    error = errors(hidden, weight, tokens, rule, sloped)
    return (error * (at_least_float32(hidden) @ matrix.to(error.dtype).T)).sum(-1)

"""The head by its definition, a token at a time in float64, and shapes and rules that every way of computing it must survive."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tokencredit.kernels.lm_head import HeadRule

RULES = {
    "plain": HeadRule(),
    "hot": HeadRule(temperature=1.7),
    "scaled": HeadRule(temperature=0.6, scale=1.4),
    "capped": HeadRule(0.8, 0.9, 2.5),
}
SHAPES = ((1, 3, 2), (7, 16, 33), (37, 24, 301), (64, 20, 128))
"""Tokens, width, vocabulary."""


class Case(NamedTuple):
    hidden: Tensor
    weight: Tensor
    tokens: Tensor
    share: Tensor
    matrix: Tensor


def case(shape: tuple[int, int, int], dtype: torch.dtype = torch.float64, weight_dtype: torch.dtype | None = None) -> Case:
    """Numbers that `dtype` holds exactly; every third share is 0, as that of a token without credit is."""
    tok, hid, vocab = shape
    random = torch.Generator().manual_seed(tok + 1000 * hid + vocab)
    hidden = torch.randn(tok, hid, generator=random).to(dtype)
    weight = torch.randn(vocab, hid, generator=random).mul(2 / math.sqrt(hid)).to(dtype).to(weight_dtype or dtype)
    tokens = torch.randint(0, vocab, (tok,), generator=random)
    tokens[-1] = vocab - 1
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    share = torch.randn(tok, generator=random, dtype=wide)
    share[1::3] = 0
    return Case(hidden, weight, tokens, share, torch.randn(vocab, hid, generator=random, dtype=wide))


class Expected(NamedTuple):
    logp: Tensor
    entropy: Tensor
    squared_mass: Tensor
    by_hidden: Tensor
    by_weight: Tensor
    errors: Tensor
    slopes: Tensor


def expected(given: Case, rule: HeadRule) -> Expected:
    """One token after another, gradients of sum_t share_t logp_t by autograd; `errors` are e_y - p, `slopes` d logit / d (h W')."""
    hidden, weight = given.hidden.double().requires_grad_(), given.weight.double().requires_grad_()
    logps, entropies, masses, errors, slopes = [], [], [], [], []
    for t, token in enumerate(given.tokens.tolist()):
        raw = (weight * hidden[t]).sum(-1)
        logits = rule.scale * raw
        if rule.softcap is not None:
            logits = rule.softcap * torch.tanh(logits / rule.softcap)
        logits = logits / rule.temperature
        slopes.append(torch.autograd.grad(logits.sum(), raw, retain_graph=True)[0])
        p = logits.exp() / logits.exp().sum()
        logps.append(p[token].log())
        entropies.append(-(p * p.log()).sum().detach())
        masses.append((p * p).sum().detach())
        errors.append(torch.eye(len(p), dtype=p.dtype)[token] - p.detach())
    logp = torch.stack(logps)
    gradients = torch.autograd.grad((logp * given.share).sum(), (hidden, weight))
    return Expected(logp.detach(), torch.stack(entropies), torch.stack(masses), *gradients, torch.stack(errors), torch.stack(slopes))


def distance(found: Tensor, wanted: Tensor) -> float:
    """Relative to the largest number wanted, or to 1 where all are small."""
    return ((found.double() - wanted).abs().max() / wanted.abs().max().clamp(min=1.0)).item() if wanted.numel() else float(found.numel())

"""Log-prob and entropy of given tokens under given logits, in the logits' precision or better."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class TokenStatistics(NamedTuple):
    logp: Float[Tensor, "*shape"]
    entropy: Float[Tensor, "*shape"]


def at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def token_logp(
    logits: Float[Tensor, "*shape vocab"], tokens: Int[Tensor, "*shape"], *, temperature: float = 1.0
) -> Float[Tensor, "*shape"]:
    """Log softmax(logits / temperature) at `tokens`: a gather minus a log-sum-exp, no second [*, vocab] array kept."""
    logits = at_least_float32(logits) / temperature
    return logits.gather(-1, tokens[..., None]).squeeze(-1) - logits.logsumexp(-1)


def entropy_of(logp: Float[Tensor, "*shape vocab"]) -> Float[Tensor, "*shape"]:
    """Entropy in nats of the distribution whose log-probs these are."""
    return -(logp.exp() * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(-1)


def token_statistics(logits: Float[Tensor, "*shape vocab"], tokens: Int[Tensor, "*shape"], *, temperature: float = 1.0) -> TokenStatistics:
    """`token_logp` to the bit, and the entropy of the distribution the token was drawn from."""
    logits = at_least_float32(logits) / temperature
    log_normaliser = logits.logsumexp(-1)
    logp = logits.gather(-1, tokens[..., None]).squeeze(-1) - log_normaliser
    return TokenStatistics(logp, entropy_of(logits - log_normaliser[..., None]))

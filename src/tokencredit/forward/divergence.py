"""How far an update moved the policy at each token of given responses: log-prob, entropy and KL before and after."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from tokencredit.batching.microbatch import cut_micro_batches
from tokencredit.forward.padded import response_extent, response_logits, row_cost
from tokencredit.kernels import at_least_float32, token_statistics
from tokencredit.types import Rollouts, TokenScores


class Movement(NamedTuple):
    """Token scores before and after an update; 0 outside the mask."""

    before: TokenScores
    """Hidden states included."""
    after: TokenScores
    """Without hidden states."""
    kl: Float[Tensor, "seq tok"]
    """KL(before || after) of the next-token distribution at each token."""


@torch.no_grad()
def movement(before: PreTrainedModel, after: PreTrainedModel, rollouts: Rollouts, *, temperature: float, max_tokens: int) -> Movement:
    """Score the same responses with both policies and compare full next-token distributions, one micro-batch at a time."""
    mask = rollouts.mask
    kept = torch.promote_types(before.dtype, torch.float32)
    old_logp, old_entropy, new_logp, new_entropy, kl = (torch.zeros(mask.shape, dtype=kept, device=mask.device) for _ in range(5))
    hidden: Tensor | None = None
    extent, cost = response_extent(mask), row_cost(rollouts)
    for rows in cut_micro_batches(range(len(cost)), cost, max_tokens=max_tokens):
        index = torch.tensor(rows, device=mask.device)
        width = int(extent[index].max())
        if width == 0:
            continue
        prompts, tokens = [rollouts.prompts[row] for row in rows], rollouts.tokens[index, :width]
        logits, states = response_logits(before, prompts, tokens)
        new_logits = response_logits(after, prompts, tokens).logits
        old, new = ((at_least_float32(value) / temperature).log_softmax(-1) for value in (logits, new_logits))
        if hidden is None:
            hidden = torch.zeros(*mask.shape, states.shape[-1], dtype=at_least_float32(states).dtype, device=mask.device)
        hidden[index, :width] = at_least_float32(states)
        # The same function as the scoring pass, so that unchanged weights give a change of exactly 0.
        for value, logp, entropy in ((logits, old_logp, old_entropy), (new_logits, new_logp, new_entropy)):
            logp[index, :width], entropy[index, :width] = token_statistics(value, tokens, temperature=temperature)
        kl[index, :width] = _divergence(old, new)
    old_logp, old_entropy, new_logp, new_entropy, kl = (
        value.where(mask, 0.0) for value in (old_logp, old_entropy, new_logp, new_entropy, kl)
    )
    return Movement(TokenScores(old_logp, old_entropy, hidden), TokenScores(new_logp, new_entropy, None), kl)


def _divergence(old: Float[Tensor, "*shape vocab"], new: Float[Tensor, "*shape vocab"]) -> Float[Tensor, "*shape"]:
    """Sum of p (log p - log q): with q - p, which sums to 0, each summand is at least 0 and rounding loses little."""
    p = old.exp()
    return (p * (old - new) + (new.exp() - p)).sum(-1).clamp(min=0.0)

"""NTF-keep (ours): negative token filtering that fades as entropy falls, or whose first-order effect on entropy is projected out."""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokencredit.credit.base import CreditInputs, CreditOutcome, State, scale_advantage
from tokencredit.credit.masks import least_probable
from tokencredit.masked import masked_mean

Anneal = Literal["none", "entropy", "steps"]
Orthogonal = Literal["none", "kept", "all"]

MIN_TOKENS_PER_BIN, MAX_BINS = 64, 64
"""Entropy bins over which `expected_push` averages."""


def entropy_push(logp: Float[Tensor, "*tok"], entropy: Float[Tensor, "*#tok"]) -> Float[Tensor, "*tok"]:
    """F = p (log p + H), minus the derivative of the entropy H by the sampled token's logit.

    For a softmax policy dH/dz_k = -p_k (log p_k + H), and a push of log p_y moves the logits by e_y - p. So the push moves H by
    the slope E_p[f] - f_y.
    """
    logp, entropy = logp.double(), entropy.double()
    return logp.exp() * (logp + entropy)


def expected_push(push: Float[Tensor, " tok"], entropy: Float[Tensor, " tok"]) -> Float[Tensor, " tok"]:
    """E[f | H]: the mean of f over tokens of similar entropy, which are bins of the tokens ranked by entropy.

    It stands for E_p[f], which log-prob and entropy alone do not determine: each sampled token is a draw from its p.
    """
    bins = min(max(1, len(push) // MIN_TOKENS_PER_BIN), MAX_BINS)
    rank = torch.empty_like(entropy, dtype=torch.long)
    rank[entropy.argsort(stable=True)] = torch.arange(len(push), device=push.device)
    bin_of_token = rank * bins // max(1, len(push))
    total, count = (push.new_zeros(bins).index_add_(0, bin_of_token, values) for values in (push, torch.ones_like(push)))
    return (total / count.clamp(min=1))[bin_of_token]


def orthogonalized(credit: Float[Tensor, "*tok"], slope: Float[Tensor, "*tok"], chosen: Bool[Tensor, "*tok"]) -> Float[Tensor, "*tok"]:
    """A - s (a . s) / (s . s) over the chosen tokens, so that a . s = 0 there; unchanged elsewhere, and where all slopes are 0."""
    slope = slope.where(chosen, 0.0)
    size = slope.square().sum()
    return credit - slope * ((credit * slope).sum() / size.where(size > 0, 1.0))


def entropy_strength(entropy: float, initial: float, *, entropy_floor: float = 0.5) -> float:
    """1 while H >= floor, 0 from H = floor / 2 on, linear between; floor = entropy_floor x initial."""
    floor = entropy_floor * initial
    return min(max(2 * entropy / floor - 1, 0.0), 1.0) if floor > 0 else 1.0


def ntf_keep_credit(
    inputs: CreditInputs,
    state: State,
    *,
    keep: float = 0.3,
    anneal: Anneal = "entropy",
    entropy_floor: float = 0.5,
    anneal_steps: int = 50,
    orthogonal: Orthogonal = "none",
) -> CreditOutcome:
    """c_it of `ntf` with share keep + (1 - keep) (1 - r), then projected on the chosen tokens to be orthogonal to the entropy slopes.

    `anneal` sets r: 1 ("none"), `entropy_strength` ("entropy"), or a linear fall to 0 over `anneal_steps` ("steps"). `orthogonal`
    chooses the kept tokens of responses with A < 0 ("kept"), or all tokens with credit ("all"). The state holds the share, and
    the first batch's entropy or the number of steps.
    """
    for name, value, kind in (("anneal", anneal, Anneal), ("orthogonal", orthogonal, Orthogonal)):
        if value not in get_args(kind):
            raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(get_args(kind))}")
    strength, state = _strength(inputs, state, anneal, entropy_floor, anneal_steps)
    share = min(keep + (1 - keep) * (1 - strength), 1.0)
    kept = least_probable(inputs, keep=share) & inputs.mask
    coefficient = (kept | (inputs.advantage >= 0)[:, None]).double()
    if orthogonal != "none" and inputs.mask.any():
        advantage = inputs.advantage.double()[:, None]
        negative = kept & (advantage < 0)
        chosen = negative if orthogonal == "kept" else negative | (inputs.mask & (advantage > 0))
        credit = orthogonalized(coefficient * advantage, _slopes(inputs), chosen)
        coefficient = (credit / advantage).where(chosen, coefficient)
    return scale_advantage(coefficient, inputs, {**state, "keep": share})


def _strength(inputs: CreditInputs, state: State, anneal: Anneal, entropy_floor: float, anneal_steps: int) -> tuple[float, State]:
    if anneal == "none":
        return 1.0, state
    if anneal == "steps":
        done = state.get("steps", 0)
        return max(1 - done / anneal_steps, 0.0), {**state, "steps": done + 1}
    entropy = float(masked_mean(inputs.entropy.double(), inputs.mask))
    initial = state.get("initial_entropy", entropy)
    return entropy_strength(entropy, initial, entropy_floor=entropy_floor), {**state, "initial_entropy": initial}


def _slopes(inputs: CreditInputs) -> Float[Tensor, "seq tok"]:
    entropy = inputs.entropy[inputs.mask].double()
    push = entropy_push(inputs.logp[inputs.mask], entropy)
    slope = torch.zeros_like(inputs.logp, dtype=torch.float64)
    slope[inputs.mask] = expected_push(push, entropy) - push
    return slope

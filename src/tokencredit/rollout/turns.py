"""The policy's turns in a response: the runs of the mask. What lies between two of them the environment said."""

from dataclasses import replace
from itertools import groupby

from tokencredit.policy.policy import Policy
from tokencredit.types import Rollouts


def on_cpu(rollouts: Rollouts) -> Rollouts:
    """To be read row by row: on a device every row would be waited for."""
    return replace(rollouts, tokens=rollouts.tokens.cpu(), mask=rollouts.mask.cpu(), behavior_logp=rollouts.behavior_logp.cpu())


def turn_tokens(rollouts: Rollouts, row: int) -> list[list[int]]:
    """The tokens of each turn; a response without an environment is one turn."""
    told = zip(rollouts.mask[row].tolist(), rollouts.tokens[row].tolist(), strict=True)
    return [[token for _, token in run] for sampled, run in groupby(told, key=lambda told: told[0]) if sampled]


def turns_of(policy: Policy, rollouts: Rollouts, row: int) -> list[str]:
    """What the environment and the verifier read of each turn."""
    return [policy.answer(tokens) for tokens in turn_tokens(rollouts, row)]

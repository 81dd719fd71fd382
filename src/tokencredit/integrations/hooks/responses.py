"""The two halves of the credit pipeline for hooks that see one of them at a time, and what an objective silenced."""

from collections.abc import Hashable, Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.config import UniformCredit
from tokencredit.errors import ConfigError, GuardError
from tokencredit.masked import response_mean
from tokencredit.objective import Objective, TokenInputs
from tokencredit.objective.kappa import token_kappa
from tokencredit.pipeline.credit import BatchEvidence, CreditPipeline, scores_without_entropy
from tokencredit.types import Rollouts


def group_numbers(names: Iterable[Hashable]) -> Int[Tensor, " seq"]:
    """Names of prompts as group numbers: equal names, equal numbers."""
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(name, len(numbers)) for name in names], dtype=torch.long)


def _rollouts(mask: Bool[Tensor, "seq tok"], group: Int[Tensor, " seq"]) -> Rollouts:
    """For hooks that receive no prompts and no token ids; `check_recipe` refuses recipes that read them."""
    unknown = torch.zeros(mask.shape, device=mask.device)
    finished = torch.ones(len(mask), dtype=torch.bool, device=mask.device)
    return Rollouts(prompts=((),) * len(mask), tokens=unknown.long(), mask=mask, group=group, behavior_logp=unknown, finished=finished)


def compare_responses(
    pipeline: CreditPipeline, score: Float[Tensor, " seq"], length: Int[Tensor, " seq"], group: Int[Tensor, " seq"]
) -> Float[Tensor, " seq"]:
    """The first half of the pipeline, shape and advantage. A NaN score is left out and receives 0."""
    if bool(score.isinf().any()):
        raise GuardError(f"{int(score.isinf().sum())} of {len(score)} rewards are infinite; a reward that could not be found is NaN")
    columns = torch.arange(int(length.max()) if len(length) else 0, device=length.device)
    rollouts = _rollouts((columns < length[:, None]).to(score.device), group.to(score.device))
    return pipeline.compare(pipeline.shape_reward(rollouts, score)).advantage


def credit_responses(
    pipeline: CreditPipeline, advantage: Float[Tensor, "seq tok"], mask: Bool[Tensor, "seq tok"], logp: Float[Tensor, "seq tok"]
) -> Float[Tensor, "seq tok"]:
    """The second half: token credit from advantages that an engine has spread over the tokens, and may have scaled.

    `uniform` passes on any advantages; other credits need one per response.
    """
    advantage = advantage.where(mask, 0.0)
    if isinstance(pipeline.recipe.credit, UniformCredit):
        return advantage
    # Rounding in the mean must not count as a difference between tokens.
    of_response = response_mean(advantage, mask)
    if bool(((advantage - of_response).abs() > 1e-4 * of_response.abs())[mask].any()):
        raise ConfigError(
            f"{pipeline.recipe.credit.label} starts from one advantage per response, but the tokens of a response come with different ones"
        )
    rollouts = _rollouts(mask, torch.arange(len(mask), device=mask.device))
    evidence = BatchEvidence(scores_without_entropy(logp))
    coefficient = pipeline.assign(pipeline.credit_inputs(rollouts, of_response[:, 0], evidence, seed=0)).coefficient
    return advantage if coefficient is None else coefficient * advantage


def objective_inputs(
    logp: Float[Tensor, "seq tok"],
    old_logp: Float[Tensor, "seq tok"],
    mask: Bool[Tensor, "seq tok"],
    *,
    credit: Float[Tensor, "seq tok"],
    correction: Float[Tensor, "seq tok"] | None = None,
) -> TokenInputs:
    """For objectives that read one response at a time, so that groups do not matter."""
    return TokenInputs(logp, old_logp, credit, mask, torch.zeros(len(mask), dtype=torch.long, device=mask.device), correction=correction)


def finite_inside(name: str, logp: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The log-probs, 0 outside the mask, where engines may leave any value."""
    broken = ~logp.isfinite() & mask
    if bool(broken.any()):
        raise GuardError(f"{name} of {int(broken.sum())} tokens of the loss are not finite; the policy has broken down")
    return logp.where(mask, 0.0)


class Silenced(NamedTuple):
    token: Bool[Tensor, "seq tok"]
    """Credited, but the objective gives it no gradient."""
    share: Float[Tensor, ""]
    """Of the credited tokens."""


def silenced(objective: Objective, inputs: TokenInputs) -> Silenced:
    credited = (inputs.credit != 0) & inputs.mask
    kappa = token_kappa(objective, inputs, None, inputs.mask.to(inputs.logp.dtype), denominator=1.0).kappa
    token = credited & (kappa == 0)
    return Silenced(token, token.sum() / credited.sum().clamp(min=1))

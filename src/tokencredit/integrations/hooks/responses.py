"""The stages as the hooks need them: responses compared, tokens of a response credited, what an objective silenced."""

from collections.abc import Hashable, Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.advantage import AdvantageInputs
from tokencredit.config import Recipe, UniformCredit
from tokencredit.credit import CreditInputs
from tokencredit.errors import ConfigError, GuardError
from tokencredit.masked import response_mean
from tokencredit.objective import Objective, TokenInputs
from tokencredit.objective.kappa import token_kappa
from tokencredit.pipeline.build import build_advantage, build_credit, build_shape
from tokencredit.shape import ShapeInputs


def group_numbers(names: Iterable[Hashable]) -> Int[Tensor, " seq"]:
    """Whatever an engine calls its prompts, as numbers: equal names, equal numbers."""
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(name, len(numbers)) for name in names], dtype=torch.long)


def compare_responses(
    recipe: Recipe, score: Float[Tensor, " seq"], length: Int[Tensor, " seq"], group: Int[Tensor, " seq"], *, max_new_tokens: int | None
) -> Float[Tensor, " seq"]:
    """Shape and advantage. A NaN score is left out and receives 0."""
    if bool(score.isinf().any()):
        raise GuardError(f"{int(score.isinf().sum())} of {len(score)} rewards are infinite; a reward that could not be found is NaN")
    reward = (score.double() + build_shape(recipe).adjust(ShapeInputs(score, length, max_new_tokens or 0))).to(score.dtype)
    compared = build_advantage(recipe)(AdvantageInputs(reward, group, length=length, score=score), {})
    return compared.advantage.where(~score.isnan(), 0.0)


def credit_responses(
    recipe: Recipe, advantage: Float[Tensor, "seq tok"], mask: Bool[Tensor, "seq tok"], logp: Float[Tensor, "seq tok"]
) -> Float[Tensor, "seq tok"]:
    """Token credit from advantages that an engine has spread over the tokens, scaled or not: `uniform` passes any on."""
    advantage = advantage.where(mask, 0.0)
    if isinstance(recipe.credit, UniformCredit):
        return advantage
    # Rounding in the mean must not pass for a difference between tokens.
    of_response = response_mean(advantage, mask)
    if bool(((advantage - of_response).abs() > 1e-4 * of_response.abs())[mask].any()):
        raise ConfigError(
            f"credit {recipe.credit.type!r} starts from one advantage per response, but the tokens of a response come with different ones"
        )
    inputs = CreditInputs(
        advantage=of_response[:, 0],
        mask=mask,
        group=torch.arange(len(mask), device=mask.device),
        tokens=torch.zeros_like(mask, dtype=torch.long),
        logp=logp,
        entropy=torch.full_like(logp, torch.nan),
        seed=0,
    )
    coefficient = build_credit(recipe).assign(inputs, {}).coefficient
    return advantage if coefficient is None else coefficient * advantage


def objective_inputs(
    logp: Float[Tensor, "seq tok"],
    old_logp: Float[Tensor, "seq tok"],
    mask: Bool[Tensor, "seq tok"],
    *,
    credit: Float[Tensor, "seq tok"],
    correction: Float[Tensor, "seq tok"] | None = None,
) -> TokenInputs:
    """For objectives that look at one response at a time, so that groups do not matter."""
    return TokenInputs(logp, old_logp, credit, mask, torch.zeros(len(mask), dtype=torch.long, device=mask.device), correction=correction)


def finite_inside(name: str, logp: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The log-probs, 0 outside the mask where engines leave anything at all."""
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

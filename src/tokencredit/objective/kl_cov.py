"""KL-Cov: unclipped surrogate, and a penalty on the tokens whose log-prob and credit vary together most (2505.22617)."""

from functools import partial

from jaxtyping import Int
from torch import Tensor

from tokencredit.objective.base import Objective, TokenInputs
from tokencredit.objective.covariance import ChosenTokens, StepTokens, credit_covariance, is_chosen, number_of
from tokencredit.objective.ratio import importance_ratio


def kl_cov(*, share: float = 2e-4, penalty: float = 1.0) -> Objective:
    """L_it = -rho a; + penalty |logp - old_logp| on the max(1, int(share N)) tokens of largest cov.

    cov = (a - mean a)(logp - mean logp) over the N masked tokens of the step; ties go to the earlier (row, position). A
    token without credit can be penalised. At ratio 1 the penalty has no gradient.
    """

    def choose(tokens: StepTokens, seed: int) -> Int[Tensor, " chosen"]:
        return credit_covariance(tokens).argsort(descending=True, stable=True)[: number_of(tokens, share)]

    def token_loss(inputs: TokenInputs, statistic: Int[Tensor, " chosen"]) -> Tensor:
        old_logp = inputs.old_logp.detach()
        loss = -importance_ratio(inputs.logp, old_logp) * inputs.credit.detach()
        distance = (inputs.logp - old_logp).abs()
        return loss + penalty * distance * is_chosen(inputs, statistic)

    return Objective(token_loss=token_loss, statistic=partial(ChosenTokens, choose))

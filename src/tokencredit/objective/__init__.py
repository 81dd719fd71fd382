"""Objectives: the loss of each token, before aggregation. `OBJECTIVES` is the table: name -> function that builds an Objective."""

from collections.abc import Callable

from tokencredit.objective.base import Objective, StepStatistic, TokenInputs, kl_estimate, token_weight, with_kl
from tokencredit.objective.clip import cispo, clipped_surrogate, policy_gradient, ppo_clip, sapo, sign_blind_clip
from tokencredit.objective.correction import correction_weight, with_correction
from tokencredit.objective.covariance import clip_cov, kl_cov
from tokencredit.objective.dfpo import dfpo
from tokencredit.objective.fipo import fipo
from tokencredit.objective.sequence import gmpo, gspo

OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "ppo-clip": ppo_clip,
    "sign-blind-clip": sign_blind_clip,
    "gspo": gspo,
    "gmpo": gmpo,
    "cispo": cispo,
    "sapo": sapo,
    "policy-gradient": policy_gradient,
    "clip-cov": clip_cov,
    "kl-cov": kl_cov,
    "fipo": fipo,
    "dfpo": dfpo,
}

__all__ = [
    "OBJECTIVES",
    "Objective",
    "StepStatistic",
    "TokenInputs",
    "clipped_surrogate",
    "correction_weight",
    "kl_estimate",
    "token_weight",
    "with_correction",
    "with_kl",
]

"""The per-token surrogate and its aggregation. `OBJECTIVES` is the table: name -> function making an Objective."""

from collections.abc import Callable

from tokencredit.objective.aggregate import token_weight
from tokencredit.objective.base import Objective, StepStatistic, TokenInputs
from tokencredit.objective.cispo import cispo
from tokencredit.objective.clip import clipped_surrogate, ppo_clip
from tokencredit.objective.clip_cov import clip_cov
from tokencredit.objective.correction import correction_weight, with_correction
from tokencredit.objective.dfpo import dfpo
from tokencredit.objective.fipo import fipo
from tokencredit.objective.gmpo import gmpo
from tokencredit.objective.kl import kl_estimate, with_kl
from tokencredit.objective.kl_cov import kl_cov
from tokencredit.objective.policy_gradient import policy_gradient
from tokencredit.objective.sapo import sapo
from tokencredit.objective.sequence import gspo
from tokencredit.objective.sign_blind_clip import sign_blind_clip

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

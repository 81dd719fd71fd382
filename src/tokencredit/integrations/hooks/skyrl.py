"""SkyRL: `register_advantage_estimator` and `register_policy_loss`, both under one name.

SkyRL divides the advantages of a mini-batch by its `loss_reduction` and lets the loss sum; every objective accepted here
is proportional to credit, so that this is the recipe's own aggregation.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tokencredit.config.resolve import RecipeSource, read_recipe
from tokencredit.errors import ConfigError
from tokencredit.integrations.hooks.responses import (
    compare_responses,
    credit_responses,
    finite_inside,
    group_numbers,
    objective_inputs,
    silenced,
)
from tokencredit.integrations.support import EngineHooks, check_recipe
from tokencredit.masked import masked_sum
from tokencredit.pipeline.credit import CreditPipeline

SKYRL = EngineHooks(
    "SkyRL",
    whole_groups=True,
    filter_groups="use trainer.algorithm.dynamic_sampling",
    kl="use trainer.algorithm.use_kl_loss or use_kl_in_reward",
)
REDUCTIONS = {"token-mean": "token_mean", "sequence-mean": "sequence_mean", "constant": "seq_mean_token_sum_norm"}
OWN_CORRECTIONS = ("tis_ratio_type", "sequence_mask_metric", "outlier_token_is_threshold_low", "outlier_token_is_threshold_high")
PADDING = re.compile(r"pad\d+")
"""Copies of a response that fill up a batch; they take no part in any comparison."""


def skyrl_advantage(recipe: RecipeSource, *, max_new_tokens: int | None = None) -> Callable[..., tuple[Tensor, Tensor]]:
    """An advantage estimator: shape and advantage of the recipe. Token credit follows in the loss, where log-probs are."""
    chosen = read_recipe(recipe)
    check_recipe(chosen, SKYRL)
    if (use := chosen.shape.reads_length_limit) is not None and max_new_tokens is None:
        raise ConfigError(f"{chosen.shape.label} {use}, which SkyRL does not hand over; give max_new_tokens or use shape 'none'")
    pipeline = CreditPipeline(chosen, max_new_tokens=max_new_tokens or 0)

    def estimator(token_level_rewards: Tensor, response_mask: Tensor, index: Sequence[Any], config: Any, **_: Any) -> tuple[Tensor, Tensor]:
        _check_names(config)
        if getattr(config, "advantage_batch_normalize", False):
            raise ConfigError("trainer.algorithm.advantage_batch_normalize would change the recipe's advantages; set it to false")
        names = [str(name) for name in index]
        score = token_level_rewards.sum(-1)
        real = [row for row, name in enumerate(names) if not PADDING.fullmatch(name)]
        rows = torch.tensor(real, dtype=torch.long, device=score.device)
        length = response_mask.bool().sum(-1)
        group = group_numbers(names).to(score.device)
        advantage = torch.zeros_like(score)
        advantage[rows] = compare_responses(pipeline, score[rows], length[rows], group[rows])
        spread = advantage[:, None] * response_mask.to(advantage.dtype)
        return spread, spread.clone()

    return estimator


def skyrl_policy_loss(recipe: RecipeSource, *, max_new_tokens: int | None = None) -> Callable[..., tuple[Tensor, dict[str, float]]]:
    """A policy loss: token credit and objective of the recipe, summed."""
    chosen = read_recipe(recipe)
    check_recipe(chosen, SKYRL)
    if chosen.objective.aggregation == "constant" and chosen.objective.constant_length is None and max_new_tokens is None:
        raise ConfigError(
            "objective.aggregation is 'constant' but its length is not known; set objective.constant_length or max_new_tokens"
        )
    pipeline = CreditPipeline(chosen, max_new_tokens=max_new_tokens or 1)
    built, correct = pipeline.objective, pipeline.correction

    def policy_loss(
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        config: Any,
        loss_mask: Tensor | None = None,
        rollout_logprobs: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        _check_names(config)
        _check_reduction(config, built.aggregation, built.constant_length)
        mask = torch.ones_like(log_probs, dtype=torch.bool) if loss_mask is None else loss_mask > 0
        if rollout_logprobs is not None:
            mask = mask & ~rollout_logprobs.isnan()
        elif correct is not None:
            raise ConfigError(
                f"correction.kind is {chosen.correction.kind!r} but SkyRL gave no rollout_logprobs; set generator.sampling_params.logprobs"
            )
        logp = finite_inside("log_probs", log_probs, mask)
        old_logp = finite_inside("old_log_probs", old_log_probs, mask).to(logp.dtype)
        credit = credit_responses(pipeline, advantages.to(logp.dtype), mask, old_logp)
        correction = None if correct is None or rollout_logprobs is None else correct(old_logp, rollout_logprobs, mask)
        inputs = objective_inputs(logp, old_logp, mask, credit=credit, correction=correction)
        loss = masked_sum(built.objective.token_loss(inputs, None), mask)
        return loss, {"clip_ratio": float(silenced(built.objective, inputs).share)}

    return policy_loss


def _check_names(config: Any) -> None:
    """A recipe is both functions. SkyRL's own estimators and losses share no name, so one name for both means these two."""
    if config.advantage_estimator != config.policy_loss_type:
        raise ConfigError(
            f"trainer.algorithm.advantage_estimator is {config.advantage_estimator!r} but policy_loss_type is {config.policy_loss_type!r}; "
            "register skyrl_advantage and skyrl_policy_loss under one name and set both to it"
        )


def _check_reduction(config: Any, aggregation: str, constant_length: int) -> None:
    if config.loss_reduction != REDUCTIONS[aggregation]:
        raise ConfigError(
            f"trainer.algorithm.loss_reduction is {config.loss_reduction!r} but the recipe's aggregation is {aggregation!r}; "
            f"set it to {REDUCTIONS[aggregation]!r}"
        )
    if aggregation == "constant" and config.max_seq_len != constant_length:
        raise ConfigError(
            f"trainer.algorithm.max_seq_len, which SkyRL divides by, is {config.max_seq_len}; set it to the recipe's {constant_length}"
        )
    own = getattr(config, "off_policy_correction", None)
    for name in OWN_CORRECTIONS:
        if getattr(own, name, None) is not None:
            raise ConfigError(f"trainer.algorithm.off_policy_correction.{name} is not read by this loss; use the recipe's correction")

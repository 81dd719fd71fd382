"""Wrong objectives and corrections, each a mistake that is easy to make. An objective is given by the function that makes it."""

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor

from tokencredit.masked import response_mean
from tokencredit.objective import OBJECTIVES, Objective, TokenInputs, correction_weight, with_correction, with_kl
from tokencredit.objective.correction import MismatchStatistics, mismatch
from tokencredit.objective.sequence import gmpo_surrogate


def made_of(loss: Callable[[TokenInputs], Tensor]) -> Callable[[], Objective]:
    @wraps(loss)
    def make() -> Objective:
        return Objective(token_loss=lambda inputs, statistic: loss(inputs), silent_without_credit=True)

    return make


def ratio_of(inputs: TokenInputs) -> Tensor:
    return (inputs.logp - inputs.old_logp).exp()


def pessimistic(ratio: Tensor, credit: Tensor, low: float, high: float) -> Tensor:
    return torch.minimum(ratio * credit, ratio.clamp(1 - low, 1 + high) * credit)


# --- token by token


@made_of
def inverted_ratio(inputs):
    return -(inputs.old_logp - inputs.logp).exp() * inputs.credit


@made_of
def unclipped_ratio(inputs):
    return -ratio_of(inputs) * inputs.credit


@made_of
def clipped_by_sign(inputs):
    return -pessimistic(ratio_of(inputs), inputs.credit, 0.2, 0.2)


@made_of
def cispo_without_stop_gradient(inputs):
    return -ratio_of(inputs).clamp(0, 5) * inputs.credit * inputs.logp


@made_of
def cispo_of_tokens_within_the_band(inputs):
    return -ratio_of(inputs).detach() * (ratio_of(inputs) < 5) * inputs.credit * inputs.logp


@made_of
def sapo_without_four(inputs):
    return -(ratio_of(inputs) - 1).sigmoid() * inputs.credit


@made_of
def sapo_around_zero(inputs):
    return -4 * ratio_of(inputs).sigmoid() * inputs.credit


@made_of
def sapo_of_log_ratios(inputs):
    return -4 * (inputs.logp - inputs.old_logp).sigmoid() * inputs.credit


def sapo_swapped_temperatures(*, tau_positive, tau_negative):
    return OBJECTIVES["sapo"](tau_positive=tau_negative, tau_negative=tau_positive)


def sapo_one_temperature(*, tau_positive, tau_negative):
    return OBJECTIVES["sapo"](tau_positive=(tau_positive + tau_negative) / 2, tau_negative=(tau_positive + tau_negative) / 2)


@made_of
def credit_centred_over_the_rows(inputs):
    return -(inputs.credit - inputs.credit.mean(0)) * inputs.logp


def kl_said_to_be_silent():
    built = with_kl(OBJECTIVES["policy-gradient"](), beta=0.1, estimator="k2")
    return Objective(token_loss=built.token_loss, silent_without_credit=True)


# --- one ratio per response


def gspo_of(log_ratio: Tensor, inputs: TokenInputs, *, form: str = "token") -> Tensor:
    """GSPO's loss for a response ratio found in another way."""
    inner = log_ratio.detach() + inputs.logp - inputs.logp.detach() if form == "token" else log_ratio.expand_as(inputs.logp)
    return -pessimistic(inner.exp(), inputs.credit, 3e-4, 4e-4)


@made_of
def gspo_mean_over_the_width(inputs):
    return gspo_of((inputs.logp - inputs.old_logp).mean(-1, keepdim=True), inputs)


@made_of
def gspo_mean_over_the_batch(inputs):
    return gspo_of((inputs.logp - inputs.old_logp)[inputs.mask].mean(), inputs)


@made_of
def gspo_without_stop_gradient(inputs):
    ratio = response_mean(inputs.logp - inputs.old_logp, inputs.mask).exp() * (inputs.logp - inputs.logp.detach()).exp()
    return -pessimistic(ratio, inputs.credit, 3e-4, 4e-4)


@made_of
def gspo_without_the_token(inputs):
    return gspo_of(response_mean(inputs.logp - inputs.old_logp, inputs.mask), inputs._replace(logp=inputs.logp.detach())) + 0 * inputs.logp


@made_of
def gspo_sequence_said_to_be_silent(inputs):
    return OBJECTIVES["gspo"](form="sequence").token_loss(inputs, None)


def gspo_sum_for_mean(*, form="sequence", clip_low=3e-4, clip_high=4e-4):
    if form == "token":
        return OBJECTIVES["gspo"](form=form, clip_low=clip_low, clip_high=clip_high)

    def token_loss(inputs, statistic):
        log_ratio = (inputs.logp - inputs.old_logp).where(inputs.mask, 0.0).sum(-1, keepdim=True)
        return -pessimistic(log_ratio.exp().expand_as(inputs.logp), inputs.credit, clip_low, clip_high)

    return Objective(token_loss=token_loss)


def gspo_clips_token_ratios(*, form="token", clip_low=3e-4, clip_high=4e-4):
    return OBJECTIVES["ppo-clip" if form == "token" else "gspo"](
        clip_low=clip_low, clip_high=clip_high, **({"form": form} if form != "token" else {})
    )


def gmpo_like(change: Callable[[TokenInputs], TokenInputs]) -> Callable[..., Objective]:
    def make(*, form="token", clip_low=0.4, clip_high=0.4):
        def token_loss(inputs, statistic):
            logp, old_logp, credit, mask, *_ = change(inputs)
            surrogate = gmpo_surrogate(logp, old_logp, credit, mask, clip_low=clip_low, clip_high=clip_high, form=form)
            return -surrogate

        return Objective(token_loss=token_loss, silent_without_credit=True)

    return wraps(change)(make)


@gmpo_like
def gmpo_mean_over_the_width(inputs):
    return inputs._replace(mask=torch.ones_like(inputs.mask))


def gmpo_unclipped(*, form="token", clip_low=0.4, clip_high=0.4):
    return OBJECTIVES["gmpo"](form=form, clip_low=100.0, clip_high=100.0)


def gmpo_clips_the_other_side(*, form="token", clip_low=0.4, clip_high=0.4):
    def token_loss(inputs, statistic):
        log_ratio = inputs.logp - inputs.old_logp
        clipped = torch.where(inputs.credit > 0, log_ratio.clamp(min=-clip_low), log_ratio.clamp(max=clip_high))
        ratio = response_mean(clipped, inputs.mask).exp()
        return -inputs.credit * (ratio if form == "sequence" else ratio.detach() * (clipped - clipped.detach()).exp())

    return Objective(token_loss=token_loss)


def gmpo_clips_the_mean(*, form="token", clip_low=0.4, clip_high=0.4):
    def token_loss(inputs, statistic):
        if form == "token":
            return OBJECTIVES["gmpo"](form=form, clip_low=clip_low, clip_high=clip_high).token_loss(inputs, None)
        mean = response_mean(inputs.logp - inputs.old_logp, inputs.mask)
        return -inputs.credit * mean.clamp(-clip_low, clip_high).exp()

    return Objective(token_loss=token_loss)


def gmpo_counts_tokens_without_credit(*, form="token", clip_low=0.4, clip_high=0.4):
    def token_loss(inputs, statistic):
        log_ratio = inputs.logp - inputs.old_logp
        clipped = torch.where(inputs.credit > 0, log_ratio.clamp(max=clip_high), log_ratio.clamp(min=-clip_low))
        ratio = response_mean(clipped, inputs.mask).exp()
        return -inputs.credit * (ratio if form == "sequence" else ratio.detach() * (clipped - clipped.detach()).exp())

    return Objective(token_loss=token_loss)


# --- correction: (old_logp, behavior_logp, mask, *, kind, level, cap, floor)


def inverted_correction(old_logp, behavior_logp, mask, **choice):
    return correction_weight(behavior_logp.where(mask, 0.0), old_logp.where(mask, 0.0), mask, **choice)


def truncates_for_both(old_logp, behavior_logp, mask, *, kind, **choice):
    return correction_weight(old_logp, behavior_logp, mask, kind="tis" if kind == "mis" else kind, **choice)


def drops_for_both(old_logp, behavior_logp, mask, *, kind, **choice):
    return correction_weight(old_logp, behavior_logp, mask, kind="mis" if kind == "tis" else kind, **choice)


def no_floor(old_logp, behavior_logp, mask, *, floor, **choice):
    return correction_weight(old_logp, behavior_logp, mask, floor=0.0, **choice)


def cap_is_a_width(old_logp, behavior_logp, mask, *, cap, **choice):
    return correction_weight(old_logp, behavior_logp, mask, cap=1 + cap, **choice)


def mean_for_product(old_logp, behavior_logp, mask, *, level, **choice):
    if level == "token":
        return correction_weight(old_logp, behavior_logp, mask, level=level, **choice)
    gap = response_mean((old_logp - behavior_logp).where(mask, 0.0), mask).expand_as(old_logp)
    return correction_weight(gap, torch.zeros_like(gap), mask, level="token", **choice)


def level_is_ignored(old_logp, behavior_logp, mask, *, level, **choice):
    return correction_weight(old_logp, behavior_logp, mask, level="token", **choice)


def product_over_the_batch(old_logp, behavior_logp, mask, *, level, **choice):
    if level == "token":
        return correction_weight(old_logp, behavior_logp, mask, level=level, **choice)
    gap = (old_logp - behavior_logp).where(mask, 0.0).sum().expand_as(old_logp)
    return correction_weight(gap, torch.zeros_like(gap), mask, level="token", **choice)


def padding_weighs_one(old_logp, behavior_logp, mask, **choice):
    return correction_weight(old_logp, behavior_logp, mask, **choice).where(mask, 1.0)


def padding_is_multiplied(old_logp, behavior_logp, mask, **choice):
    return correction_weight(old_logp, behavior_logp.nan_to_num(nan=-1.0), torch.ones_like(mask), **choice) * mask


def scaled_to_mean_one(old_logp, behavior_logp, mask, **choice):
    weight = correction_weight(old_logp, behavior_logp, mask, **choice)
    return weight / weight.sum().clamp(min=1e-9) * mask.sum()


# --- order of the terms: (objective, beta) -> objective


def correction_after_kl(objective, beta):
    return with_correction(with_kl(objective, beta=beta, estimator="k3"))


def kl_without_correction(objective, beta):
    return with_kl(objective, beta=beta, estimator="k3")


# --- mismatch: (old_logp, behavior_logp, weight, mask, *, level)


def kl_of_trainer_from_sampler(old_logp, behavior_logp, weight, mask, **level) -> MismatchStatistics:
    return mismatch(old_logp, behavior_logp, weight, mask, **level)._replace(
        kl=mismatch(behavior_logp.where(mask, 0.0), old_logp.where(mask, 0.0), weight, mask).kl
    )


def kl_by_log_ratio(old_logp, behavior_logp, weight, mask, **level) -> MismatchStatistics:
    return mismatch(old_logp, behavior_logp, weight, mask, **level)._replace(kl=float((behavior_logp - old_logp)[mask].mean()))


def effective_tokens_for_share(old_logp, behavior_logp, weight, mask, **level) -> MismatchStatistics:
    found = mismatch(old_logp, behavior_logp, weight, mask, **level)
    return found._replace(effective_share=found.effective_share * float(mask.sum()))


def effective_share_over_padding(old_logp, behavior_logp, weight, mask, **level) -> MismatchStatistics:
    found = mismatch(old_logp, behavior_logp, weight, mask, **level)
    return found._replace(effective_share=found.effective_share * float(mask.sum()) / mask.numel())


def unnormalised_effective_share(old_logp, behavior_logp, weight, mask, **level) -> MismatchStatistics:
    found = mismatch(old_logp, behavior_logp, weight, mask, **level)
    return found._replace(effective_share=float(weight[mask].mean() ** 2))

"""Wrong versions of the clipped surrogate, of KL estimates and of aggregation, each a mistake somebody has made."""

import torch
from torch import Tensor

from tokencredit.batching import step_denominator
from tokencredit.objective import clipped_surrogate, kl_estimate, token_weight

# --- clipped surrogate: (logp, old_logp, credit, *, clip_low, clip_high, dual_clip)


def _pessimistic(ratio: Tensor, credit: Tensor, low: float, high: float) -> Tensor:
    return torch.minimum(ratio * credit, ratio.clamp(low, high) * credit)


def unclipped(logp, old_logp, credit, **widths):
    return (logp - old_logp).exp() * credit


def maximum_for_minimum(logp, old_logp, credit, *, clip_low, clip_high, dual_clip=None):
    ratio = (logp - old_logp).exp()
    return torch.maximum(ratio * credit, ratio.clamp(1 - clip_low, 1 + clip_high) * credit)


def wrong_sign_of_width(logp, old_logp, credit, *, clip_low, clip_high, dual_clip=None):
    return _pessimistic((logp - old_logp).exp(), credit, 1 + clip_low, 1 + clip_low + clip_high)


def swapped_widths(logp, old_logp, credit, *, clip_low, clip_high, dual_clip=None):
    return clipped_surrogate(logp, old_logp, credit, clip_low=clip_high, clip_high=clip_low, dual_clip=dual_clip)


def lower_side_in_log_space(logp, old_logp, credit, *, clip_low, clip_high, dual_clip=None):
    return _pessimistic((logp - old_logp).exp(), credit, 1 / (1 + clip_low), 1 + clip_high)


def inverted_ratio(logp, old_logp, credit, *, clip_low, clip_high, dual_clip=None):
    return _pessimistic((old_logp - logp).exp(), credit, 1 - clip_low, 1 + clip_high)


def half_clipped(logp, old_logp, credit, **widths):
    return (clipped_surrogate(logp, old_logp, credit, **widths) + unclipped(logp, old_logp, credit)) / 2


def mean_ratio_over_the_width(logp, old_logp, credit, **widths):
    return clipped_surrogate((logp - old_logp).mean(-1, keepdim=True).expand_as(logp), torch.zeros_like(logp), credit, **widths)


def whitened_credit(logp, old_logp, credit, **widths):
    return clipped_surrogate(logp, old_logp, credit / (credit.abs().max() + 1e-6), **widths)


def dual_clip_ignored(logp, old_logp, credit, *, clip_low, clip_high, dual_clip=None):
    return clipped_surrogate(logp, old_logp, credit, clip_low=clip_low, clip_high=clip_high)


def dual_clip_on_positive_credit(logp, old_logp, credit, *, clip_low, clip_high, dual_clip=None):
    surrogate = clipped_surrogate(logp, old_logp, credit, clip_low=clip_low, clip_high=clip_high)
    return surrogate if dual_clip is None else torch.maximum(surrogate, dual_clip * credit)


# --- KL: (logp, reference_logp, *, kind)


def reversed_kl(logp, reference_logp, *, kind):
    return kl_estimate(reference_logp, logp, kind=kind)


def k2_without_half(logp, reference_logp, *, kind):
    return kl_estimate(logp, reference_logp, kind=kind) * (2 if kind == "k2" else 1)


def k3_without_log_ratio(logp, reference_logp, *, kind):
    return (reference_logp - logp).exp() - 1 if kind == "k3" else kl_estimate(logp, reference_logp, kind=kind)


# --- aggregation: (token_loss, mask, *, aggregation, constant_length) -> the loss of one optimizer step


def aggregate(token_loss, mask, *, aggregation, constant_length, weight=token_weight, denominator=step_denominator):
    """The real one: weights and denominator put together as every engine does."""
    length = mask.sum(-1)
    weights = weight(mask, length.to(token_loss.dtype), aggregation=aggregation)
    return (weights * token_loss).sum() / denominator(length.tolist(), aggregation=aggregation, constant_length=constant_length)


def padded_width_for_length(token_loss, mask, **choice):
    return aggregate(
        token_loss, mask, **choice, weight=lambda mask, _, **kind: token_weight(mask, mask.sum(-1) * 0.0 + mask.shape[1], **kind)
    )


def padding_weighs(token_loss, mask, **choice):
    return aggregate(token_loss, mask, **choice, weight=lambda mask, *rest, **kind: token_weight(torch.ones_like(mask), *rest, **kind))


def every_row_as_long_as_the_longest(token_loss, mask, **choice):
    return aggregate(
        token_loss, mask, **choice, denominator=lambda lengths, **kind: step_denominator([max(lengths)] * len(lengths), **kind)
    )


def constant_not_per_response(token_loss, mask, **choice):
    return aggregate(token_loss, mask, **choice, denominator=lambda lengths, **kind: step_denominator([sum(lengths)], **kind))

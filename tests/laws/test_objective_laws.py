"""What must hold for the surrogate, the KL estimates and their aggregation; and the wrong versions each law rejects."""

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad
from torch.testing import assert_close

from laws import mutants_surrogate as mutants
from laws.harness import Law, for_all, functions_of, law_tests_from_functions
from laws.mutants_surrogate import aggregate
from tokencredit.objective import clipped_surrogate, kl_estimate

LOG_RATIOS = st.floats(-2, 2)
CREDITS = st.floats(-3, 3)
TOKENS = st.lists(st.tuples(LOG_RATIOS, CREDITS), min_size=1, max_size=6)
WIDTHS = st.floats(0.05, 0.9)
DUAL_CLIPS = st.floats(1.1, 4)
LOGITS = st.lists(st.floats(-2, 2), min_size=5, max_size=5)
LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=5)
AGGREGATIONS = st.sampled_from(["token-mean", "sequence-mean", "constant"])
OLD_LOGP = -1.5


def tensors(tokens: list[tuple[float, float]]) -> tuple[Tensor, Tensor, Tensor]:
    log_ratio, credit = (torch.tensor([column], dtype=torch.float64) for column in zip(*tokens, strict=True))
    old_logp = torch.full_like(log_ratio, OLD_LOGP)
    return (old_logp + log_ratio).requires_grad_(), old_logp, credit


@for_all(TOKENS, WIDTHS, WIDTHS, st.none() | DUAL_CLIPS)
def on_policy_the_value_and_the_gradient_are_the_credit(surrogate, tokens, low, high, dual):
    _, old_logp, credit = tensors(tokens)
    logp = old_logp.clone().requires_grad_()
    value = surrogate(logp, old_logp, credit, clip_low=low, clip_high=high, dual_clip=dual)
    assert_close(value, credit)
    assert_close(torch.autograd.grad(value.sum(), logp)[0], credit)


@for_all(TOKENS, WIDTHS, WIDTHS)
def clipping_never_raises_the_surrogate(surrogate, tokens, low, high):
    logp, old_logp, credit = tensors(tokens)
    unclipped = (logp - old_logp).exp() * credit
    assert bool((surrogate(logp, old_logp, credit, clip_low=low, clip_high=high) <= unclipped + 1e-12).all())


@for_all(TOKENS, WIDTHS, WIDTHS)
def leaving_the_band_in_the_direction_of_the_credit_earns_nothing_more(surrogate, tokens, low, high):
    logp, old_logp, credit = tensors(tokens)
    most = torch.where(credit > 0, (1 + high) * credit, (1 - low) * credit)
    assert bool((surrogate(logp, old_logp, credit, clip_low=low, clip_high=high) <= most + 1e-12).all())


@for_all(TOKENS, WIDTHS, WIDTHS, st.none() | DUAL_CLIPS)
def a_token_keeps_its_whole_gradient_or_none(surrogate, tokens, low, high, dual):
    logp, old_logp, credit = tensors(tokens)
    value = surrogate(logp, old_logp, credit, clip_low=low, clip_high=high, dual_clip=dual)
    (gradient,) = torch.autograd.grad(value.sum(), logp)
    whole = ((logp - old_logp).exp() * credit).detach()
    assert bool(((gradient == 0) | torch.isclose(gradient, whole)).all())


@for_all(TOKENS, WIDTHS)
def equal_widths_treat_both_signs_alike(surrogate, tokens, width):
    """Mirror the ratio at 1 and the sign of the credit: what the token gains over staying on-policy is the same."""
    logp, old_logp, credit = tensors([(min(log_ratio, 0.6), a) for log_ratio, a in tokens])
    mirrored = (2 - (logp - old_logp).exp()).log() + old_logp
    gain = surrogate(logp, old_logp, credit, clip_low=width, clip_high=width) - credit
    mirrored_gain = surrogate(mirrored, old_logp, -credit, clip_low=width, clip_high=width) + credit
    assert_close(gain, mirrored_gain, rtol=1e-9, atol=1e-9)


@for_all(TOKENS, WIDTHS, WIDTHS, st.none() | DUAL_CLIPS, st.floats(0.1, 10))
def the_surrogate_is_proportional_to_the_credit(surrogate, tokens, low, high, dual, scale):
    logp, old_logp, credit = tensors(tokens)
    widths = {"clip_low": low, "clip_high": high, "dual_clip": dual}
    assert_close(surrogate(logp, old_logp, scale * credit, **widths), scale * surrogate(logp, old_logp, credit, **widths))


@for_all(TOKENS, TOKENS, WIDTHS, WIDTHS, st.none() | DUAL_CLIPS)
def more_columns_leave_a_token_as_it_was(surrogate, tokens, padding, low, high, dual):
    widths = {"clip_low": low, "clip_high": high, "dual_clip": dual}
    alone, padded = surrogate(*tensors(tokens), **widths), surrogate(*tensors(tokens + padding), **widths)
    assert_close(padded[:, : len(tokens)], alone)


@for_all(TOKENS, WIDTHS, WIDTHS, DUAL_CLIPS)
def dual_clip_bounds_negative_credit_and_touches_nothing_else(surrogate, tokens, low, high, dual):
    logp, old_logp, credit = tensors(tokens)
    plain = surrogate(logp, old_logp, credit, clip_low=low, clip_high=high)
    bounded = surrogate(logp, old_logp, credit, clip_low=low, clip_high=high, dual_clip=dual)
    negative = credit < 0
    assert bool((bounded >= dual * credit - 1e-12)[negative].all())
    untouched = ~negative | (plain >= dual * credit)
    assert_close(bounded[untouched], plain[untouched])


def divergence(policy_logits: Tensor, reference: Tensor) -> Tensor:
    policy = policy_logits.log_softmax(-1)
    return (policy.exp() * (policy - reference)).sum()


@for_all(LOGITS, LOGITS)
def k1_and_k3_average_to_the_divergence(estimate, policy, reference):
    policy, reference = (torch.tensor(logits, dtype=torch.float64).log_softmax(-1) for logits in (policy, reference))
    for kind in ("k1", "k3"):
        assert_close((policy.exp() * estimate(policy, reference, kind=kind)).sum(), divergence(policy, reference))


@for_all(LOGITS, LOGITS)
def k2_has_the_gradient_of_the_divergence_on_average(estimate, policy, reference):
    logits = torch.tensor(policy, dtype=torch.float64, requires_grad=True)
    reference = torch.tensor(reference, dtype=torch.float64).log_softmax(-1)
    logp = logits.log_softmax(-1)
    (average,) = torch.autograd.grad((logp.exp().detach() * estimate(logp, reference, kind="k2")).sum(), logits)
    (exact,) = torch.autograd.grad(divergence(logits, reference), logits)
    assert_close(average, exact)


@for_all(st.lists(LOG_RATIOS, min_size=1, max_size=6))
def k2_and_k3_are_never_negative_and_zero_on_agreement(estimate, differences):
    reference = torch.full((len(differences),), OLD_LOGP, dtype=torch.float64)
    for kind in ("k2", "k3"):
        assert bool((estimate(reference + torch.tensor(differences), reference, kind=kind) >= 0).all())
        assert not estimate(reference, reference, kind=kind).any()


def rows_of(lengths: list[int]) -> tuple[Tensor, Tensor]:
    """A loss that differs from token to token, also where the mask does not look."""
    width = max(1, *lengths)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    return torch.arange(1.0, 1.0 + mask.numel(), dtype=torch.float64).reshape(mask.shape).sqrt(), mask


@for_all(st.integers(1, 6), st.integers(1, 5), st.integers(0, 4))
def responses_of_one_length_make_every_aggregation_the_same(step_loss, length, responses, padding):
    token_loss, mask = rows_of([length] * responses)
    token_loss, mask = pad(token_loss, (0, padding), value=7.0), pad(mask, (0, padding))
    plain_mean = token_loss[mask].mean()
    for aggregation in ("token-mean", "sequence-mean", "constant"):
        assert_close(step_loss(token_loss, mask, aggregation=aggregation, constant_length=length), plain_mean)


@for_all(LENGTHS, st.integers(1, 5), AGGREGATIONS)
def padding_changes_no_aggregated_loss(step_loss, lengths, padding, aggregation):
    token_loss, mask = rows_of(lengths)
    wider = step_loss(pad(token_loss, (0, padding), value=7.0), pad(mask, (0, padding)), aggregation=aggregation, constant_length=4)
    assert_close(wider, step_loss(token_loss, mask, aggregation=aggregation, constant_length=4))


@for_all(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.sampled_from(["token-mean", "sequence-mean"]), st.floats(-2, 2))
def the_mean_of_a_constant_is_the_constant(step_loss, lengths, aggregation, constant):
    _, mask = rows_of(lengths)
    token_loss = torch.full(mask.shape, constant, dtype=torch.float64)
    assert_close(step_loss(token_loss, mask, aggregation=aggregation, constant_length=4), torch.tensor(constant, dtype=torch.float64))


SURROGATE_LAWS: dict[Law, tuple] = {
    on_policy_the_value_and_the_gradient_are_the_credit: (mutants.inverted_ratio, mutants.wrong_sign_of_width, mutants.whitened_credit),
    clipping_never_raises_the_surrogate: (mutants.maximum_for_minimum,),
    leaving_the_band_in_the_direction_of_the_credit_earns_nothing_more: (mutants.unclipped, mutants.swapped_widths, mutants.half_clipped),
    a_token_keeps_its_whole_gradient_or_none: (mutants.half_clipped, mutants.mean_ratio_over_the_width),
    equal_widths_treat_both_signs_alike: (mutants.lower_side_in_log_space, mutants.wrong_sign_of_width),
    the_surrogate_is_proportional_to_the_credit: (mutants.whitened_credit,),
    more_columns_leave_a_token_as_it_was: (mutants.mean_ratio_over_the_width, mutants.whitened_credit),
    dual_clip_bounds_negative_credit_and_touches_nothing_else: (mutants.dual_clip_ignored, mutants.dual_clip_on_positive_credit),
}
KL_LAWS: dict[Law, tuple] = {
    k1_and_k3_average_to_the_divergence: (mutants.reversed_kl, mutants.k3_without_log_ratio),
    k2_has_the_gradient_of_the_divergence_on_average: (mutants.k2_without_half,),
    k2_and_k3_are_never_negative_and_zero_on_agreement: (mutants.k3_without_log_ratio,),
}
AGGREGATION_LAWS: dict[Law, tuple] = {
    responses_of_one_length_make_every_aggregation_the_same: (mutants.constant_not_per_response, mutants.padded_width_for_length),
    padding_changes_no_aggregated_loss: (mutants.padded_width_for_length, mutants.padding_weighs),
    the_mean_of_a_constant_is_the_constant: (mutants.every_row_as_long_as_the_longest, mutants.padded_width_for_length),
}
LAWS = SURROGATE_LAWS | KL_LAWS | AGGREGATION_LAWS
IMPLEMENTATIONS = {
    **dict.fromkeys(SURROGATE_LAWS, clipped_surrogate),
    **dict.fromkeys(KL_LAWS, kl_estimate),
    **dict.fromkeys(AGGREGATION_LAWS, aggregate),
}

test_the_code_obeys, test_the_law_rejects, test_the_table_is_complete = law_tests_from_functions(
    LAWS, lambda law: IMPLEMENTATIONS[law], functions_of(mutants, mutants.aggregate)
)

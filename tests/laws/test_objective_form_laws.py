"""What must hold for every objective and for the correction, whatever the batch; and the wrong versions each law rejects."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple, get_args

import pytest
import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad
from torch.testing import assert_close

from laws import mutants_objective_forms as mutants
from laws.harness import Law, for_all, functions_of, law_tests_from_functions
from tokencredit.config import Correction, as_kwargs
from tokencredit.config.objective import ObjectiveChoice
from tokencredit.objective import OBJECTIVES, Objective, TokenInputs, correction_weight, token_weight, with_correction, with_kl
from tokencredit.objective.base import kl_estimate
from tokencredit.objective.correction import mismatch


def for_each(*strategies: st.SearchStrategy) -> Callable[[Callable[..., None]], Law]:
    """Like `for_all`, for several implementations at once: every example is tried on each of them."""

    def decorate(statement: Callable[..., None]) -> Law:
        @for_all(*strategies)
        @wraps(statement)
        def all_of(implementations: Sequence[Any], *example: Any) -> None:
            for implementation in implementations:
                statement(implementation, *example)

        return all_of

    return decorate


CHOICES = {choice().type: choice() for choice in get_args(ObjectiveChoice)}
LENGTHS = st.lists(st.integers(0, 5), min_size=1, max_size=5)
SEEDS = st.integers(0, 2**31)
DRIFTS = st.sampled_from([0.0, 1e-4, 0.1, 1.0, 15.0])
"""Width of the log-ratios; 1e-4 lies within every band."""
AGGREGATIONS = st.sampled_from(["token-mean", "sequence-mean"])


def any_credit(mask: Tensor, draw: torch.Generator) -> Tensor:
    """Either sign on any token, and zeros."""
    credit = torch.randn(mask.shape, dtype=torch.float64, generator=draw)
    return credit * (torch.rand(mask.shape, generator=draw) < 0.8)


def uniform_credit(mask: Tensor, draw: torch.Generator) -> Tensor:
    return any_credit(mask[:, :1], draw).expand(mask.shape)


def zero_sum_credit(mask: Tensor, draw: torch.Generator) -> Tensor:
    """Whole numbers that sum to 0 in every response, so that sums are exact."""
    credit = torch.randint(-4, 5, mask.shape, generator=draw).double() * mask
    first = mask & (mask.cumsum(-1) == 1)
    return credit - credit.sum(-1, keepdim=True) * first


def batch(lengths: list[int], seed: int, drift: float, credit: Callable[[Tensor, torch.Generator], Tensor] = any_credit) -> TokenInputs:
    """Responses of the given numbers of loss tokens, with holes; numbers that mean nothing outside the mask."""
    draw = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths) + 2)
    mask = torch.rand(shape, generator=draw).argsort(-1) < torch.tensor(lengths)[:, None]
    old_logp = -torch.rand(shape, dtype=torch.float64, generator=draw) * 4
    return TokenInputs(
        logp=old_logp + drift * (2 * torch.rand(shape, dtype=torch.float64, generator=draw) - 1),
        old_logp=old_logp,
        credit=credit(mask, draw),
        mask=mask,
        group=torch.arange(len(lengths)) // 2,
        reference_logp=old_logp - 0.1,
        advantage=torch.randn(len(lengths), dtype=torch.float64, generator=draw),
        row=torch.arange(len(lengths)),
    )


def some_rows(inputs: TokenInputs, rows: list[int]) -> TokenInputs:
    return TokenInputs(*(part[rows] if isinstance(part, Tensor) else part for part in inputs))


class Step(NamedTuple):
    kappa: Tensor
    loss: Tensor
    """Of every token, 0 outside the mask."""


def one_step(objective: Objective, inputs: TokenInputs, *, aggregation: str = "token-mean", parts: list[list[int]] | None = None) -> Step:
    """Gradient by log-prob and token losses of an optimizer step cut into `parts`, up to its denominator."""
    parts = parts or [list(range(len(inputs.mask)))]
    statistic = None
    if objective.statistic is not None:
        gathered = objective.statistic()
        for rows in parts:
            gathered.add(some_rows(inputs, rows))
        statistic = gathered.finish()
    kappa, losses = torch.zeros_like(inputs.logp), torch.zeros_like(inputs.logp)
    for rows in parts:
        part = some_rows(inputs, rows)
        leaf = part.logp.clone().requires_grad_()
        loss = objective.token_loss(part._replace(logp=leaf), statistic)
        weight = token_weight(part.mask, part.mask.sum(-1).double(), aggregation=aggregation)
        kappa[rows] = torch.autograd.grad((weight * loss).sum(), leaf)[0]
        losses[rows] = loss.detach().where(part.mask, 0.0)
    return Step(kappa, losses)


# --- laws of any objective; the implementation is the function that makes it


@for_each(LENGTHS, SEEDS, AGGREGATIONS)
def on_policy_the_gradient_is_the_policy_gradient(make, lengths, seed, aggregation):
    inputs = batch(lengths, seed, 0.0)
    expected = -inputs.credit * token_weight(inputs.mask, inputs.mask.sum(-1).double(), aggregation=aggregation)
    assert_close(one_step(make(), inputs, aggregation=aggregation).kappa, expected)


@for_each(LENGTHS, SEEDS, AGGREGATIONS)
def on_policy_and_with_uniform_credit_the_gradient_is_the_policy_gradient(make, lengths, seed, aggregation):
    inputs = batch(lengths, seed, 0.0, uniform_credit)
    expected = -inputs.credit * token_weight(inputs.mask, inputs.mask.sum(-1).double(), aggregation=aggregation)
    assert_close(one_step(make(), inputs, aggregation=aggregation).kappa, expected)


@for_each(st.lists(st.integers(2, 5), min_size=1, max_size=4), SEEDS, st.sampled_from([0.0, 1e-4]))
def credit_that_sums_to_zero_still_moves_tokens(make, lengths, seed, drift):
    inputs = batch(lengths, seed, drift, zero_sum_credit)
    assume(bool(inputs.credit.any()))
    assert bool(one_step(make(), inputs).kappa.any())


@for_each(st.lists(st.integers(2, 5), min_size=1, max_size=4), SEEDS, st.sampled_from([0.0, 1e-4]))
def credit_that_sums_to_zero_moves_nothing(make, lengths, seed, drift):
    inputs = batch(lengths, seed, drift, zero_sum_credit)
    assume(bool(inputs.credit.any()))
    assert not one_step(make(), inputs).kappa.any()


@for_each(LENGTHS, SEEDS, DRIFTS)
def a_token_loss_knows_no_other_response(make, lengths, seed, drift):
    inputs = batch(lengths, seed, drift)
    row = seed % len(lengths)
    alone, among = one_step(make(), some_rows(inputs, [row])), one_step(make(), inputs)
    assert_close(alone.loss, among.loss[[row]])
    assert_close(alone.kappa, among.kappa[[row]])


@for_each(LENGTHS, SEEDS, DRIFTS, st.integers(1, 4), AGGREGATIONS)
def padding_changes_nothing(make, lengths, seed, drift, columns, aggregation):
    inputs = batch(lengths, seed, drift)
    wide = {name: pad(getattr(inputs, name), (0, columns), value=0.7) for name in ("logp", "credit", "reference_logp")}
    padded = inputs._replace(**wide, old_logp=pad(inputs.old_logp, (0, columns), value=-0.9), mask=pad(inputs.mask, (0, columns)))
    plain, step = one_step(make(), inputs, aggregation=aggregation), one_step(make(), padded, aggregation=aggregation)
    assert_close(step.loss, pad(plain.loss, (0, columns)))
    assert_close(step.kappa, pad(plain.kappa, (0, columns)))


@for_each(st.lists(st.integers(0, 5), min_size=2, max_size=5), SEEDS, DRIFTS, AGGREGATIONS)
def the_cut_into_micro_batches_changes_nothing(make, lengths, seed, drift, aggregation):
    inputs = batch(lengths, seed, drift)
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed)).tolist()
    whole = one_step(make(), inputs, aggregation=aggregation)
    step = one_step(make(), inputs, aggregation=aggregation, parts=[order[:1], order[1:]])
    assert_close(step.loss, whole.loss)
    assert_close(step.kappa, whole.kappa)


@for_each(LENGTHS, SEEDS, DRIFTS)
def what_is_said_to_be_silent_is_silent(make, lengths, seed, drift):
    objective, inputs = make(), batch(lengths, seed, drift)
    assert objective.silent_without_credit
    step = one_step(objective, inputs)
    assert not step.loss[inputs.credit == 0].any()
    assert not step.kappa[inputs.credit == 0].any()


@for_each(LENGTHS, SEEDS, DRIFTS)
def a_response_without_credit_is_silent(make, lengths, seed, drift):
    inputs = batch(lengths, seed, drift, uniform_credit)
    step = one_step(make(), inputs)
    assert not step.loss[inputs.credit == 0].any()
    assert not step.kappa[inputs.credit == 0].any()


SHARED = st.lists(st.tuples(st.floats(-2, 2), st.floats(0.1, 3)), min_size=1, max_size=4)
"""Log-ratio and size of credit of the tokens that two responses begin with."""


def siblings(shared: list[tuple[float, float]], seed: int) -> TokenInputs:
    """Two responses that share their first tokens and part ways, with opposite credit on what they share."""
    inputs = batch([len(shared) + 2, len(shared) + 2], seed, 1.0)
    log_ratio, credit = torch.tensor(shared, dtype=torch.float64).T
    for row, sign in ((0, 1), (1, -1)):
        inputs.logp[row, : len(shared)] = -1.5 + log_ratio
        inputs.old_logp[row, : len(shared)] = -1.5
        inputs.credit[row, : len(shared)] = sign * credit
    inputs.mask[:] = True
    return inputs


@for_each(SHARED, SEEDS)
def shared_tokens_with_opposite_credit_cancel(make, shared, seed):
    """The exchange law: the same token in both responses is pushed up and down by exactly the same amount."""
    kappa = one_step(make(), siblings(shared, seed)).kappa[:, : len(shared)]
    assert bool((kappa.sum(0) == 0).all())


@for_each(SHARED, SEEDS)
def shared_tokens_cancel_within_the_band_and_not_at_all_outside(make, shared, seed):
    kappa = one_step(make(), siblings(shared, seed)).kappa[:, : len(shared)]
    ratio = torch.tensor([log_ratio for log_ratio, _ in shared], dtype=torch.float64).exp()
    within = (ratio >= 0.8) & (ratio <= 1.2)
    assert bool((kappa.sum(0) == 0)[within].all())
    assert bool((kappa.sum(0).abs() == kappa.abs().sum(0))[~within].all())
    assert bool(kappa.any(0).all())


@for_each(LENGTHS, SEEDS, DRIFTS)
def every_token_keeps_a_bounded_gradient(make, lengths, seed, drift):
    """CISPO with its defaults: upwards for positive credit, downwards for negative, at most five times the credit."""
    inputs = batch(lengths, seed, drift)
    kappa, credit = -one_step(make(), inputs).kappa[inputs.mask], inputs.credit[inputs.mask]
    assert bool((kappa.sign() == credit.sign()).all())
    assert bool((kappa.abs() <= 5 * credit.abs() + 1e-12).all())
    within = (inputs.logp - inputs.old_logp)[inputs.mask].exp() <= 5
    assert_close(kappa[within], ((inputs.logp - inputs.old_logp).exp() * inputs.credit)[inputs.mask][within])


@for_each(st.floats(0.01, 0.95), st.floats(0.1, 3))
def the_gate_is_open_on_policy_and_closes_alike_on_both_sides(make, distance, credit):
    """SAPO: what the gate leaves of a token's gradient rho a depends on |rho - 1| alone, and is 1 only at rho = 1."""
    ratio = torch.tensor([[1.0, 1 + distance, 1 - distance]], dtype=torch.float64)
    ones = torch.ones(1, 3, dtype=torch.bool)
    inputs = TokenInputs(ratio.log(), torch.zeros_like(ratio), torch.full_like(ratio, credit), ones, torch.zeros(1, dtype=torch.long))
    on_policy, above, below = (-one_step(make(), inputs).kappa / (ratio * credit))[0]
    assert_close(on_policy, torch.ones_like(on_policy))
    assert_close(above, below)
    assert above < 1


@for_each(LENGTHS, SEEDS, DRIFTS)
def a_response_is_clipped_as_a_whole(make, lengths, seed, drift):
    """GSPO with uniform credit: every token of a response moves, or none does."""
    inputs = batch(lengths, seed, drift, uniform_credit)
    moved = (one_step(make(), inputs).kappa != 0) & inputs.mask
    assert bool((moved.any(-1) == (moved | ~inputs.mask).all(-1))[inputs.mask.any(-1)].all())


# --- laws of a method's knobs; the implementation takes them


@for_each(LENGTHS, SEEDS, DRIFTS, st.floats(1e-4, 0.9), st.floats(1e-4, 3))
def with_uniform_credit_both_forms_have_one_gradient(make, lengths, seed, drift, low, high):
    inputs = batch(lengths, seed, drift, uniform_credit)
    token, sequence = (make(form=form, clip_low=low, clip_high=high) for form in ("token", "sequence"))
    steps = [one_step(objective, inputs, aggregation="sequence-mean") for objective in (token, sequence)]
    assert_close(steps[0].kappa, steps[1].kappa)
    assert_close(steps[0].loss, steps[1].loss)


@for_each(LENGTHS, SEEDS, DRIFTS, st.floats(0.01, 1), st.floats(0.01, 1))
def the_geometric_mean_earns_no_more_than_the_clip_allows(make, lengths, seed, drift, low, high):
    """GMPO with uniform credit: at most a e^high or a e^-low, and never more than without the clip."""
    inputs = batch(lengths, seed, drift, uniform_credit)
    gain = -one_step(make(clip_low=low, clip_high=high), inputs).loss
    credit = inputs.credit.where(inputs.mask, 0.0)
    most = credit * torch.where(credit > 0, torch.tensor(high).double().exp(), torch.tensor(-low).double().exp())
    mean = (inputs.logp - inputs.old_logp).where(inputs.mask, 0.0).sum(-1) / inputs.mask.sum(-1).clamp(min=1)
    slack = 1e-9 * (1 + most.abs())
    assert bool((gain <= most + slack).all())
    assert bool((gain <= credit * mean.exp()[:, None] + slack).all())


@for_each(LENGTHS, SEEDS, DRIFTS, st.sampled_from(["token", "sequence"]))
def tokens_without_credit_have_no_say_in_the_ratio(make, lengths, seed, drift, form):
    """GMPO: moving the log-probs of tokens without credit changes nothing."""
    inputs = batch(lengths, seed, drift)
    moved = inputs._replace(logp=torch.where(inputs.credit == 0, inputs.old_logp - 0.3, inputs.logp))
    steps = [one_step(make(form=form), each) for each in (inputs, moved)]
    assert_close(steps[0].loss, steps[1].loss)
    assert_close(steps[0].kappa, steps[1].kappa)


@for_each(LENGTHS, SEEDS, DRIFTS, st.tuples(st.floats(0.2, 5), st.floats(0.2, 5), st.floats(0.2, 5)))
def each_temperature_belongs_to_one_sign(make, lengths, seed, drift, temperatures):
    """SAPO: the other sign's temperature never enters, and equal temperatures make the loss odd in the credit."""
    one, two, three = temperatures
    inputs = batch(lengths, seed, drift)
    for same, side in (("tau_positive", inputs.credit > 0), ("tau_negative", inputs.credit < 0)):
        other = "tau_negative" if same == "tau_positive" else "tau_positive"
        first, second = (one_step(make(**{same: one, other: tau}), inputs).loss for tau in (two, three))
        assert_close(first[side], second[side])
    equal = make(tau_positive=one, tau_negative=one)
    assert_close(one_step(equal, inputs).loss, -one_step(equal, inputs._replace(credit=-inputs.credit)).loss)


# --- laws of the correction


CORRECTIONS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["none", "tis", "mis"]),
        "level": st.sampled_from(["token", "sequence"]),
        "cap": st.floats(1, 5),
        "floor": st.floats(0, 1),
    }
)
GAPS = st.sampled_from([0.0, 0.1, 1.0, 15.0])


def sampled(lengths: list[int], seed: int, gap: float) -> tuple[Tensor, Tensor, Tensor]:
    """Trainer's and sampler's log-probs, the latter NaN outside the mask."""
    inputs = batch(lengths, seed, gap)
    return inputs.old_logp, inputs.logp.where(inputs.mask, torch.nan), inputs.mask


@for_each(LENGTHS, SEEDS, CORRECTIONS)
def where_sampler_and_trainer_agree_every_weight_is_one(weigh, lengths, seed, choice):
    old_logp, behavior_logp, mask = sampled(lengths, seed, 0.0)
    assert_close(weigh(old_logp, behavior_logp, mask, **choice), mask.double())


@for_each(LENGTHS, SEEDS, GAPS, CORRECTIONS)
def weights_are_ratios_within_the_bounds(weigh, lengths, seed, gap, choice):
    """The ratio itself within [floor, cap]; outside, tis puts the nearer bound and mis 0. Nothing outside the mask."""
    old_logp, behavior_logp, mask = sampled(lengths, seed, gap)
    weight = weigh(old_logp, behavior_logp, mask, **choice)
    difference = (old_logp - behavior_logp).where(mask, 0.0)
    ratio = (difference.sum(-1, keepdim=True).expand_as(weight) if choice["level"] == "sequence" else difference).clamp(-20, 20).exp()
    allowed = {
        "none": torch.ones_like(ratio),
        "tis": torch.minimum(torch.maximum(ratio, ratio * 0 + choice["floor"]), ratio * 0 + choice["cap"]),
    }
    allowed["mis"] = ratio * (allowed["tis"] == ratio)
    assert_close(weight, allowed[choice["kind"]] * mask)


@for_each(LENGTHS, SEEDS, GAPS, CORRECTIONS, st.integers(1, 4))
def weights_know_neither_padding_nor_other_responses(weigh, lengths, seed, gap, choice, columns):
    old_logp, behavior_logp, mask = sampled(lengths, seed, gap)
    row = [seed % len(lengths)]
    whole = weigh(old_logp, behavior_logp, mask, **choice)
    wide = pad(old_logp, (0, columns), value=-0.3), pad(behavior_logp, (0, columns), value=torch.nan), pad(mask, (0, columns))
    assert_close(weigh(*wide, **choice), pad(whole, (0, columns)))
    assert_close(weigh(old_logp[row], behavior_logp[row], mask[row], **choice), whole[row])


LOGITS = st.lists(st.floats(-1.5, 1.5), min_size=4, max_size=4)


@for_each(LOGITS, LOGITS, LOGITS, st.sampled_from(["tis", "mis"]))
def weighted_samples_of_the_sampler_average_to_the_trainer(weigh, trainer, sampler, value, kind):
    """Without a bound in reach: the sum over the sampler's distribution of weight x value is the trainer's mean."""
    old_logp, behavior_logp = (torch.tensor([logits], dtype=torch.float64).log_softmax(-1) for logits in (trainer, sampler))
    value = torch.tensor([value], dtype=torch.float64)
    weight = weigh(old_logp, behavior_logp, torch.ones(1, 4, dtype=torch.bool), kind=kind, level="token", cap=1e6, floor=0.0)
    assert_close((behavior_logp.exp() * weight * value).sum(), (old_logp.exp() * value).sum())


def corrected_with_kl(objective: Objective, beta: float) -> Objective:
    """The real order, as recipes are built."""
    return with_kl(with_correction(objective), beta=beta, estimator="k3")


@for_each(LENGTHS, SEEDS, st.floats(0.1, 2))
def a_kl_term_is_the_same_whatever_the_weights(assemble, lengths, seed, beta):
    inputs = batch(lengths, seed, 0.1)
    objective = assemble(OBJECTIVES["policy-gradient"](), beta)
    weight = 1 + torch.rand(inputs.mask.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    plain, weighed = (
        objective.token_loss(inputs._replace(correction=each), None) - each * -inputs.credit * inputs.logp
        for each in (torch.ones_like(weight), weight)
    )
    assert_close(plain, weighed)
    assert_close(plain, beta * kl_estimate(inputs.logp, inputs.reference_logp, kind="k3"))


@for_each(LOGITS, LOGITS)
def the_divergence_is_that_of_the_trainer_from_the_sampler(measure, trainer, sampler):
    """Averaged over the sampler, kl is sum p_sampler (log p_sampler - log p_trainer); each single estimate is never negative."""
    old_logp, behavior_logp = (torch.tensor(logits, dtype=torch.float64).log_softmax(-1) for logits in (trainer, sampler))
    one = torch.ones(1, 1, dtype=torch.float64)
    found = [measure(old[None, None], new[None, None], one, one.bool()).kl for old, new in zip(old_logp, behavior_logp, strict=True)]
    assert min(found) >= 0
    average = (behavior_logp.exp() * torch.tensor(found, dtype=torch.float64)).sum()
    assert_close(average, (behavior_logp.exp() * (behavior_logp - old_logp)).sum())


@for_each(LENGTHS, SEEDS, GAPS, st.floats(0.1, 10))
def effective_share_counts_equal_weights_in_full(measure, lengths, seed, gap, scale):
    """Between 0 and 1, blind to a common factor, 1 for equal weights, and k of n where k equal weights remain."""
    old_logp, behavior_logp, mask = sampled(lengths, seed, gap)
    assume(bool(mask.any()))
    weight = correction_weight(old_logp, behavior_logp, mask, kind="tis", cap=1e6)
    share = measure(old_logp, behavior_logp, weight, mask).effective_share
    assert 0 < share <= 1 + 1e-12
    assert share == pytest.approx(measure(old_logp, behavior_logp, scale * weight, mask).effective_share)
    kept = mask & (torch.arange(mask.shape[1]) % 2 == 0)
    expected = float(kept.sum() / mask.sum())
    assert measure(old_logp, behavior_logp, scale * kept.double(), mask).effective_share == pytest.approx(expected)
    assert measure(old_logp, behavior_logp, scale * mask.double(), mask).effective_share == pytest.approx(1)


# --- what must obey which law, and what must not


TABLE = {name: partial(make, **as_kwargs(CHOICES[name], "aggregation", "constant_length")) for name, make in OBJECTIVES.items()}
"""Every objective with the defaults of its choice; token forms."""
WITHOUT_STATISTIC = {name: make for name, make in TABLE.items() if make().statistic is None}
SEQUENCE_FORMS = {f"{name} sequence": partial(OBJECTIVES[name], form="sequence") for name in ("gspo", "gmpo")}
RATIO_FORMS = {name: TABLE[name] for name in ("ppo-clip", "sign-blind-clip", "gspo", "gmpo", "cispo", "sapo", "policy-gradient")}
UNCLIPPED = {"sign-blind-clip none": partial(OBJECTIVES["sign-blind-clip"], clipping="none")}
EXCHANGEABLE = {
    **UNCLIPPED,
    **{name: TABLE[name] for name in ("policy-gradient", "cispo", "sign-blind-clip")},
    "sapo of equal temperatures": partial(OBJECTIVES["sapo"], tau_positive=1.3, tau_negative=1.3),
}
FORMS_OF = {name: OBJECTIVES[name] for name in ("gspo", "gmpo")}


class Claim(NamedTuple):
    law: Law
    right: dict[str, Any]
    wrong: tuple[Any, ...]


CLAIMS = [
    Claim(
        on_policy_the_gradient_is_the_policy_gradient,
        RATIO_FORMS | UNCLIPPED,
        (
            mutants.inverted_ratio,
            mutants.cispo_without_stop_gradient,
            mutants.sapo_without_four,
            mutants.sapo_around_zero,
            mutants.gspo_without_stop_gradient,
            mutants.gspo_without_the_token,
            mutants.credit_centred_over_the_rows,
            SEQUENCE_FORMS["gspo sequence"],
            SEQUENCE_FORMS["gmpo sequence"],
        ),
    ),
    Claim(
        on_policy_and_with_uniform_credit_the_gradient_is_the_policy_gradient,
        RATIO_FORMS | SEQUENCE_FORMS,
        (mutants.gspo_sum_for_mean, mutants.gspo_without_stop_gradient, partial(mutants.gmpo_mean_over_the_width, form="sequence")),
    ),
    Claim(
        credit_that_sums_to_zero_still_moves_tokens,
        TABLE,
        (SEQUENCE_FORMS["gspo sequence"], SEQUENCE_FORMS["gmpo sequence"], mutants.gspo_without_the_token),
    ),
    Claim(credit_that_sums_to_zero_moves_nothing, SEQUENCE_FORMS, (TABLE["gspo"], TABLE["gmpo"], mutants.gspo_without_stop_gradient)),
    Claim(
        a_token_loss_knows_no_other_response,
        WITHOUT_STATISTIC | SEQUENCE_FORMS,
        (mutants.gspo_mean_over_the_batch, mutants.credit_centred_over_the_rows),
    ),
    Claim(padding_changes_nothing, TABLE | SEQUENCE_FORMS, (mutants.gspo_mean_over_the_width, mutants.gmpo_mean_over_the_width)),
    Claim(
        the_cut_into_micro_batches_changes_nothing,
        TABLE | SEQUENCE_FORMS,
        (mutants.gspo_mean_over_the_batch, mutants.credit_centred_over_the_rows),
    ),
    Claim(
        what_is_said_to_be_silent_is_silent,
        {name: make for name, make in (TABLE | SEQUENCE_FORMS).items() if make().silent_without_credit},
        (mutants.kl_said_to_be_silent, mutants.gspo_sequence_said_to_be_silent),
    ),
    Claim(
        a_response_without_credit_is_silent,
        RATIO_FORMS | SEQUENCE_FORMS,
        (mutants.kl_said_to_be_silent, mutants.credit_centred_over_the_rows),
    ),
    Claim(
        shared_tokens_with_opposite_credit_cancel,
        EXCHANGEABLE,
        (mutants.clipped_by_sign, TABLE["ppo-clip"], TABLE["gspo"], TABLE["gmpo"], TABLE["sapo"]),
    ),
    Claim(
        shared_tokens_cancel_within_the_band_and_not_at_all_outside,
        {"ppo-clip": TABLE["ppo-clip"]},
        (TABLE["sign-blind-clip"], mutants.unclipped_ratio, TABLE["gspo"]),
    ),
    Claim(
        every_token_keeps_a_bounded_gradient,
        {"cispo": TABLE["cispo"]},
        (
            mutants.cispo_without_stop_gradient,
            mutants.cispo_of_tokens_within_the_band,
            mutants.unclipped_ratio,
            TABLE["sign-blind-clip"],
            TABLE["policy-gradient"],
        ),
    ),
    Claim(
        the_gate_is_open_on_policy_and_closes_alike_on_both_sides,
        {"sapo": TABLE["sapo"]},
        (mutants.sapo_without_four, mutants.sapo_around_zero, mutants.sapo_of_log_ratios, mutants.unclipped_ratio),
    ),
    Claim(
        a_response_is_clipped_as_a_whole,
        {"gspo": TABLE["gspo"], "gspo sequence": SEQUENCE_FORMS["gspo sequence"]},
        (mutants.gspo_clips_token_ratios, TABLE["gmpo"]),
    ),
    Claim(
        with_uniform_credit_both_forms_have_one_gradient,
        FORMS_OF,
        (mutants.gspo_sum_for_mean, mutants.gspo_clips_token_ratios, mutants.gmpo_clips_the_mean),
    ),
    Claim(
        the_geometric_mean_earns_no_more_than_the_clip_allows,
        {"gmpo": OBJECTIVES["gmpo"]},
        (mutants.gmpo_unclipped, mutants.gmpo_clips_the_other_side),
    ),
    Claim(
        tokens_without_credit_have_no_say_in_the_ratio,
        {"gmpo": OBJECTIVES["gmpo"]},
        (mutants.gmpo_counts_tokens_without_credit, OBJECTIVES["gspo"]),
    ),
    Claim(
        each_temperature_belongs_to_one_sign,
        {"sapo": OBJECTIVES["sapo"]},
        (mutants.sapo_swapped_temperatures, mutants.sapo_one_temperature),
    ),
    Claim(
        where_sampler_and_trainer_agree_every_weight_is_one,
        {"correction": correction_weight},
        (mutants.padding_weighs_one, mutants.padding_is_multiplied),
    ),
    Claim(
        weights_are_ratios_within_the_bounds,
        {"correction": correction_weight},
        (
            mutants.inverted_correction,
            mutants.truncates_for_both,
            mutants.drops_for_both,
            mutants.no_floor,
            mutants.cap_is_a_width,
            mutants.mean_for_product,
            mutants.level_is_ignored,
            mutants.padding_weighs_one,
            mutants.scaled_to_mean_one,
        ),
    ),
    Claim(
        weights_know_neither_padding_nor_other_responses,
        {"correction": correction_weight},
        (mutants.product_over_the_batch, mutants.padding_is_multiplied, mutants.scaled_to_mean_one),
    ),
    Claim(
        weighted_samples_of_the_sampler_average_to_the_trainer,
        {"correction": correction_weight},
        (mutants.inverted_correction, mutants.scaled_to_mean_one),
    ),
    Claim(
        a_kl_term_is_the_same_whatever_the_weights,
        {"as recipes are built": corrected_with_kl},
        (mutants.correction_after_kl, mutants.kl_without_correction),
    ),
    Claim(
        the_divergence_is_that_of_the_trainer_from_the_sampler,
        {"mismatch": mismatch},
        (mutants.kl_of_trainer_from_sampler, mutants.kl_by_log_ratio),
    ),
    Claim(
        effective_share_counts_equal_weights_in_full,
        {"mismatch": mismatch},
        (mutants.effective_tokens_for_share, mutants.effective_share_over_padding, mutants.unnormalised_effective_share),
    ),
]


LAWS = {claim.law: claim.wrong for claim in CLAIMS}
RIGHT = {claim.law: list(claim.right.values()) for claim in CLAIMS}
WRITTEN = functions_of(mutants, mutants.made_of, mutants.gmpo_like, mutants.ratio_of, mutants.pessimistic, mutants.gspo_of)
OTHERS = {wrong for rejected in LAWS.values() for wrong in rejected if getattr(wrong, "__module__", "") != mutants.__name__}
"""Real objectives that are wrong for a law, and mutants with a number of their own."""

test_the_code_obeys, test_the_law_rejects, test_the_table_is_complete = law_tests_from_functions(
    LAWS, RIGHT.__getitem__, WRITTEN | OTHERS, reject=lambda law, wrong: law([wrong], shrink=False)
)


# --- knobs and refusals


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_takes_the_knobs_of_its_choice_with_their_defaults(name: str) -> None:
    parameters = inspect.signature(OBJECTIVES[name]).parameters.values()
    assert {each.kind for each in parameters} <= {inspect.Parameter.KEYWORD_ONLY}
    assert {each.name: each.default for each in parameters} == as_kwargs(CHOICES[name], "aggregation", "constant_length")


def test_the_correction_takes_the_knobs_of_its_choice_with_their_defaults() -> None:
    named = inspect.signature(correction_weight).parameters.values()
    assert {each.name: each.default for each in named if each.kind is inspect.Parameter.KEYWORD_ONLY} == as_kwargs(Correction())


NOTHING = (torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: OBJECTIVES["gspo"](form="tokens").token_loss(batch([1], 0, 0.0), None), "form is 'tokens'"),
        (lambda: OBJECTIVES["gmpo"](form="whole").token_loss(batch([1], 0, 0.0), None), "form is 'whole'"),
        (lambda: OBJECTIVES["sign-blind-clip"](clipping="both").token_loss(batch([1], 0, 0.0), None), "clipping is 'both'"),
        (lambda: correction_weight(*NOTHING, kind="tiss"), "kind is 'tiss'"),
        (lambda: correction_weight(*NOTHING, kind="tis", level="row"), "level is 'row'"),
        (lambda: correction_weight(*NOTHING, kind="tis", cap=1.0, floor=1.5), "floor is 1.5 but cap is 1.0"),
    ],
)
def test_an_unknown_word_is_refused_by_name(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()

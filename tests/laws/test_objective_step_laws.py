"""What must hold for DFPO, Clip-Cov, KL-Cov and FIPO on any step; and the wrong versions each law rejects."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad
from torch.testing import assert_close

from laws.harness import Law, for_all, law_tests_from_edits
from laws.mutants_objective_steps import CHOICE, FUTURE, STEP, WEIGHT, objectives_with
from tokencredit.objective import Objective, TokenInputs, clipped_surrogate
from tokencredit.objective.fipo import FutureLimits

SEEDS = st.integers(0, 2**32)
TRANSFORMS = st.sampled_from(["min-replace", "orthogonal"])
SHARES = st.sampled_from([2e-4, 0.05, 0.3, 1.0])


def made_up_step(seed: int, *, spread: float = 0.5, uniform: bool = False, empty: bool = True) -> TokenInputs:
    """Three groups of two to four responses with centred advantages; holes, and a response without tokens in most steps."""
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    group = torch.repeat_interleave(torch.tensor([5, 1, 9]), integers(2, 5, 3))
    group = group[torch.randperm(len(group), generator=generator)]
    rows, width = len(group), 8
    mask = (torch.arange(width) < integers(1, width + 1, rows)[:, None]) & (torch.rand(rows, width, generator=generator) > 0.15)
    mask[:, 0] |= torch.tensor(not empty)
    mask[integers(0, rows, 1)] &= not empty
    advantage = noise(rows)
    for each in group.unique():
        advantage[group == each] -= advantage[group == each].mean()
    coefficient = torch.ones(rows, width, dtype=torch.float64) if uniform else integers(0, 4, rows, width).double() / 2
    old_logp = -2 + noise(rows, width)
    return TokenInputs(
        logp=old_logp + spread * noise(rows, width),
        old_logp=old_logp,
        credit=coefficient * advantage[:, None],
        mask=mask,
        group=group,
        advantage=advantage,
        row=torch.randperm(1000, generator=generator)[:rows],
        seed=seed,
    )


def picked(inputs: TokenInputs, rows: list[int]) -> TokenInputs:
    return TokenInputs(*(value[rows] if isinstance(value, Tensor) else value for value in inputs))


def micro_batch(inputs: TokenInputs, rows: list[int]) -> TokenInputs:
    """These responses, as wide as the longest of them."""
    part = picked(inputs, rows)
    width = int((part.mask * torch.arange(1, part.mask.shape[1] + 1)).max())
    return TokenInputs(*(value[:, :width] if isinstance(value, Tensor) and value.ndim == 2 else value for value in part))


def gathered(objective: Objective, parts: list[TokenInputs]) -> Any:
    if objective.statistic is None:
        return None
    accumulator = objective.statistic()
    for part in parts:
        accumulator.add(part)
    return accumulator.finish()


class Result(NamedTuple):
    statistic: Any
    loss: Tensor
    """Of every token; 0 outside the mask."""
    kappa: Tensor


def run(objective: Objective, inputs: TokenInputs, cut: list[list[int]] | None = None) -> Result:
    """Gather over all micro-batches, then differentiate each by its log-probs, as an engine does; without a cut, as it is."""
    cut, parts = ([list(range(len(inputs.mask)))], [inputs]) if cut is None else (cut, [micro_batch(inputs, rows) for rows in cut])
    statistic = gathered(objective, parts)
    loss, kappa = torch.zeros_like(inputs.logp), torch.zeros_like(inputs.logp)
    for rows, part in reversed(list(zip(cut, parts, strict=True))):
        leaf = part.logp.clone().requires_grad_()
        token_loss = objective.token_loss(part._replace(logp=leaf), statistic).where(part.mask, 0.0)
        loss[rows, : leaf.shape[1]] = token_loss.detach()
        kappa[rows, : leaf.shape[1]] = torch.autograd.grad(token_loss.sum(), leaf)[0]
    return Result(statistic, loss, kappa)


def random_cut(seed: int, rows: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(rows, generator=generator).tolist()
    ends = sorted({rows, *torch.randint(1, rows, (3,), generator=generator).tolist()})
    return [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]


CHOICES: dict[str, Callable[[SimpleNamespace], Objective]] = {
    "clip-cov": lambda code: code.clip_cov(share=0.1, cov_low=-0.5, cov_high=0.5),
    "kl-cov": lambda code: code.kl_cov(share=0.6),
    "dfpo": lambda code: code.dfpo(),
    "orthogonal": lambda code: code.dfpo(transform="orthogonal", weight="product"),
    "fipo": lambda code: code.fipo(dual_clip=1.8, safety=1.4),
}
ANY = st.sampled_from(list(CHOICES))


# --- the step


@for_all(st.sampled_from(["clip-cov", "kl-cov"]), SEEDS, SEEDS)
def cut_and_order_of_a_step_change_no_choice(code, name, seed, cutting):
    inputs = made_up_step(seed)
    # Few different values, so that many covariances are equal.
    inputs = inputs._replace(logp=inputs.logp.round(), credit=inputs.credit.sign())
    objective = CHOICES[name](code)
    whole, parts = run(objective, inputs), run(objective, inputs, random_cut(cutting, len(inputs.mask)))
    assert whole.statistic.tolist() == parts.statistic.tolist()
    assert_close(parts.kappa, whole.kappa, rtol=1e-12, atol=1e-12)


@for_all(ANY, SEEDS, SEEDS)
def cut_and_order_of_a_step_change_no_gradient(code, name, seed, cutting):
    objective, inputs = CHOICES[name](code), made_up_step(seed)
    whole, parts = run(objective, inputs), run(objective, inputs, random_cut(cutting, len(inputs.mask)))
    assert_close(parts.kappa, whole.kappa, rtol=1e-12, atol=1e-12)
    assert_close(parts.loss, whole.loss, rtol=1e-12, atol=1e-12)


@for_all(ANY, SEEDS)
def names_of_responses_decide_and_not_their_places(code, name, seed):
    objective, inputs = CHOICES[name](code), made_up_step(seed)
    order = torch.randperm(len(inputs.mask), generator=torch.Generator().manual_seed(seed)).tolist()
    moved = run(objective, picked(inputs, order))
    assert_close(moved.kappa, run(objective, inputs).kappa[order], rtol=1e-12, atol=1e-12)


@for_all(ANY, SEEDS, st.integers(1, 4), st.floats(-8, 8))
def what_the_mask_hides_changes_nothing(code, name, seed, columns, garbage):
    objective, inputs = CHOICES[name](code), made_up_step(seed, spread=1.0)

    def hide(value: Tensor) -> Tensor:
        return pad(value.where(inputs.mask, garbage), (0, columns), value=garbage)

    hidden = inputs._replace(
        logp=hide(inputs.logp), old_logp=hide(inputs.old_logp) - 3.0, credit=hide(inputs.credit), mask=pad(inputs.mask, (0, columns))
    )
    hidden = hidden._replace(old_logp=hidden.old_logp.where(~hidden.mask, pad(inputs.old_logp, (0, columns))))
    assert_close(run(objective, hidden).kappa[:, : inputs.mask.shape[1]], run(objective, inputs).kappa, rtol=1e-12, atol=1e-12)


@for_all(ANY, SEEDS)
def silent_without_credit_is_no_empty_promise(code, name, seed):
    objective, inputs = CHOICES[name](code), made_up_step(seed)
    if objective.silent_without_credit:
        result = run(objective, inputs)
        assert not result.kappa[inputs.credit == 0].any()
        assert not result.loss[inputs.credit == 0].any()


# --- Clip-Cov and KL-Cov


def covariance(inputs: TokenInputs) -> Tensor:
    credit, logp = inputs.credit[inputs.mask], inputs.logp[inputs.mask]
    return (inputs.credit - credit.mean()) * (inputs.logp - logp.mean())


def ppo_kappa(inputs: TokenInputs, credit: Tensor, **widths: float) -> Tensor:
    leaf = inputs.logp.clone().requires_grad_()
    surrogate = clipped_surrogate(leaf, inputs.old_logp, credit, **widths)
    return -torch.autograd.grad(surrogate[inputs.mask].sum(), leaf)[0]


@for_all(SEEDS, SHARES, st.floats(-1, 0.5), st.floats(0.5, 3))
def clip_cov_silences_a_share_of_the_band_and_nothing_else(code, seed, share, low, high):
    inputs = made_up_step(seed)
    found = run(code.clip_cov(share=share, cov_low=low, cov_high=high), inputs).kappa
    plain = ppo_kappa(inputs, inputs.credit, clip_low=0.2, clip_high=0.2)
    silenced = (found == 0) & (plain != 0)
    assert_close(found[~silenced], plain[~silenced], rtol=1e-12, atol=1e-12)
    value = covariance(inputs)
    band = inputs.mask & (value > low) & (value < high)
    assert bool((silenced <= band).all())
    # Tokens without credit are candidates too, and lose nothing when they are drawn.
    number, idle = max(1, int(share * int(inputs.mask.sum()))), int((band & (inputs.credit == 0)).sum())
    candidates = int((band & (plain != 0)).sum())
    assert min(number - idle, candidates) <= int(silenced.sum()) <= min(number, candidates)


@for_all(SEEDS, st.sampled_from([2e-4, 0.1, 0.3]))
def clip_cov_draws_that_many_tokens(code, seed, share):
    inputs = made_up_step(seed, uniform=True)
    chosen = gathered(code.clip_cov(share=share, cov_low=-1e9, cov_high=1e9, clip_low=1.0, clip_high=1e9), [inputs])
    assert len(chosen) == max(1, int(share * int(inputs.mask.sum())))


@for_all(SEEDS)
def every_candidate_has_its_turn(code, seed):
    inputs = picked(made_up_step(seed), [0, 1, 2])
    mask = torch.zeros_like(inputs.mask)
    mask[:, 2:4] = True
    objective = code.clip_cov(share=0.34, cov_low=-1e9, cov_high=1e9, clip_low=1.0, clip_high=1e9)
    times: dict[int, int] = {}
    for turn in range(32):
        for name in gathered(objective, [inputs._replace(mask=mask, seed=seed + turn)]).tolist():
            times[name] = times.get(name, 0) + 1
    assert len(times) == 6
    assert max(times.values()) < 26


@for_all(SEEDS, SHARES, st.floats(0.1, 3))
def kl_cov_penalises_the_largest_covariances(code, seed, share, penalty):
    inputs = made_up_step(seed)
    result = run(code.kl_cov(share=share, penalty=penalty), inputs)
    ratio = (inputs.logp - inputs.old_logp).exp()
    extra = (result.loss + ratio * inputs.credit).where(inputs.mask, 0.0)
    penalised = extra.abs() > 1e-12
    assert int(penalised.sum()) == max(1, int(share * int(inputs.mask.sum())))
    assert_close(extra[penalised], penalty * (inputs.logp - inputs.old_logp).abs()[penalised], rtol=1e-9, atol=1e-9)
    value, others = covariance(inputs), inputs.mask & ~penalised
    if bool(others.any()):
        assert value[penalised].min() >= value[others].max() - 1e-12


@for_all(SEEDS)
def kl_cov_gives_ties_to_the_earlier_response(code, seed):
    inputs = made_up_step(seed)
    result = run(code.kl_cov(share=0.4), inputs._replace(credit=torch.zeros_like(inputs.credit)))
    names = (inputs.row[:, None] * 2**32 + torch.arange(inputs.mask.shape[1]))[inputs.mask].sort().values
    assert sorted(result.statistic.tolist()) == names[: max(1, int(0.4 * len(names)))].tolist()


# --- DFPO


@for_all(SEEDS, TRANSFORMS)
def weights_and_centred_advantages_are_orthogonal(code, seed, transform):
    inputs = made_up_step(seed)
    weight = inputs.logp[:, 0].exp()
    changed = code.exchangeable_weights(weight, inputs.advantage, inputs.group, transform=transform)
    for group in inputs.group.unique():
        of = inputs.group == group
        assert float(inputs.advantage[of] @ changed[of]) == pytest.approx(0, abs=1e-9)


@for_all(SEEDS)
def the_minimum_is_constant_within_a_group_and_one_of_its_weights(code, seed):
    inputs = made_up_step(seed)
    weight = inputs.logp[:, 0].exp()
    weight[0] = math.nan
    changed = code.exchangeable_weights(weight, inputs.advantage, inputs.group, transform="min-replace")
    for group in inputs.group.unique():
        of = inputs.group == group
        known = weight[of][~weight[of].isnan()].tolist()
        assert set(changed[of].tolist()) == {min(known)}


@for_all(SEEDS, st.floats(-3, 3))
def projecting_takes_away_the_part_along_the_advantages(code, seed, along):
    inputs = made_up_step(seed)
    weight, (advantage, group) = inputs.logp[:, 0].exp(), (inputs.advantage, inputs.group)
    once = code.exchangeable_weights(weight, advantage, group, transform="orthogonal")
    assert_close(code.exchangeable_weights(once, advantage, group, transform="orthogonal"), once, rtol=1e-9, atol=1e-9)
    assert_close(code.exchangeable_weights(once + along * advantage, advantage, group, transform="orthogonal"), once, rtol=1e-9, atol=1e-9)
    assert_close(code.exchangeable_weights(weight, 0 * advantage, group, transform="orthogonal"), weight)


@for_all(st.floats(2, 9))
def projected_weights_may_be_negative_unless_floored(code, first):
    weight, advantage = torch.tensor([4 * first, 1.0, 1.0]), torch.tensor([1.0, 1.0, -2.0])
    group = torch.zeros(3, dtype=torch.long)
    plain, floored = (code.exchangeable_weights(weight, advantage, group, transform="orthogonal", floor=floor) for floor in (False, True))
    # A.w = 4 first - 1 and |A|^2 = 6.
    assert float(plain[1]) == pytest.approx(1 - (4 * first - 1) / 6, abs=1e-5)
    assert plain[1] < 0
    assert floored.tolist() == [max(0.0, value) for value in plain.tolist()]


@for_all(SEEDS, TRANSFORMS, st.sampled_from(["mean", "product"]))
def on_policy_dfpo_is_the_plain_policy_gradient(code, seed, transform, weight):
    inputs = made_up_step(seed, spread=0.0)
    kappa = run(code.dfpo(transform=transform, weight=weight), inputs).kappa
    assert_close(kappa, -inputs.credit.where(inputs.mask, 0.0), rtol=1e-12, atol=1e-12)


@for_all(SEEDS, st.booleans(), st.sampled_from(["mean", "product"]), st.floats(0.2, 3))
def a_shared_prefix_token_cancels_exactly_where_the_weights_are_exchangeable(code, seed, fold, weight, advantage):
    pair = picked(made_up_step(seed, uniform=True, empty=False), [0, 1])
    pair.mask[1, -1] = ~pair.mask[0, -1]
    signed = torch.tensor([advantage, -advantage], dtype=torch.float64)
    pair = pair._replace(group=torch.zeros(2, dtype=torch.long), advantage=signed, credit=signed[:, None].expand_as(pair.logp))
    net = {
        transform: abs(float(run(code.dfpo(transform=transform, weight=weight, fold_length=fold), pair).kappa[:, 0].sum()))
        for transform in ("min-replace", "orthogonal", "none")
    }
    assert net["min-replace"] < 1e-9
    assert net["orthogonal"] < 1e-9
    assert net["none"] > 1e-9


@for_all(SEEDS, TRANSFORMS)
def no_gradient_flows_through_the_weights(code, seed, transform):
    """Gathered with gradient switched on, from the very log-probs that the loss is differentiated by."""
    inputs = made_up_step(seed)
    leaf = inputs.logp.clone().requires_grad_()
    objective = code.dfpo(transform=transform)
    statistic = gathered(objective, [inputs._replace(logp=leaf)])
    loss = objective.token_loss(inputs._replace(logp=leaf), statistic)[inputs.mask].sum()
    assert_close(torch.autograd.grad(loss, leaf)[0], run(objective, inputs).kappa, rtol=1e-12, atol=1e-12)


@for_all(SEEDS)
def folding_the_length_gives_every_response_of_a_group_the_same_say(code, seed):
    inputs = made_up_step(seed, spread=0.0, uniform=True)
    kappa = run(code.dfpo(transform="none", fold_length=True), inputs).kappa
    length = inputs.mask.sum(-1).double()
    for group in inputs.group.unique():
        of = (inputs.group == group) & (length > 0)
        assert_close(-kappa[of].sum(-1), inputs.advantage[of] * length[of].mean() if bool(of.any()) else inputs.advantage[of])


@for_all(
    SEEDS, st.integers(0, 99), st.sampled_from(["min-replace", "orthogonal", "none"]), st.sampled_from(["mean", "product"]), st.booleans()
)
def an_ungraded_response_has_no_say_in_its_siblings_weights(code, seed, place, transform, weight, fold):
    """As if it were not there: its siblings' loss and gradient are those of the step without it, and it has none of its own."""
    inputs = made_up_step(seed)
    place %= len(inputs.mask)
    rest = [row for row in range(len(inputs.mask)) if row != place]
    inputs.advantage[place], inputs.credit[place] = math.nan, 0.0
    objective = code.dfpo(transform=transform, weight=weight, fold_length=fold)
    beside, alone = run(objective, inputs), run(objective, picked(inputs, rest))
    assert_close(beside.kappa[rest], alone.kappa, rtol=1e-12, atol=1e-12)
    assert_close(beside.loss[rest], alone.loss, rtol=1e-12, atol=1e-12)
    assert not beside.kappa[place].any()
    assert not beside.loss[place].any()


# --- FIPO


@for_all(SEEDS, st.floats(0, 1), st.floats(0, 2))
def on_policy_fipo_is_ppo_clip(code, seed, low, high):
    inputs = made_up_step(seed, spread=0.0)
    kappa = run(code.fipo(weight_low=low, weight_high=high), inputs).kappa
    assert torch.equal(kappa, ppo_kappa(inputs, inputs.credit, clip_low=0.2, clip_high=0.28, dual_clip=10.0))


@for_all(SEEDS, st.sampled_from([1, 5, 8, 9, 24, 33]), st.integers(2, 9), st.floats(0.3, 0.99))
def future_sums_obey_their_recursion_in_blocks_of_any_size(code, seed, width, block, gamma):
    value = torch.randn(2, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = code.discounted_future_sum(value, gamma=gamma, block=block)
    assert_close(found, value + gamma * pad(found, (0, 1))[:, 1:], rtol=1e-10, atol=1e-10)


@for_all(SEEDS, st.integers(1, 6), st.integers(0, 7))
def a_token_one_decay_later_counts_half(code, seed, decay, drifting):
    logp = torch.zeros(1, 8, dtype=torch.float64)
    logp[0, drifting] = 0.5
    mask = torch.ones_like(logp, dtype=torch.bool)
    weight = code.future_weight(logp, 0 * logp, logp + 1, mask, FutureLimits(decay=float(decay), weight_low=1.0, weight_high=9.0))
    for position in range(8):
        expected = 0.5 * 0.5 ** ((drifting - position) / decay) if position <= drifting else 0.0
        assert float(weight[0, position].log()) == pytest.approx(expected, abs=1e-12)


@for_all(SEEDS, st.floats(0, 1), st.floats(0, 2), st.floats(1.2, 3), st.floats(0, 1))
def weights_stay_in_their_band_and_stray_negatives_in_theirs(code, seed, low, high, safety, band):
    inputs = made_up_step(seed, spread=1.0)
    bounds = {"weight_low": low, "weight_high": high, "safety_band": band}
    weight, unsafe = (
        code.future_weight(inputs.logp, inputs.old_logp, inputs.credit, inputs.mask, FutureLimits(safety=limit, **bounds))
        for limit in (safety, 1e9)
    )
    assert 1 - low - 1e-12 <= float(unsafe.min()) <= float(unsafe.max()) <= 1 + high + 1e-12
    stray = (inputs.credit < 0) & ((inputs.logp - inputs.old_logp).exp() > safety)
    assert_close(weight[~stray], unsafe[~stray])
    assert_close(weight[stray], unsafe[stray].clamp(1 - band, 1))


@for_all(SEEDS)
def stray_tokens_leave_the_weights_of_others_alone(code, seed):
    """A token beyond the dual clip weighs on nobody, however far beyond it is."""
    inputs = made_up_step(seed)
    near, far = inputs.logp.clone(), inputs.logp.clone()
    near[:, 3], far[:, 3] = inputs.old_logp[:, 3] + 1.5, inputs.old_logp[:, 3] + 3.0
    limits = FutureLimits(dual_clip=2.0, weight_low=1.0, weight_high=50.0, safety=1e9)
    weights = [code.future_weight(logp, inputs.old_logp, inputs.credit, inputs.mask, limits) for logp in (near, far)]
    assert_close(*weights, rtol=1e-12, atol=1e-12)


@for_all(SEEDS, st.floats(0, 1), st.floats(0, 2))
def fipo_is_ppo_clip_with_weighed_credit(code, seed, low, high):
    """So no gradient flows through the weights."""
    inputs = made_up_step(seed)
    weight = code.future_weight(inputs.logp, inputs.old_logp, inputs.credit, inputs.mask, FutureLimits(weight_low=low, weight_high=high))
    kappa = run(code.fipo(weight_low=low, weight_high=high), inputs).kappa
    assert_close(kappa, ppo_kappa(inputs, weight * inputs.credit, clip_low=0.2, clip_high=0.28, dual_clip=10.0))


@for_all(SEEDS, st.integers(0, 4), st.booleans())
def a_response_is_dropped_at_its_second_stray_negative(code, seed, strays, negative):
    inputs = made_up_step(seed, uniform=True, empty=False)
    mask = torch.ones_like(inputs.mask)
    mask[:, 6:] = False
    logp = inputs.old_logp.clone()
    logp[:, :strays] += 3.0
    logp[:, 6:] += 3.0
    credit = torch.full_like(logp, -1.0 if negative else 1.0)
    kappa = run(code.fipo(), inputs._replace(logp=logp, credit=credit, mask=mask)).kappa
    assert bool((kappa == 0).all()) == (negative and strays > 1)


LAWS: dict[Law, tuple[str, ...]] = {
    cut_and_order_of_a_step_change_no_choice: (
        "tokens in the order they came",
        "the last micro-batch is the step",
        "positions counted from the right",
    ),
    cut_and_order_of_a_step_change_no_gradient: ("positions counted from the right", "weights by place"),
    names_of_responses_decide_and_not_their_places: ("tokens named by their place", "weights by place"),
    what_the_mask_hides_changes_nothing: ("padding is gathered", "padding is length", "holes drift too"),
    silent_without_credit_is_no_empty_promise: ("penalised tokens need no pass",),
    clip_cov_silences_a_share_of_the_band_and_nothing_else: (
        "log-probs not centred",
        "credit not centred",
        "no upper end of the band",
        "no lower end of the band",
        "drawn tokens keep their loss",
        "clipped tokens are candidates",
        "share of the candidates",
    ),
    clip_cov_draws_that_many_tokens: ("one token too many", "a small share is nobody"),
    every_candidate_has_its_turn: ("the seed is ignored", "the first candidates are drawn", "lots by position alone"),
    kl_cov_penalises_the_largest_covariances: (
        "log-probs not centred",
        "credit not centred",
        "mean over credited tokens",
        "one token too many",
        "a small share is nobody",
        "the smallest covariances",
        "covariance without its sign",
        "everybody is penalised",
        "drift with its sign",
    ),
    kl_cov_gives_ties_to_the_earlier_response: ("tokens in the order they came",),
    weights_and_centred_advantages_are_orthogonal: ("one group for all", "divided by the length of A", "projected onto ones"),
    the_minimum_is_constant_within_a_group_and_one_of_its_weights: (
        "the largest for the smallest",
        "one group for all",
        "an empty response is in the minimum",
    ),
    projecting_takes_away_the_part_along_the_advantages: ("divided by the length of A", "projected onto ones", "always floored"),
    projected_weights_may_be_negative_unless_floored: ("always floored", "never floored"),
    on_policy_dfpo_is_the_plain_policy_gradient: ("weights without the old policy", "divided by length afterwards"),
    a_shared_prefix_token_cancels_exactly_where_the_weights_are_exchangeable: (
        "not transformed",
        "always transformed",
        "divided by length afterwards",
    ),
    no_gradient_flows_through_the_weights: ("weights are differentiated",),
    folding_the_length_gives_every_response_of_a_group_the_same_say: (
        "folded the wrong way",
        "folded with the batch's mean length",
        "always transformed",
    ),
    an_ungraded_response_has_no_say_in_its_siblings_weights: (
        "an ungraded response is weighed",
        "an ungraded response poisons its group",
        "an ungraded response is a failure",
    ),
    on_policy_fipo_is_ppo_clip: ("drift without the old policy",),
    future_sums_obey_their_recursion_in_blocks_of_any_size: (
        "the past for the future",
        "the token itself left out",
        "carried one place short",
        "blocks decay like tokens",
        "one block after another only",
    ),
    a_token_one_decay_later_counts_half: ("decay is no half-life", "the past for the future", "the token itself left out"),
    weights_stay_in_their_band_and_stray_negatives_in_theirs: (
        "weights without bounds",
        "bounds swapped",
        "safety for both signs",
        "no safety",
    ),
    stray_tokens_leave_the_weights_of_others_alone: ("stray tokens drift too",),
    fipo_is_ppo_clip_with_weighed_credit: ("the importance is differentiated",),
    a_response_is_dropped_at_its_second_stray_negative: (
        "one stray token drops a response",
        "no response is dropped",
        "stray tokens of either sign",
        "stray tokens in holes",
    ),
}

test_the_code_obeys, test_the_law_rejects, test_the_table_is_complete = law_tests_from_edits(
    LAWS, objectives_with, STEP, CHOICE, WEIGHT, FUTURE
)


@pytest.mark.parametrize(("choice", "match"), [({"transform": "max"}, "transform is 'max'"), ({"weight": "sum"}, "weight is 'sum'")])
def test_dfpo_refuses_names_it_does_not_know(choice: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        objectives_with().dfpo(**choice)

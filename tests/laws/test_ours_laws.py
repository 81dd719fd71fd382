"""What must hold for the credit methods that are ours, whatever the rollouts; and the wrong versions each law rejects."""

import math
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from laws.harness import Law, for_all, law_tests_from_edits
from laws.mutants_ours import EXPLORING, MOMENTUM, SIBLINGS, ours_with
from tokencredit.credit import CREDITS, CreditInputs

COLUMNS, WIDTH, VOCABULARY = 6, 3, 4
SIBLING: dict[str, dict[str, Any]] = {
    "sibling_value_credit": {"width": 0.5},
    "sibling_context_credit": {"ngram": 2, "backoff": 0.5},
}
METHODS: dict[str, dict[str, Any]] = {**SIBLING, "ntf_keep_credit": {"keep": 0.3, "orthogonal": "all"}}
PER_RESPONSE = ("advantage", "mask", "group", "tokens", "logp", "entropy", "hidden", "score")


def make_inputs(seed: int, rows: int) -> CreditInputs:
    """Rows 0 to 3 are one group with spread; some rows are empty, some ungraded, some advantages 0. States come in a few kinds."""
    draw = torch.Generator().manual_seed(seed)

    def uniform(*size: int) -> Tensor:
        return torch.rand(*size, generator=draw, dtype=torch.float64)

    score = (uniform(rows) > 0.5).double()
    score[4:][uniform(rows - 4) < 0.25] = math.nan
    group = torch.tensor([6, -2, 31])[torch.randint(3, (rows,), generator=draw)]
    group[:4] = 6
    lengths = torch.randint(0, COLUMNS + 1, (rows,), generator=draw)
    lengths[:4] = torch.tensor([COLUMNS, COLUMNS, 4, 5])
    advantage = (uniform(rows) - 0.5) * (uniform(rows) > 0.2)
    advantage[:4] = torch.tensor([0.5, -0.5, 0.7, -0.4])
    kinds = 2 * torch.randn(3, WIDTH, generator=draw, dtype=torch.float64)
    hidden = kinds[torch.randint(3, (rows, COLUMNS), generator=draw)] + 0.3 * torch.randn(
        rows, COLUMNS, WIDTH, generator=draw, dtype=torch.float64
    )
    return CreditInputs(
        advantage=advantage.where(~score.isnan(), 0.0),
        mask=torch.arange(COLUMNS) < lengths[:, None],
        group=group,
        tokens=torch.randint(VOCABULARY, (rows, COLUMNS), generator=draw),
        logp=-2 * uniform(rows, COLUMNS),
        entropy=uniform(rows, COLUMNS),
        seed=seed,
        hidden=hidden,
        head=torch.randn(VOCABULARY, WIDTH, generator=draw, dtype=torch.float64),
        score=score,
    )


INPUTS = st.builds(make_inputs, seed=st.integers(0, 2**31), rows=st.integers(4, 10))
METHOD = st.sampled_from(sorted(METHODS))
SIBLING_METHOD = st.sampled_from(sorted(SIBLING))
AFTER = st.sampled_from(["token", "next"])
SHRINKAGE = st.sampled_from([0.0, 0.5, 2.0])


def assign(ours: SimpleNamespace, method: str, inputs: CreditInputs, **knobs: Any) -> Tensor:
    return getattr(ours, method)(inputs, {}, **(METHODS[method] | knobs)).credit


def rows_of(inputs: CreditInputs, rows: Tensor) -> CreditInputs:
    return inputs._replace(**{name: getattr(inputs, name)[rows] for name in PER_RESPONSE})


def uniform_credit(inputs: CreditInputs) -> Tensor:
    return CREDITS["uniform"](inputs, {}).credit


# --- any method


@for_all(INPUTS, METHOD)
def padding_is_never_read(ours, inputs, method):
    def padded(tensor: Tensor, garbage: float) -> Tensor:
        return torch.cat([tensor, tensor.new_full((len(tensor), 2, *tensor.shape[2:]), garbage)], dim=1)

    garbage = {"mask": False, "tokens": 1, "logp": -99.0, "entropy": 99.0, "hidden": 0.5}
    wider = inputs._replace(**{name: padded(getattr(inputs, name), value) for name, value in garbage.items()})
    assert_close(assign(ours, method, wider), padded(assign(ours, method, inputs), 0.0), rtol=0, atol=1e-9)


@for_all(INPUTS, METHOD, st.integers(0, 99))
def permuting_responses_permutes_credit(ours, inputs, method, seed):
    order = torch.tensor(Random(seed).sample(range(len(inputs.mask)), len(inputs.mask)))
    assert_close(assign(ours, method, rows_of(inputs, order)), assign(ours, method, inputs)[order], rtol=0, atol=1e-9)


@for_all(INPUTS, METHOD, st.sampled_from([0.25, 1.0, 3.0]))
def credit_scales_with_advantages(ours, inputs, method, factor):
    assert_close(
        assign(ours, method, inputs._replace(advantage=factor * inputs.advantage)),
        factor * assign(ours, method, inputs),
        rtol=1e-9,
        atol=1e-9,
    )


# --- siblings


@for_all(INPUTS, SIBLING_METHOD, AFTER)
def turning_the_tables_turns_the_credit(ours, inputs, method, after):
    turned = assign(ours, method, inputs._replace(advantage=-inputs.advantage), after=after)
    assert_close(turned, -assign(ours, method, inputs, after=after), rtol=0, atol=1e-9)


@for_all(INPUTS, SIBLING_METHOD, AFTER, st.booleans())
def without_siblings_credit_is_uniform(ours, inputs, method, after, normalize):
    """A response alone with its prompt, or whose siblings were not graded: its total is its advantage, token by token."""
    alone = inputs._replace(group=torch.arange(len(inputs.group)))
    assert_close(assign(ours, method, alone, after=after, normalize=normalize), uniform_credit(inputs), rtol=0, atol=1e-12)


@for_all(INPUTS, AFTER)
def without_neighbours_credit_is_uniform(ours, inputs, after):
    """Siblings are there, and none of them ever wrote like tokens. Only before the first token, the prompt is common."""
    tokens = inputs.tokens + VOCABULARY * torch.arange(len(inputs.mask))[:, None]
    credit = assign(ours, "sibling_context_credit", inputs._replace(tokens=tokens), after=after, normalize=False)
    assert_close(credit[:, 1:], uniform_credit(inputs)[:, 1:], rtol=0, atol=1e-12)


@for_all(INPUTS, SIBLING_METHOD)
def groups_stand_alone_and_their_ids_are_only_names(ours, inputs, method):
    together = assign(ours, method, inputs, normalize=False)
    for name in inputs.group.unique():
        rows = (inputs.group == name).nonzero()[:, 0]
        assert_close(assign(ours, method, rows_of(inputs, rows), normalize=False), together[rows], rtol=0, atol=1e-9)
    assert_close(assign(ours, method, inputs._replace(group=3 * inputs.group + 100), normalize=False), together, rtol=0, atol=1e-9)


@for_all(INPUTS, SIBLING_METHOD)
def an_ungraded_response_says_nothing(ours, inputs, method):
    graded = ~inputs.score.isnan()
    result = assign(ours, method, inputs)
    assert not result[~graded].any()
    assert_close(result[graded], assign(ours, method, rows_of(inputs, graded.nonzero()[:, 0])), rtol=0, atol=1e-9)


@for_all(INPUTS, SIBLING_METHOD, AFTER, SHRINKAGE)
def the_mean_size_is_that_of_uniform_credit(ours, inputs, method, after, shrinkage):
    plain, scaled = (assign(ours, method, inputs, after=after, shrinkage=shrinkage, normalize=way) for way in (False, True))
    if plain.any():
        assert float(scaled.abs().sum()) == pytest.approx(float(uniform_credit(inputs).abs().sum()), rel=1e-9)
        assert_close(scaled * plain.abs().sum(), plain * scaled.abs().sum(), rtol=1e-9, atol=1e-9)


@for_all(INPUTS, SIBLING_METHOD, st.integers(1, 20))
def how_many_places_are_compared_at_once_changes_nothing(ours, inputs, method, at_once):
    whole = assign(ours, method, inputs)
    kept = ours.neighbour_weights.__globals__["MAX_PAIRS"]
    ours.neighbour_weights.__globals__["MAX_PAIRS"] = at_once * 24
    try:
        assert_close(assign(ours, method, inputs), whole, rtol=0, atol=1e-12)
    finally:
        ours.neighbour_weights.__globals__["MAX_PAIRS"] = kept


@for_all(INPUTS, st.integers(0, 99), AFTER)
def siblings_on_other_ranks_are_siblings(ours, inputs, seed, after):
    """Every rank gives its rows, is given those of all, and keeps its own."""
    order = Random(seed).sample(range(len(inputs.mask)), len(inputs.mask))
    parts = [torch.tensor(sorted(order[:2])), torch.tensor(sorted(order[2:]))]
    given: list[Any] = []
    for rows in parts:
        assign(ours, "sibling_value_credit", rows_of(inputs, rows), after=after, reduce=lambda own: given.append(own) or own)
    whole = assign(ours, "sibling_value_credit", inputs, after=after)
    for rank, rows in enumerate(parts):

        def reduce(own: Any, rank: int = rank) -> Any:
            ranks = [own if other == rank else given[other] for other in range(2)]
            return ranks[0].merge(ranks[1])

        assert_close(
            assign(ours, "sibling_value_credit", rows_of(inputs, rows), after=after, reduce=reduce), whole[rows], rtol=0, atol=1e-9
        )


def make_weights(seed: int, seq: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Advantages, lengths, and weights that are never 0 but for the own response."""
    draw = torch.Generator().manual_seed(seed)
    weight = torch.rand(seq, columns, seq, generator=draw, dtype=torch.float64) + 0.05
    own = torch.eye(seq, dtype=torch.bool)[:, None, :]
    length = torch.randint(1, columns + 1, (seq,), generator=draw)
    present = torch.arange(columns) < length[:, None]
    return torch.randn(seq, generator=draw, dtype=torch.float64), length, weight.where(present[..., None] & ~own, 0.0)


WEIGHTS = st.builds(make_weights, seed=st.integers(0, 2**31), seq=st.integers(3, 6), columns=st.integers(1, 6))


def siblings_of(ours: SimpleNamespace, advantage: Tensor, length: Tensor, columns: int) -> Any:
    return ours.Siblings(advantage, length, torch.zeros(len(length), columns, dtype=torch.long))


@for_all(WEIGHTS)
def gains_sum_to_the_advantage_above_the_first_value(ours, example):
    advantage, length, weight = example
    gain, _ = ours.token_gains(siblings_of(ours, advantage, length, weight.shape[1]), ours.NeighbourWeights(weight, None))
    first = weight[:, 0] @ advantage / weight[:, 0].sum(-1)
    assert_close(gain.sum(-1), advantage - first, rtol=0, atol=1e-9)


@for_all(WEIGHTS)
def nobody_speaks_from_beyond_the_end(ours, example):
    advantage, length, weight = example
    siblings = siblings_of(ours, advantage, length, weight.shape[1])
    found = ours.neighbour_weights(
        siblings, lambda run: siblings.present.logical_not().double().clamp(min=0.5).expand(run.stop - run.start, -1, -1)
    )
    assert_close(found.before, 0.5 * (weight > 0).double())
    assert found.after is None


@for_all(INPUTS, SIBLING_METHOD)
def a_sibling_that_nobody_is_like_is_not_heard(ours, inputs, method):
    """The own response must not speak for itself: with one sibling whose advantage is 0, values before the end are 0."""
    pair = rows_of(inputs, torch.tensor([0, 1]))._replace(advantage=torch.tensor([0.5, 0.0], dtype=torch.float64))
    credit = assign(ours, method, pair, shrinkage=0.0, normalize=False, after="token")
    assert set(credit[0].tolist()) <= {0.0, 0.5}


@for_all(INPUTS, SIBLING_METHOD, st.floats(0.1, 2.0), st.floats(0.1, 2.0))
def the_token_that_tells_right_from_wrong_is_credited(ours, inputs, method, good, bad):
    """One place, two tokens: those who wrote the one did well, the others did not, and trust is whole."""
    first = rows_of(inputs, torch.arange(4))
    told = first._replace(
        advantage=torch.tensor([good, good, -bad, -bad], dtype=torch.float64),
        mask=torch.arange(COLUMNS).expand(4, -1) == 0,
        tokens=torch.tensor([[1], [1], [2], [2]]).expand(4, COLUMNS),
        score=None,
        hidden=torch.zeros_like(first.hidden),
    )
    credit = assign(ours, method, told, shrinkage=0.0, normalize=False, after="token")[:, 0]
    above, below = good - (good - 2 * bad) / 3, -bad - (2 * good - bad) / 3
    assert_close(credit, torch.tensor([above, above, below, below], dtype=torch.float64), rtol=1e-9, atol=1e-9)


@for_all(WEIGHTS, st.booleans())
def trust_is_a_share_that_falls_with_shrinkage(ours, example, by_token):
    advantage, length, weight = example
    siblings = siblings_of(ours, advantage, length, weight.shape[1])
    weights = ours.NeighbourWeights(weight, (weight.square() if by_token else None))
    blind, some, much = (ours.token_gains(siblings, weights, shrinkage=shrinkage).trust[siblings.present] for shrinkage in (0.0, 1.0, 4.0))
    assert bool(((much >= 0) & (much <= some + 1e-12) & (some <= 1)).all())
    assert_close(blind, torch.ones_like(blind), rtol=0, atol=0)
    assert float(much.sum()) < float(blind.sum())


@for_all(WEIGHTS)
def the_same_whole_neighbours_before_and_after_are_no_doubt_and_no_gain(ours, example):
    advantage, length, weight = example
    whole = (weight > 0).double()
    siblings = siblings_of(ours, advantage, length, weight.shape[1])
    gain, trust = ours.token_gains(siblings, ours.NeighbourWeights(whole, whole), shrinkage=5.0)
    assert_close(gain[siblings.present], torch.zeros_like(gain[siblings.present]), rtol=0, atol=1e-12)
    assert_close(trust[siblings.present], torch.ones_like(trust[siblings.present]), rtol=1e-9, atol=1e-9)


@for_all(WEIGHTS)
def who_predicts_outcomes_is_trusted_more(ours, example):
    """The end is known for sure: trust in the last token is var A / (var A + s2 / n), s2 from what siblings got wrong."""
    advantage, length, weight = example
    siblings = siblings_of(ours, advantage, length, weight.shape[1])
    trust = ours.token_gains(siblings, ours.NeighbourWeights(weight, None)).trust
    count = weight.sum(-1)
    wrong = (advantage[:, None] - weight @ advantage / count.clamp(min=1e-9)).square() * count / (count + 1)
    noise, signal = wrong[siblings.present].mean(), advantage.var(correction=0)
    last = length - 1
    expected = signal / (signal + noise / count.gather(1, last[:, None])[:, 0])
    assert_close(trust.gather(1, last[:, None])[:, 0], expected, rtol=1e-9, atol=1e-9)


@for_all(INPUTS)
def states_alike_are_neighbours_and_others_are_not(ours, inputs):
    """Moving, turning or stretching all states changes nothing; nor do lengths of single states where directions are compared."""
    whole = assign(ours, "sibling_value_credit", inputs)
    assert_close(assign(ours, "sibling_value_credit", inputs._replace(hidden=3 * inputs.hidden.flip(-1) + 1)), whole, rtol=0, atol=1e-6)
    cosine = assign(ours, "sibling_value_credit", inputs, metric="cosine")
    stretched = inputs.hidden * (1 + inputs.entropy[..., None])
    assert_close(assign(ours, "sibling_value_credit", inputs._replace(hidden=stretched), metric="cosine"), cosine, rtol=0, atol=1e-6)


@for_all(INPUTS, st.integers(1, 3))
def contexts_are_the_tokens_before_and_never_the_token_itself(ours, inputs, ngram):
    """The last token of a response is in nobody's context; whoever writes another one there has the same values before it."""
    context = ours.last_tokens(inputs.tokens, ngram)
    for t in range(COLUMNS):
        for back in range(ngram):
            before = inputs.tokens[:, t - back - 1] if t > back else torch.full_like(inputs.tokens[:, 0], -1)
            assert torch.equal(context[:, t, back], before)


@for_all(INPUTS, st.integers(1, 4), st.sampled_from([0.0, 0.3]))
def a_shorter_match_weighs_less_and_none_nothing(ours, inputs, ngram, backoff):
    place = torch.arange(len(inputs.mask) * COLUMNS).view(len(inputs.mask), COLUMNS)
    siblings = ours.Siblings(inputs.advantage, torch.full((len(place),), COLUMNS), place)
    context = ours.last_tokens(inputs.tokens, ngram).flatten(0, 1)
    alike = ours.context_similarity(siblings, context, backoff=backoff, position_width=None)(slice(0, place.numel())).flatten(1)
    for one, other in ((Random(ngram).randrange(len(alike)), other) for other in range(len(alike))):
        matched = next((back for back in range(ngram) if context[one, back] != context[other, back]), ngram)
        assert float(alike[one, other]) == pytest.approx(backoff ** (ngram - matched) if matched else 0.0)


# --- the filter


@for_all(INPUTS, st.sampled_from([0.1, 0.4]), st.floats(0.05, 1.5))
def the_share_grows_as_entropy_falls_and_never_leaves_its_range(ours, inputs, keep, fallen):
    state = ours.ntf_keep_credit(inputs, {}, keep=keep).state
    assert state["keep"] == keep
    later = ours.ntf_keep_credit(inputs._replace(entropy=fallen * inputs.entropy.where(inputs.mask, 77.0)), state, keep=keep).state
    expected = keep + (1 - keep) * min(max(2 - 4 * fallen, 0), 1)
    assert later["keep"] == pytest.approx(expected)
    assert later["initial_entropy"] == state["initial_entropy"]


@for_all(INPUTS, st.integers(1, 5))
def after_its_steps_the_filter_is_gone(ours, inputs, steps):
    state, shares = {}, []
    for _ in range(steps + 2):
        outcome = ours.ntf_keep_credit(inputs, state, anneal="steps", anneal_steps=steps)
        state = outcome.state
        shares.append(state["keep"])
    assert shares == sorted(shares)
    assert shares[0] == 0.3
    assert shares[-2:] == [1.0, 1.0]
    assert torch.equal(outcome.credit, uniform_credit(inputs))


@for_all(INPUTS, st.sampled_from(["kept", "all"]))
def the_pull_on_entropy_is_gone_from_the_chosen_and_only_there(ours, inputs, orthogonal):
    plain, projected = (ours.ntf_keep_credit(inputs, {}, anneal="none", orthogonal=way).credit for way in ("none", orthogonal))
    chosen = (plain < 0) if orthogonal == "kept" else plain != 0
    assert_close(projected[~chosen], plain[~chosen], rtol=0, atol=1e-12)
    push = inputs.logp.exp() * (inputs.logp + inputs.entropy)
    slope = push[inputs.mask].mean() - push  # Fewer than 128 tokens are one run of like entropy.
    assert float((projected * slope)[chosen].sum()) == pytest.approx(0, abs=1e-9)
    assert float((projected - plain).norm()) <= float(plain[chosen].norm()) + 1e-9


# --- momentum


def delta(ours: SimpleNamespace, inputs: CreditInputs, state: Any, **knobs: Any) -> Any:
    logp = (inputs.hidden @ inputs.head.T).log_softmax(-1).gather(-1, inputs.tokens[..., None]).squeeze(-1)
    return ours.delta_credit(
        inputs._replace(logp=logp), state, **({"proxy": "head", "scope": "group", "coefficient_map": "symmetric", "lam_min": 0.0} | knobs)
    )


@for_all(INPUTS, st.integers(0, 2**31))
def without_momentum_the_past_says_nothing(ours, inputs, seed):
    past = delta(ours, make_inputs(seed, 5), {}, momentum=0.5, scope="batch").state
    assert torch.equal(delta(ours, inputs, past).credit, delta(ours, inputs, {}).credit)


@for_all(INPUTS, st.sampled_from([0.3, 0.8]), st.integers(0, 2))
def the_past_is_an_average_over_steps(ours, inputs, momentum, refinements):
    """Of the directions of the steps alone, whatever they were blended with or refined to."""
    state, average = {}, None
    for step in range(3):
        now = make_inputs(inputs.seed + step, len(inputs.mask))
        alone = ours.decode_tensor(delta(ours, now, {}, momentum=0.5, refinements=0).state["direction"])
        state = delta(ours, now, state, momentum=momentum, refinements=refinements).state
        average = alone if average is None else momentum * average + (1 - momentum) * alone
        assert_close(ours.decode_tensor(state["direction"]), average, rtol=1e-4, atol=1e-5)


@for_all(INPUTS, st.sampled_from([0.25, 0.75]))
def the_direction_turns_and_the_midpoint_stays(ours, inputs, momentum):
    positive, negative, past = inputs.hidden[0, :3]
    centroids = ours.Centroids(positive, negative, False).with_momentum(past, momentum)
    assert_close(centroids.positive + centroids.negative, positive + negative)
    assert_close(centroids.positive - centroids.negative, (1 - momentum) * (positive - negative) + momentum * past)


@for_all(INPUTS)
def scopes_weigh_by_their_mass(ours, inputs):
    """Two groups, the second with advantages thrice as large and states moved."""
    both = rows_of(inputs, torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]))
    far = both.hidden.clone()
    far[4:] += 1
    both = both._replace(group=torch.tensor([0] * 4 + [1] * 4), advantage=both.advantage * torch.tensor([1.0] * 4 + [3.0] * 4), hidden=far)
    parts = [delta(ours, rows_of(both, rows), {}, momentum=0.5, proxy="row").state for rows in (torch.arange(4), torch.arange(4, 8))]
    whole = delta(ours, both, {}, momentum=0.5, proxy="row").state
    first, second, mean = (ours.decode_tensor(state["direction"]) for state in (*parts, whole))
    assert_close(mean, (first + 3 * second) / 4, rtol=1e-4, atol=1e-5)


@for_all(INPUTS, st.integers(0, 4))
def ranks_remember_the_same(ours, inputs, cut):
    past = delta(ours, make_inputs(inputs.seed + 1, 6), {}, momentum=0.5).state
    whole = delta(ours, inputs, past, momentum=0.5)
    inboxes = SimpleQueue(), SimpleQueue()

    def run_rank(rank: int) -> Any:
        def exchange(accumulator: Any) -> Any:
            inboxes[1 - rank].put(accumulator)
            received = inboxes[rank].get(timeout=20)
            assert received is not None, "one rank reduces more often than the other"
            return received.merge(accumulator) if rank else accumulator.merge(received)

        try:
            rows = torch.arange(len(inputs.mask))
            return delta(ours, rows_of(inputs, rows[cut:] if rank else rows[:cut]), past, momentum=0.5, reduce=exchange)
        finally:
            inboxes[1 - rank].put(None)

    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(run_rank, (0, 1)))
    assert parts[0].state == parts[1].state
    assert_close(ours.decode_tensor(parts[0].state["direction"]), ours.decode_tensor(whole.state["direction"]), rtol=1e-4, atol=1e-5)
    assert_close(torch.cat([part.credit for part in parts]), whole.credit, rtol=1e-6, atol=1e-6)


LAWS: dict[Law, tuple[str, ...]] = {
    padding_is_never_read: ("padding has a slope",),
    permuting_responses_permutes_credit: ("a neighbour's advantage",),
    credit_scales_with_advantages: ("noise is fixed",),
    turning_the_tables_turns_the_credit: ("losses are forgotten",),
    without_siblings_credit_is_uniform: ("groups are pooled",),
    without_neighbours_credit_is_uniform: ("no neighbour is no doubt", "drawn to nothing", "nothing in common is something"),
    groups_stand_alone_and_their_ids_are_only_names: ("groups are pooled",),
    an_ungraded_response_says_nothing: ("the ungraded speak",),
    the_mean_size_is_that_of_uniform_credit: ("the size is of each token", "the size is a sum with signs"),
    how_many_places_are_compared_at_once_changes_nothing: ("a run forgets where it starts",),
    siblings_on_other_ranks_are_siblings: ("each rank its own siblings", "a rank takes the first part"),
    gains_sum_to_the_advantage_above_the_first_value: ("the end is worth the mean", "gains are losses"),
    nobody_speaks_from_beyond_the_end: ("places that do not exist speak", "the own response speaks"),
    a_sibling_that_nobody_is_like_is_not_heard: ("the own response speaks",),
    the_token_that_tells_right_from_wrong_is_credited: ("any token is the same", "gains are losses"),
    trust_is_a_share_that_falls_with_shrinkage: ("doubt is trust", "shrinkage is ignored"),
    the_same_whole_neighbours_before_and_after_are_no_doubt_and_no_gain: ("common neighbours count twice",),
    who_predicts_outcomes_is_trusted_more: ("noise is fixed", "the end is as unsure as any place"),
    states_alike_are_neighbours_and_others_are_not: ("a width of every place", "distances without a root", "cosine is forgotten"),
    contexts_are_the_tokens_before_and_never_the_token_itself: ("the context holds the token",),
    a_shorter_match_weighs_less_and_none_nothing: ("a gap in the context", "nothing in common is something"),
    the_share_grows_as_entropy_falls_and_never_leaves_its_range: (
        "the share falls",
        "the share is never whole",
        "the floor moves",
        "padding has entropy",
    ),
    after_its_steps_the_filter_is_gone: ("steps are not counted", "the share falls"),
    the_pull_on_entropy_is_gone_from_the_chosen_and_only_there: (
        "the slope of the own logit",
        "slopes reversed for some",
        "half of the pull",
        "everybody is projected",
        "the length of slopes is forgotten",
        "dropped tokens come back",
        "only positive tokens",
    ),
    without_momentum_the_past_says_nothing: ("the past counts without momentum",),
    the_past_is_an_average_over_steps: (
        "what was blended is remembered",
        "what was refined is remembered",
        "the newest is forgotten",
        "only the newest is remembered",
    ),
    the_direction_turns_and_the_midpoint_stays: ("the past is all there is", "half the past", "the midpoint moves", "momentum turns away"),
    scopes_weigh_by_their_mass: ("scopes count alike",),
    ranks_remember_the_same: ("each rank its own masses",),
}

test_the_code_obeys, test_the_law_rejects, test_the_table_is_complete = law_tests_from_edits(LAWS, ours_with, MOMENTUM, EXPLORING, SIBLINGS)


# --- bad input meets words of our own


def test_what_is_no_choice_of_the_filter_is_named() -> None:
    for name, choices in (("anneal", "none, entropy, steps"), ("orthogonal", "none, kept, all")):
        with pytest.raises(ValueError, match=f"{name} is 'never'; it must be one of {choices}"):
            CREDITS["ntf-keep"](make_inputs(0, 6), {}, **{name: "never"})


def test_what_sibling_credit_misses_or_does_not_know_is_named() -> None:
    inputs = make_inputs(0, 6)
    with pytest.raises(ValueError, match="hidden is missing"):
        CREDITS["sibling-value"](inputs._replace(hidden=None), {})
    with pytest.raises(ValueError, match="metric is 'manhattan'; it must be one of euclid, cosine"):
        CREDITS["sibling-value"](inputs, {}, metric="manhattan")
    with pytest.raises(ValueError, match="after is 'never'; it must be one of token, next"):
        CREDITS["sibling-context"](inputs, {}, after="never")
    with pytest.raises(ValueError, match="ngram is 0"):
        CREDITS["sibling-context"](inputs, {}, ngram=0)

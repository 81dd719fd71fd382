"""What must hold for token credit, whatever the rollouts; and the wrong versions each law rejects."""

import math
from fractions import Fraction
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from laws.harness import Law, for_all, law_tests_from_edits
from laws.mutants_credit import KEYS, REPAIRS, SELECTION, STATISTICS, STEPS, credit_with
from tokencredit.credit import CREDITS, CreditInputs

WIDTH, VOCABULARY, END = 6, 5, 4
METHODS: dict[str, dict[str, Any]] = {
    "ntf_credit": {"keep": 0.3},
    "forking_credit": {"keep": 0.3, "divisor": "kept"},
    "ktae_credit": {},
    "one_sided_credit": {"side": "negative"},
    "edit_mask_credit": {"unchanged": 0.25},
    "process_credit": {"dead_groups": "branch"},
}
ADDITIVE = ("ktae_credit", "process_credit")
PER_RESPONSE = ("advantage", "mask", "group", "tokens", "logp", "entropy", "score", "edited", "prefix_value")


def make_inputs(seed: int, rows: int) -> CreditInputs:
    """Rows 0 to 3 are one group, two right and two wrong; masks have holes, some rows are empty, some ungraded, some advantages 0."""
    draw = torch.Generator().manual_seed(seed)
    shape = (rows, WIDTH)

    def uniform(*size: int) -> Tensor:
        return torch.rand(*size, generator=draw, dtype=torch.float64)

    score = (uniform(rows) > 0.5).double()
    score[:4] = torch.tensor([1.0, 0.0, 1.0, 0.0])
    score[4:][uniform(rows - 4) < 0.25] = math.nan
    group = torch.tensor([6, -2, 31])[torch.randint(3, (rows,), generator=draw)]
    group[:4] = 6
    lengths = torch.randint(0, WIDTH + 1, (rows,), generator=draw)
    lengths[:2] = WIDTH
    advantage = (uniform(rows) - 0.5) * (uniform(rows) > 0.2)
    advantage[:2] = torch.tensor([0.5, -0.5])
    return CreditInputs(
        advantage=advantage.where(~score.isnan(), 0.0),
        mask=(torch.arange(WIDTH) < lengths[:, None]) & (uniform(*shape) > 0.15),
        group=group,
        tokens=torch.randint(VOCABULARY, shape, generator=draw),
        logp=-uniform(*shape),
        entropy=uniform(*shape),
        seed=seed,
        score=score,
        end_tokens=(END,),
        edited=uniform(*shape) > 0.5,
        prefix_value=(8 * uniform(*shape)).round().div(8).where(uniform(*shape) < 0.5, math.nan),
    )


INPUTS = st.builds(make_inputs, seed=st.integers(0, 2**31), rows=st.integers(4, 10))
KEEPS = st.integers(1, 100).map(lambda percent: percent / 100)
COUNTS = st.integers(0, 9)
TABLES = st.tuples(COUNTS, COUNTS, COUNTS, COUNTS)


def rounded_up(keep: float, available: int) -> int:
    return math.ceil(Fraction(str(keep)) * available)


def with_ties(inputs: CreditInputs) -> CreditInputs:
    return inputs._replace(logp=(3 * inputs.logp).round(), entropy=(3 * inputs.entropy).round())


def assign(credit: SimpleNamespace, method: str, inputs: CreditInputs, **knobs: Any) -> Tensor:
    return getattr(credit, method)(inputs, {}, **(METHODS[method] | knobs)).credit


def keys(credit: SimpleNamespace, inputs: CreditInputs, **knobs: Any) -> Tensor:
    """What KTAE adds, read from a batch whose advantages are 0."""
    return assign(credit, "ktae_credit", inputs._replace(advantage=torch.zeros_like(inputs.advantage)), **knobs)


def rows_of(inputs: CreditInputs, rows: Tensor) -> CreditInputs:
    return inputs._replace(**{name: getattr(inputs, name)[rows] for name in PER_RESPONSE})


# --- which tokens keep their credit


@for_all(st.integers(1, 100), st.integers(0, 5000))
def shares_are_rounded_up_exactly(credit, percent, most):
    """Many lengths at once: those at which a product of floats lies just above a whole number are few."""
    available = [*range(100), *range(most, most + 50)]
    kept = credit.kept_tokens(torch.tensor(available), keep=percent / 100)
    assert kept.tolist() == [rounded_up(percent / 100, length) for length in available]


@for_all(INPUTS, KEEPS)
def ntf_keeps_a_share_of_every_negative_response(credit, inputs, keep):
    kept = assign(credit, "ntf_credit", inputs, keep=keep) != 0
    for row in (inputs.advantage < 0).nonzero()[:, 0]:
        assert int(kept[row].sum()) == rounded_up(keep, int(inputs.mask[row].sum()))


@for_all(INPUTS, KEEPS)
def ntf_keeps_the_least_probable_and_of_those_the_earliest(credit, inputs, keep):
    inputs = with_ties(inputs)
    kept = assign(credit, "ntf_credit", inputs, keep=keep) != 0
    for row in (inputs.advantage < 0).nonzero()[:, 0]:
        places = inputs.mask[row].nonzero()[:, 0].tolist()
        ranked = [bool(kept[row, t]) for t in sorted(places, key=lambda t: (float(inputs.logp[row, t]), t))]
        assert ranked == sorted(ranked, reverse=True)


@for_all(INPUTS, KEEPS)
def ntf_leaves_other_responses_alone(credit, inputs, keep):
    outcome = credit.ntf_credit(inputs, {}, keep=keep)
    others = inputs.advantage >= 0
    assert torch.equal(outcome.coefficient[others], inputs.mask[others].double())
    assert bool((outcome.coefficient[~others] <= inputs.mask[~others].double()).all())


@for_all(INPUTS, KEEPS)
def forking_keeps_a_share_of_the_batch(credit, inputs, keep):
    kept = credit.forking_credit(inputs, {}, keep=keep).coefficient != 0
    assert int(kept.sum()) == rounded_up(keep, int(inputs.mask.sum()))


@for_all(INPUTS, KEEPS)
def forking_keeps_the_least_decided_and_of_those_the_earliest(credit, inputs, keep):
    inputs = with_ties(inputs)
    kept = credit.forking_credit(inputs, {}, keep=keep).coefficient != 0
    places = [tuple(place) for place in inputs.mask.nonzero().tolist()]
    ranked = [bool(kept[place]) for place in sorted(places, key=lambda place: (-float(inputs.entropy[place]), place))]
    assert ranked == sorted(ranked, reverse=True)


@for_all(INPUTS, KEEPS)
def the_kept_divisor_makes_the_mean_coefficient_one(credit, inputs, keep):
    if inputs.mask.any():
        plain, rescaled = (credit.forking_credit(inputs, {}, keep=keep, divisor=divisor).coefficient for divisor in ("all", "kept"))
        assert float(rescaled[inputs.mask].mean()) == pytest.approx(1.0, rel=1e-12)
        assert set(plain.unique().tolist()) <= {0.0, 1.0}
        assert torch.equal(plain != 0, rescaled != 0)


@for_all(INPUTS)
def the_end_of_every_range_is_uniform_credit(credit, inputs):
    uniform = CREDITS["uniform"](inputs, {}).credit
    assert torch.equal(assign(credit, "ntf_credit", inputs, keep=1.0), uniform)
    assert torch.equal(assign(credit, "forking_credit", inputs, keep=1.0, divisor="all"), uniform)
    assert torch.equal(assign(credit, "forking_credit", inputs, keep=1.0, divisor="kept"), uniform)
    assert torch.equal(assign(credit, "edit_mask_credit", inputs, unchanged=1.0), uniform)


@for_all(INPUTS)
def two_sides_make_the_whole(credit, inputs):
    positive, negative = (credit.one_sided_credit(inputs, {}, side=side) for side in ("positive", "negative"))
    assert bool((positive.credit >= 0).all())
    assert bool((negative.credit <= 0).all())
    assert torch.equal(positive.credit + negative.credit, CREDITS["uniform"](inputs, {}).credit)
    assert not (positive.coefficient + negative.coefficient)[inputs.advantage == 0].any()


@for_all(INPUTS, st.integers(0, 8).map(lambda eighths: eighths / 8))
def edited_tokens_keep_their_credit_and_others_a_share_of_it(credit, inputs, unchanged):
    whole = CREDITS["uniform"](inputs, {}).credit
    actual = assign(credit, "edit_mask_credit", inputs, unchanged=unchanged)
    assert torch.equal(actual[inputs.edited], whole[inputs.edited])
    assert torch.equal(actual[~inputs.edited], unchanged * whole[~inputs.edited])


# --- any method


@for_all(INPUTS, st.sampled_from(sorted(METHODS)))
def padding_is_never_read(credit, inputs, method):
    def padded(tensor: Tensor, garbage: float) -> Tensor:
        width = tensor.new_full((len(tensor), 2), garbage)
        return torch.cat([width, tensor, width], dim=1)

    wider = inputs._replace(
        mask=padded(inputs.mask, False),
        tokens=padded(inputs.tokens, 1),
        logp=padded(inputs.logp, -99.0),
        entropy=padded(inputs.entropy, 99.0),
        edited=padded(inputs.edited, True),
        prefix_value=padded(inputs.prefix_value, 0.7),
    )
    assert_close(assign(credit, method, wider), padded(assign(credit, method, inputs), 0.0), rtol=0, atol=1e-12)


@for_all(INPUTS, st.sampled_from(sorted(METHODS)), st.integers(0, 99))
def permuting_responses_permutes_credit(credit, inputs, method, seed):
    order = torch.tensor(Random(seed).sample(range(len(inputs.mask)), len(inputs.mask)))
    assert_close(assign(credit, method, rows_of(inputs, order)), assign(credit, method, inputs)[order], rtol=0, atol=1e-12)


@for_all(INPUTS, st.sampled_from(ADDITIVE))
def groups_stand_alone_and_their_ids_are_only_names(credit, inputs, method):
    together = assign(credit, method, inputs)
    for name in inputs.group.unique():
        rows = (inputs.group == name).nonzero()[:, 0]
        assert_close(assign(credit, method, rows_of(inputs, rows)), together[rows], rtol=0, atol=1e-12)
    assert_close(assign(credit, method, inputs._replace(group=3 * inputs.group + 100)), together, rtol=0, atol=1e-12)


@for_all(INPUTS, st.sampled_from(ADDITIVE))
def an_ungraded_response_receives_nothing_and_changes_nothing(credit, inputs, method):
    inputs = inputs._replace(advantage=inputs.advantage + 1)
    graded = ~inputs.score.isnan()
    result = assign(credit, method, inputs)
    assert not result[~graded].any()
    assert_close(result[graded], assign(credit, method, rows_of(inputs, graded.nonzero()[:, 0])), rtol=0, atol=1e-12)


# --- Fisher's test and the information gain


def statistic(function, *tables: tuple[int, int, int, int]) -> list[float]:
    return function(*(torch.tensor(column, dtype=torch.float64) for column in zip(*tables, strict=True))).tolist()


def views(table: tuple[int, int, int, int]) -> list[tuple[int, int, int, int]]:
    """The table, its rows swapped, its columns swapped, and it transposed: the same association."""
    a, b, c, d = table
    return [table, (c, d, a, b), (b, a, d, c), (a, c, b, d)]


@for_all(TABLES)
def fishers_p_is_a_chance_however_the_table_is_turned(credit, table):
    p, *turned = statistic(credit.fisher_p_value, *views(table))
    assert 0 < p <= 1
    assert turned == pytest.approx([p] * 3, rel=1e-9)


@for_all(COUNTS, COUNTS, st.integers(0, 4), st.integers(0, 4))
def fishers_p_of_an_independent_table_is_exactly_one(credit, a, b, twice, thrice):
    assert statistic(credit.fisher_p_value, (a * twice, b * twice, a * thrice, b * thrice)) == [1.0]


@for_all(st.integers(1, 30))
def fishers_p_of_a_perfect_split_is_two_arrangements(credit, n):
    assert statistic(credit.fisher_p_value, (n, 0, 0, n))[0] == pytest.approx(2 / math.comb(2 * n, n), rel=1e-9)


@for_all(TABLES)
def a_gain_is_some_of_a_bit_however_the_table_is_turned(credit, table):
    gain, *turned = statistic(credit.information_gain, *views(table))
    assert 0 <= gain <= 1 + 1e-12
    assert turned == pytest.approx([gain] * 3, abs=1e-12)
    assert (gain == 0) == (table[0] * table[3] == table[1] * table[2])


@for_all(st.integers(1, 30))
def a_perfect_even_split_gains_one_bit(credit, n):
    assert statistic(credit.information_gain, (n, 0, 0, n), (0, n, n, 0)) == pytest.approx([1.0, 1.0], rel=1e-12)


# --- KTAE


@for_all(INPUTS, st.sampled_from([0.25, 1.0, 3.0]))
def a_key_is_added_and_bounded_by_its_top(credit, inputs, top):
    inputs = rows_of(inputs, (~inputs.score.isnan()).nonzero()[:, 0])
    key = keys(credit, inputs, top=top)
    assert bool((key.abs() <= top).all())
    assert_close(key, top * keys(credit, inputs), rtol=0, atol=1e-12)
    expected = (inputs.advantage[:, None] + key).where(inputs.mask, 0.0)
    assert_close(assign(credit, "ktae_credit", inputs, top=top), expected, rtol=0, atol=1e-12)


@for_all(INPUTS)
def swapping_right_and_wrong_swaps_keys(credit, inputs):
    assert_close(keys(credit, inputs._replace(score=1 - inputs.score)), -keys(credit, inputs), rtol=0, atol=1e-12)


@for_all(INPUTS)
def what_only_successes_hold_is_good_and_only_failures_bad(credit, inputs):
    tokens, mask = inputs.tokens.clone(), inputs.mask.clone()
    tokens[:2, 0], mask[:2, 0] = torch.tensor([10, 11]), True
    key = keys(credit, inputs._replace(tokens=tokens, mask=mask))
    assert key[0, 0] > 0.5
    assert key[1, 0] < -0.5


@for_all(INPUTS)
def what_every_response_holds_says_nothing(credit, inputs):
    tokens, mask = inputs.tokens.clone(), inputs.mask.clone()
    tokens[:, 0], mask[:, 0] = 20, True
    assert not keys(credit, inputs._replace(tokens=tokens, mask=mask))[tokens == 20].any()


@for_all(INPUTS)
def repeating_every_response_leaves_keys(credit, inputs):
    """Frequencies are shares of a side's tokens: writing everything twice changes none."""
    twice = {name: torch.cat([getattr(inputs, name)] * 2, dim=1) for name in ("tokens", "mask", "logp", "entropy")}
    assert_close(keys(credit, inputs._replace(**twice))[:, :WIDTH], keys(credit, inputs), rtol=0, atol=1e-12)


@for_all(INPUTS, st.sampled_from([0.0, 1.0]))
def one_sided_groups_and_end_tokens_have_no_keys(credit, inputs, outcome):
    assert not keys(credit, inputs)[inputs.tokens == END].any()
    decided = inputs._replace(score=torch.where(inputs.group == 6, outcome, inputs.score))
    assert not keys(credit, decided)[inputs.group == 6].any()


# --- process credit


def segments(inputs: CreditInputs, row: int) -> list[list[int]]:
    found: list[list[int]] = []
    for t in inputs.mask[row].nonzero()[:, 0].tolist():
        if not found or not math.isnan(float(inputs.prefix_value[row, t])):
            found.append([])
        found[-1].append(t)
    return found


@for_all(INPUTS)
def steps_sum_to_the_score_above_the_mean(credit, inputs):
    result = assign(credit, "process_credit", inputs, dead_groups="branch")
    for row in (~inputs.score.isnan()).nonzero()[:, 0].tolist():
        siblings = inputs.score[(inputs.group == inputs.group[row]) & ~inputs.score.isnan()]
        parts = segments(inputs, row)
        if parts:
            once = sum(float(result[row, part[0]]) for part in parts)
            assert once == pytest.approx(float(inputs.score[row] - siblings.mean()), abs=1e-12)


@for_all(INPUTS)
def a_step_is_one_number_and_the_difference_of_its_ends(credit, inputs):
    result = assign(credit, "process_credit", inputs, dead_groups="branch")
    for row in (~inputs.score.isnan()).nonzero()[:, 0].tolist():
        parts = segments(inputs, row)
        for part in parts:
            assert len(set(result[row, part].tolist())) == 1
        starts = [float(inputs.prefix_value[row, part[0]]) for part in parts[1:]]
        for part, start, end in zip(parts[1:], starts, [*starts[1:], float(inputs.score[row])], strict=False):
            assert float(result[row, part[0]]) == pytest.approx(end - start, abs=1e-12)


@for_all(INPUTS)
def dead_groups_are_skipped_or_branched(credit, inputs):
    skipped, branched = (assign(credit, "process_credit", inputs, dead_groups=way) for way in ("skip", "branch"))
    for name in inputs.group.unique():
        rows = inputs.group == name
        scores = inputs.score[rows]
        dead = len(set(scores[~scores.isnan()].tolist())) < 2
        assert torch.equal(skipped[rows], torch.zeros_like(skipped[rows]) if dead else branched[rows])
    decided = inputs._replace(score=torch.where(inputs.group == 6, 1.0, inputs.score))
    later = decided.mask & (decided.mask.cumsum(-1) > 1) & ~decided.prefix_value.isnan() & (decided.prefix_value < 1)
    if later[:2].any():
        assert assign(credit, "process_credit", decided, dead_groups="branch")[:2].any()


# --- IBPO


SHARES = st.integers(0, 8).map(lambda eighths: eighths / 8)
GRADED = st.sampled_from([0.0, 1.0, math.nan])
RESPONSES = st.lists(st.tuples(GRADED, SHARES), min_size=1, max_size=8)


@for_all(RESPONSES, st.integers(0, 16).map(lambda eighths: eighths / 8), SHARES)
def a_repair_is_worth_its_share_and_only_to_a_failure(credit, responses, weight, repair_value):
    score, repaired = (torch.tensor(column, dtype=torch.float64) for column in zip(*responses, strict=True))
    bonus = credit.repair_bonus(score, repaired, weight=weight, repair_value=repair_value)
    assert torch.equal(bonus, torch.where(score == 0, weight * repair_value * repaired, 0.0))


@for_all(RESPONSES, SHARES, SHARES)
def a_success_never_receives_less_than_a_failure(credit, responses, weight, repair_value):
    score, repaired = (torch.tensor(column, dtype=torch.float64) for column in zip(*responses, strict=True))
    shaped = score + credit.repair_bonus(score, repaired, weight=weight, repair_value=repair_value)
    assert bool((shaped[score == 1, None] >= shaped[None, score == 0]).all())
    assert bool((shaped[score == 1] <= 1).all())
    assert bool((shaped[score == 0] >= 0).all())


TEXTS = st.lists(st.integers(0, 3), max_size=8)


@for_all(TEXTS, TEXTS)
def unmarked_tokens_survive_and_an_edit_marks_one_at_most(credit, before, after):
    marks = credit.edited_tokens(before, after)
    kept = [token for token, marked in zip(before, marks, strict=True) if not marked]
    rest = iter(after)
    assert all(token in rest for token in kept)
    assert sum(marks) <= credit.edit_distance(before, after) <= max(len(before), len(after))
    assert credit.edit_distance(before, after) == credit.edit_distance(after, before)
    assert any(marks) == (bool(before) and before != after)


@for_all(st.integers(1, 8), st.integers(0, 8), st.integers(1, 3))
def an_insertion_marks_the_token_after_it(credit, length, at, inserted):
    before = list(range(length))
    at = min(at, length)
    after = [*before[:at], *range(100, 100 + inserted), *before[at:]]
    assert credit.edited_tokens(before, after) == [t == min(at, length - 1) for t in range(length)]
    assert credit.edit_distance(before, after) == inserted


@for_all(st.integers(1, 8), st.sets(st.integers(0, 7)))
def replaced_tokens_are_marked_and_counted(credit, length, places):
    before = list(range(length))
    places = {place for place in places if place < length}
    after = [100 + token if token in places else token for token in before]
    assert credit.edited_tokens(before, after) == [token in places for token in before]
    assert credit.edit_distance(before, after) == len(places)


LAWS: dict[Law, tuple[str, ...]] = {
    shares_are_rounded_up_exactly: ("a rounding counts as a token", "rounded down", "rounded to nearest", "one token too many"),
    ntf_keeps_a_share_of_every_negative_response: ("rounded down", "length is the padded width", "padding is ranked"),
    ntf_keeps_the_least_probable_and_of_those_the_earliest: ("the surest tokens are penalised", "later tokens win ties"),
    ntf_leaves_other_responses_alone: (
        "positive responses are filtered too",
        "only positive responses are filtered",
        "zero advantage is filtered",
    ),
    forking_keeps_a_share_of_the_batch: ("padding is available", "padding has entropy", "rounded to nearest"),
    forking_keeps_the_least_decided_and_of_those_the_earliest: ("the most decided tokens", "later rows win ties"),
    the_kept_divisor_makes_the_mean_coefficient_one: (
        "the divisor is never the kept",
        "the divisor is always the kept",
        "the weight is the share",
    ),
    the_end_of_every_range_is_uniform_credit: ("rounded down", "unchanged is always 0"),
    two_sides_make_the_whole: ("the other side", "zero is on both sides", "both sides"),
    edited_tokens_keep_their_credit_and_others_a_share_of_it: (
        "what the repair left alone",
        "unchanged is always 0",
        "edited tokens weigh more",
    ),
    padding_is_never_read: (
        "padding is ranked",
        "padding has entropy",
        "padding is counted",
        "key beyond the mask",
        "values at holes are boundaries",
        "credit beyond the mask",
    ),
    permuting_responses_permutes_credit: ("a neighbour's side",),
    groups_stand_alone_and_their_ids_are_only_names: ("groups are pooled", "a group's id is its index", "groups share one mean"),
    an_ungraded_response_receives_nothing_and_changes_nothing: (
        "ungraded responses are wrong",
        "ungraded responses are siblings",
        "ungraded responses keep their advantage",
        "ungraded responses are wrong in the mean",
        "ungraded responses receive something",
    ),
    fishers_p_is_a_chance_however_the_table_is_turned: (
        "one tail",
        "impossible tables",
        "a chance beyond its margins",
    ),
    fishers_p_of_an_independent_table_is_exactly_one: ("p is hardly ever 1",),
    fishers_p_of_a_perfect_split_is_two_arrangements: ("ties split by rounding",),
    a_gain_is_some_of_a_bit_however_the_table_is_turned: ("gain forgets absence", "gain is a sum"),
    a_perfect_even_split_gains_one_bit: ("gain in nats", "gain forgets absence"),
    a_key_is_added_and_bounded_by_its_top: ("the key ignores its top", "the key scales the advantage", "key beyond the mask"),
    swapping_right_and_wrong_swaps_keys: (
        "a key without direction",
        "only what correct responses use more",
        "half a sigmoid",
        "lengths of both sides alike",
    ),
    what_only_successes_hold_is_good_and_only_failures_bad: ("wrong is right", "a key without direction"),
    what_every_response_holds_says_nothing: ("p of 1 is significant", "half a sigmoid"),
    repeating_every_response_leaves_keys: ("a use counts once per response", "a frequency is a count"),
    one_sided_groups_and_end_tokens_have_no_keys: ("an empty side is divided by", "the end token has a key"),
    steps_sum_to_the_score_above_the_mean: (
        "the last step ends at its own start",
        "the first value is the sampled one",
        "the first value is 0",
        "gains are losses",
        "values at holes are boundaries",
    ),
    a_step_is_one_number_and_the_difference_of_its_ends: ("a gain reaches one token further", "gains are losses"),
    dead_groups_are_skipped_or_branched: ("dead groups are never skipped", "dead groups are always skipped"),
    a_repair_is_worth_its_share_and_only_to_a_failure: (
        "successes are paid too",
        "the ungraded are failures",
        "a bonus for any repair",
        "the repair is worth a whole success",
        "weight is ignored",
        "hopeless failures pay",
    ),
    a_success_never_receives_less_than_a_failure: ("successes are paid too", "hopeless failures pay"),
    unmarked_tokens_survive_and_an_edit_marks_one_at_most: ("insertions leave no mark", "everything is marked"),
    an_insertion_marks_the_token_after_it: ("insertions leave no mark", "insertions mark the token before", "marks of the revision"),
    replaced_tokens_are_marked_and_counted: ("a replacement is two edits", "everything is marked"),
}

test_the_code_obeys, test_the_law_rejects, test_the_table_is_complete = law_tests_from_edits(
    LAWS, credit_with, SELECTION, STATISTICS, KEYS, STEPS, REPAIRS
)


@pytest.mark.parametrize(
    ("name", "knob", "choices"),
    [("forking", "divisor", "all, kept"), ("one-sided", "side", "positive, negative"), ("process", "dead_groups", "skip, branch")],
)
def test_a_word_that_is_no_choice_is_refused(name: str, knob: str, choices: str) -> None:
    with pytest.raises(ValueError, match=f"{knob} is 'neither'; it must be one of {choices}"):
        CREDITS[name](make_inputs(0, 4), {}, **{knob: "neither"})

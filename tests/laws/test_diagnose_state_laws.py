"""What must hold for coupling, masses, entropy and value, whatever the batch; and the wrong versions each law rejects."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from laws.harness import Law, for_all, law_tests_from_edits
from laws.mutants_diagnose_state import COUPLING, ENTROPY, MASSES, VALUE, diagnose_with
from tokencredit.credit.delta.vectors import DenseVectors, HeadVectors
from tokencredit.diagnose.table import TokenTable

SEEDS = st.integers(0, 2**31)
SCALES = st.sampled_from([0.25, 0.5, 2.0, 8.0])


def near(actual: Any, expected: Any) -> None:
    assert_close(actual, expected, rtol=1e-8, atol=1e-8, equal_nan=True)


def near_rows(actual: Any, expected: Any) -> None:
    assert len(actual) == len(expected)
    for mine, theirs in zip(actual, expected, strict=True):
        for column, value in theirs.items():
            assert mine[column] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-8, abs=1e-8, nan_ok=True))


# --- coupling


class Coupled(NamedTuple):
    looked_at: HeadVectors
    sources: HeadVectors
    weight: Tensor
    own_index: Tensor

    @property
    def logp(self) -> Tensor:
        logits = self.looked_at.hidden @ self.looked_at.head.T / self.looked_at.temperature
        return logits.log_softmax(-1).gather(-1, self.looked_at.tokens[:, None]).squeeze(-1)

    def parts(self, code: Any, **change: Any) -> tuple[Tensor, ...]:
        return code.head_parts(*self._replace(**change))

    def dense(self, vectors: HeadVectors) -> Tensor:
        """The gradients as whole vocab x hidden matrices."""
        away = torch.nn.functional.one_hot(vectors.tokens, len(vectors.head)) - self.chances(vectors)
        return away[:, :, None] * vectors.hidden[:, None] / vectors.temperature

    @staticmethod
    def chances(vectors: HeadVectors) -> Tensor:
        return (vectors.hidden @ vectors.head.T / vectors.temperature).softmax(-1)


def make_coupled(seed: int, sources: int) -> Coupled:
    """Three token ids over a vocabulary of four; the first looked-at token is a source with a twin, the last ones are in none."""
    draw = torch.Generator().manual_seed(seed)
    hidden = 2 * torch.randn(sources + 2, 3, generator=draw, dtype=torch.float64)
    tokens = torch.randint(3, (sources + 2,), generator=draw)
    tokens[:3] = torch.tensor([0, 0, 1])
    every = HeadVectors(hidden, tokens, torch.randn(4, 3, generator=draw, dtype=torch.float64), 1.5, chunk=2)
    order = torch.cat([torch.tensor([1, 0]), 2 + torch.randperm(sources, generator=draw)])
    return Coupled(
        every.take(order),
        every.take(torch.arange(sources)),
        torch.randn(sources, generator=draw, dtype=torch.float64),
        order.where(order < sources, -1),
    )


COUPLED = st.builds(make_coupled, seed=SEEDS, sources=st.integers(3, 8))


@for_all(COUPLED)
def parts_add_up_to_an_inner_product_of_gradients(code, case):
    step = (case.weight[:, None, None] * case.dense(case.sources)).sum(0)
    near(sum(case.parts(code)), (case.dense(case.looked_at) * step).sum((1, 2)))


@for_all(COUPLED)
def the_own_part_is_the_own_weight_times_the_squared_gradient(code, case):
    weight = torch.cat([case.weight, torch.zeros(1)])[case.own_index]
    near(case.parts(code)[0], weight * case.dense(case.looked_at).square().sum((1, 2)))


@for_all(COUPLED)
def one_token_alone_leaves_nothing_to_the_others(code, case):
    """Sources of every other id silenced: own and same parts of that id stay as they were, and the rest vanishes."""
    own, same, _ = case.parts(code)
    for token in range(3):
        silent = case.weight.where(case.sources.tokens == token, 0.0)
        here = case.looked_at.tokens == token
        alone = case.parts(code, weight=silent)
        near(alone[0][here], own[here])
        near(alone[1][here], same[here])
        near(alone[2][here], torch.zeros_like(own[here]))


@for_all(COUPLED, SCALES)
def parts_follow_the_weights(code, case, scale):
    for factor in (scale, -1.0):
        for changed, part in zip(case.parts(code, weight=factor * case.weight), case.parts(code), strict=True):
            near(changed, factor * part)


@for_all(COUPLED)
def order_of_sources_changes_nothing(code, case):
    order = torch.arange(len(case.weight)).flip(0)
    place = (len(case.weight) - 1 - case.own_index).where(case.own_index >= 0, -1)
    changed = case.parts(code, sources=case.sources.take(order), weight=case.weight[order], own_index=place)
    for mine, part in zip(changed, case.parts(code), strict=True):
        near(mine, part)


@for_all(COUPLED, st.integers(1, 12))
def chunks_change_nothing(code, case, chunk):
    cut = {"looked_at": replace(case.looked_at, chunk=chunk), "sources": replace(case.sources, chunk=chunk)}
    whole = {"looked_at": replace(case.looked_at, chunk=99), "sources": replace(case.sources, chunk=99)}
    for mine, part in zip(case.parts(code, **cut), case.parts(code, **whole), strict=True):
        near(mine, part)
    rows = [code.pair_table(case.looked_at, case.logp, chunk=size) for size in (chunk, 99)]
    near_rows(*rows)


@for_all(COUPLED, SCALES)
def hidden_states_and_temperature_scale_together(code, case, scale):
    """The logits stay, and K has one factor of h and one of 1 / temperature for each of its two tokens."""

    def scaled(vectors: HeadVectors) -> HeadVectors:
        return replace(vectors, hidden=scale * vectors.hidden, temperature=scale * vectors.temperature)

    changed = case.parts(code, looked_at=scaled(case.looked_at), sources=scaled(case.sources))
    for mine, part in zip(changed, case.parts(code), strict=True):
        near(mine, part)
    near_rows(code.pair_table(scaled(case.looked_at), case.logp), code.pair_table(case.looked_at, case.logp))


@for_all(COUPLED)
def every_pair_is_counted_once(code, case):
    rows = code.pair_table(case.looked_at, case.logp, chunk=3)
    count = len(case.looked_at)
    assert sum(row["pairs"] for row in rows) == count * (count - 1) // 2
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    same = sum(int((case.looked_at.tokens == token).sum() * ((case.looked_at.tokens == token).sum() - 1)) // 2 for token in range(3))
    assert sum(row["pairs"] for row in rows if row["identity"] == "same") == same
    kernel = torch.einsum("avh,bvh->ab", case.dense(case.looked_at), case.dense(case.looked_at))
    total = (kernel.sum() - kernel.trace()) / 2
    near(sum(row["pairs"] * row["mean_kernel"] for row in rows), float(total))


@for_all(COUPLED)
def order_of_tokens_changes_no_pair(code, case):
    order = torch.arange(len(case.looked_at)).flip(0)
    near_rows(code.pair_table(case.looked_at.take(order), case.logp[order]), code.pair_table(case.looked_at, case.logp))


@for_all(COUPLED)
def same_tokens_never_have_a_negative_factor_and_magnitudes_bound_means(code, case):
    for row in code.pair_table(case.looked_at, case.logp):
        assert row["identity"] == "different" or row["mean_factor"] >= 0
        assert row["mean_abs_kernel"] >= abs(row["mean_kernel"]) - 1e-12


@for_all(COUPLED)
def a_sample_holds_distinct_tokens(code, case):
    """All but one token: the table must be that of some subset with one token left out."""
    count = len(case.looked_at)
    places = torch.arange(count)
    found = code.pair_table(case.looked_at, case.logp, limit=count - 1)
    subsets = [places[places != left_out] for left_out in range(count)]
    assert found in [code.pair_table(case.looked_at.take(subset), case.logp[subset]) for subset in subsets]


@for_all(COUPLED)
def shares_are_of_absolute_parts(code, case):
    count = len(case.looked_at)
    table = make_table(count, token=case.looked_at.tokens, logp=case.logp)
    sources = code.Sources(case.sources.hidden, case.sources.tokens, case.weight)
    result = code.coupling(table, case.looked_at.hidden, case.sources.head, sources, case.own_index, temperature=1.5)
    sizes = torch.stack(result[:3])[:, case.own_index >= 0].abs().sum(-1)
    shares = [result.finding.numbers[f"share/{part}"] for part in ("own", "same", "other")]
    near(torch.tensor(shares, dtype=torch.float64), sizes / sizes.sum())


def make_table(count: int, **columns: Any) -> TokenTable:
    place, zeros = torch.arange(count), torch.zeros(count, dtype=torch.float64)
    default: dict[str, Any] = dict.fromkeys(("row", "group", "position", "token", "optimizer_step"), place)
    default |= dict.fromkeys(("logp", "entropy", "credit", "advantage", "score"), zeros)
    default |= dict.fromkeys(("text", "token_class"), ("x",) * count)
    return TokenTable(**(default | columns))


# --- masses


class Batch(NamedTuple):
    advantage: Tensor
    score: Tensor
    group: Tensor
    credit: Tensor
    mask: Tensor

    def rows(self, index: Tensor) -> "Batch":
        return Batch(*(value[index] for value in self))


def make_batch(seed: int, rows: int) -> Batch:
    """Group 5 has a success and a failure and 12 is never graded; credits of either sign, padding full of rubbish."""
    draw = torch.Generator().manual_seed(seed)
    score = torch.tensor([0.0, 0.5, 1.0, 1.0, math.nan], dtype=torch.float64)[torch.randint(5, (rows,), generator=draw)]
    group = torch.tensor([5, -1, 30, 4])[torch.randint(4, (rows,), generator=draw)]
    score[:3], group[:3] = torch.tensor([1.0, 0.0, math.nan], dtype=torch.float64), torch.tensor([5, 5, 12])
    advantage = torch.randn(rows, generator=draw, dtype=torch.float64) * (torch.rand(rows, generator=draw) > 0.2)
    advantage[:2] = torch.tensor([0.5, -1.5])
    credit = advantage[:, None] + 0.5 * torch.randn(rows, 3, generator=draw, dtype=torch.float64)
    return Batch(advantage, score, group, credit, torch.rand(rows, 3, generator=draw) < 0.7)


BATCHES = st.builds(make_batch, seed=SEEDS, rows=st.integers(5, 12))
MEANS = ("solve_rate", "success", "failure")
SUMS = ("token_positive", "token_negative")


@for_all(BATCHES)
def a_group_is_judged_by_its_own_responses(code, batch):
    found = code.group_masses(*batch)
    for place, name in enumerate(batch.group.unique()):
        alone = code.group_masses(*batch.rows(batch.group == name))
        for mine, everyone in zip(alone, found, strict=True):
            near(mine, everyone[place : place + 1])


@for_all(BATCHES)
def order_of_responses_changes_nothing(code, batch):
    order = torch.arange(len(batch.score)).flip(0)
    near(dict(code.masses(*batch.rows(order)).numbers), dict(code.masses(*batch).numbers))


@for_all(BATCHES, SCALES)
def masses_follow_the_scale(code, batch, scale):
    one, two = (
        code.masses(*batch).numbers,
        code.masses(*batch._replace(advantage=scale * batch.advantage, credit=scale * batch.credit)).numbers,
    )
    for name in ("success_mass", "failure_mass", "token_positive", "token_negative"):
        assert two[name] == pytest.approx(scale * one[name])
    for name in ("success_share", "token_positive_share", "effective_groups", "dead_groups"):
        assert two[name] == pytest.approx(one[name])


@for_all(BATCHES)
def opposite_signs_change_sides(code, batch):
    one, two = code.group_masses(*batch), code.group_masses(*batch._replace(advantage=-batch.advantage, credit=-batch.credit))
    near(two.success, one.failure)
    near(two.failure, one.success)
    near(two.token_positive, one.token_negative)
    assert bool((torch.stack([one.success, one.failure]).nan_to_num() >= 0).all())
    credited = (batch.mask & ~batch.score.isnan()[:, None]) * batch.credit.abs()
    near(one.token_positive.sum() + one.token_negative.sum(), credited.sum())


@for_all(BATCHES)
def ungraded_responses_are_in_no_mass(code, batch):
    rows = torch.cat([torch.arange(len(batch.score)), torch.tensor([0, 1])])
    more = batch.rows(rows)
    more.score[-2:] = math.nan
    for mine, part in zip(code.group_masses(*more), code.group_masses(*batch), strict=True):
        near(mine, part)
    assert code.masses(*more).numbers["ungraded"] == int(batch.score.isnan().sum()) + 2


@for_all(BATCHES)
def padding_is_never_read(code, batch):
    rubbish = batch.credit.where(batch.mask, math.nan)
    near(dict(code.masses(*batch._replace(credit=rubbish)).numbers), dict(code.masses(*batch).numbers))


@for_all(BATCHES)
def every_response_twice_doubles_sums_and_keeps_means(code, batch):
    one, two = code.group_masses(*batch), code.group_masses(*batch.rows(torch.arange(len(batch.score)).repeat(2)))
    for name in MEANS:
        near(getattr(two, name), getattr(one, name))
    for name in SUMS:
        near(getattr(two, name), 2 * getattr(one, name))
    assert bool((two.dead == one.dead).all())


@for_all(BATCHES)
def groups_are_dead_exactly_where_nothing_differs(code, batch):
    dead = code.group_masses(*batch).dead
    for place, name in enumerate(batch.group.unique()):
        scores = {float(score) for score in batch.score[batch.group == name] if not score.isnan()}
        taught = bool((batch.advantage[(batch.group == name) & ~batch.score.isnan()] != 0).any())
        assert bool(dead[place]) == (len(scores) < 2 and not taught)


@for_all(BATCHES)
def every_graded_group_is_in_the_bucket_of_its_solve_rate(code, batch):
    rows = code.masses(*batch).tables["by_solve_rate"]
    solved = []
    for name in batch.group.unique():
        scores = [float(score) for score in batch.score[batch.group == name] if not score.isnan()]
        solved += [sum(score >= 1 for score in scores) / len(scores)] if scores else []
    assert sum(row["groups"] for row in rows) == len(solved)
    assert (rows[0]["groups"], rows[-1]["groups"]) == (solved.count(0.0), solved.count(1.0))


@for_all(st.lists(st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=8), SCALES)
def effective_groups_lie_between_one_and_all_that_weigh(code, weights, scale):
    found = code.effective_groups(scale * torch.tensor(weights))
    weighing = sum(weight > 0 for weight in weights)
    assert math.isnan(found) if not weighing else 1 - 1e-9 <= found <= weighing + 1e-9
    alike = torch.tensor([scale] * len(weights))
    assert code.effective_groups(alike) == pytest.approx(len(weights))
    assert code.effective_groups(torch.tensor(weights)) == pytest.approx(found, nan_ok=True)


def make_vectors(seed: int, count: int) -> tuple[DenseVectors, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    vectors = torch.randn(count, 3, generator=draw, dtype=torch.float64)
    advantage = torch.randn(count, generator=draw, dtype=torch.float64)
    advantage[:2] = torch.tensor([0.3, -0.7])
    return DenseVectors(vectors, chunk=2), advantage, 0.5 + torch.rand(count, generator=draw, dtype=torch.float64)


VECTORS = st.builds(make_vectors, seed=SEEDS, count=st.integers(2, 7))


@for_all(VECTORS, SCALES)
def centroids_know_no_scale_of_advantage_and_no_side(code, case, scale):
    vectors, advantage, coefficient = case
    found = code.centroid_contrast(vectors, advantage, coefficient)
    for changed in (scale * advantage, -advantage):
        again = code.centroid_contrast(vectors, changed, coefficient)
        assert tuple(again.before) == pytest.approx(tuple(found.before))
        assert tuple(again.after) == pytest.approx(tuple(found.after))


@for_all(VECTORS)
def coefficients_act_through_the_advantage(code, case):
    vectors, advantage, coefficient = case
    found = code.centroid_contrast(vectors, advantage, coefficient)
    assert tuple(found.after) == pytest.approx(tuple(code.centroid_contrast(vectors, advantage * coefficient).before))
    assert 0 <= found.before.relative_distance <= 1
    assert -1 - 1e-9 <= found.before.cosine <= 1 + 1e-9


@for_all(VECTORS)
def what_both_sides_share_wholly_is_at_no_distance(code, case):
    vectors, advantage, _ = case
    twice = DenseVectors(vectors.vectors.repeat(2, 1))
    found = code.centroid_contrast(twice, torch.cat([advantage.abs(), -3 * advantage.abs()])).before
    assert tuple(found) == pytest.approx((1, 0, 0), abs=1e-9)


@for_all(VECTORS)
def one_side_alone_has_no_contrast(code, case):
    vectors, advantage, _ = case
    assert all(math.isnan(value) for value in code.centroid_contrast(vectors, advantage.abs()).before)


# --- entropy

GAPS = st.lists(st.integers(1, 4), min_size=3, max_size=12)
VALUES = st.lists(st.integers(0, 64).map(lambda count: count / 16), min_size=3, max_size=14)


@for_all(GAPS, st.integers(1, 6), st.integers(2, 9))
def a_straight_fall_is_foretold_exactly(code, gaps, pace, window):
    steps = [sum(gaps[:place]) for place in range(len(gaps) + 1)]
    height = 1 + pace * steps[-1] / 16
    history = [(step, height - pace * step / 16) for step in steps]
    found = code.entropy_trend(history, window=window, floor_share=0.25)
    assert found.slope == pytest.approx(-pace / 16)
    arrives = history[-1][1] - pace / 16 * found.steps_to_floor
    assert arrives == pytest.approx(found.floor) or found.steps_to_floor == 0
    assert found.floor == pytest.approx(0.25 * height)


@for_all(VALUES, st.integers(2, 6))
def only_the_first_and_the_last_points_matter(code, values, window):
    history = list(enumerate(values))
    kept = history[:1] + history[1:][-max(window, 4) :]
    found, again = code.entropy_trend(history, window=window), code.entropy_trend(kept, window=window)
    near_rows([again._asdict()], [found._asdict()])


@for_all(VALUES, SCALES, st.integers(0, 100))
def units_and_the_first_step_change_no_status(code, values, scale, start):
    found = code.entropy_trend(list(enumerate(values)))
    again = code.entropy_trend([(start + step, scale * value) for step, value in enumerate(values)])
    assert again.status == found.status
    assert again.slope == pytest.approx(scale * found.slope, abs=1e-12)
    assert again.floor == pytest.approx(scale * found.floor)


@for_all(VALUES, st.integers(2, 6))
def statuses_mean_what_they_say(code, values, window):
    found = code.entropy_trend(list(enumerate(values)), window=window, horizon=5)
    assert (found.status == "collapsed") == (values[-1] < 0.25 * values[0])
    rising = values[-1] > values[-2] and window == 2
    assert not (rising and found.status == "warning")
    assert math.isnan(found.steps_to_floor) if found.slope >= 0 else found.steps_to_floor >= 0


@for_all(SEEDS, st.integers(2, 8))
def before_and_change_make_after(code, seed, count):
    draw = torch.Generator().manual_seed(seed)
    before, after = torch.rand(2, count, generator=draw, dtype=torch.float64)
    after[0] = math.nan
    finding = code.entropy(make_table(count, entropy=before), after, [])
    for row in (finding.numbers, *finding.tables["by_class"]):
        assert row["before"] + row["change"] == pytest.approx(row["after"])
        assert row["tokens"] == count - 1


# --- value


class Moved(NamedTuple):
    table: TokenTable
    change: Tensor
    before: Tensor
    after: Tensor

    def finding(self, code: Any, **change: Any) -> Any:
        return code.token_value(*self._replace(**change), seed=7, draws=60)

    def select(self, index: Tensor) -> "Moved":
        return Moved(self.table.select(index), self.change[index], self.before[index], self.after[index])


def make_moved(seed: int, count: int) -> Moved:
    """The first eight tokens fill the four cells in two prompts; some changes are too small, some values unknown."""
    draw = torch.Generator().manual_seed(seed)

    def uniform() -> Tensor:
        return torch.rand(count, generator=draw, dtype=torch.float64)

    advantage, change = uniform() - 0.5, (uniform() - 0.5).where(uniform() > 0.2, 5e-5)
    advantage[:8] = torch.tensor([1.0, 1, -1, -1, 1, 1, -1, -1])
    change[:8] = torch.tensor([0.1, -0.1, 0.1, -0.1] * 2)
    group = torch.randint(4, (count,), generator=draw)
    group[:8] = torch.arange(8) // 4
    before, after = uniform(), uniform()
    before[8:], after[8:] = before[8:].where(uniform()[8:] > 0.2, math.nan), after[8:].where(uniform()[8:] > 0.2, math.nan)
    return Moved(make_table(count, advantage=advantage, group=group), change, before, after)


MOVED = st.builds(make_moved, seed=SEEDS, count=st.integers(9, 24))
CORNERS = [f"{side}/{measure}" for side in ("positive", "negative") for measure in ("value", "gain")]


@for_all(MOVED)
def opposite_changes_mirror_everything(code, case):
    one, two = case.finding(code), case.finding(code, change=-case.change)
    for corner in CORNERS:
        mirrored = [-one.numbers[f"{corner}/{end}"] for end in ("difference", "high", "low")]
        assert [two.numbers[f"{corner}/{end}"] for end in ("difference", "low", "high")] == pytest.approx(mirrored)
    counts = [[row["tokens"] for row in finding.tables["cells"]] for finding in (one, two)]
    assert counts[0] == [counts[1][place] for place in (1, 0, 3, 2)]


@for_all(MOVED)
def unknown_values_are_left_out(code, case):
    known = (~(case.before + case.after).isnan()).nonzero()[:, 0]
    near_rows(case.finding(code).tables["cells"], case.select(known).finding(code).tables["cells"])


@for_all(MOVED)
def a_side_is_judged_alone(code, case):
    moved = case.after.where(case.table.advantage > 0, 0.5)
    one, two = case.finding(code).numbers, case.finding(code, after=moved).numbers
    positive = [name for name in one if name.startswith("positive/")]
    assert [two[name] for name in positive] == pytest.approx([one[name] for name in positive])


@for_all(MOVED, st.sampled_from([-0.5, 0.25, 1.0]))
def worth_of_boosted_tokens_moves_the_difference(code, case, worth):
    more = case.after + worth * (case.change > 1e-4)
    one, two = case.finding(code).numbers, case.finding(code, after=more).numbers
    ends = [f"{corner}/{end}" for corner in CORNERS for end in ("difference", "low", "high")]
    assert [two[name] - one[name] for name in ends] == pytest.approx([worth] * len(ends))


@for_all(MOVED)
def a_difference_is_that_of_its_cells(code, case):
    finding = case.finding(code)
    cells = {(row["side"], row["movement"]): row for row in finding.tables["cells"]}
    for row in finding.tables["differences"]:
        side, measure = row["side"], row["measure"]
        assert row["difference"] == pytest.approx(cells[side, "boosted"][measure] - cells[side, "suppressed"][measure])


@for_all(MOVED)
def copies_of_every_token_in_its_prompt_change_nothing(code, case):
    twice = case.select(torch.arange(len(case.table)).repeat(2))
    one, two = case.finding(code).numbers, twice.finding(code).numbers
    ends = [f"{corner}/{end}" for corner in CORNERS for end in ("difference", "low", "high")]
    assert [two[name] for name in ends] == pytest.approx([one[name] for name in ends])


@for_all(MOVED)
def one_seed_gives_one_interval(code, case):
    assert case.finding(code).numbers == pytest.approx(case.finding(code).numbers)


@for_all(SEEDS)
def two_prompts_span_the_interval(code, seed):
    """A quarter of the draws take either prompt twice, far more than the 2.5 % that an end may cut."""
    case = make_moved(seed, 9).select(torch.arange(8))
    gain = (case.after - case.before).tolist()
    numbers = code.token_value(*case, seed=seed, draws=400).numbers
    for side, first in (("positive", 0), ("negative", 2)):
        ends = sorted(gain[place] - gain[place + 1] for place in (first, first + 4))
        assert [numbers[f"{side}/gain/low"], numbers[f"{side}/gain/high"]] == pytest.approx(ends)


LAWS: dict[Law, tuple[str, ...]] = {
    parts_add_up_to_an_inner_product_of_gradients: (
        "the temperature is forgotten",
        "the temperature divides once",
        "only the last chunk is summed",
        "weights of the first chunk",
        "weights lose their sign",
    ),
    the_own_part_is_the_own_weight_times_the_squared_gradient: (
        "own is another token's weight",
        "absent tokens push themselves",
        "weights lose their sign",
    ),
    one_token_alone_leaves_nothing_to_the_others: (
        "own is counted among the same",
        "the same are all",
        "the same are counted among the others",
    ),
    parts_follow_the_weights: ("weights lose their sign",),
    order_of_sources_changes_nothing: ("own is another token's weight", "weights of the first chunk"),
    chunks_change_nothing: ("only the last chunk is summed", "weights of the first chunk", "pairs of one block only"),
    hidden_states_and_temperature_scale_together: (
        "the temperature is forgotten",
        "the temperature divides once",
        "blocks forget the temperature",
    ),
    every_pair_is_counted_once: (
        "pairs with oneself",
        "pairs of one block only",
        "same and different change places",
        "blocks forget the temperature",
    ),
    order_of_tokens_changes_no_pair: ("buckets in order of appearance",),
    same_tokens_never_have_a_negative_factor_and_magnitudes_bound_means: (
        "same and different change places",
        "signed sums are magnitudes",
    ),
    a_sample_holds_distinct_tokens: ("a sample with replacement",),
    shares_are_of_absolute_parts: ("shares of signed sums",),
    a_group_is_judged_by_its_own_responses: ("one group of groups",),
    order_of_responses_changes_nothing: ("a group is judged by its first response",),
    masses_follow_the_scale: ("effective of squares",),
    opposite_signs_change_sides: ("both signs push up", "failures are signed", "padding has credit", "ungraded responses count"),
    ungraded_responses_are_in_no_mass: ("ungraded responses count",),
    padding_is_never_read: ("padding has credit",),
    every_response_twice_doubles_sums_and_keeps_means: ("masses are not per response",),
    groups_are_dead_exactly_where_nothing_differs: (
        "the taught are dead too",
        "only the unsolved are dead",
        "a group is judged by its first response",
    ),
    every_graded_group_is_in_the_bucket_of_its_solve_rate: (
        "solving means a score above 1",
        "the solved are nearly solved",
        "ungraded groups are easy",
    ),
    effective_groups_lie_between_one_and_all_that_weigh: ("groups are counted, not weighed", "effective of squares"),
    centroids_know_no_scale_of_advantage_and_no_side: ("a side's centroid is a sum",),
    coefficients_act_through_the_advantage: ("coefficients are ignored",),
    what_both_sides_share_wholly_is_at_no_distance: ("distance to the sum", "a side's centroid is a sum"),
    one_side_alone_has_no_contrast: ("one side is compared with nothing",),
    a_straight_fall_is_foretold_exactly: (
        "steps are numbered anew",
        "the floor is of the last",
        "the floor is a number of nats",
        "counted from the window's middle",
        "the floor lies at 0",
    ),
    only_the_first_and_the_last_points_matter: ("the line goes through everything", "the line goes through the oldest"),
    units_and_the_first_step_change_no_status: ("the floor is a number of nats",),
    statuses_mean_what_they_say: (
        "nothing is collapsed",
        "a rise warns too",
        "steps may be negative",
        "the floor is of the last",
    ),
    before_and_change_make_after: ("the unmeasured count before", "change is before less after"),
    opposite_changes_mirror_everything: ("still tokens are boosted", "suppressed is boosted"),
    unknown_values_are_left_out: ("unknown values are 0",),
    a_side_is_judged_alone: ("sides are mixed",),
    worth_of_boosted_tokens_moves_the_difference: ("gain is loss", "suppressed less boosted", "prompts weigh alike"),
    a_difference_is_that_of_its_cells: ("suppressed less boosted", "prompts weigh alike"),
    copies_of_every_token_in_its_prompt_change_nothing: ("tokens are redrawn",),
    one_seed_gives_one_interval: ("an unseeded draw",),
    two_prompts_span_the_interval: ("half the interval", "tokens are redrawn"),
}

test_the_code_obeys, test_the_law_rejects, test_the_table_is_complete = law_tests_from_edits(
    LAWS, diagnose_with, COUPLING, MASSES, ENTROPY, VALUE
)

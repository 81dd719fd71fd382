"""What DelTA's coefficients obey whatever the numbers; each law names wrong versions of the code that it must reject."""

from itertools import pairwise
from types import SimpleNamespace

import torch
from torch import Tensor

from laws.delta_cases import SOFT, WIDTH, Case, Law, assert_near, coefficients, own_margins, scope, tokens_of
from tokencredit.credit.masks import uniform_credit


def law_mean_is_one_in_every_scope(delta: SimpleNamespace, case: Case) -> None:
    mask, group = case.inputs.mask, case.inputs.group
    rows = torch.arange(len(mask))
    for name, ids in {"batch": torch.zeros_like(rows), "group": group, "shard": rows % 3}.items():
        coefficient = coefficients(delta, case.inputs, scope=name, shards=3, **case.knobs)
        for index in ids[mask.any(1)].unique():
            assert_near(coefficient[ids == index][mask[ids == index]].mean().item(), 1.0)


def law_normalisation_divides_all_sides_by_one_number(delta: SimpleNamespace, case: Case) -> None:
    before = coefficients(delta, case.inputs, normalize=False, **case.knobs)
    assert_near(coefficients(delta, case.inputs, **case.knobs), before / before[case.inputs.mask].mean())


def law_range_before_normalisation(delta: SimpleNamespace, case: Case) -> None:
    low, high = case.knobs["lam_min"], case.knobs["lam_max"]
    for name in ("bounded", "symmetric"):
        coefficient = coefficients(delta, case.inputs, normalize=False, coefficient_map=name, **case.knobs)
        inside = coefficient[case.inputs.mask]
        assert ((inside >= low) & (inside <= high)).all()
        assert (coefficient[case.inputs.mask & (case.inputs.advantage == 0)[:, None]] == low).all()
        assert (coefficient[~case.inputs.mask] == 0).all()


def law_an_empty_range_is_uniform_bit_for_bit(delta: SimpleNamespace, case: Case) -> None:
    for dtype in (torch.float64, torch.float32):
        evidence = {name: getattr(case.inputs, name).to(dtype) for name in ("logp", "hidden", "advantage", "head")}
        inputs = case.inputs._replace(**evidence)
        for lam in (0.1, 0.7, 0.9, 1.1, 1.3):
            knobs = {**case.knobs, "lam_min": lam, "lam_max": lam}
            assert torch.equal(coefficients(delta, inputs, **knobs), inputs.mask.to(dtype))
            assert torch.equal(delta.delta_credit(inputs, {}, **knobs).credit, uniform_credit(inputs, {}).credit)


def law_one_side_alone_is_uniform(delta: SimpleNamespace, case: Case) -> None:
    for sign in (1.0, -1.0, 0.0):
        inputs = case.inputs._replace(advantage=sign * case.inputs.advantage.abs())
        assert torch.equal(coefficients(delta, inputs, **case.knobs), inputs.mask.double())


def law_without_refinement_the_initial_centroids_decide(delta: SimpleNamespace, case: Case) -> None:
    vectors, advantage = tokens_of(case)
    positive, negative = ((advantage * sign).clamp(min=0) for sign in (1, -1))
    to_positive, to_negative = ((vectors - weight @ vectors / weight.sum()).square().sum(-1) for weight in (positive, negative))
    margin = (to_negative - to_positive) * advantage.sign()
    gamma = torch.where(advantage > 0, margin[advantage > 0].std(correction=0), margin[advantage < 0].std(correction=0))
    low, high = case.knobs["lam_min"], case.knobs["lam_max"]
    expected = low + (high - low) * (margin / gamma).sigmoid() * (advantage != 0)
    assert_near(scope(delta, vectors, advantage, **{**case.knobs, "refinements": 0}).coefficient, expected / expected.mean())


def law_temperature_lags_one_refinement_behind(delta: SimpleNamespace, case: Case) -> None:
    """Temperature after K + 1 refinements: the deviation of the margins after K. So the first refinement changes nothing in it."""
    vectors, advantage = tokens_of(case)
    measured = {count: scope(delta, vectors, advantage, refinements=count, gamma_scale=SOFT).temperature for count in range(4)}
    assert measured[1] == measured[0]
    for count in range(3):
        margin = own_margins(delta, vectors, advantage, refinements=count)
        deviations = [SOFT * margin[advantage * sign > 0].std(correction=0).item() for sign in (1, -1)]
        assert_near(list(measured[count + 1][:2]), deviations)


def law_each_refinement_recentres_by_the_scores_before_it(delta: SimpleNamespace, case: Case) -> None:
    vectors, advantage = tokens_of(case)
    plain = {"lam_min": 0.0, "lam_max": 1.0, "normalize": False, "fixed_temperature": delta.Temperature(1.0, 1.0, 1.0)}
    scores = [scope(delta, vectors, advantage, refinements=count, **plain).coefficient for count in range(4)]
    for before, after in pairwise(scores):
        positive, negative = (before * (advantage * sign).clamp(min=0) for sign in (1, -1))
        to_positive, to_negative = ((vectors - weight @ vectors / weight.sum()).square().sum(-1) for weight in (positive, negative))
        assert_near(after, ((to_negative - to_positive) * advantage.sign()).sigmoid() * (advantage != 0))


def law_contrast_is_the_difference_of_squared_distances(delta: SimpleNamespace, case: Case) -> None:
    vectors, advantage = tokens_of(case)
    centroids = delta.CentroidSums().add(delta.DenseVectors(vectors), advantage).finish()
    to_positive, to_negative = ((vectors - centroid).square().sum(-1) for centroid in centroids[:2])
    assert_near(centroids.contrast(delta.DenseVectors(vectors)), to_negative - to_positive)
    assert_near(centroids.own_distance(delta.DenseVectors(vectors), advantage > 0), torch.where(advantage > 0, to_positive, to_negative))


def law_advantages_may_be_rescaled(delta: SimpleNamespace, case: Case) -> None:
    for factor in (0.01, 3.7):
        rescaled = case.inputs._replace(advantage=factor * case.inputs.advantage)
        assert_near(coefficients(delta, rescaled, **case.knobs), coefficients(delta, case.inputs, **case.knobs))


def law_sides_may_be_swapped(delta: SimpleNamespace, case: Case) -> None:
    swapped = case.inputs._replace(advantage=-case.inputs.advantage)
    assert_near(coefficients(delta, swapped, **case.knobs), coefficients(delta, case.inputs, **case.knobs))


def law_vectors_may_be_rotated(delta: SimpleNamespace, case: Case) -> None:
    vectors, advantage = tokens_of(case)
    rotation = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=case.draw, dtype=torch.float64)).Q
    assert_near(*(scope(delta, v, advantage, **case.knobs).coefficient for v in (vectors, vectors @ rotation)))


def law_vectors_may_be_translated(delta: SimpleNamespace, case: Case) -> None:
    vectors, advantage = tokens_of(case)
    shift = 3 * torch.randn(WIDTH, generator=case.draw, dtype=torch.float64)
    assert_near(*(scope(delta, v, advantage, **case.knobs).coefficient for v in (vectors, vectors + shift)))


def law_vectors_may_be_scaled(delta: SimpleNamespace, case: Case) -> None:
    vectors, advantage = tokens_of(case)
    assert_near(*(scope(delta, v, advantage, **case.knobs).coefficient for v in (vectors, 2.7 * vectors)))


def on_both_sides(case: Case) -> tuple[Tensor, Tensor, int]:
    """Every vector once on each side, and the case's own tokens besides."""
    vectors, advantage = tokens_of(case)
    return torch.cat([vectors, vectors, vectors]), torch.cat([advantage.abs() + 0.1, -0.2 - advantage.square(), advantage]), len(vectors)


def law_symmetric_map_is_blind_to_the_side(delta: SimpleNamespace, case: Case) -> None:
    vectors, advantage, count = on_both_sides(case)
    result = scope(delta, vectors, advantage, coefficient_map="symmetric", **case.knobs).coefficient
    assert_near(result[:count], result[count : 2 * count])
    assert result[:count].std() > 1e-3


def law_bounded_map_sets_the_sides_against_each_other(delta: SimpleNamespace, case: Case) -> None:
    vectors, advantage, count = on_both_sides(case)
    centre = (case.knobs["lam_min"] + case.knobs["lam_max"]) / 2
    result = scope(delta, vectors, advantage, normalize=False, **case.knobs).coefficient - centre
    assert (result[:count] * result[count : 2 * count] < 0).all()


def law_random_scores_are_seeded_and_bounded(delta: SimpleNamespace, case: Case) -> None:
    one, again, other = (coefficients(delta, case.inputs, score="random", seed=seed, **case.knobs) for seed in (5, 5, 6))
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)
    assert_near(one[case.inputs.mask].mean().item(), 1.0)
    before = coefficients(delta, case.inputs, score="random", normalize=False, **case.knobs)[case.inputs.mask]
    assert ((before >= case.knobs["lam_min"]) & (before <= case.knobs["lam_max"])).all()


SCORE_LAWS: dict[Law, list[str]] = {
    law_mean_is_one_in_every_scope: ["zero advantage left out of the mean", "range starts at zero"],
    law_normalisation_divides_all_sides_by_one_number: ["each side normalised alone", "zero advantage left out of the mean"],
    law_range_before_normalisation: ["range starts at zero", "zero advantage scores in full"],
    law_an_empty_range_is_uniform_bit_for_bit: ["mean of rounded coefficients"],
    law_one_side_alone_is_uniform: ["an empty side is discriminated"],
    law_without_refinement_the_initial_centroids_decide: [
        "advantage-weighted variance",
        "sample variance",
        "the other side's temperature",
        "one refinement too many",
        "margins without offset",
    ],
    law_temperature_lags_one_refinement_behind: ["temperature without lag", "temperature never measured again"],
    law_each_refinement_recentres_by_the_scores_before_it: ["one refinement too few", "centroids are sums"],
    law_contrast_is_the_difference_of_squared_distances: ["margins of half the slope", "margins without offset"],
    law_advantages_may_be_rescaled: ["centroids are sums"],
    law_sides_may_be_swapped: ["the positive temperature for both sides"],
    law_vectors_may_be_rotated: ["offset by absolute values"],
    law_vectors_may_be_translated: ["margins without offset"],
    law_vectors_may_be_scaled: ["a constant temperature"],
    law_symmetric_map_is_blind_to_the_side: ["no map is symmetric", "symmetric map at each side's own temperature"],
    law_bounded_map_sets_the_sides_against_each_other: ["every map is symmetric"],
    law_random_scores_are_seeded_and_bounded: ["random scores ignore the seed", "random scores are unseeded", "range starts at zero"],
}

"""Objectives that weigh, draw or rank within a step or a response, against loops in plain Python: loss and slope of every token."""

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tokencredit.objective import OBJECTIVES, Objective, TokenInputs
from tokencredit.objective.dfpo import exchangeable_weights
from tokencredit.objective.fipo import discounted_future_sum

SEEDS = range(4)


def random_step(seed: int, *, spread: float = 0.4, dtype: torch.dtype = torch.float64) -> TokenInputs:
    """Uneven lengths, holes, a response without tokens, credit of 0, a group without advantage, rows named in no order."""
    generator = torch.Generator().manual_seed(seed)
    rows, width = 9, 11

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    lengths[3] = 0
    mask = (torch.arange(width) < lengths[:, None]) & (torch.rand(rows, width, generator=generator) > 0.1)
    advantage = 2 * noise(rows)
    advantage[6:] = 0.0
    coefficient = torch.rand(rows, width, generator=generator, dtype=dtype) + 0.5
    coefficient[torch.rand(rows, width, generator=generator) < 0.1] = 0.0
    old_logp = -2 + noise(rows, width)
    return TokenInputs(
        logp=old_logp + spread * noise(rows, width),
        old_logp=old_logp,
        credit=coefficient * advantage[:, None],
        mask=mask,
        group=torch.tensor([7, 7, 7, 7, 2, 2, 5, 5, 5]),
        advantage=advantage,
        row=torch.randperm(40, generator=generator)[:rows],
        seed=seed,
    )


class Token(NamedTuple):
    place: tuple[int, int]
    """Row and column in the batch."""
    name: tuple[int, int]
    """Name of the response and position in it."""
    logp: float
    old_logp: float
    credit: float

    @property
    def drift(self) -> float:
        return max(-20.0, min(20.0, self.logp - self.old_logp))

    @property
    def ratio(self) -> float:
        return math.exp(self.drift)


def tokens_of(inputs: TokenInputs) -> list[Token]:
    assert inputs.row is not None
    return [
        Token(
            (row, column),
            (int(inputs.row[row]), column),
            float(inputs.logp[row, column]),
            float(inputs.old_logp[row, column]),
            float(inputs.credit[row, column]),
        )
        for row in range(inputs.mask.shape[0])
        for column in range(inputs.mask.shape[1])
        if inputs.mask[row, column]
    ]


Expected = dict[tuple[int, int], tuple[float, float]]
"""Place of a token -> its loss and the slope of that loss by its log-prob."""


def naive_clipped_loss(token: Token, credit: float, low: float, high: float, dual: float | None = None) -> tuple[float, float]:
    if credit > 0 and token.ratio > 1 + high:
        return -(1 + high) * credit, 0.0
    if credit < 0 and token.ratio < 1 - low:
        return -(1 - low) * credit, 0.0
    if dual is not None and credit < 0 and token.ratio > dual:
        return -dual * credit, 0.0
    return -token.ratio * credit, -token.ratio * credit


def assert_loss_and_slope(objective: Objective, inputs: TokenInputs, expected: Expected) -> None:
    statistic = None
    if objective.statistic is not None:
        accumulator = objective.statistic()
        accumulator.add(inputs)
        statistic = accumulator.finish()
    logp = inputs.logp.clone().requires_grad_()
    loss = objective.token_loss(inputs._replace(logp=logp), statistic)
    (slope,) = torch.autograd.grad(loss[inputs.mask].sum(), logp)
    assert expected.keys() == {token.place for token in tokens_of(inputs)}
    for place, (value, gradient) in expected.items():
        assert float(loss[place].detach()) == pytest.approx(value, rel=1e-10, abs=1e-12), place
        assert float(slope[place]) == pytest.approx(gradient, rel=1e-10, abs=1e-12), place
    assert not slope[~inputs.mask].any()


# --- DFPO


def naive_weights(weight: list[float | None], advantage: list[float], group: list[int], transform: str, floor: bool) -> list[float]:
    """None where a response has no tokens or no grade."""
    result = []
    for mine, own_advantage, own_group in zip(weight, advantage, group, strict=True):
        members = [(w, a) for w, a, g in zip(weight, advantage, group, strict=True) if g == own_group]
        if transform == "min-replace":
            result.append(min((w for w, _ in members if w is not None), default=1.0))
            continue
        value = 1.0 if mine is None else mine
        length = sum(a * a for _, a in members)
        if transform == "orthogonal" and length > 0:
            value -= sum(a * (1.0 if w is None else w) for w, a in members) / length * own_advantage
            value = max(value, 0.0) if floor else value
        result.append(value)
    return result


@pytest.mark.parametrize("floor", [False, True])
@pytest.mark.parametrize("transform", ["min-replace", "orthogonal", "none"])
def test_exchangeable_weights(transform: str, floor: bool) -> None:
    weight = [0.5, 3.0, 1.2, None, 0.9, 0.7, 2.0, 0.1, None, None]
    advantage = [1.0, -2.5, 0.5, 1.0, 3.0, -1.0, 0.0, 0.0, 1.0, -1.0]
    group = [4, 4, 9, 4, 9, 9, -1, -1, 3, 3]
    found = exchangeable_weights(
        torch.tensor([math.nan if w is None else w for w in weight], dtype=torch.float64),
        torch.tensor(advantage, dtype=torch.float64),
        torch.tensor(group),
        transform=transform,
        floor=floor,
    )
    assert found.tolist() == pytest.approx(naive_weights(weight, advantage, group, transform, floor), rel=1e-12)


def test_exchangeable_weights_by_hand() -> None:
    weight, advantage = torch.tensor([0.5, 2.0, 3.0]), torch.tensor([1.0, 1.0, -2.0])
    group = torch.zeros(3, dtype=torch.long)
    assert exchangeable_weights(weight, advantage, group, transform="min-replace").tolist() == [0.5, 0.5, 0.5]
    # A.w = 0.5 + 2 - 6 = -3.5 and |A|^2 = 6.
    expected = [0.5 + 3.5 / 6, 2 + 3.5 / 6, 3 - 7 / 6]
    assert exchangeable_weights(weight, advantage, group, transform="orthogonal").tolist() == pytest.approx(expected)
    steep = torch.tensor([9.0, 1.0, 1.0])
    assert exchangeable_weights(steep, torch.tensor([1.0, 1.0, -2.0]), group, transform="orthogonal")[1] == pytest.approx(-1 / 3)


@pytest.mark.parametrize("ungraded", [(), (1,), (0, 2, 5), (4, 5, 8)], ids="ungraded {}".format)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"transform": "orthogonal"},
        {"transform": "orthogonal", "weight": "product", "floor": True},
        {"transform": "none", "weight": "product"},
        {"fold_length": True},
        {"transform": "orthogonal", "fold_length": True},
        {"transform": "none", "fold_length": True},
    ],
    ids=str,
)
def test_dfpo(seed: int, choice: dict, ungraded: tuple[int, ...]) -> None:
    """An ungraded response has an advantage of NaN, no credit, and no say in its siblings' weights; so may a whole group."""
    inputs = random_step(seed)
    inputs.logp[0] += 30.0 * (seed == 3)  # beyond the limit of +-20
    assert inputs.advantage is not None
    inputs.advantage[list(ungraded)] = math.nan
    inputs.credit[list(ungraded)] = 0.0
    advantage = [0.0 if math.isnan(value) else value for value in inputs.advantage.tolist()]
    group, lengths = inputs.group.tolist(), inputs.mask.sum(-1).tolist()
    lengths = [0 if row in ungraded else length for row, length in enumerate(lengths)]
    weight: list[float | None] = []
    for row, length in enumerate(lengths):
        if length == 0:
            weight.append(None)
            continue
        exponent = sum(token.logp - token.old_logp for token in tokens_of(inputs) if token.place[0] == row)
        exponent /= 1 if choice.get("weight") == "product" else length
        own = math.exp(max(-20.0, min(20.0, exponent)))
        if choice.get("fold_length"):
            answered = [n for n, g in zip(lengths, group, strict=True) if g == group[row] and n > 0]
            own *= sum(answered) / len(answered) / length
        weight.append(own)
    changed = naive_weights(weight, advantage, group, choice.get("transform", "min-replace"), choice.get("floor", False))
    expected = {
        token.place: (-changed[token.place[0]] * token.credit * token.logp, -changed[token.place[0]] * token.credit)
        for token in tokens_of(inputs)
    }
    assert_loss_and_slope(OBJECTIVES["dfpo"](**choice), inputs, expected)


# --- Clip-Cov and KL-Cov


def naive_covariance(tokens: list[Token]) -> dict[tuple[int, int], float]:
    credit = math.fsum(token.credit for token in tokens) / len(tokens)
    logp = math.fsum(token.logp for token in tokens) / len(tokens)
    return {token.place: (token.credit - credit) * (token.logp - logp) for token in tokens}


def naive_lot(name: tuple[int, int], seed: int) -> int:
    """The documented draw: SplitMix64's finisher over the name, with the seed mixed in, over it again; ordered as signed numbers."""

    def scramble(bits: int) -> int:
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % 2**64
        return bits ^ (bits >> 31)

    drawn = scramble(scramble(name[0] * 2**32 + name[1]) ^ seed % 2**64)
    return drawn - 2**64 if drawn >= 2**63 else drawn


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("share", "band"), [(2e-4, (1.0, 5.0)), (0.1, (0.5, 4.0)), (0.2, (-0.5, 0.5)), (1.0, (-100.0, 100.0)), (0.5, (90.0, 91.0))]
)
def test_clip_cov(seed: int, share: float, band: tuple[float, float]) -> None:
    inputs = random_step(seed)._replace(seed=2**63 - 1 - seed)
    tokens = tokens_of(inputs)
    covariance = naive_covariance(tokens)
    candidates = []
    for token in tokens:
        clipped = (token.credit > 0 and token.ratio > 1.25) or (token.credit < 0 and token.ratio < 0.8)
        if band[0] < covariance[token.place] < band[1] and not clipped:
            candidates.append(token)
    assert len(candidates) > 0 or band[0] == 90.0
    candidates.sort(key=lambda token: naive_lot(token.name, inputs.seed))
    drawn = {token.place for token in candidates[: max(1, int(share * len(tokens)))]}
    expected = {token.place: (0.0, 0.0) if token.place in drawn else naive_clipped_loss(token, token.credit, 0.2, 0.25) for token in tokens}
    objective = OBJECTIVES["clip-cov"](clip_low=0.2, clip_high=0.25, share=share, cov_low=band[0], cov_high=band[1])
    assert_loss_and_slope(objective, inputs, expected)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("share", "penalty"), [(2e-4, 1.0), (0.1, 0.5), (1.0, 2.0), (0.3, 0.0)])
def test_kl_cov(seed: int, share: float, penalty: float) -> None:
    inputs = random_step(seed)
    inputs.logp[1] += 25.0 * (seed == 3)  # the ratio stops at its limit, the penalty does not
    tokens = tokens_of(inputs)
    covariance = naive_covariance(tokens)
    ranked = sorted(tokens, key=lambda token: (-covariance[token.place], token.name))
    penalised = {token.place for token in ranked[: max(1, int(share * len(tokens)))]}
    expected = {}
    for token in tokens:
        inside = abs(token.logp - token.old_logp) <= 20
        loss, slope = -token.ratio * token.credit, -token.ratio * token.credit * inside
        if token.place in penalised:
            loss += penalty * abs(token.logp - token.old_logp)
            slope += math.copysign(penalty, token.logp - token.old_logp)
        expected[token.place] = (loss, slope)
    assert_loss_and_slope(OBJECTIVES["kl-cov"](share=share, penalty=penalty), inputs, expected)


def test_kl_cov_ties_go_to_the_earlier_row_and_position() -> None:
    """Equal credit makes every covariance 0; the drift of 1 shows who is penalised."""
    inputs = TokenInputs(
        logp=torch.full((2, 3), -1.0),
        old_logp=torch.full((2, 3), -2.0),
        credit=torch.zeros(2, 3),
        mask=torch.tensor([[True, True, True], [False, True, True]]),
        group=torch.tensor([0, 0]),
        row=torch.tensor([8, 3]),
    )
    objective = OBJECTIVES["kl-cov"](share=0.6, penalty=1.0)
    assert objective.statistic is not None
    accumulator = objective.statistic()
    accumulator.add(inputs)
    assert objective.token_loss(inputs, accumulator.finish()).tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]


# --- FIPO


def naive_future_sum(values: list[float], gamma: float) -> list[float]:
    return [sum(gamma ** (j - t) * values[j] for j in range(t, len(values))) for t in range(len(values))]


@pytest.mark.parametrize("width", [1, 127, 128, 129, 300])
def test_future_sum(width: int) -> None:
    value = torch.randn(2, width, dtype=torch.float64)
    for decay in (1.0, 32.0):
        gamma = 2 ** (-1 / decay)
        expected = [naive_future_sum(row, gamma) for row in value.tolist()]
        for block in (2, 7, 128):
            found = discounted_future_sum(value, gamma=gamma, block=block)
            torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_future_sum_over_three_levels_of_blocks() -> None:
    value = torch.ones(1, 20_000, dtype=torch.float64)
    gamma = 2 ** (-1 / 512)
    expected = [(1 - gamma ** (20_000 - t)) / (1 - gamma) for t in range(20_000)]
    found = discounted_future_sum(value, gamma=gamma)
    torch.testing.assert_close(found, torch.tensor([expected], dtype=torch.float64), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"weight_low": 0.3, "weight_high": 5.0, "decay": 4.0},
        {"weight_low": 1.0, "weight_high": 0.5, "safety": 1.1, "safety_band": 0.1, "dual_clip": 2.0, "decay": 0.5},
        {"clip_low": 1.0, "clip_high": 9.0, "dual_clip": 1.5, "safety": 1.2},
    ],
    ids=str,
)
def test_fipo(seed: int, choice: dict) -> None:
    inputs = random_step(seed, spread=1.0 if choice else 1.6)
    low, high, dual = choice.get("clip_low", 0.2), choice.get("clip_high", 0.28), choice.get("dual_clip", 10.0)
    safety, band = choice.get("safety", 10.0), choice.get("safety_band", 0.2)
    least, most = 1 - choice.get("weight_low", 0.0), 1 + choice.get("weight_high", 0.2)
    tokens = tokens_of(inputs)
    strayed: dict[int, int] = {}
    for token in tokens:
        strayed[token.place[0]] = strayed.get(token.place[0], 0) + (token.credit < 0 and token.ratio > dual)
    expected = {}
    for token in tokens:
        row, position = token.place
        future = 0.0
        for later in tokens:
            if later.place[0] == row and later.place[1] >= position and later.ratio <= dual:
                future += 2 ** (-(later.place[1] - position) / choice.get("decay", 32.0)) * later.drift
        weight = max(least, min(most, math.exp(future)))
        if token.credit < 0 and token.ratio > safety:
            weight = max(1 - band, min(1.0, weight))
        expected[token.place] = (0.0, 0.0) if strayed[row] > 1 else naive_clipped_loss(token, weight * token.credit, low, high, dual)
    assert_loss_and_slope(OBJECTIVES["fipo"](**choice), inputs, expected)


def test_fipo_drops_a_response_at_its_second_stray_token() -> None:
    """Ratios of 20, 20 and 1 with credit -1, and the same with one of the two credits positive."""
    log_ratio = torch.tensor([[3.0, 3.0, 0.0], [3.0, 3.0, 0.0]], dtype=torch.float64)
    inputs = TokenInputs(
        logp=log_ratio - 4,
        old_logp=torch.full((2, 3), -4.0, dtype=torch.float64),
        credit=torch.tensor([[-1.0, -1.0, -1.0], [-1.0, 1.0, -1.0]], dtype=torch.float64),
        mask=torch.ones(2, 3, dtype=torch.bool),
        group=torch.tensor([0, 0]),
    )
    loss = OBJECTIVES["fipo"]().token_loss(inputs, None)
    assert loss.tolist() == [[0.0, 0.0, 0.0], [10.0, pytest.approx(-1.28), 1.0]]


# --- what is refused


@pytest.mark.parametrize("type_", ["dfpo", "clip-cov", "kl-cov"])
def test_a_step_statistic_needs_names(type_: str) -> None:
    objective, inputs = OBJECTIVES[type_](), random_step(0)
    assert objective.statistic is not None
    assert inputs.row is not None
    with pytest.raises(ValueError, match="row is missing"):
        objective.statistic().add(inputs._replace(row=None))
    twice = objective.statistic()
    twice.add(inputs)
    twice.add(inputs)
    with pytest.raises(ValueError, match="row gives two responses of one optimizer step the same id"):
        twice.finish()
    once = objective.statistic()
    once.add(inputs)
    with pytest.raises(ValueError, match="row is missing"):
        objective.token_loss(inputs._replace(row=None), once.finish())


def test_dfpo_needs_advantages_and_known_rows() -> None:
    objective, inputs = OBJECTIVES["dfpo"](), random_step(0)
    assert objective.statistic is not None
    assert inputs.row is not None
    with pytest.raises(ValueError, match="advantage is missing"):
        objective.statistic().add(inputs._replace(advantage=None))
    accumulator = objective.statistic()
    accumulator.add(inputs)
    with pytest.raises(ValueError, match="row contains the id of a response that is not in the statistic of this optimizer step"):
        objective.token_loss(inputs._replace(row=inputs.row + 40), accumulator.finish())


def test_a_step_has_one_seed() -> None:
    objective, inputs = OBJECTIVES["clip-cov"](), random_step(0)
    assert objective.statistic is not None
    accumulator = objective.statistic()
    accumulator.add(inputs._replace(seed=1))
    with pytest.raises(ValueError, match="seed differs between the micro-batches of one optimizer step: 1, 2"):
        accumulator.add(inputs._replace(seed=2))


@pytest.mark.parametrize("type_", ["dfpo", "clip-cov", "kl-cov"])
def test_a_step_without_tokens_has_no_loss(type_: str) -> None:
    inputs = random_step(0)
    inputs = inputs._replace(mask=torch.zeros_like(inputs.mask))
    assert_loss_and_slope(OBJECTIVES[type_](), inputs, {})

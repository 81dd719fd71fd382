"""Methods that keep some tokens and drop others, against twins that look at one token at a time."""

import inspect
import math
from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import pytest
import torch

from tokencredit.advantage.group import grpo_advantage
from tokencredit.config import as_kwargs
from tokencredit.config.base import MethodConfig
from tokencredit.config.credit import EditMaskCredit, ForkingCredit, KtaeCredit, NtfCredit, OneSidedCredit, ProcessCredit
from tokencredit.config.recipes import RECIPES
from tokencredit.config.shape import IbpoShape
from tokencredit.config.train import METHODS
from tokencredit.credit import CREDITS, CreditInputs
from tokencredit.credit.masks import kept_tokens
from tokencredit.pipeline.build import build_credit
from tokencredit.shape import repair_bonus

Rows = list[list[float]]
COLUMNS = 13


def made_up_inputs(seed: int, dtype: torch.dtype = torch.float64) -> CreditInputs:
    """Uneven lengths, holes, a row without tokens, zero advantages, ties in log-prob and entropy, garbage outside the mask."""
    draw = Random(seed)
    rows = 9
    advantage = [draw.choice([-1.5, -0.5, 0.0, 0.25, 2.0]) for _ in range(rows)]
    advantage[:4] = [-1.0, 1.0, 0.0, -0.5]
    lengths = [COLUMNS, 7, 4, 0, *[draw.randint(1, COLUMNS) for _ in range(rows - 4)]]
    mask = [[column < length and draw.random() > 0.2 for column in range(COLUMNS)] for length in lengths]

    def levels(low: int, high: int) -> torch.Tensor:
        values = [[draw.randint(low, high) / 8 if held else math.nan for held in row] for row in mask]
        return torch.tensor(values, dtype=dtype)

    return CreditInputs(
        advantage=torch.tensor(advantage, dtype=dtype),
        mask=torch.tensor(mask),
        group=torch.tensor([draw.choice([-2, 5, 70]) for _ in range(rows)]),
        tokens=torch.tensor([[draw.randint(0, 9) for _ in range(COLUMNS)] for _ in range(rows)]),
        logp=levels(-24, -16),
        entropy=levels(0, 9),
        seed=seed,
        edited=torch.tensor([[draw.random() < 0.4 for _ in range(COLUMNS)] for _ in range(rows)]),
    )


def rounded_up(keep: str, available: int) -> int:
    return math.ceil(Fraction(keep) * available)


def naive_ntf(inputs: CreditInputs, *, keep: str) -> Rows:
    result = []
    for advantage, mask, logp in zip(inputs.advantage.tolist(), inputs.mask.tolist(), inputs.logp.tolist(), strict=True):
        row = []
        for t, held in enumerate(mask):
            less_probable = sum(mask[s] and (logp[s] < logp[t] or (logp[s] == logp[t] and s < t)) for s in range(len(mask)))
            row.append(1.0 if held and (advantage >= 0 or less_probable < rounded_up(keep, sum(mask))) else 0.0)
        result.append(row)
    return result


def naive_forking(inputs: CreditInputs, *, keep: str, divisor: str) -> Rows:
    mask, entropy = inputs.mask.tolist(), inputs.entropy.tolist()
    everywhere = [(i, t) for i, row in enumerate(mask) for t, held in enumerate(row) if held]
    count = rounded_up(keep, len(everywhere))
    weight = len(everywhere) / count if divisor == "kept" else 1.0
    result = [[0.0] * len(row) for row in mask]
    for i, t in everywhere:
        ahead = 0
        for j, s in everywhere:
            ahead += entropy[j][s] > entropy[i][t] or (entropy[j][s] == entropy[i][t] and (j, s) < (i, t))
        if ahead < count:
            result[i][t] = weight
    return result


def naive_one_sided(inputs: CreditInputs, *, side: str) -> Rows:
    sign = 1 if side == "positive" else -1
    return [
        [1.0 if held and sign * advantage > 0 else 0.0 for held in row]
        for advantage, row in zip(inputs.advantage.tolist(), inputs.mask.tolist(), strict=True)
    ]


def naive_edit_mask(inputs: CreditInputs, *, unchanged: float) -> Rows:
    assert inputs.edited is not None
    return [
        [(1.0 if changed else unchanged) if held else 0.0 for held, changed in zip(row, edits, strict=True)]
        for row, edits in zip(inputs.mask.tolist(), inputs.edited.tolist(), strict=True)
    ]


CASES: list[tuple[str, Callable[..., Rows], dict[str, Any]]] = [
    *[("ntf", naive_ntf, {"keep": keep}) for keep in ("0.1", "0.25", "0.3", "0.7", "1")],
    *[("forking", naive_forking, {"keep": keep, "divisor": way}) for keep in ("0.01", "0.2", "0.7", "1") for way in ("all", "kept")],
    *[("one-sided", naive_one_sided, {"side": side}) for side in ("positive", "negative")],
    *[("edit-mask", naive_edit_mask, {"unchanged": share}) for share in (0.0, 0.25, 1.0)],
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "twin", "knobs"), CASES, ids=[f"{name} {knobs}" for name, _, knobs in CASES])
def test_equals_the_naive_twin(name: str, twin: Callable[..., Rows], knobs: dict[str, Any], dtype: torch.dtype) -> None:
    numbers = {knob: float(value) if knob == "keep" else value for knob, value in knobs.items()}
    for seed in range(6):
        inputs = made_up_inputs(seed, dtype)
        outcome = CREDITS[name](inputs, {"kept": 1}, **numbers)
        coefficient = torch.tensor(twin(inputs, **knobs), dtype=torch.float64)
        torch.testing.assert_close(outcome.coefficient, coefficient.to(dtype), rtol=1e-6, atol=0)
        expected = coefficient * inputs.advantage.double()[:, None]
        torch.testing.assert_close(outcome.credit, expected.to(dtype), rtol=1e-6, atol=0)
        assert outcome.state == {"kept": 1}


@pytest.mark.parametrize("choice", [NtfCredit, ForkingCredit, KtaeCredit, OneSidedCredit, EditMaskCredit, ProcessCredit, IbpoShape])
def test_defaults_are_those_of_the_choice(choice: type[MethodConfig]) -> None:
    name = choice.model_fields["type"].default
    function = repair_bonus if choice is IbpoShape else CREDITS[name]
    defaults = {
        parameter.name: parameter.default
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert defaults == as_kwargs(choice(), *choice.sampling_fields)


@pytest.mark.parametrize("keep", ["0.1", "0.2", "0.3", "0.05", "0.7", "0.95", "0.333", "1"])
def test_shares_are_rounded_up_as_fractions_are(keep: str) -> None:
    """0.1 x 30 and 0.7 x 10 lie just beside an integer in floating point."""
    available = [*range(400), 10**6, 10**6 + 1, 123_456_789]
    assert kept_tokens(torch.tensor(available), keep=float(keep)).tolist() == [rounded_up(keep, n) for n in available]


def test_ntf_by_hand() -> None:
    """Ten tokens of a failure, ties at -3: a quarter is 3 tokens, the surest drop out, of the tied three the first stays."""
    inputs = CreditInputs(
        advantage=torch.tensor([-2.0]),
        mask=torch.ones(1, 10, dtype=torch.bool),
        group=torch.zeros(1, dtype=torch.long),
        tokens=torch.zeros(1, 10, dtype=torch.long),
        logp=torch.tensor([[-0.1, -3.0, -0.2, -5.0, -3.0, -0.1, -9.0, -3.0, -0.4, -0.5]]),
        entropy=torch.zeros(1, 10),
        seed=0,
    )
    assert CREDITS["ntf"](inputs, {}, keep=0.25).credit.tolist() == [[0.0, -2.0, 0.0, -2.0, 0.0, 0.0, -2.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("name", "knobs"),
    [("ntf", {"keep": 1.0}), ("forking", {"keep": 1.0}), ("forking", {"keep": 1.0, "divisor": "kept"}), ("edit-mask", {"unchanged": 1.0})],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_at_the_end_of_its_range_a_mask_is_uniform_credit(name: str, knobs: dict[str, Any], dtype: torch.dtype) -> None:
    for seed in range(6):
        inputs = made_up_inputs(seed, dtype)
        expected, actual = CREDITS["uniform"](inputs, {}), CREDITS[name](inputs, {}, **knobs)
        assert torch.equal(actual.credit, expected.credit)
        assert torch.equal(actual.coefficient, expected.coefficient)


def test_ntf_that_keeps_everything_is_c_rf() -> None:
    recipe = RECIPES["ntf"].recipe
    everything = recipe.model_copy(update={"credit": NtfCredit(keep=1.0)})
    assert recipe.model_copy(update={"credit": RECIPES["c-rf"].recipe.credit}) == RECIPES["c-rf"].recipe
    for seed in range(6):
        inputs = made_up_inputs(seed)
        expected, actual, filtered = (build_credit(r).assign(inputs, {}).credit for r in (RECIPES["c-rf"].recipe, everything, recipe))
        assert torch.equal(actual, expected)
        assert not torch.equal(filtered, expected)


def test_two_one_sided_credits_make_the_whole() -> None:
    inputs = made_up_inputs(3)
    inputs = inputs._replace(advantage=grpo_advantage(inputs.logp.nan_to_num().sum(-1), inputs.group))
    halves = [CREDITS["one-sided"](inputs, {}, side=side).credit for side in ("positive", "negative")]
    assert torch.equal(halves[0] + halves[1], CREDITS["uniform"](inputs, {}).credit)


@pytest.mark.parametrize("name", ["ntf", "forking"])
@pytest.mark.parametrize("keep", [0.0, -0.1, 1.5, math.nan])
def test_a_share_that_is_none_is_refused(name: str, keep: float) -> None:
    with pytest.raises(ValueError, match=f"keep is {keep}; it must be a share above 0 and at most 1"):
        CREDITS[name](made_up_inputs(0), {}, keep=keep)


def test_the_edit_mask_names_what_is_missing() -> None:
    with pytest.raises(ValueError, match="edited is missing"):
        CREDITS["edit-mask"](made_up_inputs(0)._replace(edited=None), {})


def test_what_each_method_needs() -> None:
    needs = {name: set(METHODS["credit"][name].needs) for name in ("ntf", "forking", "ktae", "one-sided", "edit-mask", "process")}
    assert needs == {
        "ntf": {"logp"},
        "forking": {"entropy"},
        "ktae": set(),
        "one-sided": set(),
        "edit-mask": {"revisions"},
        "process": {"prefix-values"},
    }

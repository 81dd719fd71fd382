"""The head without logits against the head written out: values, gradients, and what credit reads off e_y - p."""

import pytest
import torch
from torch import Tensor

from oracle.head_cases import RULES, SHAPES, case, distance, expected
from tokencredit.credit.delta.vectors import HeadVectors
from tokencredit.kernels.lm_head import HeadRule, chunked, head_hidden_gradient, head_projection, head_statistics, head_weight_sum

CLOSE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-5, torch.float16: 2e-5}
BUFFERS = {"one logit": 1, "a few rows": 6_000, "everything": 1 << 24}


def knobs(backend: str, buffer: str) -> dict:
    return {"backend": backend} if backend == "plain" else {"backend": backend, "buffer_bytes": BUFFERS[buffer]}


def scored(hidden: Tensor, weight: Tensor, tokens: Tensor, share: Tensor, rule: HeadRule, **chosen):
    hidden, weight = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
    found = head_statistics(hidden, weight, tokens, rule, **chosen)
    return found, torch.autograd.grad((found.logp * share).sum(), (hidden, weight))


WAYS = [("plain", "everything"), *(("chunked", buffer) for buffer in BUFFERS)]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize(("backend", "buffer"), WAYS)
@pytest.mark.parametrize("dtype", CLOSE)
def test_statistics_and_both_gradients(dtype: torch.dtype, backend: str, buffer: str, rule: HeadRule) -> None:
    for shape in SHAPES[:2] if buffer == "one logit" else SHAPES:
        given = case(shape, dtype)
        wanted = expected(given, rule)
        found, (by_hidden, by_weight) = scored(*given[:4], rule, **knobs(backend, buffer))
        assert distance(found.logp, wanted.logp) < CLOSE[dtype]
        assert distance(found.entropy, wanted.entropy) < CLOSE[dtype]
        assert distance(found.squared_mass, wanted.squared_mass) < CLOSE[dtype]
        assert by_hidden.dtype == by_weight.dtype == dtype
        # Gradients leave in the dtype of their tensors: half a unit in the last place, relative to the largest.
        rounding = torch.finfo(dtype).eps
        assert distance(by_hidden, wanted.by_hidden) < CLOSE[dtype] + rounding
        assert distance(by_weight, wanted.by_weight) < CLOSE[dtype] + rounding


@pytest.mark.parametrize("sloped", [False, True])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize(("backend", "buffer"), WAYS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_sums_rows_and_projections_of_the_errors(dtype: torch.dtype, backend: str, buffer: str, rule: HeadRule, sloped: bool) -> None:
    given = case(SHAPES[1] if buffer == "one logit" else SHAPES[2], dtype)
    wanted = expected(given, rule)
    errors = wanted.errors * wanted.slopes if sloped else wanted.errors
    hidden, weight = given.hidden.double(), given.weight.double()
    chosen = {"sloped": sloped, **knobs(backend, buffer)}
    total = head_weight_sum(given.hidden, given.weight, given.tokens, given.share, rule, **chosen)
    rows = head_hidden_gradient(given.hidden, given.weight, given.tokens, rule, **chosen)
    projection = head_projection(given.hidden, given.weight, given.tokens, given.matrix, rule, **chosen)
    assert distance(total, torch.einsum("t,tv,th->vh", given.share.double(), errors, hidden)) < CLOSE[dtype]
    assert distance(rows, errors @ weight) < CLOSE[dtype]
    assert distance(projection, torch.einsum("tv,vh,th->t", errors, given.matrix.double(), hidden)) < CLOSE[dtype]
    if sloped:
        assert distance(total, wanted.by_weight) < CLOSE[dtype]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_known_logp_spares_the_sweep_and_changes_nothing(rule: HeadRule) -> None:
    given = case((37, 24, 301))
    logp = expected(given, rule).logp
    assert distance(head_weight_sum(*given[:4], rule, logp=logp), head_weight_sum(*given[:4], rule)) < 1e-12
    assert distance(head_hidden_gradient(*given[:3], rule, logp=logp), head_hidden_gradient(*given[:3], rule)) < 1e-12
    shifted = head_hidden_gradient(*given[:3], rule, logp=logp - 0.1)
    assert distance(shifted, head_hidden_gradient(*given[:3], rule)) > 1e-3, "logp is not read"


def test_deltas_exact_vectors() -> None:
    hidden, weight, tokens, share, matrix = case((37, 24, 301))
    vectors = HeadVectors(hidden, tokens, weight, 0.7)
    rule = HeadRule(temperature=0.7)
    assert distance(head_weight_sum(hidden, weight, tokens, share, rule), vectors.weighted_sum(share)) < 1e-12
    assert distance(head_projection(hidden, weight, tokens, matrix, rule), vectors.dot(matrix)) < 1e-12
    found = head_statistics(hidden, weight, tokens, rule)
    squared = (1 - 2 * found.logp.exp() + found.squared_mass) * hidden.square().sum(-1)
    assert distance(squared, vectors.squared_norm()) < 1e-12


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_gradcheck(rule: HeadRule) -> None:
    hidden, weight, tokens, *_ = case((5, 4, 9))

    def logp(hidden: Tensor, weight: Tensor) -> Tensor:
        return head_statistics(hidden, weight, tokens, rule, backend="chunked", buffer_bytes=400).logp

    assert torch.autograd.gradcheck(logp, (hidden.requires_grad_(), weight.requires_grad_()))


def test_only_what_asks_for_a_gradient_gets_one() -> None:
    hidden, weight, tokens, share, _ = case((7, 16, 33))
    for which in (0, 1):
        inputs = [hidden.clone(), weight.clone()]
        inputs[which].requires_grad_()
        found = head_statistics(*inputs, tokens, backend="chunked")
        assert not found.entropy.requires_grad
        assert not found.squared_mass.requires_grad
        found.logp.mul_(share).sum().backward()
        wanted = expected(case((7, 16, 33)), HeadRule())
        assert distance(inputs[which].grad, (wanted.by_hidden, wanted.by_weight)[which]) < 1e-12
        assert inputs[1 - which].grad is None


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_master_weights_under_autocast(where: str) -> None:
    """A linear layer would multiply in bfloat16 there; so is done here, and each gradient comes back in its tensor's own dtype."""
    given = case((37, 24, 301), torch.bfloat16)
    hidden, weight = given.hidden.float().requires_grad_(), given.weight.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        logp = head_statistics(hidden, weight + 1e-4, given.tokens, backend="chunked").logp
        loss = (logp * given.share).sum()
        if where == "inside":
            loss.backward()
    if where == "outside":
        loss.backward()
    rounded = given._replace(weight=(given.weight.float() + 1e-4).bfloat16())
    wanted = expected(rounded, HeadRule())
    assert logp.dtype == hidden.grad.dtype == weight.grad.dtype == torch.float32
    assert distance(logp, wanted.logp) < 2e-5
    assert distance(hidden.grad, wanted.by_hidden) < 2e-5
    assert distance(weight.grad, wanted.by_weight) < 2e-5


def test_a_master_weight_beside_half_precision_states() -> None:
    given = case((37, 24, 301), torch.bfloat16, weight_dtype=torch.float32)
    found, (by_hidden, by_weight) = scored(*given[:4], HeadRule(), backend="chunked")
    wanted = expected(given, HeadRule())
    assert (by_hidden.dtype, by_weight.dtype) == (torch.bfloat16, torch.float32)
    assert distance(found.logp, wanted.logp) < 2e-5
    assert distance(by_weight, wanted.by_weight) < 2e-5


def test_tiny_shares_survive_and_zero_shares_are_nothing() -> None:
    given = case((37, 24, 301), torch.float16)
    whole = head_weight_sum(*given[:4], backend="chunked")
    assert distance(head_weight_sum(*given[:3], given.share * 1e-9, backend="chunked") * 1e9, whole.double()) < 1e-5
    assert head_weight_sum(*given[:3], given.share * 0, backend="chunked").abs().max() == 0


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_what_rounded_errors_lost_is_added(monkeypatch, rule: HeadRule) -> None:
    """On an accelerator a block of errors is written in half precision: credit reads it with its remainder, gradients without."""
    monkeypatch.setattr(chunked, "error_dtype", lambda _: torch.bfloat16)
    given = case((37, 24, 301), torch.bfloat16)
    wanted, wide = expected(given, rule), given.hidden.double()
    for buffer_bytes in (6_000, 1 << 24):
        ways = {"backend": "chunked", "buffer_bytes": buffer_bytes}
        total = head_weight_sum(*given[:4], rule, **ways)
        assert distance(total, torch.einsum("t,tv,th->vh", given.share.double(), wanted.errors, wide)) < 3e-5
        assert distance(head_hidden_gradient(*given[:3], rule, **ways), wanted.errors @ given.weight.double()) < 3e-5
        weight = given.weight.float().requires_grad_()
        logp = head_statistics(given.hidden, weight, given.tokens, rule, **ways).logp
        (by_weight,) = torch.autograd.grad((logp * given.share).sum(), weight)
        assert 2e-4 < distance(by_weight, wanted.by_weight) < 4e-3, "errors are rounded"


def test_logits_far_apart_and_far_from_zero() -> None:
    hidden = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    weight = torch.tensor([[900.0, -5e4], [0.0, -5e4], [-900.0, -5e4]])
    for backend in ("plain", "chunked"):
        found = head_statistics(hidden, weight, torch.tensor([1, 2]), backend=backend)
        assert found.logp.tolist() == pytest.approx([-900.0, -1.0986123], rel=1e-6)
        assert found.entropy.tolist() == pytest.approx([0.0, 1.0986123], abs=1e-6)
        assert found.squared_mass.tolist() == pytest.approx([1.0, 1 / 3], rel=1e-6)


def test_no_tokens() -> None:
    hidden, weight, tokens, share, matrix = (part[:0] if at in (0, 2, 3) else part for at, part in enumerate(case((7, 16, 33))))
    found, (by_hidden, by_weight) = scored(hidden, weight, tokens, share, HeadRule(), backend="chunked")
    assert len(found.logp) == len(by_hidden) == len(head_projection(hidden, weight, tokens, matrix)) == 0
    assert by_weight.abs().sum() == head_weight_sum(hidden, weight, tokens, share).abs().sum() == 0


def test_what_is_chosen_on_a_cpu_is_the_chunked_way() -> None:
    given = case((37, 24, 301), torch.bfloat16)
    one, other = (scored(*given[:4], RULES["capped"], backend=backend) for backend in ("auto", "chunked"))
    assert all(torch.equal(a, b) for a, b in zip((*one[0], *one[1]), (*other[0], *other[1]), strict=True))

"""Packed attention against all pairs written out: the plain way, and the way around flash attention, whose kernel needs a GPU."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from engine.packed_cases import CASES, allowed, dense_backward, dense_forward, ragged
from tokencredit.forward import attention, packing
from tokencredit.forward.packing import Segments, pack

SCALE = 0.3


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flash attention everywhere, its kernels written out; how often they ran."""
    calls: list[str] = []

    def counted(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            calls.append(name)
            return run(*given, **named)

        return called

    monkeypatch.setattr(attention, "runs_flash", lambda *_: True)
    monkeypatch.setattr(attention, "_flash_forward", counted("forward", dense_forward))
    monkeypatch.setattr(attention, "_flash_backward", counted("backward", dense_backward))
    return calls


def given(segments: Segments, heads: int = 4, kv: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    many = sum(segments.query_lengths)
    return [torch.randn(many, each, 8, dtype=torch.float64, generator=generator, requires_grad=True) for each in (heads, kv, kv)]


def written_out(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> Tensor:
    if segments.shared is not None:
        key, value = key[segments.shared.source], value[segments.shared.source]
    key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], 1) for each in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * SCALE
    pairs = allowed(segments.query_starts, segments.key_starts)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~pairs, -torch.inf).softmax(-1), value)


def assert_equal_and_equally_differentiable(segments: Segments) -> None:
    tensors = given(segments)
    found, known = attention.packed_attention(*tensors, segments, scale=SCALE), written_out(*tensors, segments)
    torch.testing.assert_close(found, known, atol=1e-12, rtol=0)
    weights = torch.randn(known.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for one, two in zip(*(torch.autograd.grad(each, tensors, weights) for each in (found, known)), strict=True):
        torch.testing.assert_close(one, two, atol=1e-12, rtol=0)


@pytest.mark.parametrize("pays", [1.0, 0.0], ids=["sharing", "apart"])
@pytest.mark.parametrize("case", CASES)
def test_buckets_equal_all_pairs(monkeypatch: pytest.MonkeyPatch, case: str, pays: float) -> None:
    monkeypatch.setattr(packing, "SHARING_PAYS", pays)
    assert_equal_and_equally_differentiable(pack(*CASES[case], torch.device("cpu")).segments)


@pytest.mark.parametrize("pays", [1.0, 0.0], ids=["sharing", "apart"])
@pytest.mark.parametrize("case", CASES)
def test_the_way_around_flash_equals_all_pairs(monkeypatch: pytest.MonkeyPatch, flash: list[str], case: str, pays: float) -> None:
    monkeypatch.setattr(packing, "SHARING_PAYS", pays)
    assert_equal_and_equally_differentiable(pack(*CASES[case], torch.device("cpu")).segments)
    assert flash == ["forward", "backward"]


def test_gradients_of_a_shared_prompt_are_added_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, 512 ones added to one in bfloat16 would stick at 256; the CPU sums wider by itself, so the dtype is looked at."""
    added, met = Tensor.index_add, []

    def noted(total: Tensor, dim: int, index: Tensor, more: Tensor) -> Tensor:
        met.extend([total.dtype, more.dtype])
        return added(total, dim, index, more)

    monkeypatch.setattr(Tensor, "index_add", noted)
    ones = torch.ones(513, 1, 8, dtype=torch.bfloat16)
    found = attention._sum_key_gradients(ones, torch.tensor([0]), torch.arange(1, 513), torch.zeros(512, dtype=torch.long), 1)
    assert met == [torch.float32] * 2
    assert torch.equal(found, torch.full((1, 1, 8), 512.0).bfloat16())


def test_keys_are_not_kept_twice(flash: list[str]) -> None:
    """What is saved for the way back is what came in and went out, no copies of shared keys."""
    segments = pack(*CASES["shared"], torch.device("cpu")).segments
    tensors = given(segments)
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(len(each)) or each, lambda each: each):
        attention.packed_attention(*tensors, segments, scale=SCALE)
    assert segments.shared is not None
    assert len(flash) == 1
    assert saved.count(len(segments.shared.source)) == 1, "only the index is as long as the keys"


def test_autocast_casts_what_rotary_embeddings_left_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = pack(*CASES["shared"], torch.device("cpu")).segments
    query, key, value = (each.detach().float() for each in given(segments))
    met: list[torch.dtype] = []

    def noted(*tensors: Tensor) -> bool:
        met.extend(each.dtype for each in tensors)
        return False

    monkeypatch.setattr(attention, "runs_flash", noted)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attention.packed_attention(query, key, value.bfloat16(), segments, scale=SCALE)
    assert met == [torch.bfloat16] * 3
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), written_out(query, key, value, segments), atol=3e-2, rtol=0)


def test_flash_is_asked_only_for_what_it_does() -> None:
    half = [torch.empty(3, 2, 64, dtype=torch.bfloat16, device="meta") for _ in range(3)]
    assert not attention.runs_flash(*half), "it needs a GPU"

    class OnGpu(NamedTuple):
        shape: tuple[int, ...]
        dtype: torch.dtype = torch.bfloat16
        is_cuda: bool = True

    def runs(*wide: int, dtype: torch.dtype = torch.bfloat16) -> bool:
        return attention.runs_flash(*(OnGpu((3, 2, each), dtype) for each in wide))  # pyright: ignore[reportArgumentType]

    assert runs(64, 64, 64)
    assert runs(64, 64, 64, dtype=torch.float16)
    assert not runs(64, 64, 64, dtype=torch.float32)
    assert not runs(64, 64, 32)
    assert not runs(36, 36, 36)
    assert not runs(512, 512, 512)


def test_segments_of_like_length_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []

    def counted(query: Tensor, *rest: Any, **named: Any) -> Tensor:
        calls.append(tuple(query.shape))
        return torch.nn.functional.scaled_dot_product_attention(query, *rest, **named)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", counted)
    # Segments of 17, 16, 15, 17, 5 and 4 tokens, which round up to 32, 16, 16, 32, 8 and 4.
    rows = ragged([(row, 4, 5) for row in range(6)], [15, 14, 13, 15, 3, 2])
    segments = pack(*rows, torch.device("cpu")).segments
    attention.packed_attention(*given(segments), segments, scale=SCALE)
    assert [(shape[0], shape[2]) for shape in calls] == [(1, 4), (1, 5), (2, 16), (2, 17)]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"softcap": 20.0}, "softcap"),
        ({"sliding_window": 4}, "sliding_window"),
        ({"s_aux": 1}, "s_aux"),
        ({"dropout": 0.1}, "dropout"),
        ({"is_causal": False}, "is_causal = False"),
    ],
)
def test_what_is_not_done_is_refused(told: dict[str, Any], words: str) -> None:
    attention.register_packed_attention("sdpa")
    segments = pack(*CASES["one row"], torch.device("cpu")).segments
    query, key, value = (each.transpose(0, 1)[None] for each in given(segments))
    named = {"scaling": SCALE, attention.SEGMENTS: segments}
    found, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](torch.nn.Identity(), query, key, value, None, **named)
    assert found.shape == query.transpose(1, 2).shape
    with pytest.raises(ValueError, match=f"Identity needs {words}, which packed attention does not support"):
        ALL_ATTENTION_FUNCTIONS["sdpa"](torch.nn.Identity(), query, key, value, None, **named, **told)


def test_attention_without_segments_is_what_it_was() -> None:
    attention.register_packed_attention("sdpa")
    heeding = ALL_ATTENTION_FUNCTIONS["sdpa"]
    attention.register_packed_attention("sdpa")
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is heeding
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    tensors = [torch.randn(2, 4, 5, 8) for _ in range(3)]
    module = torch.nn.Identity()
    assert torch.equal(heeding(module, *tensors, None, 0.0, 0.5)[0], sdpa_attention_forward(module, *tensors, None, 0.0, 0.5)[0])

"""The Triton kernels of a decode step against their plain twins, run by Triton's interpreter in a process of its own.

As a script this file makes the comparison and prints the largest gap of every case; as a test it asks that they be small.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from torch import Tensor

from tokencredit.kernels.decode import reference
from tokencredit.kernels.decode.state import (
    VOCABULARY_BLOCK,
    HeadNorm,
    Keys,
    Knobs,
    Rotary,
    Slots,
    Statistics,
    Written,
    blocks,
)
from tokencredit.kernels.decode.triton_launch import Tile

CASES = (
    "norm_linear", "norm_linear_bias", "norm_linear_wide", "linear_add", "linear_add_wide", "norm_gate_up", "final_norm", "final_norm_kept",
    "attend", "attend_norms", "head", "draw", "draw_greedy", "draw_odd_logits", "draw_scan_rounds",
)  # fmt: skip


class Scene(NamedTuple):
    """Slots out of order, one empty, one of a row that has ended."""

    slots: Slots
    written: Written
    x: Tensor
    squares: Tensor


def scene(hidden: int, count: int = 5, width: int = 90) -> Scene:
    row = torch.tensor([3, 0, -1, 4, 1, *range(5, count)], dtype=torch.int32)
    slots = Slots(row, row.clamp(min=0) % 3, torch.tensor([70, 1, 5, 9, 66, *[3] * (count - 5)], dtype=torch.int32))
    shape, rows = (count + 2, width), count + 2
    written = Written(torch.zeros(shape, dtype=torch.long), *torch.zeros(2, *shape), *torch.zeros(3, rows, dtype=torch.int32))
    written.ended[4] = 1
    x = torch.randn(count, hidden)
    return Scene(slots, written, x, reference.squares_of(x))


def _norm_linear(kernels: ModuleType, *, hidden: int = 48, count: int = 5, bias: bool = False) -> list[Tensor]:
    _, _, x, squares = scene(hidden, count)
    weights = [torch.randn(height, hidden) for height in (96, 32, 32)]
    biases = [torch.randn(height) for height in (96, 32, 32)] if bias else None
    out = torch.zeros(count, 160)
    kernels.norm_linear(x, squares, weights, biases, out, eps=1e-2)
    return [out]


def _linear_add(kernels: ModuleType, *, hidden: int = 48, inner: int = 40, count: int = 5, tile: Tile | None = None) -> list[Tensor]:
    _, _, x, squares = scene(hidden, count)
    weighted, norm, cut = torch.zeros_like(x), torch.randn(hidden), {} if kernels is reference else {"tile": tile}
    kernels.linear_add(torch.randn(count, inner), torch.randn(hidden, inner), x, squares, norm, weighted, **cut)
    return [x, squares, weighted]


def _norm_gate_up(kernels: ModuleType) -> list[Tensor]:
    _, _, x, squares = scene(80)
    out = torch.zeros(5, 72)
    kernels.norm_gate_up(x, squares, torch.randn(72, 80) / 9, torch.randn(72, 80) / 9, out, eps=1e-2)
    return [out]


def _final_norm(kernels: ModuleType, *, keeps: bool) -> list[Tensor]:
    slots, written, x, squares = scene(48)
    out, kept = torch.zeros(5, 48), torch.zeros(7, 90, 48)
    kernels.final_norm(x, squares, torch.randn(48), out, kept if keeps else None, slots, written, eps=1e-2)
    return [out, kept]


def _attend(kernels: ModuleType, *, norms: bool) -> list[Tensor]:
    slots, written, _, _ = scene(48)
    kv_heads, group, head_dim = 2, 3, 32
    shape = (kv_heads, 90, head_dim)
    keys = Keys(*torch.randn(2, 3, *shape), *torch.randn(2, 7, *shape), torch.tensor([70, 3, 64], dtype=torch.int32))
    angles = torch.randn(200, head_dim // 2)
    qkv, out = torch.randn(5, (group + 2) * kv_heads * head_dim), torch.zeros(5, group * kv_heads * head_dim)
    head_norms = HeadNorm(*torch.randn(2, head_dim)) if norms else None
    kernels.attend(qkv, head_norms, Rotary(angles.cos(), angles.sin()), keys, slots, written, out, eps=1e-2, scale=0.3)
    return [out, keys.own_k, keys.own_v]


def statistics_of(logits: Tensor) -> Statistics:
    return Statistics(*torch.zeros(3, len(logits), blocks(logits.shape[1], VOCABULARY_BLOCK)))


def _head(kernels: ModuleType) -> list[Tensor]:
    logits = torch.zeros(5, 300)
    statistics = statistics_of(logits)
    kernels.head(torch.randn(5, 48), torch.randn(300, 48), torch.tensor([0.7]), logits, statistics)
    return [logits, *statistics]


def _draw(kernels: ModuleType, *, greedy: bool = False, odd: bool = False, lonely: bool = False) -> list[Tensor]:
    slots, written, x, squares = scene(48, count=20)
    embeddings = torch.randn(300, 48)
    logits = 3 * torch.randn(20, 300)
    if odd:
        logits[0, 7], logits[1, 250], logits[5, :256], logits[6] = float("nan"), float("inf"), float("-inf"), float("-inf")
        logits[7, 20:], logits[8] = float("-inf"), float("nan")
    if lonely:
        logits = torch.full_like(logits, float("-inf")).index_fill_(1, torch.tensor([255]), 1.0)
    if greedy:
        logits[3, [290, 140, 141]] = 50.0
    statistics = statistics_of(logits)
    fill_statistics(logits, statistics)
    ends = torch.tensor([*range(0, 300, 30), *[-1] * 6])
    numbers = [torch.tensor([number], dtype=torch.int32) for number in (int(greedy), 1000)]
    knobs = Knobs(torch.ones(1), numbers[0], torch.tensor([123456789012345]), numbers[1], ends)
    weighted = torch.randn_like(x)
    kernels.draw(logits, statistics, knobs, slots, written, embeddings, x, squares, torch.randn(48), weighted)
    sound = written.bad[slots.row.clamp(min=0).long()] == 0
    drawn = [
        (written.tokens < 300).float(),
        written.length,
        written.bad,
        slots.position,
        written.ended[:5],
        x[sound],
        squares[sound],
        weighted[sound],
    ]
    return [*drawn, *(value[written.bad == 0] for value in (written.tokens, written.logp, written.entropy, written.ended))]


def fill_statistics(logits: Tensor, statistics: Statistics) -> None:
    """What `head` would have written; a product would spread what is no number."""
    for first in range(0, logits.shape[1], VOCABULARY_BLOCK):
        z = logits[:, first : first + VOCABULARY_BLOCK]
        top = z.amax(-1)
        below = z - top.clamp(min=reference.LOWEST)[:, None]
        moment = (below * below.exp()).where(below.exp() != 0, 0.0).sum(-1)
        for kept, value in zip(statistics, (top, below.exp().sum(-1), moment), strict=True):
            kept[:, first // VOCABULARY_BLOCK] = value


WORK: dict[str, Callable[[ModuleType], list[Tensor]]] = {
    "norm_linear": _norm_linear,
    "norm_linear_bias": lambda kernels: _norm_linear(kernels, bias=True),
    "norm_linear_wide": lambda kernels: _norm_linear(kernels, hidden=128, count=70),
    "linear_add": _linear_add,
    "linear_add_wide": lambda kernels: _linear_add(kernels, hidden=80, inner=128, count=70, tile=Tile(64, 64, 128, 4, 2)),
    "norm_gate_up": _norm_gate_up,
    "final_norm": lambda kernels: _final_norm(kernels, keeps=False),
    "final_norm_kept": lambda kernels: _final_norm(kernels, keeps=True),
    "attend": lambda kernels: _attend(kernels, norms=False),
    "attend_norms": lambda kernels: _attend(kernels, norms=True),
    "head": _head,
    "draw": _draw,
    "draw_greedy": lambda kernels: _draw(kernels, greedy=True),
    "draw_odd_logits": lambda kernels: _draw(kernels, odd=True),
    "draw_scan_rounds": lambda kernels: _draw(kernels, lonely=True),
}


def largest_gap(found: list[Tensor], expected: list[Tensor]) -> float:
    gaps = [(one.double() - other.double()).abs() / (1 + other.double().abs()) for one, other in zip(found, expected, strict=True)]
    return max(float(gap.nan_to_num(nan=1e9).max()) for gap in gaps)


def let_scalars_bound_loops() -> None:
    """The interpreter holds a scalar as an array of one, which NumPy 2.4 no longer takes for a loop's bound."""
    from triton.runtime import interpreter

    class WholeNumber(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, int)

    class Int(metaclass=WholeNumber):
        def __new__(cls, value: object = 0) -> int:
            return int(value.item() if isinstance(value, numpy.ndarray) else value)

    interpreter.int = Int


@contextmanager
def rounding_scans() -> Iterator[None]:
    """Sums of a parallel scan need not stay equal where nothing is added: here they grow, far more than by rounding."""
    from triton.runtime import interpreter

    exact = interpreter.ScanOps.cumsum

    def growing(self: Any, given: Any) -> list[Any]:
        (sums,) = exact(self, given)
        sums.handle.data += 0.3 * (1 + numpy.arange(sums.handle.data.shape[self.axis], dtype=sums.handle.data.dtype))
        return [sums]

    interpreter.ScanOps.cumsum = growing
    yield
    interpreter.ScanOps.cumsum = exact


def compare() -> dict[str, float]:
    let_scalars_bound_loops()
    from tokencredit.kernels.decode import triton_launch

    gaps = {}
    for name, work in WORK.items():
        outcomes = []
        for kernels in (triton_launch, reference):
            torch.manual_seed(5)
            with rounding_scans() if name == "draw_scan_rounds" else nullcontext():
                outcomes.append(work(kernels))
        gaps[name] = largest_gap(*outcomes)
    return gaps


@pytest.fixture(scope="module")
def gaps() -> dict[str, float]:
    here = Path(__file__)
    folders = [str(here.parents[2] / "src"), str(here.parents[1])]
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(folders),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    ended = subprocess.run([sys.executable, str(here)], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", CASES)
def test_a_kernel_is_its_plain_twin(gaps: dict[str, float], case: str) -> None:
    assert gaps[case] < 1e-5


def test_every_case_was_compared(gaps: dict[str, float]) -> None:
    assert sorted(gaps) == sorted(CASES)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(compare()))

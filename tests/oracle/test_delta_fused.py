"""DelTA with few launches: interpreted on the CPU it equals the plain twin, and launches are counted."""

from typing import Any

import pytest
import torch

from laws.delta_cases import make_case
from laws.delta_sweep_laws import Watch
from oracle.fused_gaps import interpreted
from tokencredit.credit.delta import dispatch
from tokencredit.credit.delta.algorithm import DeltaOptions
from tokencredit.credit.delta.dispatch import DeltaBatch, batched_coefficients
from tokencredit.credit.features import DeviceFeatures


def test_the_fused_path_equals_the_plain_twin() -> None:
    gaps = interpreted({"real": ({}, None)})["real"]
    assert len(gaps) == 18
    assert max(gaps.values()) < 2e-6, gaps


class Started(Watch):
    """Besides: what is started on the device, the kernels by name."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if not func.is_view and "empty" not in str(func):
            self.started.append(str(func))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def launch(self, kernel: Any, *_: Any, **__: Any) -> None:
        self.started.append(kernel.__name__)


@pytest.mark.parametrize(("refinements", "most"), [(0, 14), (1, 21), (3, 35)])
@pytest.mark.parametrize("scope", ["batch", "group"])
@pytest.mark.parametrize("place", ["padded", "packed"])
def test_launches_are_few_and_nothing_is_asked(
    place: str, scope: str, refinements: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is computed here: kernels are named, not run. They read no sizes from the device, so the count is that of any batch."""
    from tokencredit.kernels.delta import triton_layout, triton_scores

    inputs = make_case(0, 64, 1, (0.8, 1.2)).inputs
    states = inputs.hidden.bfloat16().repeat(1, 1, 32)
    hidden = states if place == "padded" else DeviceFeatures(states[inputs.mask])
    ids, bound = (torch.zeros_like(inputs.group), 1) if scope == "batch" else (inputs.group, 64)
    batch = DeltaBatch(inputs.logp.float(), hidden, inputs.advantage, inputs.mask, ids, bound)
    started = Started()
    monkeypatch.setattr(triton_layout, "launch", started.launch)
    monkeypatch.setattr(triton_scores, "launch", started.launch)
    monkeypatch.setattr(dispatch, "fused_scoring", lambda _: (triton_layout, triton_scores))
    with started:
        batched_coefficients(batch, DeltaOptions(scope=scope, refinements=refinements))
    assert started.waits == []
    # Tiles: one for every 128 tokens and one that is not full for every side. Their sums, the parts of those, or two numbers a slot.
    tiles, width = inputs.mask.numel() // 128 + (2 if scope == "batch" else 64), states.shape[-1]
    assert started.largest <= max(4 * tiles * width, 8 * triton_scores.SPLITS * width, 8 * 128 * tiles)
    assert 10 < len(started.started) <= most, started.started
    assert started.started.count("_tile_sums") == started.started.count("_dots") == refinements + 1

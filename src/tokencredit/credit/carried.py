"""What a method carries from step to step, as JSON: a tensor in float32, small enough to be written into every checkpoint."""

import base64
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

MOST = 1 << 23
"""Numbers that are carried at most: 34 MB, a third more as text."""


def check_carried(shape: tuple[int, ...], what: str, advice: str) -> None:
    """Refuse before the first step what would not be carried after it."""
    count = math.prod(shape)
    if count > MOST:
        size = " x ".join(f"{side:,}" for side in shape)
        raise ValueError(
            f"{what} is {size} numbers ({4 * count / 1e6:,.0f} MB in every checkpoint), and at most {MOST:,} ({4 * MOST / 1e6:.0f} MB) "
            f"are carried from step to step; {advice}"
        )


def pack(tensor: Tensor) -> dict[str, Any]:
    values = tensor.detach().to("cpu", torch.float32).contiguous()
    return {"shape": list(values.shape), "float32": base64.b64encode(values.numpy().tobytes()).decode("ascii")}


def unpack(packed: Mapping[str, Any]) -> Tensor:
    """In float64, on the CPU."""
    return torch.frombuffer(bytearray(base64.b64decode(packed["float32"])), dtype=torch.float32).double().reshape(packed["shape"])

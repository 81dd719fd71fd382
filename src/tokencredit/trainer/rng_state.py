"""The state of the global random generators, saved and restored so that a resumed run continues exactly.

This package never draws from them, but a task, a model's own code or a library may.
"""

import random
from collections.abc import Mapping
from typing import cast

import numpy
import torch
from torch import Tensor

from tokencredit.seeds import derive_seed


def seed_generators(seed: int) -> None:
    drawn = derive_seed(seed, "global")
    random.seed(drawn)
    numpy.random.seed(drawn % 2**32)
    torch.manual_seed(drawn)


def generator_states() -> dict[str, Tensor]:
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = cast("tuple[str, numpy.ndarray, int, int, float]", numpy.random.get_state(legacy=True))
    assert (version, kind) == (3, "MT19937")
    states = {
        "python": torch.tensor(words, dtype=torch.int64),
        "python_gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy": torch.tensor([*keys.tolist(), position, has_gauss], dtype=torch.int64),
        "numpy_gauss": torch.tensor([cached], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    return states | {
        f"cuda/{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])
    }


def restore_generators(states: Mapping[str, Tensor]) -> None:
    gauss = states["python_gauss"].tolist()
    random.setstate((3, tuple(states["python"].tolist()), gauss[0] if gauss else None))
    *keys, position, has_gauss = states["numpy"].tolist()
    numpy.random.set_state(("MT19937", numpy.array(keys, dtype=numpy.uint32), position, has_gauss, float(states["numpy_gauss"])))
    torch.set_rng_state(states["torch"])
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"cuda/{index}" in states:
            torch.cuda.set_rng_state(states[f"cuda/{index}"], index)

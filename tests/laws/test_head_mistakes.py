"""What the head is wrongly given is named, with what would be right."""

from typing import Any

import pytest
import torch

from oracle.head_cases import case
from tokencredit.kernels.lm_head import HeadRule, head_statistics


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rule": HeadRule(temperature=0.0)}, "temperature must be above 0"),
        ({"rule": HeadRule(scale=-1.0)}, "scale must be above 0"),
        ({"rule": HeadRule(softcap=0.0)}, "softcap must be above 0"),
        ({"backend": "fast"}, "backend must be"),
        ({"tokens": torch.zeros(6, dtype=torch.int64)}, "7 hidden states for 6 tokens"),
        ({"weight": torch.zeros(33, 15)}, "hidden has width 16, weight 15"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], word: str) -> None:
    given = case((7, 16, 33))._asdict()
    inputs = {name: given[name] for name in ("hidden", "weight", "tokens")} | change
    with pytest.raises(ValueError, match=word):
        head_statistics(**inputs)

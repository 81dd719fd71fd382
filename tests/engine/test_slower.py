"""On a GPU a fast path that could not be taken is told with its reason; where nothing was lost, nothing is told."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tiny import tiny_policy
from tokencredit.config.resolve import resolve
from tokencredit.trainer import fast_paths
from tokencredit.trainer.fast_paths import slow_path_warnings


def told(kind: str, **given: Any) -> list[str]:
    policy: Any = SimpleNamespace(device=torch.device(kind), model=None)
    return slow_path_warnings(resolve([{"diagnose": {"every": 0}, **given}]), policy)


def test_what_could_not_be_taken_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_paths, "unsupported_reason", lambda policy, dtype: "its layers are odd")
    monkeypatch.setattr(fast_paths, "packing_unsupported_reason", lambda model: "it has a window")
    both = told("cuda", dtype="bfloat16")
    assert ["its layers are odd" in both[0], "it has a window" in both[1]] == [True, True]
    assert told("cpu", dtype="bfloat16") == []
    assert len(told("cuda", dtype="bfloat16", sampler="plain")) == 1
    assert len(told("cuda", dtype="bfloat16", passes="padded")) == 1
    assert len(told("cuda", dtype="float32")) == 1
    monkeypatch.setattr(fast_paths, "unsupported_reason", lambda policy, dtype: None)
    monkeypatch.setattr(fast_paths, "packing_unsupported_reason", lambda model: None)
    assert told("cuda", dtype="bfloat16") == []


def test_a_policy_on_a_cpu_has_nothing_to_tell() -> None:
    assert slow_path_warnings(resolve([{}]), tiny_policy(torch.float32)) == []

"""A run that is asked to stop at an exact place."""

from pathlib import Path
from typing import Any

import pytest

from engine.runs import Silent, newest
from tokencredit.config.train import TrainConfig
from tokencredit.trainer.loop import train
from tokencredit.trainer.signals import StopSignal


class AskedAt:
    """Calls one of a class's functions as it is, and asks for a stop when it has been called a number of times."""

    def __init__(self, stop: StopSignal, owner: Any, name: str, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stop, self.left, self.wrapped = stop, calls, getattr(owner, name)
        asked = self

        def wrapper(*given: Any, **named: Any) -> Any:
            asked.left -= 1
            if asked.left == 0:
                asked.stop.request(2)
            return asked.wrapped(*given, **named)

        monkeypatch.setattr(owner, name, wrapper)


def interrupted_at(owner: Any, name: str, calls: int, config: TrainConfig, folder: Path) -> Path:
    """A run stopped at that call; returns the checkpoint it published."""
    stop = StopSignal()
    with pytest.MonkeyPatch.context() as patch:
        AskedAt(stop, owner, name, calls, patch)
        assert train(config, folder, Silent(), stop).interrupted
    return newest(folder)


def optimizer_class() -> Any:
    import torch

    return torch.optim.AdamW

"""One thread per worker, no network, no global randomness left over from another test."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile("tokencredit", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tokencredit")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)

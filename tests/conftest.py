"""One thread per worker, no network, no global randomness left over from another test."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

torch.set_num_threads(1)
# Hypothesis draws constants from every module that happens to be loaded; then which tests share a worker decides what a law meets.
providers._get_local_constants = providers.Constants
settings.register_profile("tokencredit", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tokencredit")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)

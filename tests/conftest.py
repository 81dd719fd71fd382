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


WHOLE_RUNS = frozenset({
    "engine/test_bench.py", "engine/test_bench_parts.py", "engine/test_compare_run.py", "engine/test_converse_run.py",
    "engine/test_credit_bench_gradients.py", "engine/test_credit_bench_truth.py", "engine/test_extra_runs.py",
    "engine/test_greedy_baseline.py", "engine/test_identities.py", "engine/test_lora.py", "engine/test_microscope.py",
    "engine/test_offline_credit.py", "engine/test_packed_compiled.py", "engine/test_remembered_credit.py", "engine/test_replay.py",
    "engine/test_run.py", "engine/test_track.py", "engine/test_weights.py", "fault/test_checkpoints.py", "fault/test_compare_resume.py",
    "fault/test_fuzz.py", "fault/test_graded_runs.py", "fault/test_guards.py", "fault/test_promises.py", "fault/test_stopping.py",
    "fault/test_storage.py", "golden/test_trajectory.py", "runs/test_worked_example.py", "surface/test_walkthrough.py",
})  # fmt: skip
"""Files that train, stop, kill, resume, compile and measure in earnest: half of the time of all tests. `make test-local` runs them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/".join(item.path.parts[-2:]) in WHOLE_RUNS:
            item.add_marker(pytest.mark.whole_runs)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)

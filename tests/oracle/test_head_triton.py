"""The head's Triton kernels, interpreted on a CPU, against the definition."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def report() -> dict[str, dict[str, float]]:
    path = os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])
    command = [sys.executable, "-m", "oracle.head_interpreted"]
    child = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=240)
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout)


@pytest.mark.parametrize("tile", ["pointers", "descriptors"])
@pytest.mark.parametrize("which", ["plain", "scaled", "capped", "even", "strided"])
def test_values_gradients_and_sums_in_float32(report, tile: str, which: str) -> None:
    found = report[f"{tile} {which}"]
    assert len(found) >= 8
    assert {what: far for what, far in found.items() if not far < 2e-5} == {}


@pytest.mark.parametrize("tile", ["pointers", "descriptors"])
@pytest.mark.parametrize("which", ["half", "errors in bfloat16"])
def test_half_precision_and_a_matrix_of_full_precision(report, which: str, tile: str) -> None:
    """Everything is read to 2^-16 at least but gradients, which carry the rounding of errors in half precision (cut off here)."""
    found = report[f"{tile} {which}"]
    gradients = {what: found[what] for what in ("by hidden", "by weight")}
    assert {what: far for what, far in found.items() if what not in gradients and not far < 4e-5} == {}
    assert {what: far for what, far in gradients.items() if not 1e-4 < far < 8e-3} == {}


@pytest.mark.parametrize("tile", ["pointers", "descriptors"])
def test_shares_too_small_for_half_precision(report, tile: str) -> None:
    assert report[f"{tile} tiny shares"]["sum"] < 1e-3

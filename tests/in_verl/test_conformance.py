"""The same stored rollouts give the same numbers in verl as in the local engine, on one rank and on two."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.compare import assert_same
from conformance.outcome import read
from conformance.reference import run_case
from in_verl.cases import CASES, file_of
from verl_cpu.command import environment

TESTS = Path(__file__).parent.parent


def _free_port() -> str:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.fixture(scope="module", params=[1, 2], ids=["1 rank", "2 ranks"])
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case through one start of the worker on each rank."""
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(request.param), "--master-port", _free_port()]
    done = subprocess.run(
        [*launch, "-m", "in_verl.all_cases", str(folder)],
        cwd=TESTS,
        env={**os.environ, **environment()},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.parametrize("name", CASES)
def test_verl_gives_the_local_engines_numbers(name: str, outcomes: Path) -> None:
    failed = outcomes / f"{file_of(name)}.error"
    assert not failed.exists(), failed.read_text()
    assert_same(name, read(outcomes / f"{file_of(name)}.pt"), run_case(CASES[name]).outcome)

"""One thread, no network, one start of two ranks for all tests that need them; ends with the largest differences that were seen."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import pytest
import torch

from conformance.compare import LARGEST

torch.set_num_threads(1)
ROOT = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that wait for two ranks come last, so that the ranks work while the others run."""
    items.sort(key=lambda item: "two_ranks" in getattr(item, "fixturenames", ()))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class StartedRanks(NamedTuple):
    folder: Path
    process: subprocess.Popen[bytes]


@pytest.fixture(scope="session", autouse=True)
def _started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedRanks | None]:
    if not any("two_ranks" in getattr(item, "fixturenames", ()) for item in request.session.items):
        yield None
        return
    folder = tmp_path_factory.mktemp("two_ranks")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "in_trl.two_ranks"]
    paths = os.pathsep.join([*(str(ROOT / name) for name in ("tests", "experiments/2026-11-16-engines")), os.environ.get("PYTHONPATH", "")])
    with (folder / "output.txt").open("w") as output:
        ranks = subprocess.Popen([*launch, str(folder)], env={**os.environ, "PYTHONPATH": paths}, stdout=output, stderr=output)
    try:
        yield StartedRanks(folder, ranks)
    finally:
        ranks.terminate()
        ranks.wait(30)


@pytest.fixture(scope="session")
def two_ranks(_started: StartedRanks) -> Path:
    """What two processes over gloo left behind: `in_trl/two_ranks.py` says which files."""
    assert _started.process.wait(600) == 0, (_started.folder / "output.txt").read_text()[-6000:]
    return _started.folder


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section(f"largest difference between trl {version('trl')} and the local engine")
    for name, difference in LARGEST.items():
        terminalreporter.write_line(f"{difference:9.1e}  {name}")

"""The Triton sweeps, interpreted on the CPU, equal their plain twins; and changed kernels do not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tokencredit.kernels.delta import reference

SOURCE = Path(reference.__file__).with_name("triton_sweeps.py")

MUTANTS: dict[str, tuple[str, str, str]] = {
    "lanes are not summed": ("tile_sums", "total += token_weight[:, None] * block", "total = token_weight[:, None] * block"),
    "columns of a neighbour": ("tile_sums", "stride + columns[None, :]", "stride + columns[None, :] + 1"),
    "unweighted rows are read": ("tile_sums of unweighted rows", "(rows >= 0) & (token_weight != 0)", "rows >= 0"),
    "one direction for all": ("project", "* WIDTH\n", "* 0\n"),
    "the last columns alone": ("project", "total += block * tl.load(scope_direction", "total = block * tl.load(scope_direction"),
    "norms are not squared": ("squared_norms", "total += block * block", "total += block"),
    "a split is lost": ("scope_sums", "return out.sum(1)", "return out[:, 1]"),
    "tiles of the next scope": ("scope_sums of many", "rows < stop", "rows < stop + 1"),
}
"""Which gap shows it, what is changed and into what."""


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """Of every mutant."""
    folder = tmp_path_factory.mktemp("kernels")
    paths: dict[str, Path] = {}
    for number, (mutant, (_, right, wrong)) in enumerate(MUTANTS.items()):
        source = SOURCE.read_text()
        assert right in source, f"{mutant}: {right!r} has gone"
        paths[mutant] = folder / f"wrong_{number}.py"
        paths[mutant].write_text(source.replace(right, wrong, 1))
    found = interpreted({str(path): MUTANTS[name][0] for name, path in paths.items()})
    return {name: found[str(path)] for name, path in paths.items()}


def interpreted(asked: dict[str, str | None]) -> dict[str, dict[str, float]]:
    """Gaps of the kernels in each of these files: of one sweep, or of all."""
    command = [sys.executable, "-m", "oracle.interpreted_sweeps", json.dumps(asked)]
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([tests, *sys.path])}
    done = subprocess.run(command, env=environment, cwd=tests, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_kernels_equal_their_twins() -> None:
    gaps = interpreted({str(SOURCE): None})[str(SOURCE)]
    assert len(gaps) == 7
    assert max(gaps.values()) < 1e-6


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_changed_kernel_is_found_out(gaps: dict[str, dict[str, float]], mutant: str) -> None:
    assert gaps[mutant][MUTANTS[mutant][0]] > 1e-3

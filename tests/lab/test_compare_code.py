"""What is left out of the code that trained a run is not loaded while it trains."""

import subprocess
import sys
from pathlib import Path

from tokencredit.lab.compare.results import PACKAGE, TELLS, package_at, trains

SCRIPT = """
import sys
from pathlib import Path
from engine.runs import run, small_config
run(small_config(steps=1, recipe=sys.argv[1]), Path(sys.argv[2]))
print("\\n".join(getattr(module, "__file__", None) or "" for name, module in sys.modules.items() if name.startswith("tokencredit.")))
"""


def test_a_run_loads_nothing_of_what_only_tells_of_it(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", SCRIPT, "delta", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=Path(__file__).parents[1],
    ).stdout
    loaded = [PACKAGE + line.partition(PACKAGE)[2] for line in said.splitlines() if PACKAGE in line]
    assert f"{PACKAGE}/trainer/loop.py" in loaded
    assert [path for path in loaded if not trains(path)] == []
    assert not any(trains(f"{part}x.py") for part in TELLS)


def test_a_commit_that_is_not_there_has_no_package() -> None:
    assert package_at("0" * 40) is None

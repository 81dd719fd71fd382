"""How much is left, told while runs end: a run that has ended is not counted among those under way as well."""

import sys
from pathlib import Path

from rich.console import Console

from tokencredit.config.resolve import resolve
from tokencredit.lab.commands.compare_options import AllRuns
from tokencredit.lab.compare.design import PlannedRun, make_arm, make_design, read_recipes, reported_runs
from tokencredit.lab.compare.runner import BETWEEN_LOOKS, execute

STEPS = 3
LINGERS = f"""
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
folder.mkdir()
(folder / "metrics.jsonl").write_text({STEPS} * "{{}}\\n")
time.sleep({5 * BETWEEN_LOOKS})
(folder / "result.json").write_text("{{}}")
"""


def lingering(run: PlannedRun, out: Path) -> list[str]:
    """All steps are done some time before the run ends, as when it is evaluated for the last time."""
    return [sys.executable, "-IS", "-c", LINGERS, str(out / run.path)]


class Told(AllRuns):
    """Keeps how many runs were said to be done and under way: the most ever, and whenever one ended."""

    def __init__(self, total: int) -> None:
        super().__init__(total, Console(quiet=True), None, lambda run: None)
        self.seen: list[tuple[int, float]] = []
        self.most = 0.0

    def ticked(self, running: float) -> None:
        super().ticked(running)
        self.most = max(self.most, running)

    def finished(self, run: PlannedRun) -> None:
        super().finished(run)
        self.seen.append((self.trained, self.running))


def test_a_run_that_has_ended_is_not_under_way(tmp_path: Path) -> None:
    arm = make_arm(read_recipes("dapo")[0], lambda recipe: resolve([{"recipe": recipe, "steps": STEPS}]))
    design = make_design([arm], "dapo", {"steps-shift": "steps-shift"}, seeds=2, first_seed=0, rates=(), tune_seeds=1)
    watcher = Told(2)
    assert execute(reported_runs(design, {}), tmp_path / "out", at_once=1, watcher=watcher, command=lingering) == []
    assert watcher.most == 1
    assert watcher.seen == [(1, 0), (2, 0)]

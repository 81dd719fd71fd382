"""What a person sees while recipes are compared: one bar over all runs in a terminal, a line per run elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from tokencredit.lab.compare.design import PlannedRun
from tokencredit.lab.compare.results import Row
from tokencredit.lab.compare.runner import Failure
from tokencredit.report.format import duration
from tokencredit.text import visible


def seconds_left(elapsed: float, done: float, left: float) -> float | None:
    """At the pace so far, in runs; None before a hundredth of a run is done."""
    return None if done < 0.01 else elapsed / done * left


class AllRuns:
    """A Watcher. Runs that were there already take no time and do not count for the pace."""

    def __init__(self, total: int, console: Console, bar: Progress | None, row_of: Callable[[PlannedRun], Row | None]) -> None:
        self.total, self.console, self.bar, self.row_of = total, console, bar, row_of
        self.found, self.trained, self.running = 0, 0, 0.0
        self.began = time.monotonic()
        self.task_id = None if bar is None else bar.add_task("", total=total, line="")

    def there_already(self, count: int) -> None:
        self.found += count

    def impossible(self, count: int) -> None:
        """Runs that will not be: no rate was left to run them at."""
        self.total -= count

    def ticked(self, running: float) -> None:
        self.running = running
        if self.bar is not None and self.task_id is not None:
            done = self.found + self.trained
            self.bar.update(self.task_id, completed=done, total=self.total, line=f"{running:.1f} runs under way, {self._left()}")

    def finished(self, run: PlannedRun) -> None:
        self.trained += 1
        row = self.row_of(run)
        told = (
            "" if row is None else f": {100 * row['after']['sampled']:.1f} % after {row['rollouts']:,} rollouts in {row['seconds']:.0f} s"
        )
        self._say(f"{run.told}{told}")

    def failed(self, failure: Failure) -> None:
        self.trained += 1
        last = next(reversed(failure.said.splitlines()), "")
        self._say(f"{failure.run.told}: FAILED with code {failure.code}: {last}", style="red")

    def _left(self) -> str:
        done = self.trained + self.running
        left = seconds_left(time.monotonic() - self.began, done, self.total - self.found - done)
        return "time left not known yet" if left is None else f"{duration(max(0.0, left))} left"

    def _say(self, line: str, style: str = "") -> None:
        ending = "" if self.bar is not None else f" ({self._left()})"
        place = f"{self.found + self.trained}/{self.total}"
        self.console.print(visible(f"{place} {line}{ending}"), style=style, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def watching(total: int, row_of: Callable[[PlannedRun], Row | None]) -> Iterator[AllRuns]:
    console = Console() if Console().is_terminal else Console(width=200)
    if not console.is_terminal:
        yield AllRuns(total, console, None, row_of)
        return
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.fields[line]}"))
    with Progress(*columns, console=console) as bar:
        yield AllRuns(total, console, bar, row_of)

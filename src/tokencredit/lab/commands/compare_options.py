"""Options and progress display of `tokencredit compare`."""

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from tokencredit.config.messages import shortened
from tokencredit.errors import ConfigError
from tokencredit.lab.compare.design import PlannedRun
from tokencredit.lab.compare.results import Row
from tokencredit.lab.compare.runner import Failure
from tokencredit.report.format import duration
from tokencredit.text import sanitize

USAGE = "tokencredit compare [CONFIG.toml ...] [OPTIONS]"
NOT_HANDED_ON = {
    "--recipe": "write --recipes",
    "--seed": "write --seeds and --first-seed",
    "--resume": "the same command resumes",
    "--exists": "a comparison resumes in its own folder",
    "--report": "the page of a comparison is always written",
    "--no-report": "the page of a comparison is always written",
}


@dataclass(frozen=True)
class CompareOptions:
    """Train recipes x seeds x bases on the same problems and report paired differences with 95 % intervals.

    A recipe may have settings of its own: delta:credit.scope=group+credit.lam-max=1.5. Config files and every flag of `tokencredit train`
    (--steps 40, --task cotadd, ...) apply to all. Several --rates are tuned first, for each recipe and base, on separate seeds; the best
    one then runs on fresh seeds, and only those are reported. After an interrupt the same command resumes.
    """

    recipes: str | None = None
    """Recipes to compare, separated by commas; see `tokencredit recipes`. Include random-lambda, an A/A control."""
    reference: str | None = None
    """The recipe the others are compared with; default dapo, or the first."""
    seeds: int = 8
    """Seeds of every recipe on every base."""
    first_seed: int = 0
    models: str | None = None
    """Base models, separated by commas; default: that of the files or the task."""
    rates: str | None = None
    """Learning rates, separated by commas; one is used, several are tuned; default: the rate of the files or the task."""
    tune_seeds: int = 2
    """Seeds on which each rate is tried."""
    finalists: int | None = None
    """How many recipes advance to the reported seeds after tuning (several --rates); default: all."""
    always: str | None = None
    """Recipes that always advance, separated by commas; the reference and controls always do."""
    threshold: float | None = None
    """Held-out accuracy up to which rollouts are counted; default 0.8."""
    jobs: int = 2
    """Runs at a time, one thread each; 0 trains nothing and prints stored results."""
    out: Path | None = None
    """Folder of the comparison; default runs/<number>-compare."""
    stale: Literal["refuse", "retrain", "keep"] = "refuse"
    """Finished runs of other code, or (never kept) of other settings: refuse, train again, or use them."""
    keep_models: bool = False
    """Keep checkpoints, also of failed runs; default: keep only the numbers."""
    dry_run: bool = False
    """Print the runs and stop."""

    @property
    def rates_read(self) -> list[float]:
        try:
            return [] if self.rates is None else [float(rate) for rate in self.rates.split(",")]
        except ValueError:
            raise ConfigError(f"rates is {shortened(self.rates)}; write numbers separated by commas: 3e-4,8e-4") from None


def parse_compare(arguments: Sequence[str]) -> tuple[CompareOptions, list[str], list[str]]:
    """Options, config files, and the remaining flags, which belong to `train`. Errors exit with 2 or raise ConfigError."""
    count = next((index for index, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    files, flags = list(arguments[:count]), list(arguments[count:])
    options, rest = tyro.cli(
        CompareOptions,
        args=flags,
        prog=USAGE.removesuffix(" [OPTIONS]"),
        description=inspect.getdoc(CompareOptions),
        return_unknown_args=True,
    )
    for word in rest:
        if (name := word.partition("=")[0]) in NOT_HANDED_ON:
            raise ConfigError(f"{name} is not an option of compare; {NOT_HANDED_ON[name]}")
    if options.jobs < 0:
        raise ConfigError(f"jobs is {options.jobs}; give at least 1, or 0 to train nothing")
    return options, files, rest


def seconds_left(elapsed: float, done: float, left: float) -> float | None:
    """Estimated seconds left at the pace so far; None before a hundredth of a run is done."""
    return None if done < 0.01 else elapsed / done * left


class AllRuns:
    """Progress over all runs: a bar in a terminal, else a line per run. Runs finished earlier do not count for the pace."""

    def __init__(self, total: int, console: Console, bar: Progress | None, row_of: Callable[[PlannedRun], Row | None]) -> None:
        self.total, self.console, self.bar, self.row_of = total, console, bar, row_of
        self.found, self.trained, self.running = 0, 0, 0.0
        self.began = time.monotonic()
        self.task_id = None if bar is None else bar.add_task("", total=total, line="")

    def there_already(self, count: int) -> None:
        self.found += count

    def impossible(self, count: int) -> None:
        """Subtract runs that cannot start because training failed at every rate."""
        self.total -= count

    def ticked(self, running: float) -> None:
        self.running = running
        if self.bar is not None and self.task_id is not None:
            done = self.found + self.trained
            self.bar.update(self.task_id, completed=done, total=self.total, line=f"{running:.1f} runs in progress, {self._left()}")

    def finished(self, run: PlannedRun) -> None:
        self.trained += 1
        row = self.row_of(run)
        result = (
            "" if row is None else f": {100 * row['after']['sampled']:.1f} % after {row['rollouts']:,} rollouts in {row['seconds']:.0f} s"
        )
        self._say(f"{run.description}{result}")

    def failed(self, failure: Failure) -> None:
        self.trained += 1
        last = next(reversed(failure.said.splitlines()), "")
        self._say(f"{failure.run.description}: FAILED with code {failure.code}: {last}", style="red")

    def _left(self) -> str:
        done = self.trained + self.running
        left = seconds_left(time.monotonic() - self.began, done, self.total - self.found - done)
        return "time left unknown" if left is None else f"{duration(max(0.0, left))} left"

    def _say(self, line: str, style: str = "") -> None:
        ending = "" if self.bar is not None else f" ({self._left()})"
        place = f"{self.found + self.trained}/{self.total}"
        self.console.print(sanitize(f"{place} {line}{ending}"), style=style, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def watching(total: int, row_of: Callable[[PlannedRun], Row | None]) -> Iterator[AllRuns]:
    console = Console() if Console().is_terminal else Console(width=200)
    if not console.is_terminal:
        yield AllRuns(total, console, None, row_of)
        return
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.fields[line]}"))
    with Progress(*columns, console=console) as bar:
        yield AllRuns(total, console, bar, row_of)

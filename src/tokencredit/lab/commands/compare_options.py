"""`compare [CONFIG.toml ...] --recipes ...`: its own options, and those of `train` that are handed on."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from tokencredit.config.messages import shortened
from tokencredit.errors import ConfigError

USAGE = "tokencredit compare [CONFIG.toml ...] [OPTIONS]"
NOT_HANDED_ON = {
    "--recipe": "write --recipes",
    "--seed": "write --seeds and --first-seed",
    "--resume": "the same command goes on where it stopped",
    "--exists": "a comparison goes on in its own folder",
    "--report": "the page of a comparison is always written",
    "--no-report": "the page of a comparison is always written",
}


@dataclass(frozen=True)
class CompareOptions:
    """Train recipes x seeds x bases on the same problems and tell what their paired differences are worth.

    A recipe may have settings of its own: delta:credit.scope=group+credit.lam-max=1.5. Config files and every flag of `tokencredit train`
    (--steps 40, --task cotadd, ...) hold for all. Several --rates are tuned first, for each recipe and base on seeds of their own; the
    best one is then run on fresh seeds, which alone are reported. The same command goes on where it was stopped.
    """

    recipes: str | None = None
    """What is compared, with commas between; see `tokencredit recipes`. Put random-lambda among them: an A/A control."""
    reference: str | None = None
    """What the others are compared with; default dapo, or the first."""
    seeds: int = 8
    """Seeds of every recipe on every base."""
    first_seed: int = 0
    models: str | None = None
    """Bases that all begin from, with commas between; default: what the files or the task say."""
    rates: str | None = None
    """Learning rates, with commas between; several are tuned, one is taken; default: the rate of the files or the task."""
    tune_seeds: int = 2
    """Seeds on which each rate is tried."""
    finalists: int | None = None
    """Of many recipes, how many go on to the reported seeds after tuning (several --rates); default: all."""
    always: str | None = None
    """Recipes that go on beside them, with commas between; the reference and controls always do."""
    threshold: float | None = None
    """Accuracy that rollouts are counted to; default 0.8."""
    jobs: int = 2
    """Runs at a time, a thread each; 0 trains nothing and tells what is there."""
    out: Path | None = None
    """Folder of the comparison; default runs/<number>-compare."""
    stale: Literal["refuse", "retrain", "keep"] = "refuse"
    """Finished runs of other code, or (never kept) of other settings: stop, train them again, or use them."""
    keep_models: bool = False
    """Keep checkpoints, also of runs that failed; default: only numbers stay."""
    dry_run: bool = False
    """Print the runs and stop."""

    @property
    def rates_read(self) -> list[float]:
        try:
            return [] if self.rates is None else [float(rate) for rate in self.rates.split(",")]
        except ValueError:
            raise ConfigError(f"rates is {shortened(self.rates)}; write numbers with commas between: 3e-4,8e-4") from None


def parse_compare(arguments: Sequence[str]) -> tuple[CompareOptions, list[str], list[str]]:
    """Options, config files, and what is `train`'s. Mistakes exit with 2 or raise ConfigError."""
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
            raise ConfigError(f"{name} is not compare's; {NOT_HANDED_ON[name]}")
    if options.jobs < 0:
        raise ConfigError(f"jobs is {options.jobs}; give at least 1, or 0 to train nothing")
    return options, files, rest

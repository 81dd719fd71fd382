"""`tokencredit report`: write one HTML page from run folders."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tokencredit.errors import EXIT_OK, ConfigError
from tokencredit.report import write_report


@dataclass(frozen=True)
class ReportOptions:
    """Write a self-contained HTML report. Several runs are compared on one page."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")]
    """Run folders."""
    out: Path | None = None
    """Output file. Default: report.html in the run folder; for several runs compare.html in the current folder."""


def run(arguments: Sequence[str]) -> int:
    options = tyro.cli(ReportOptions, args=list(arguments), prog="tokencredit report")
    if not options.runs:
        raise ConfigError("no run given; name at least one run folder: tokencredit report runs/001-right-once")
    out = options.out or (options.runs[0] / "report.html" if len(options.runs) == 1 else Path("compare.html"))
    if out.is_dir():
        raise ConfigError(f"out {out} is a folder; name a file, e.g. {out / 'report.html'}")
    write_report(options.runs, out)
    print(f"{out} ({out.stat().st_size / 1e6:.1f} MB)")
    return EXIT_OK

"""`tokencredit report`: run folders in, one HTML page out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tokencredit.errors import EXIT_OK, ConfigError
from tokencredit.report import write_report


@dataclass(frozen=True)
class ReportOptions:
    """Turn a run into one self-contained HTML page; several runs are put side by side on one."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")]
    """Run folders."""
    out: Path | None = None
    """Where to write; default report.html in the run folder, for several runs compare.html here."""


def run(arguments: Sequence[str]) -> int:
    options = tyro.cli(ReportOptions, args=list(arguments), prog="tokencredit report")
    if not options.runs:
        raise ConfigError("report of no run; name at least one run folder: tokencredit report runs/001-right-once")
    out = options.out or (options.runs[0] / "report.html" if len(options.runs) == 1 else Path("compare.html"))
    if out.is_dir():
        raise ConfigError(f"out {out} is a folder; name a file, e.g. {out / 'report.html'}")
    write_report(options.runs, out)
    print(f"{out} ({out.stat().st_size / 1e6:.1f} MB)")
    return EXIT_OK

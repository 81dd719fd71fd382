"""`tokencredit export`: write the best checkpoint of a run as a model folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tokencredit.commands.run_folder import choose_folder
from tokencredit.errors import EXIT_OK
from tokencredit.report.export import export_model


@dataclass(frozen=True)
class ExportOptions:
    """Export the best checkpoint of a run: a transformers model folder with a model card, without optimizer state."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    out: Path | None = None
    """Output folder. Default: model/ in the run folder; an existing model there is replaced."""


def run(arguments: Sequence[str]) -> int:
    options = tyro.cli(ExportOptions, args=list(arguments), prog="tokencredit export")
    out = None if options.out is None else choose_folder(options.out, recipe="", exists="fail")
    print(f"Model: {export_model(options.run, out)}")
    return EXIT_OK

"""`tokencredit show`: print the token view of a run in the terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from tokencredit.errors import EXIT_OK
from tokencredit.report.run_reader import Run
from tokencredit.report.terminal import choose_prompt, choose_step, token_view


@dataclass(frozen=True)
class ShowOptions:
    """Print all responses to one prompt with coloured tokens. Blue: positive; orange: negative."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    step: int | None = None
    """Training step. Default: the last step with tokens."""
    prompt: int | None = None
    """Prompt number. Default: the first prompt that has --by values and both right and wrong responses."""
    by: Literal["credit", "coefficient", "change", "predicted", "entropy"] = "credit"
    """Number that the colours show."""


def run(arguments: Sequence[str]) -> int:
    options = tyro.cli(ShowOptions, args=list(arguments), prog="tokencredit show")
    tokens = choose_step(Run(options.run), options.step)
    parts = token_view(tokens, choose_prompt(tokens, options.prompt, options.by), options.by)
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(width=160, highlight=False)
    for part in parts:
        console.print(part)
    return EXIT_OK

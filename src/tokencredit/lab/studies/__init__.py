"""The studies behind docs/results.md, each a command: `python -m tokencredit.lab.studies.NAME`. `experiments/` holds their results."""

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def parser_of(command: Callable[..., Any]) -> argparse.ArgumentParser:
    """A parser whose help is the docstring of the command."""
    return argparse.ArgumentParser(description=inspect.getdoc(command), formatter_class=argparse.RawDescriptionHelpFormatter)


def run_command(commands: Mapping[str, Callable[[], int | None]]) -> None:
    """Runs the command that the first argument names, with the remaining arguments; exits with 2 when there is no such command."""
    name = sys.argv[1] if len(sys.argv) > 1 else "-h"
    if name in commands:
        sys.argv[0] = f"{sys.argv.pop(0)} {name}"
        sys.exit(commands[name]())
    usage = f"usage: {sys.argv[0]} {{{','.join(commands)}}} ..."
    if name not in ("-h", "--help"):
        sys.exit(f"{usage}\nno command {name!r}")
    lines = (f"  {one:<14}{(inspect.getdoc(command) or '').splitlines()[0]}" for one, command in commands.items())
    print("\n".join([usage, "", *lines]))


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))

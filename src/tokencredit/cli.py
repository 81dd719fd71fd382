"""The `tokencredit` command: import only the requested subcommand, and turn errors into messages and exit codes."""

import os
import sys
from importlib import import_module

from tokencredit.errors import EXIT_BAD_INPUT, EXIT_GUARD, EXIT_OK, EXIT_STORAGE, ConfigError, GuardError, StorageError
from tokencredit.text import suggest

COMMANDS = {
    "train": "train a policy with token-level credit (no argument: the default run)",
    "sft": "fine-tune a policy on a task's demonstrations before `train`",
    "compare": "compare recipes over seeds, with confidence intervals",
    "evaluate": "measure a model on a task: accuracy, pass@k, suitability for RL",
    "chat": "chat with a model or with the policy of a run",
    "export": "export the best checkpoint of a run, with a model card",
    "recipes": "list all recipes, or show one in detail (`recipes NAME`)",
    "report": "write an HTML report of one run or several",
    "show": "print the tokens of a run, coloured by credit",
    "diagnose": "measure what an update did to each token, for any trainer's rollouts",
    "replay": "repeat a training step that a guard refused, from its dump",
    "credit": "assign credit to the rollouts in a file",
    "convert": "convert rollouts logged by TRL or verl to a rollout file",
    "audit": "check whether a recipe's updates on shared tokens cancel",
    "doctor": "show versions, devices and installed extras",
    "bench": "run a benchmark: `bench speed`, `bench microscope` or `bench credit`",
}

IN_THE_LAB = frozenset({"compare", "bench"})
"""Commands that measure methods; they live in `tokencredit.lab.commands`."""

USAGE = "usage: tokencredit COMMAND [OPTIONS]\n\n{}\n\nOptions of a command: tokencredit COMMAND -h"


def _help() -> str:
    return USAGE.format("\n".join(f"  {name:<10}{what}" for name, what in COMMANDS.items()))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return EXIT_OK
    if arguments[0] in ("-V", "--version"):
        from tokencredit.version import own_version

        print(own_version())
        return EXIT_OK
    name, *rest = arguments
    if name not in COMMANDS:
        print(f"tokencredit: no command {name!r}; {suggest(name, COMMANDS)}", file=sys.stderr)
        return EXIT_BAD_INPUT
    package = "tokencredit.lab.commands" if name in IN_THE_LAB else "tokencredit.commands"
    return import_module(f"{package}.{name}").run(rest)


def _print_error(problem: Exception, prefix: str = "") -> None:
    """Print a sanitized message: it may quote a file or a model, and the quote must not control the terminal."""
    from tokencredit.text import sanitize

    message = "\n".join(sanitize(line) for line in str(problem).split("\n"))
    print(f"tokencredit: {prefix}{message}", file=sys.stderr)


def main() -> None:
    # Without this, pydantic adds a web address to every message.
    os.environ.setdefault("PYDANTIC_ERRORS_INCLUDE_URL", "0")
    try:
        code = run(sys.argv[1:])
    except ConfigError as problem:
        _print_error(problem)
        code = EXIT_BAD_INPUT
    except GuardError as problem:
        _print_error(problem, "stopped: ")
        code = EXIT_GUARD
    except StorageError as problem:
        _print_error(problem, "stopped: ")
        code = EXIT_STORAGE
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        # The reader of our output has closed the pipe; without this, Python would report the error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    sys.exit(code)

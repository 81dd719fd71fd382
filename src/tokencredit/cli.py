"""The `tokencredit` command: find the subcommand, load only that, turn mistakes into words and exit codes."""

import os
import sys
from importlib import import_module

from tokencredit.errors import EXIT_BAD_INPUT, EXIT_GUARD, EXIT_OK, EXIT_STORAGE, ConfigError, GuardError, StorageError
from tokencredit.text import suggest

COMMANDS = {
    "train": "train a policy with token-level credit; with no argument, the embedded default",
    "sft": "warm a policy up on a task's own demonstrations, before `train`",
    "compare": "train recipes side by side over seeds and tell what their differences are worth",
    "evaluate": "measure a model on a task, and whether the task suits it",
    "chat": "talk to a model, or put problems to a run as its task did",
    "export": "write a run's best model as a folder to hand on, with a model card",
    "recipes": "list every recipe; `recipes NAME` shows one in full",
    "report": "turn a run, or several side by side, into one HTML page",
    "show": "print the token view of a run in colour",
    "diagnose": "find what an update did to every token, of a run or of any trainer's rollouts",
    "replay": "take the step again that a guard refused, from what it dumped",
    "credit": "assign credit to rollouts from a file",
    "convert": "turn TRL's or verl's logged rollouts into a rollout file",
    "audit": "tell whether opposing updates on shared tokens cancel, recipe by recipe",
    "doctor": "show versions, devices and extras",
    "bench": "measure: `bench speed`, `bench microscope`, `bench credit`",
}

IN_THE_LAB = frozenset({"compare", "bench"})
"""Commands that measure methods instead of training with them."""

USAGE = "usage: tokencredit COMMAND [OPTIONS]\n\n{}\n\nEach command answers -h."


def _help() -> str:
    return USAGE.format("\n".join(f"  {name:<10}{what}" for name, what in COMMANDS.items()))


def run(arguments: list[str]) -> int:
    """Dispatch one command line; returns the exit code."""
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


def _complain(problem: Exception, how: str = "") -> None:
    """A message may quote a file or a model; what it quotes must not steer the terminal."""
    from tokencredit.text import sanitize

    said = "\n".join(sanitize(line) for line in str(problem).split("\n"))
    print(f"tokencredit: {how}{said}", file=sys.stderr)


def main() -> None:
    # pydantic would add a web address to every message it writes.
    os.environ.setdefault("PYDANTIC_ERRORS_INCLUDE_URL", "0")
    try:
        code = run(sys.argv[1:])
    except ConfigError as problem:
        _complain(problem)
        code = EXIT_BAD_INPUT
    except GuardError as problem:
        _complain(problem, "stopped: ")
        code = EXIT_GUARD
    except StorageError as problem:
        _complain(problem, "stopped: ")
        code = EXIT_STORAGE
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        # Whoever read our output has left; python would complain again while closing it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    sys.exit(code)

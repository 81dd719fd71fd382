"""Command line -> configuration. Recipe and stage types are read first, because they decide which flags there are."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from pydantic import ValidationError

from tokencredit.choices import CHOICES
from tokencredit.compose import read_toml, resolve
from tokencredit.config import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.mistakes import in_words

USAGE = "tokencredit train [CONFIG.toml ...] [OPTIONS]"


@dataclass(frozen=True)
class TrainOptions:
    """Train a policy with token-level credit. With no argument: the embedded default, recipe delta.

    Files before the flags are laid over each other, left to right; flags go on top. A stage is chosen by its type
    (--credit.type delta) and then shows its own numbers here.
    """

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    out: Path | None = None
    """Run folder; default runs/<number>-<recipe>."""
    exists: Literal["new", "fail"] = "new"
    """If the run folder exists: take a new numbered one beside it, or stop."""
    resume: Path | None = None
    """Continue the run in this folder from its last checkpoint; takes no other flag."""
    dry_run: bool = False
    """Print the resolved configuration and stop."""


def _value_of(flag: str, arguments: Sequence[str]) -> str | None:
    """The last value given to `flag`, as `--flag value` or `--flag=value`."""
    found = None
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == flag and equals:
            found = value
        elif name == flag and index + 1 < len(arguments):
            found = arguments[index + 1]
    return found


def chosen_types(arguments: Sequence[str]) -> dict[str, Any]:
    """What the flags say about recipe and stage types, as a configuration layer."""
    layer: dict[str, Any] = {}
    recipe = _value_of("--recipe", arguments)
    if recipe is not None:
        layer["recipe"] = recipe
    for field in CHOICES:
        kind = _value_of(f"--{field}.type", arguments)
        if kind is not None:
            layer[field] = {"type": kind}
    return layer


def parse_train(arguments: Sequence[str]) -> TrainOptions:
    """Mistakes exit with code 2 (tyro) or raise ConfigError."""
    files = 0
    while files < len(arguments) and not arguments[files].startswith("-"):
        files += 1
    flags = arguments[files:]
    late = [flag for flag in flags if flag.endswith(".toml") and not flag.startswith("-")]
    if late:
        raise ConfigError(f"{late[0]} comes after a flag; write config files first: {USAGE}")
    config = resolve([*(read_toml(Path(name)) for name in arguments[:files]), chosen_types(flags)])
    try:
        return tyro.cli(
            tyro.conf.AvoidSubcommands[TrainOptions],
            default=TrainOptions(config=config),
            args=list(flags),
            prog=USAGE.split(" [")[0],
        )
    except ValidationError as problem:
        # tyro words the mistakes of one field itself; rules over several fields come out here.
        raise in_words(problem) from None

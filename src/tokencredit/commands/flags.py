"""The command line of commands that train -> configuration.

The recipe and the types of the stages are read first, because they determine which other flags exist. A field that is a table takes
NAME=VALUE pairs: `--task.parameters min_words=2 max_words=4`.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_origin

import tyro
from pydantic import ValidationError
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from tokencredit.config.messages import as_config_error
from tokencredit.config.resolve import read_toml, resolve
from tokencredit.config.syntax import read_table, with_task_flags, write_table
from tokencredit.config.train import CHOICES, STAGES, TrainConfig
from tokencredit.errors import ConfigError

TABLES = ConstructorRegistry()
"""tyro's rules with one more: `table_rule`."""


@TABLES.primitive_rule
def table_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, Any]] | None:
    """A flag of type dict takes any number of NAME=VALUE words."""
    if get_origin(info.type) is not dict:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="[NAME=VALUE ...]",
        instance_from_str=read_table,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=write_table,
    )


USAGE = "tokencredit train [CONFIG.toml ...] [OPTIONS]"


class TrainingKind(NamedTuple):
    """A command that trains (`train`, `sft`)."""

    usage: str
    what: str
    layer: Mapping[str, Any]
    """Configuration below config files and flags."""


TRAIN = TrainingKind(USAGE, "Train a policy with token-level credit. Default: recipe right-once on the embedded model.", {})


@dataclass(frozen=True)
class TrainOptions:
    """Config files come first; later files override earlier ones, and flags override files. A stage is chosen by its type
    (--credit.type delta); -h then lists the fields of that type. Short form of a task: --task countdown, --task reasoning-gym:gcd.
    """

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    out: Path | None = None
    """Run folder. Default: runs/<number>-<recipe>."""
    exists: Literal["new", "fail"] = "new"
    """If the run folder exists: append a number to its name, or fail."""
    resume: Path | None = None
    """Resume the run in this folder from its newest valid checkpoint. Accepts changes such as more --steps or other --guard.*."""
    report: bool = True
    """Write report.html into the run folder at the end of the run."""
    dry_run: bool = False
    """Print the resolved configuration and exit."""


def parse_train(arguments: Sequence[str], kind: TrainingKind = TRAIN) -> TrainOptions:
    """Parse and validate. Mistakes exit with code 2 (tyro) or raise ConfigError."""
    files, flags = _files_and_flags(arguments)
    flags = with_task_flags(flags)
    layers = [read_toml(Path(name)) for name in files]
    chosen = chosen_types(flags)
    if (resumed := _value_of("--resume", flags)) is not None:
        layers.insert(0, _stored_config(Path(resumed)))
        files.insert(0, f"{resumed}/config.toml")
    for name, layer in zip(files, layers, strict=True):
        check_recipe_agrees(name, layer, chosen.get("recipe"))
    config = resolve([kind.layer, *layers, chosen])
    try:
        return tyro.cli(
            tyro.conf.AvoidSubcommands[TrainOptions],
            default=TrainOptions(config=config),
            args=flags,
            registry=TABLES,
            prog=kind.usage.removesuffix(" [OPTIONS]"),
            description=f"{kind.what}\n\n{inspect.getdoc(TrainOptions)}\n\n{_list_choices()}",
        )
    except ValidationError as problem:
        # tyro reports errors of a single field; errors of rules over several fields arrive here.
        raise as_config_error(problem) from None


def _files_and_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split off the leading config files. A config file after a flag is an error: it would be read as the value of the flag."""
    count = next((index for index, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    files, flags = list(arguments[:count]), list(arguments[count:])
    for before, word in pairwise(flags):
        if word.endswith(".toml") and not word.startswith("-") and before not in ("--out", "--model", "--resume"):
            raise ConfigError(f"{word} comes after a flag; write config files first: {USAGE}")
    return files, flags


def _stored_config(folder: Path) -> dict[str, Any]:
    if not (folder / "config.toml").is_file():
        raise ConfigError(f"resume {folder} is not a run folder: it has no config.toml")
    return read_toml(folder / "config.toml")


def check_recipe_agrees(name: str, layer: Mapping[str, Any], recipe: str | None) -> None:
    """Raise ConfigError if --recipe changes the recipe of a file that sets stages: the stages of the file would stay in force."""
    stages = [stage for stage in STAGES if stage in layer]
    if recipe is not None and layer.get("recipe", recipe) != recipe and stages:
        raise ConfigError(
            f"{name} has recipe {layer['recipe']} and sets {', '.join(stages)}, which --recipe {recipe[:60]} would not replace; "
            "use a file without them"
        )


def chosen_types(arguments: Sequence[str]) -> dict[str, Any]:
    """The flags that other defaults depend on, as a layer: recipe, engine, precision, stage types and group size."""
    named = {field: _value_of(f"--{field}", arguments) for field in ("recipe", "engine", "weights", "dtype")}
    layer: dict[str, Any] = {field: value for field, value in named.items() if value is not None}
    for field in CHOICES:
        kind = _value_of(f"--{field}.type", arguments)
        if kind is not None:
            layer[field] = {"type": kind}
    size = _value_of("--sampling.group-size", arguments)
    if size is not None and size.isdecimal():
        layer["sampling"] = {"group_size": int(size)}
    return layer


def _value_of(flag: str, arguments: Sequence[str]) -> str | None:
    """The last value given to `flag`, as `--flag value` or `--flag=value`, with - or _ between words."""
    found = None
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if (same := name.replace("_", "-") == flag) and equals:
            found = value
        elif same and index + 1 < len(arguments):
            found = arguments[index + 1]
    return found


def _list_choices() -> str:
    """The types of each stage: -h lists the fields of the chosen types only."""
    return "\n".join(f"--{field}.type: {', '.join(types)}" for field, types in CHOICES.items())

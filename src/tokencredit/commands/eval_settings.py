"""`evaluate MODEL [CONFIG.toml ...]`: from the command line to the settings under which a model is asked.

A run folder given as a model brings its own configuration: how its prompts were put, and how it sampled.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from pydantic import Field, ValidationError

from tokencredit.commands.flags import TABLES, chosen_types
from tokencredit.config import CountOrZero, Frozen
from tokencredit.config.messages import as_config_error, shortened
from tokencredit.config.resolve import overlay, read_toml, resolve
from tokencredit.config.syntax import read_table, with_task_fields, with_task_flags
from tokencredit.config.task import OwnTask, StepsTask, TaskChoice
from tokencredit.config.train import CHOICES, Prompt, Sampling, TrainConfig
from tokencredit.errors import ConfigError

HOW_IT_RUNS = ("dtype", "weights")
"""What is taken from a run even where another task is asked."""


def is_run(name: str) -> bool:
    try:
        return (Path(name) / "config.toml").is_file() and (Path(name) / "checkpoints").is_dir()
    except (OSError, ValueError):
        return False


def stored_layer(name: str, task: str | None = None) -> dict[str, Any]:
    """The run's config.toml, or what of it holds for a `task` of another type.

    A folder may come from anybody: what would run code (the model's, a program's, a task's own) is not taken from it, but allowed anew.
    """
    layer = read_toml(Path(name) / "config.toml")
    layer.pop("trust_remote_code", None)
    stored = layer.get("task")
    if not isinstance(stored, dict):
        return layer
    if task is not None and task != stored.get("type"):
        return {field: layer[field] for field in HOW_IT_RUNS if field in layer}
    layer["task"] = {field: value for field, value in stored.items() if field != "allow_code_execution"}
    return layer


def refuse_own_task(name: str, config: TrainConfig, *, instead: str) -> None:
    """A task of somebody's own is a program, which nobody allowed by naming a folder."""
    if isinstance(config.task, OwnTask):
        raise ConfigError(f"run {name} has a task of somebody's own, which is code, {shortened(config.task.path)}; {instead}")


USAGE = "tokencredit evaluate MODEL [CONFIG.toml ...] [OPTIONS]"
MAY_VARY = ("task", "prompt", "sampling")
UNREAD: Mapping[str, Any] = {"optimizer": {"steps_per_batch": 1, "max_tokens": 10**9}, "diagnose": {"every": 0}}
"""Numbers of training that rules over several fields would hold against what is only asked."""


class Asked(Frozen):
    """What of a configuration is read where a model is only asked; the rest of a config file is checked and left alone."""

    task: TaskChoice = StepsTask()
    prompt: Prompt = Prompt()
    sampling: Sampling = Sampling()
    seed: CountOrZero = 0
    """Which problems are asked and what is drawn follow from it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Precision of the passes."""
    weights: Literal["float32", "bfloat16", "bfloat16-stochastic"] = "float32"
    """What weights are kept in."""
    sampler: Literal["auto", "plain", "fast", "vllm"] = "auto"
    """Who draws responses; auto: the fast sampler on a GPU in bfloat16 where it knows the model, else the plain loop."""
    vllm_memory: Annotated[float, Field(gt=0, lt=1)] = 0.4
    """Share of the GPU's memory that vLLM may take."""
    threads: CountOrZero = 0
    """CPU threads; 0 picks 1 for models under 5 M parameters, else all cores."""
    trust_remote_code: bool = False
    """Run Python code that lies in the model's folder. A run folder given as the model cannot allow it by itself."""


@dataclass(frozen=True)
class EvaluateOptions:
    """Ask a model the problems of a task and tell whether the task suits it: accuracy with intervals, pass@k, how many groups would teach.

    MODEL is a shipped base, smollm2, a folder, a run (its best checkpoint, asked as in training) or an id on the hub.
    """

    asked: Annotated[Asked, tyro.conf.arg(name="")]
    samples: int = 8
    """Sampled responses per problem."""
    problems: int = 128
    """Problems to ask."""
    split: Literal["held-out", "train"] = "held-out"
    """Which side of the task's problems."""
    vary: str | None = None
    """Ask under several settings: FIELD=VALUE,VALUE,... of task, prompt or sampling, such as task.digits=1,2,3."""
    json: str | None = None
    """Write every number to this file; - prints it instead of the tables."""
    responses: Path | None = None
    """Write every sampled response to this rollout file (.jsonl or .parquet), as `tokencredit credit` reads it."""
    force: bool = False
    """Overwrite these files."""


@dataclass(frozen=True)
class Setting:
    """One thing to measure: how it is called, and the configuration."""

    name: str
    config: TrainConfig


def parse_evaluate(arguments: Sequence[str]) -> tuple[str, EvaluateOptions, list[Setting]]:
    """The model, the options, and one setting, or one per value that `--vary` gives. Mistakes exit with 2 or raise ConfigError."""
    count = next((index for index, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    words, flags = list(arguments[:count]), with_task_flags(arguments[count:])
    if not words and not {"-h", "--help"} & set(flags):
        raise ConfigError(f"evaluate needs a model first: {USAGE}")
    model, files = next(iter(words), "MODEL"), words[1:]
    for name in files:
        if not name.endswith(".toml"):
            raise ConfigError(f"{shortened(name)} is no config file (.toml); one model is evaluated at a time: {USAGE}")
    layers: list[Mapping[str, Any]] = [read_toml(Path(name)) for name in files]
    layers.append(chosen_types(flags))
    task = _task_type(layers)
    if is_run(model):
        layers.insert(0, stored_layer(model, task))
    whole = resolve([*layers, UNREAD])
    if task is None:
        refuse_own_task(model, whole, instead="name it with --task own:FILE:NAME to run it")
    default = EvaluateOptions(asked=Asked.model_construct(**{name: getattr(whole, name) for name in Asked.model_fields}))
    try:
        options = tyro.cli(
            tyro.conf.AvoidSubcommands[EvaluateOptions],
            default=default,
            args=flags,
            registry=TABLES,
            prog=USAGE.removesuffix(" [OPTIONS]"),
            description=f"{inspect.getdoc(EvaluateOptions)}\n\n--task.type: {', '.join(CHOICES['task'])}",
        )
    except ValidationError as problem:
        raise as_config_error(problem) from None
    for name in ("samples", "problems"):
        if getattr(options, name) < 1:
            raise ConfigError(f"{name} is {getattr(options, name)}; give at least 1")
    if options.asked.sampling.prompts != whole.sampling.prompts:
        raise ConfigError(
            f"sampling.prompts is {options.asked.sampling.prompts}, which evaluate does not read; --problems says how many are asked"
        )
    return model, options, _settings(model, options)


def _task_type(layers: Sequence[Mapping[str, Any]]) -> str | None:
    tasks = [with_task_fields(layer).get("task") for layer in layers]
    named = [task["type"] for task in tasks if isinstance(task, Mapping) and isinstance(task.get("type"), str)]
    return named[-1] if named else None


def _settings(model: str, options: EvaluateOptions) -> list[Setting]:
    """Stages have no say here: they are those of the plainest recipe."""
    plain = resolve([{"recipe": "grpo"}, UNREAD])
    if options.vary is None:
        return [Setting("", _on(plain, model, options.asked))]
    field, equals, values = options.vary.partition("=")
    table, _, inner = field.replace("-", "_").partition(".")
    if not equals or not values or table not in MAY_VARY or not inner:
        example = "task.digits=1,2,3"
        raise ConfigError(f"vary is {shortened(options.vary)}; write a field of {', '.join(MAY_VARY)} and its values: {example}")
    return [
        Setting(f"{table}.{inner}={value}", _on(plain, model, _changed(options.asked, table, inner, value))) for value in values.split(",")
    ]


def _changed(asked: Asked, table: str, inner: str, value: str) -> Asked:
    layer: Any = read_table([f"value={value}"])["value"]
    for name in reversed((table, *inner.split("."))):
        layer = {name: layer}
    try:
        return Asked.model_validate(overlay(asked.model_dump(), layer), strict=True)
    except ValidationError as problem:
        raise ConfigError(f"vary: {as_config_error(problem)}") from None


def _on(plain: TrainConfig, model: str, asked: Asked) -> TrainConfig:
    return plain.model_copy(update={name: getattr(asked, name) for name in Asked.model_fields} | {"model": model})

"""The command line of `tokencredit evaluate MODEL [CONFIG.toml ...]`: options, and one configuration per setting to measure.

If MODEL is a run folder, its stored configuration (prompt format, sampling) is the default.
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


class EvalConfig(Frozen):
    """The fields of a TrainConfig that an evaluation reads. Other fields of a config file are validated and ignored."""

    task: TaskChoice = StepsTask()
    prompt: Prompt = Prompt()
    sampling: Sampling = Sampling()
    seed: CountOrZero = 0
    """Seed of the problems and of the sampling."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Precision of the forward passes."""
    weights: Literal["float32", "bfloat16", "bfloat16-stochastic"] = "float32"
    """Precision of the stored weights."""
    sampler: Literal["auto", "plain", "fast", "vllm"] = "auto"
    """Sampler; auto: the fast sampler on a GPU in bfloat16 if it supports the model, else the plain loop."""
    vllm_memory: Annotated[float, Field(gt=0, lt=1)] = 0.4
    """Share of the GPU memory for vLLM."""
    threads: CountOrZero = 0
    """CPU threads; 0: 1 for models under 5 M parameters, else all cores."""
    trust_remote_code: bool = False
    """Execute Python code from the model folder. The configuration of a run cannot switch this on."""


@dataclass(frozen=True)
class EvaluateOptions:
    """Measure a model on a task: accuracy and pass@k with intervals, the share of mixed groups, and whether the task suits the model.

    MODEL is a shipped base, smollm2, a model folder, a run (its best checkpoint, with the prompts of its training) or a hub id.
    """

    config: Annotated[EvalConfig, tyro.conf.arg(name="")]
    samples: int = 8
    """Sampled responses per problem."""
    problems: int = 128
    """Number of problems."""
    split: Literal["held-out", "train"] = "held-out"
    """Split of the task's problems."""
    vary: str | None = None
    """Measure several settings: FIELD=VALUE,VALUE,... of task, prompt or sampling, such as task.digits=1,2,3."""
    json: str | None = None
    """JSON file for all numbers; - prints JSON instead of the tables."""
    responses: Path | None = None
    """Rollout file for all sampled responses (.jsonl or .parquet), readable by `tokencredit credit`."""
    force: bool = False
    """Overwrite existing output files."""


@dataclass(frozen=True)
class Setting:
    """One setting to measure: its name (empty if there is only one) and its configuration."""

    name: str
    config: TrainConfig


USAGE = "tokencredit evaluate MODEL [CONFIG.toml ...] [OPTIONS]"

MAY_VARY = ("task", "prompt", "sampling")

UNUSED_TRAINING: Mapping[str, Any] = {"optimizer": {"steps_per_batch": 1, "max_tokens": 10**9}, "diagnose": {"every": 0}}
"""Neutral values of training fields, so that rules over several fields do not reject a configuration that is only evaluated."""


def parse_evaluate(arguments: Sequence[str]) -> tuple[str, EvaluateOptions, list[Setting]]:
    """Return the model, the options and the settings: one, or one per `--vary` value. Mistakes exit with 2 or raise ConfigError."""
    count = next((index for index, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    words, flags = list(arguments[:count]), with_task_flags(arguments[count:])
    if not words and not {"-h", "--help"} & set(flags):
        raise ConfigError(f"evaluate needs a model first: {USAGE}")
    model, files = next(iter(words), "MODEL"), words[1:]
    for name in files:
        if not name.endswith(".toml"):
            raise ConfigError(f"{shortened(name)} is not a config file (.toml); evaluate takes one model: {USAGE}")
    layers: list[Mapping[str, Any]] = [read_toml(Path(name)) for name in files]
    layers.append(chosen_types(flags))
    task = _task_type(layers)
    if is_run(model):
        layers.insert(0, stored_layer(model, task))
    whole = resolve([*layers, UNUSED_TRAINING])
    if task is None:
        refuse_custom_task(model, whole, instead="name it with --task own:FILE:NAME to run it")
    default = EvaluateOptions(config=EvalConfig.model_construct(**{name: getattr(whole, name) for name in EvalConfig.model_fields}))
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
    if options.config.sampling.prompts != whole.sampling.prompts:
        raise ConfigError(f"sampling.prompts is {options.config.sampling.prompts}, which evaluate does not read; use --problems instead")
    return model, options, _settings(model, options)


def _task_type(layers: Sequence[Mapping[str, Any]]) -> str | None:
    tasks = [with_task_fields(layer).get("task") for layer in layers]
    named = [task["type"] for task in tasks if isinstance(task, Mapping) and isinstance(task.get("type"), str)]
    return named[-1] if named else None


def _settings(model: str, options: EvaluateOptions) -> list[Setting]:
    """One setting per `--vary` value. The stages of the recipe do not matter here; grpo is a placeholder."""
    plain = resolve([{"recipe": "grpo"}, UNUSED_TRAINING])
    if options.vary is None:
        return [Setting("", _on(plain, model, options.config))]
    field, equals, values = options.vary.partition("=")
    table, _, inner = field.replace("-", "_").partition(".")
    if not equals or not values or table not in MAY_VARY or not inner:
        example = "task.digits=1,2,3"
        raise ConfigError(f"vary is {shortened(options.vary)}; write a field of {', '.join(MAY_VARY)} and its values, such as {example}")
    return [
        Setting(f"{table}.{inner}={value}", _on(plain, model, _changed(options.config, table, inner, value))) for value in values.split(",")
    ]


def _changed(config: EvalConfig, table: str, inner: str, value: str) -> EvalConfig:
    layer: Any = read_table([f"value={value}"])["value"]
    for name in reversed((table, *inner.split("."))):
        layer = {name: layer}
    try:
        return EvalConfig.model_validate(overlay(config.model_dump(), layer), strict=True)
    except ValidationError as problem:
        raise ConfigError(f"vary: {as_config_error(problem)}") from None


def _on(plain: TrainConfig, model: str, evaluated: EvalConfig) -> TrainConfig:
    return plain.model_copy(update={name: getattr(evaluated, name) for name in EvalConfig.model_fields} | {"model": model})


NUMERICS = ("dtype", "weights")
"""Fields taken from a run even if another task is evaluated."""


def is_run(name: str) -> bool:
    """Whether a model argument is a run folder."""
    try:
        return (Path(name) / "config.toml").is_file() and (Path(name) / "checkpoints").is_dir()
    except (OSError, ValueError):
        return False


def stored_layer(name: str, task: str | None = None) -> dict[str, Any]:
    """The run's config.toml; for a `task` of another type, only the fields that still apply.

    The folder may come from an untrusted source, so permissions to run code are dropped: the user must grant them again.
    """
    layer = read_toml(Path(name) / "config.toml")
    layer.pop("trust_remote_code", None)
    stored = layer.get("task")
    if not isinstance(stored, dict):
        return layer
    if task is not None and task != stored.get("type"):
        return {field: layer[field] for field in NUMERICS if field in layer}
    layer["task"] = {field: value for field, value in stored.items() if field != "allow_code_execution"}
    return layer


def refuse_custom_task(name: str, config: TrainConfig, *, instead: str) -> None:
    """Raise ConfigError for a custom task: it is a program, and naming a run folder does not permit running it."""
    if isinstance(config.task, OwnTask):
        raise ConfigError(f"run {name} has a custom task, which runs code, {shortened(config.task.path)}; {instead}")

"""Layers to one configuration: defaults < task preset < recipe < files, left to right < flags."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from tokencredit.config import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.mistakes import in_words
from tokencredit.nearest import nearest
from tokencredit.presets import ENGINE_PRESETS, REVISION_PRESETS, TASK_PRESETS
from tokencredit.recipes import RECIPES


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"config file {path} does not exist") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise ConfigError(f"config file {path} cannot be read as TOML: {problem}") from None


def to_toml(config: TrainConfig) -> str:
    """Every field, so that nothing a recipe says can come back in; an unset one is written "none"."""

    def spelled_out(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spelled_out(inner) for key, inner in value.items()}
        return "none" if value is None else value

    return tomli_w.dumps(spelled_out(config.model_dump()))


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables key by key; a table that names another `type` replaces the one below whole."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = value
        if isinstance(old, Mapping) and isinstance(value, Mapping) and value.get("type", old.get("type")) == old.get("type"):
            merged[key] = overlay(old, value)
    return merged


def resolve(layers: Iterable[Mapping[str, Any]]) -> TrainConfig:
    """One configuration from partial ones, lowest first; recipe and task preset go underneath them all."""
    asked: dict[str, Any] = {}
    for layer in layers:
        asked = overlay(asked, layer)
    name = asked.get("recipe", TrainConfig.model_fields["recipe"].default)
    if not isinstance(name, str) or name not in RECIPES:
        raise ConfigError(f"recipe {name!r} is not known; {nearest(str(name), RECIPES)}")
    task = asked.get("task", {})
    task_type = task.get("type", "steps") if isinstance(task, Mapping) else "steps"
    below = overlay({"task": {"type": task_type}} | TASK_PRESETS.get(task_type, {}), RECIPES[name].recipe.model_dump(exclude_none=True))
    below = overlay(below, ENGINE_PRESETS.get(str(asked.get("engine")), {}))
    shape = overlay(below, asked).get("shape")
    if isinstance(shape, Mapping) and shape.get("type") == "ibpo":
        below = overlay(below, REVISION_PRESETS.get(task_type, {}))
    return validated(overlay(below, asked))


def validated(fields: Mapping[str, Any]) -> TrainConfig:
    try:
        return TrainConfig.model_validate(fields)
    except ValidationError as problem:
        raise in_words(problem) from None

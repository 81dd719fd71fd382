"""Layers to one configuration: defaults < task preset < recipe < files, left to right < flags."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from tokencredit.config import Recipe, TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.nearest import nearest
from tokencredit.presets import TASK_PRESETS
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
    if name not in RECIPES:
        raise ConfigError(f"recipe {name!r} is not known; {nearest(str(name), RECIPES)}")
    task = asked.get("task", {})
    task_type = task.get("type", "steps") if isinstance(task, Mapping) else "steps"
    below = overlay(TASK_PRESETS.get(task_type, {}), RECIPES[name].recipe.model_dump(exclude_none=True))
    return validated(overlay(below, asked))


def validated(fields: Mapping[str, Any]) -> TrainConfig:
    try:
        return TrainConfig.model_validate(fields)
    except ValidationError as problem:
        raise in_words(problem) from None


def in_words(problem: ValidationError) -> ConfigError:
    """What pydantic found, one line per mistake, as a person would say it."""
    return ConfigError("\n".join(_one_in_words(dict(error)) for error in problem.errors()))


def _one_in_words(error: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        *path, key = error["loc"]
        return f"{_without_tags(path, key)} is not a setting; {nearest(str(key), _fields_at(path))}"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "union_tag_invalid":
        return f"{where}.type is {error['ctx']['tag']!r}; it must be one of {error['ctx']['expected_tags']}"
    return f"{_without_tags(list(error['loc'][:-1]), error['loc'][-1]) if error['loc'] else 'config'} is {error['input']!r}: {error['msg']}"


def _without_tags(path: list[Any], key: Any) -> str:
    """Pydantic names the chosen union member in a location; people do not write it."""
    parts: list[str] = []
    model: type[BaseModel] | None = TrainConfig
    for part in [*path, key]:
        if model is not None and part not in model.model_fields and part in _tags():
            continue
        parts.append(str(part))
    return ".".join(parts)


def _tags() -> set[str]:
    return {member for members in _choices().values() for member in members}


def _choices() -> dict[str, dict[str, type[BaseModel]]]:
    """Field -> type name -> class, for every field that is a choice."""
    found: dict[str, dict[str, type[BaseModel]]] = {}
    for name, field in TrainConfig.model_fields.items():
        members = getattr(field.annotation, "__args__", (field.annotation,))
        typed = [
            member for member in members if isinstance(member, type) and issubclass(member, BaseModel) and "type" in member.model_fields
        ]
        if typed:
            found[name] = {member.model_fields["type"].default: member for member in typed}
    return found


def _fields_at(path: list[Any]) -> list[str]:
    if not path:
        return list(TrainConfig.model_fields)
    choices = _choices().get(str(path[0]))
    if choices is not None:
        return list(choices[path[1]].model_fields) if len(path) > 1 else sorted({f for c in choices.values() for f in c.model_fields})
    annotation = TrainConfig.model_fields[str(path[0])].annotation
    return list(annotation.model_fields) if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []


STAGES = tuple(name for name in _choices() if name in Recipe.model_fields)
CHOICES = _choices()

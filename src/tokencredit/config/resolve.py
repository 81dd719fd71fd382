"""Layers to one configuration: defaults < task preset < recipe < files, left to right < flags."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from tokencredit.config.messages import as_config_error, first_line, shortened
from tokencredit.config.presets import ENGINE_PRESETS, REVISION_PRESETS, TASK_PRESETS, WEIGHTS_PRESETS
from tokencredit.config.recipe import Recipe
from tokencredit.config.recipes import RECIPES
from tokencredit.config.syntax import with_task_fields
from tokencredit.config.train import METHODS, TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.text import suggest

DEEPEST = 8
"""Tables in tables that a config file may have; only what task.parameters holds lies deeper than two."""


def read_toml(path: Path) -> dict[str, Any]:
    said = f"config file {path}" if len(str(path)) <= 300 else f"config file {str(path)[:60]}..."
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        within = [table]
        for _ in range(DEEPEST):
            within = [inner for outer in within for inner in outer.values() if isinstance(inner, dict)]
        if within:
            raise RecursionError
    except FileNotFoundError:
        raise ConfigError(f"{said} does not exist") from None
    except RecursionError:
        raise ConfigError(f"{said} cannot be read as TOML: it is nested too deeply; a setting is written [credit] lam_min = 0.8") from None
    except OSError as problem:
        raise ConfigError(f"{said} cannot be read as TOML: {problem.strerror or type(problem).__name__}") from None
    except ValueError as problem:
        # Not TOML, not UTF-8, or a number of thousands of digits.
        raise ConfigError(f"{said} cannot be read as TOML: {first_line(problem)}") from None
    return table


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
        asked = overlay(asked, with_task_fields(layer))
    name = asked.get("recipe", TrainConfig.model_fields["recipe"].default)
    if not isinstance(name, str) or name not in RECIPES:
        written = shortened(name)
        raise ConfigError(f"recipe {written} is not known; {suggest(written[1:-1], RECIPES)}")
    task = asked.get("task", {})
    task_type = task.get("type", "steps") if isinstance(task, Mapping) else "steps"
    task_type = task_type if isinstance(task_type, str) else "steps"
    below = overlay({"task": {"type": task_type}} | TASK_PRESETS.get(task_type, {}), RECIPES[name].recipe.model_dump(exclude_none=True))
    for presets, chosen in ((ENGINE_PRESETS, asked.get("engine")), (WEIGHTS_PRESETS, asked.get("weights"))):
        below = overlay(below, presets.get(chosen, {}) if isinstance(chosen, str) else {})
    shape = overlay(below, asked).get("shape")
    method = METHODS["shape"].get(str(shape.get("type"))) if isinstance(shape, Mapping) else None
    if method is not None and "revisions" in method.needs:
        below = overlay(below, REVISION_PRESETS.get(task_type, {}))
    entry = RECIPES[name]
    fields = overlay(overlay(below, {"optimizer": dict(entry.optimizer)}), asked)
    return validated(_each_prompt_once(fields, asked) if entry.asks_once else fields)


def _each_prompt_once(fields: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """As many prompts as there were responses. Who names a group size lays the batch out himself; TRL samples groups only."""
    told = asked.get("sampling", {})
    # Into how many steps a batch can be dealt is told by how it will be laid out, not by the groups it would have had.
    config = validated(overlay(fields, {"optimizer": {"steps_per_batch": 1}}))
    if "group_size" in told or config.engine == "trl" or config.needs_siblings() is not None:
        return dict(fields)
    sampling = config.sampling
    prompts = sampling.prompts if "prompts" in told else sampling.prompts * sampling.group_size
    return overlay(fields, {"sampling": {"prompts": prompts, "group_size": 1}})


def validated(fields: Mapping[str, Any]) -> TrainConfig:
    """Strict: a file that says true or "3" where a number belongs means something else."""
    try:
        return TrainConfig.model_validate(fields, strict=True)
    except ValidationError as problem:
        raise as_config_error(problem) from None


RecipeSource = str | Path | Mapping[str, Any] | Recipe
"""A recipe as a caller gives it: a name, a TOML file, a mapping of differences, or a Recipe."""


def read_recipe(source: RecipeSource) -> Recipe:
    """`"delta"`, `"my.toml"`, or `{"recipe": "dapo", "credit": {"type": "delta"}}`: a named recipe with differences.

    A file or mapping may hold a recipe's fields only; what the engine decides itself has no place there.
    """
    if isinstance(source, Recipe):
        return _validated({field: getattr(source, field) for field in Recipe.model_fields})
    if isinstance(source, Path) or (isinstance(source, str) and source.endswith(".toml")):
        source = read_toml(Path(source))
    if not isinstance(source, str | Mapping):
        raise ConfigError(f"recipe is {source!r}; give a name, a TOML file, a mapping of differences or a Recipe")
    asked = {"recipe": source} if isinstance(source, str) else dict(source)
    name = asked.pop("recipe", TrainConfig.model_fields["recipe"].default)
    if not isinstance(name, str) or name not in RECIPES:
        raise ConfigError(f"recipe {name!r} is not known; {suggest(str(name), RECIPES)}")
    for key in (key for key in asked if key not in Recipe.model_fields):
        advice = "set it in the engine" if key in TrainConfig.model_fields else suggest(str(key), Recipe.model_fields)
        raise ConfigError(f"{key!r} is no part of a recipe; {advice}")
    return _validated(overlay(RECIPES[name].recipe.model_dump(exclude_none=True), asked))


def _validated(fields: Mapping[str, Any]) -> Recipe:
    try:
        return Recipe.model_validate(fields)
    except ValidationError as problem:
        raise as_config_error(problem) from None

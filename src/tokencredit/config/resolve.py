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
    named = f"config file {path}" if len(str(path)) <= 300 else f"config file {str(path)[:60]}..."
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        within = [table]
        for _ in range(DEEPEST):
            within = [inner for outer in within for inner in outer.values() if isinstance(inner, dict)]
        if within:
            raise RecursionError
    except FileNotFoundError:
        raise ConfigError(f"{named} does not exist") from None
    except RecursionError:
        raise ConfigError(f"{named} cannot be read as TOML: it is nested too deeply; a setting is written [credit] lam_min = 0.8") from None
    except OSError as problem:
        raise ConfigError(f"{named} cannot be read as TOML: {problem.strerror or type(problem).__name__}") from None
    except ValueError as problem:
        # Not TOML, not UTF-8, or a number of thousands of digits.
        raise ConfigError(f"{named} cannot be read as TOML: {first_line(problem)}") from None
    return table


def to_toml(config: TrainConfig) -> str:
    """Write every field, so that no default of a recipe applies when the file is read back; an unset field is written "none"."""

    def spelled_out(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spelled_out(inner) for key, inner in value.items()}
        return "none" if value is None else value

    return tomli_w.dumps(spelled_out(config.model_dump()))


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables key by key; a table with another `type` replaces the one below completely."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = value
        if isinstance(old, Mapping) and isinstance(value, Mapping) and value.get("type", old.get("type")) == old.get("type"):
            merged[key] = overlay(old, value)
    return merged


def resolve(layers: Iterable[Mapping[str, Any]]) -> TrainConfig:
    """One configuration from partial ones, lowest first; recipe and task preset go underneath them all."""
    given: dict[str, Any] = {}
    for layer in layers:
        given = overlay(given, with_task_fields(layer))
    name = given.get("recipe", TrainConfig.model_fields["recipe"].default)
    if not isinstance(name, str) or name not in RECIPES:
        written = shortened(name)
        raise ConfigError(f"recipe {written} is not known; {suggest(written[1:-1], RECIPES)}")
    task = given.get("task", {})
    task_type = task.get("type", "steps") if isinstance(task, Mapping) else "steps"
    task_type = task_type if isinstance(task_type, str) else "steps"
    below = overlay({"task": {"type": task_type}} | TASK_PRESETS.get(task_type, {}), RECIPES[name].recipe.model_dump(exclude_none=True))
    for presets, chosen in ((ENGINE_PRESETS, given.get("engine")), (WEIGHTS_PRESETS, given.get("weights"))):
        below = overlay(below, presets.get(chosen, {}) if isinstance(chosen, str) else {})
    shape = overlay(below, given).get("shape")
    method = METHODS["shape"].get(str(shape.get("type"))) if isinstance(shape, Mapping) else None
    if method is not None and "revisions" in method.needs:
        below = overlay(below, REVISION_PRESETS.get(task_type, {}))
    entry = RECIPES[name]
    fields = overlay(overlay(below, {"optimizer": dict(entry.optimizer)}), given)
    return validated(_each_prompt_once(fields, given) if entry.asks_once else fields)


def _each_prompt_once(fields: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """As many prompts as there were responses, one response each. A group size from the user is kept; TRL always samples groups."""
    sampled = given.get("sampling", {})
    # The limit on optimizer steps depends on the new layout, so the first validation uses a single step.
    config = validated(overlay(fields, {"optimizer": {"steps_per_batch": 1}}))
    if "group_size" in sampled or config.engine == "trl" or config.needs_siblings() is not None:
        return dict(fields)
    sampling = config.sampling
    prompts = sampling.prompts if "prompts" in sampled else sampling.prompts * sampling.group_size
    return overlay(fields, {"sampling": {"prompts": prompts, "group_size": 1}})


def validated(fields: Mapping[str, Any]) -> TrainConfig:
    """Validate strictly: true or "3" in the place of a number is a mistake."""
    try:
        return TrainConfig.model_validate(fields, strict=True)
    except ValidationError as problem:
        raise as_config_error(problem) from None


RecipeSource = str | Path | Mapping[str, Any] | Recipe
"""How a caller may give a recipe: a name, a TOML file, a mapping of differences, or a Recipe."""


def read_recipe(source: RecipeSource) -> Recipe:
    """`"delta"`, `"my.toml"`, or `{"recipe": "dapo", "credit": {"type": "delta"}}`: a named recipe with differences.

    A file or mapping may hold only fields of a recipe; settings of the engine are refused.
    """
    if isinstance(source, Recipe):
        return _validated({field: getattr(source, field) for field in Recipe.model_fields})
    if isinstance(source, Path) or (isinstance(source, str) and source.endswith(".toml")):
        source = read_toml(Path(source))
    if not isinstance(source, str | Mapping):
        raise ConfigError(f"recipe is {source!r}; give a name, a TOML file, a mapping of differences or a Recipe")
    given = {"recipe": source} if isinstance(source, str) else dict(source)
    name = given.pop("recipe", TrainConfig.model_fields["recipe"].default)
    if not isinstance(name, str) or name not in RECIPES:
        raise ConfigError(f"recipe {name!r} is not known; {suggest(str(name), RECIPES)}")
    for key in (key for key in given if key not in Recipe.model_fields):
        advice = "set it in the engine" if key in TrainConfig.model_fields else suggest(str(key), Recipe.model_fields)
        raise ConfigError(f"{key!r} is no part of a recipe; {advice}")
    return _validated(overlay(RECIPES[name].recipe.model_dump(exclude_none=True), given))


def _validated(fields: Mapping[str, Any]) -> Recipe:
    try:
        return Recipe.model_validate(fields)
    except ValidationError as problem:
        raise as_config_error(problem) from None

"""Turn pydantic's validation errors into one-line messages that name the field, the value and what would be right."""

from typing import Any

from pydantic import BaseModel, ValidationError

from tokencredit.config.train import CHOICES, TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.text import suggest

MISTAKES_NAMED = 6


def shortened(value: Any) -> str:
    """The repr of a value, cut so that it fits into a message."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # lists in lists without end; a number of thousands of digits
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= 60 else f"{text[:57]}..."


def first_line(problem: Exception) -> str:
    """The first line of an error message of another library."""
    return next(iter(str(problem)[:300].splitlines()), type(problem).__name__)


def as_config_error(problem: ValidationError) -> ConfigError:
    """One line per mistake; only the first `MISTAKES_NAMED` of them."""
    errors = problem.errors()
    lines = [_line(dict(error)) for error in errors[:MISTAKES_NAMED]]
    return ConfigError("\n".join([*lines, f"and {len(errors) - len(lines)} more mistakes"] if len(lines) < len(errors) else lines))


def _line(error: dict[str, Any]) -> str:
    location: tuple[Any, ...] = error["loc"]
    if error["type"] == "value_error":
        said = str(error["ctx"]["error"])
        return said if not location or f"{location[0]}." in said else f"{location[0]}: {said}"
    if error["type"] == "union_tag_invalid":
        return f"{_written(location)}.type is {shortened(error['ctx']['tag'])}; it must be one of {error['ctx']['expected_tags']}"
    if error["type"] == "union_tag_not_found":
        return f"{_written(location)} has no type; it must be one of {', '.join(CHOICES[location[0]])}"
    if error["type"] == "extra_forbidden":
        return f"{_written(location)} is not a setting; {suggest(str(location[-1])[:60], _valid_keys(location))}"
    said = "Input should be a list" if error["type"] == "tuple_type" else error["msg"]
    return f"{_written(location)} is {shortened(error['input'])}: {said}"


def _written(location: tuple[Any, ...]) -> str:
    """The dotted name as in a file (`credit.lam_min`), without the type name that pydantic inserts."""
    field, *rest = location
    if rest and rest[0] in CHOICES.get(field, {}):
        rest = rest[1:]
    return ".".join(str(part) if str(part).isprintable() and len(str(part)) <= 60 else shortened(part) for part in (field, *rest))


def _valid_keys(location: tuple[Any, ...]) -> list[str]:
    """The valid keys of the table that holds the unknown key."""
    if len(location) == 1:
        return list(TrainConfig.model_fields)
    chosen = CHOICES.get(location[0], {}).get(location[1]) or TrainConfig.model_fields[location[0]].annotation
    return list(chosen.model_fields) if isinstance(chosen, type) and issubclass(chosen, BaseModel) else []

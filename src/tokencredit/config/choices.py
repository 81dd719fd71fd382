"""Which fields of a configuration are a choice between types, read off the configuration classes themselves."""

from pydantic import BaseModel

from tokencredit.config import Recipe
from tokencredit.config.train import TrainConfig


def _types_of(field: str) -> dict[str, type[BaseModel]]:
    annotation = TrainConfig.model_fields[field].annotation
    members = getattr(annotation, "__args__", (annotation,))
    classes = [member for member in members if isinstance(member, type) and issubclass(member, BaseModel)]
    return {member.model_fields["type"].default: member for member in classes if "type" in member.model_fields}


CHOICES: dict[str, dict[str, type[BaseModel]]] = {field: types for field in TrainConfig.model_fields if (types := _types_of(field))}
"""Field -> type name -> class."""

STAGES = tuple(field for field in CHOICES if field in Recipe.model_fields)

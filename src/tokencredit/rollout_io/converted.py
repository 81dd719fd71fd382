"""What a converter hands back."""

from typing import Any, NamedTuple


class Converted(NamedTuple):
    rows: list[dict[str, Any]]
    """In the columns of a rollout file, one for one."""
    notes: tuple[str, ...]
    """What the file could not tell, in words."""

"""How much one verdict may cost."""

import math
from dataclasses import dataclass, fields

from tokencredit.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeLimits:
    seconds: float = 5.0
    """Wall-clock time for one response, after which its process is killed."""
    memory_mib: int = 1024
    """Address space a process may add to what its imports took."""
    recycle_after: int = 5000
    """Responses after which a process is replaced, so that what a grader leaks or caches cannot pile up."""
    longest_response: int = 200_000
    """Characters; a longer response is not graded."""
    largest_answer: int = 65_536
    """Bytes of one verdict on its way back."""
    start_seconds: float = 60.0
    """Wall-clock time for a process to start and import its grader."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
                raise ConfigError(f"grade limit {field.name} is {value!r}; give a finite number above 0")

"""What one program may use."""

import math
from dataclasses import dataclass, fields

from tokencredit.errors import ConfigError

MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLimits:
    """Per program. Memory, CPU seconds and file size hold for each process; disk, clock and output for all of them together."""

    wall_seconds: float = 10.0
    """Counted from the moment the program may begin; then its whole tree is killed."""
    cpu_seconds: int = 5
    memory_mb: int = 512
    """Address space of one process."""
    processes: int = 16
    """Processes and threads at once."""
    file_mb: int = 8
    """One file."""
    disk_mb: int = 16
    """All files together; they live in memory and vanish with the program (bubblewrap only)."""
    open_files: int = 64
    output_bytes: int = 1 << 18
    """Standard output and standard error together; the program is killed at the first byte beyond."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{field.name} is {value}; a limit of the code sandbox is a positive number")

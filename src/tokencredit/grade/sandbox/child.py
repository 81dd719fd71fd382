"""A started sandbox as the rest sees it, and what every sandbox gives its interpreter.

How a program ended, and the one way in which it is not the program's doing.

What one program may use.
"""

import math
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, NamedTuple

from tokencredit.errors import ConfigError


class SandboxError(RuntimeError):
    """The sandbox itself failed: nothing can be said about the program."""


class ProgramEnd(NamedTuple):
    """Exactly one of `exit_code` and `signal` is set, unless the parent killed the program (`timed_out`, `output_truncated`)."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    output: str
    """Standard output; bytes that are no UTF-8 are replaced."""
    errors: str
    """Standard error, bounded together with the output."""
    output_truncated: bool
    reason: str
    """One line for people."""


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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


INSIDE = Path(__file__).with_name("inside.py").read_text(encoding="utf-8")
# No site packages, no user folder, no current folder on the path, no .pyc files.
PYTHON_FLAGS = ("-s", "-S", "-P", "-B")
# Everything a program sees of the environment. A fixed hash seed: the same program must get the same score twice.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LANG": "C.UTF-8", "HOME": "/tmp", "TMPDIR": "/tmp"}
START_SECONDS = 30.0
"""For the sandbox to stand; a program's own clock starts after that."""
# Seconds that a program outlives its clock if its parent cannot act any more.
GRACE_SECONDS = 60


class Child(NamedTuple):
    process: subprocess.Popen[bytes]
    ready: int
    """Readable once every limit stands; end of file without a byte if it never did."""
    kill: Callable[[], None]
    """Ends the whole tree, as far as this kind of sandbox can, and returns when it is gone."""


def interpreter() -> Path:
    """The real file behind this interpreter, not a virtual environment's link to it."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()


def inside_arguments(kind: Literal["namespace", "group"], limits: CodeLimits, *, ready: int, uid: int = 0) -> list[str]:
    caps = {
        "RLIMIT_CPU": limits.cpu_seconds,
        "RLIMIT_AS": limits.memory_mb * MEGABYTE,
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_FSIZE": limits.file_mb * MEGABYTE,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_CORE": 0,
    }
    numbers = (ready, math.ceil(limits.wall_seconds) + GRACE_SECONDS, uid)
    return [*PYTHON_FLAGS, "-c", INSIDE, kind, *map(str, numbers), *(f"{name}={value}" for name, value in caps.items())]

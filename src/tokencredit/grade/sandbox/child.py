"""What both sandboxes share: a program's limits, its end, the started child process, and the interpreter's arguments."""

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
    """The sandbox itself failed: this says nothing about the program."""


class ProgramEnd(NamedTuple):
    """Exactly one of `exit_code` and `signal` is set, unless the parent killed the program (`timed_out`, `output_truncated`)."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    output: str
    """Standard output; bytes that are not UTF-8 are replaced."""
    errors: str
    """Standard error; its length and the output's are limited together."""
    output_truncated: bool
    reason: str
    """One line that states how the program ended."""


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLimits:
    """What one program may use. Memory, CPU seconds and file size hold per process; disk, clock and output for all its processes."""

    wall_seconds: float = 10.0
    """Counted from the start of the program; then its process tree is killed."""
    cpu_seconds: int = 5
    memory_mb: int = 512
    """Address space of one process."""
    processes: int = 16
    """Processes and threads that exist at the same time."""
    file_mb: int = 8
    """Size of one file."""
    disk_mb: int = 16
    """Size of all files; they are kept in memory and deleted with the program (bubblewrap only)."""
    open_files: int = 64
    output_bytes: int = 1 << 18
    """Standard output and standard error together; the program is killed at the first byte beyond."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{field.name} is {value}; a limit of the code sandbox must be a positive number")


INSIDE = Path(__file__).with_name("inside.py").read_text(encoding="utf-8")
# No site packages, no user folder, no current folder on the path, no .pyc files.
PYTHON_FLAGS = ("-s", "-S", "-P", "-B")
# The program's complete environment. The hash seed is fixed, because a program must get the same score every time.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LANG": "C.UTF-8", "HOME": "/tmp", "TMPDIR": "/tmp"}
START_SECONDS = 30.0
"""For the sandbox to start; the program's own clock starts after that."""
# Seconds after the program's time limit at which it ends by itself, in case its parent cannot kill it.
GRACE_SECONDS = 60


class Child(NamedTuple):
    process: subprocess.Popen[bytes]
    ready: int
    """A pipe: one byte once every limit is set; end of file without a byte if that failed."""
    kill: Callable[[], None]
    """Ends the process tree, as far as this kind of sandbox can, and returns when it is gone."""


def interpreter() -> Path:
    """The real file of this interpreter, not a virtual environment's link to it."""
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

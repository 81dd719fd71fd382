"""A started sandbox as the rest sees it, and what every sandbox gives its interpreter."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from tokencredit.grade.sandbox.limits import MEGABYTE, CodeLimits

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

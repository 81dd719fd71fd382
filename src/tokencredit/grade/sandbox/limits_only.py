"""Limits without isolation, for machines without bubblewrap: the program gets its own process group, environment and folder."""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator

from tokencredit.grade.sandbox.child import ENVIRONMENT, Child, CodeLimits, inside_arguments, interpreter

NOT_COVERED = (
    "the network is open",
    "every file this user may read or write can be read or written",
    "any process of this user can be signalled or inspected",
    "the disk is limited per file only",
    "the process limit counts all processes of this user",
    "a process that leaves its process group outlives the program",
    "run as root, the program can lift every limit but the clock",
)


@contextlib.contextmanager
def started_plain(limits: CodeLimits) -> Iterator[Child]:
    with tempfile.TemporaryDirectory(prefix="program-", ignore_cleanup_errors=True) as folder, contextlib.ExitStack() as stack:
        ready, write_ready = os.pipe()
        stack.callback(os.close, ready)
        try:
            process = subprocess.Popen(
                [str(interpreter()), *inside_arguments("group", limits, ready=write_ready)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env=ENVIRONMENT | {"HOME": folder, "TMPDIR": folder},
                pass_fds=(write_ready,),
                start_new_session=True,
            )
        finally:
            os.close(write_ready)

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

        with process:
            try:
                yield Child(process, ready, kill)
            finally:
                kill()

"""Work in a process of its own that need not import torch again: forked from a server that has, and has done nothing else.

Half of the suite's time would otherwise go into importing the same libraries a hundred times.
"""

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tokencredit.commands.train", "tokencredit.trainer.loop", "tokencredit.analysis.showcase"])


def run_forked(work: Callable[[], None], *, cwd: Path, timeout: float = 120) -> CompletedProcess[str]:
    """What `work`, an importable function or a partial of one, printed and how it ended; its folder is first on the import path."""
    with tempfile.TemporaryDirectory() as scratch:
        files = [Path(scratch) / name for name in ("out", "err")]
        process = _SERVER.Process(target=_redirected, args=(work, cwd, *files))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            raise TimeoutError(f"{work} took more than {timeout} s")
        out, err = (file.read_text(encoding="utf-8") for file in files)
        assert process.exitcode is not None
        return CompletedProcess([], process.exitcode, out, err)


def _redirected(work: Callable[[], None], cwd: Path, out: Path, err: Path) -> None:
    os.chdir(cwd)
    sys.path.insert(0, str(cwd))
    for number, file in enumerate((out, err), 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    # multiprocessing gives its children no standard input and may have wrapped the rest; a command expects plain text streams.
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    work()

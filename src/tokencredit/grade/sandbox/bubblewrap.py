"""Run a program in its own namespaces with bubblewrap (`bwrap`): no network, no files except Python's, no other process visible.

There are two setups, because the kernel does not apply the process limit to the superuser: an ordinary user gets a user
namespace; root sets up the sandbox as root, and the program then switches to a user id that no account or program has.
"""

import contextlib
import functools
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokencredit.grade.sandbox.child import (
    ENVIRONMENT,
    MEGABYTE,
    START_SECONDS,
    Child,
    CodeLimits,
    SandboxError,
    inside_arguments,
    interpreter,
)
from tokencredit.grade.sandbox.seccomp import system_call_filter

NOBODY = 65534
# A killed process that is not gone after this long is stuck in the kernel.
SECONDS_TO_DIE = 30
_SYSTEM_LIBRARIES = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/lib", "/lib32", "/lib64")
_NEEDED_RIGHTS = 1 << 6 | 1 << 7 | 1 << 21
"""CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN."""
_count = itertools.count()


def bubblewrap_path() -> str | None:
    return shutil.which("bwrap")


def unused_uid() -> int:
    """A user id that no account and no other running program has: the kernel counts the process limit per user id."""
    return 0x60000000 + (os.getpid() * 64 + next(_count) % 64) % 0x10000000


@functools.cache
def _is_full_root() -> bool:
    """Root on the machine itself, not in a container that maps only some user ids or withholds capabilities."""
    if os.geteuid() != 0:
        return False
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    rights = int(status["CapEff"], 16)
    return Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"] and rights & _NEEDED_RIGHTS == _NEEDED_RIGHTS


def _read_only(path: Path) -> list[str]:
    """Mount a file or folder at its own path, read-only. Parents that bubblewrap creates by itself would be readable by root only."""
    parents = [word for folder in reversed(path.parents[:-1]) for word in ("--perms", "0755", "--dir", str(folder))]
    return [*parents, "--ro-bind", str(path), str(path)]


@functools.cache
def _files_of_python() -> tuple[str, ...]:
    """The interpreter, its libraries and the system's libraries; never their parent folders, which may be a user's home."""
    arguments: list[str] = []
    for folder in map(Path, _SYSTEM_LIBRARIES):
        if folder.is_symlink():
            arguments += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.is_dir():
            arguments += _read_only(folder)
    shared, library = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME")
    stdlib = Path(sysconfig.get_path("stdlib"))
    own = [interpreter(), stdlib, stdlib.resolve(), *([Path(shared) / library] if shared and library else []), Path("/etc/ld.so.cache")]
    for path in dict.fromkeys(own):
        if path.exists() and not path.is_relative_to("/usr/lib"):
            arguments += _read_only(path)
    return tuple(arguments)


def _command(limits: CodeLimits, *, ready: int, info: int, seccomp: int) -> list[str]:
    uid = unused_uid() if _is_full_root() else 0
    if uid:
        identity = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        identity = ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    environment = [word for name, value in ENVIRONMENT.items() for word in ("--setenv", name, value)]
    return [
        *(bubblewrap_path() or "bwrap", "--die-with-parent", "--new-session", "--as-pid-1"),
        *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        *("--cap-drop", "ALL", *identity),
        *("--clearenv", *environment),
        *_files_of_python(),
        *("--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"),
        *("--perms", "1777", "--size", str(limits.disk_mb * MEGABYTE), "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp"),
        *("--hostname", "sandbox", "--info-fd", str(info), "--seccomp", str(seccomp), "--"),
        *(str(interpreter()), *inside_arguments("namespace", limits, ready=ready, uid=uid)),
    ]


def _first_process(info: int) -> int | None:
    """The host's process id of the first process inside; None if bubblewrap ended or timed out before it started one."""
    if not select.select([info], [], [], START_SECONDS)[0]:
        return None
    with open(info, closefd=False) as file:
        text = file.read()
    return int(json.loads(text)["child-pid"]) if text.strip() else None


@contextlib.contextmanager
def started_in_bubblewrap(limits: CodeLimits) -> Iterator[Child]:
    if bubblewrap_path() is None:
        raise SandboxError("bwrap is not installed (Debian and Ubuntu: apt-get install bubblewrap)")
    rules = system_call_filter()
    with contextlib.ExitStack() as stack:
        (ready, write_ready), (info, write_info), (seccomp, write_rules) = (os.pipe() for _ in range(3))
        for descriptor in (ready, info):
            stack.callback(os.close, descriptor)
        try:
            os.write(write_rules, rules)
        finally:
            os.close(write_rules)
        try:
            process = subprocess.Popen(
                _command(limits, ready=write_ready, info=write_info, seccomp=seccomp),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env={},
                pass_fds=(write_ready, write_info, seccomp),
                start_new_session=True,
            )
        finally:
            for descriptor in (write_ready, write_info, seccomp):
                os.close(descriptor)
        with process:
            inside = None

            def kill() -> None:
                # The first process inside ends last: once bubblewrap, its parent, has reaped it, all the others are gone.
                if process.poll() is None and inside is not None:
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(inside, signal.SIGKILL)
                    select.select([inside], [], [], SECONDS_TO_DIE)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(timeout=SECONDS_TO_DIE)
                process.kill()
                process.wait()

            try:
                pid = _first_process(info)
                if pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        inside = os.pidfd_open(pid)
                        stack.callback(os.close, inside)
                yield Child(process, ready, kill)
            finally:
                kill()

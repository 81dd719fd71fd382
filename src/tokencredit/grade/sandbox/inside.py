"""Runs inside the sandbox before the program: the only trusted code in there. Shipped as text, so it imports nothing of ours.

    python -c <this> namespace|group READY_FD LIFE_SECONDS UID RLIMIT=value ...

Standard input holds the program's length in bytes on a line, the program, and then the program's own input. One byte on
READY_FD reports that every limit is set; the descriptor is closed before the program begins, so the program cannot write it.
In a `namespace` this process is the first process: it stays, out of the program's reach, and when it ends the kernel kills
everything left in the namespace. After LIFE_SECONDS it ends by itself, in case the parent cannot end it.
"""

import os
import resource
import signal
import sys


def read_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        got = os.read(0, 1)
        if not got:
            raise EOFError("the program's length is missing")
        line += got
    return line


def read_exactly(count: int) -> bytes:
    chunks = []
    while count:
        chunk = os.read(0, min(count, 1 << 16))
        if not chunk:
            raise EOFError("the program was cut short")
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)


def stay_until_the_program_ends(program: int, life_seconds: int) -> None:
    """Wait as the first process of the namespace, which gets no signals from inside it except those that it handles."""
    os.closerange(0, 64)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, lambda *_: os._exit(128 + signal.SIGKILL))
    signal.alarm(life_seconds)
    while True:
        ended, status = os.wait()
        if ended == program:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def drop_privileges(uid: int, limits: list[str]) -> None:
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    for limit in limits:
        name, value = limit.split("=")
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        allowed = int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard)
        resource.setrlimit(kind, (allowed, allowed))


def prepare() -> str:
    """Set the limits, report that they are set, and return the program's source."""
    kind = sys.argv[1]
    ready, life_seconds, uid = (int(word) for word in sys.argv[2:5])
    if kind == "namespace":
        program = os.fork()
        if program:
            stay_until_the_program_ends(program, life_seconds)
    else:
        signal.alarm(life_seconds)
    drop_privileges(uid, sys.argv[5:])
    os.write(ready, b"!")
    os.close(ready)
    source = read_exactly(int(read_line())).decode()
    sys.argv[:] = ["program.py"]
    return source


if __name__ == "__main__":
    exec(compile(prepare(), "program.py", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})

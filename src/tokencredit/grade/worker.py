"""The grading process: `python -m tokencredit.grade.worker`, started by `Child` with a socket as its standard input.

First line in: the grader, its knobs and limits. First line out: ready, or what is wrong with them. Then one verdict per
item, until the socket closes. Before it grades, the process limits itself: it dies with its parent, but ignores
stop signals before that, dumps no core, and bounds its memory.
"""

import ctypes
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from tokencredit.errors import ConfigError
from tokencredit.grade.graders import Grader, find_grader
from tokencredit.grade.protocol import Verdict, decode, encode, printable, ungraded

PR_SET_PDEATHSIG = 1
MIB = 2**20


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, even by SIGKILL and even while this process runs C code.

    Only Linux offers this; on other systems the process ends when its channel closes.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def ignore_stop_signals() -> None:
    """A scheduler may signal every process of a job, while the parent still needs verdicts to shut down cleanly.

    A handler that does nothing, because programs that the grader starts would inherit an ignored signal, but not a handler.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)


def no_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def bound_memory(mib: int) -> None:
    """Allow `mib` on top of the address space in use now, so that users need not know how much the grader's imports use."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = _address_space() + mib * MIB
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _address_space() -> int:
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else 0


def as_verdict(result: object) -> Verdict:
    """A grader's return value as a verdict; ungraded unless it is a finite number."""
    score, reason = result if isinstance(result, Verdict) else (result, None)
    if not isinstance(score, Real):
        return ungraded(f"the grader returned {type(score).__name__}, not a number")
    number = float(score)
    if math.isfinite(number):
        return Verdict(number, reason)
    return ungraded(reason or f"the grader returned {number}")


def judge(grader: Grader, knobs: Mapping[str, Any], gold: str, response: str) -> dict[str, Any]:
    """The message for one item. `spent`: the pool must replace this process."""
    try:
        verdict = as_verdict(grader(gold, response, **knobs))
    except ConfigError as mistake:
        return {"mistake": str(mistake)}
    except MemoryError:
        return {"score": None, "reason": "the grader ran out of memory", "spent": True}
    except BaseException as failure:
        return {"score": None, "reason": f"the grader raised {_describe_error(failure)}"}
    reason = None if verdict.reason is None else printable(verdict.reason)
    return {"score": None if math.isnan(verdict.score) else verdict.score, "reason": reason}


def _describe_error(failure: BaseException) -> str:
    """Type and message; the type alone where the exception's own `__str__` raises."""
    try:
        return f"{type(failure).__name__}: {printable(failure)}"
    except Exception:
        return type(failure).__name__


def _take_channel() -> socket.socket:
    """Move the socket away from standard input: `input`, `print` and programs that the grader starts cannot reach it."""
    channel = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    return channel


def _prepared(order: Mapping[str, Any]) -> Grader:
    """Import the grader and set the limits; ConfigError where either fails."""
    try:
        no_core()
        grader = find_grader(order["grader"], order["knobs"])
        bound_memory(order["memory_mib"])
    except (OSError, ValueError) as failure:
        raise (
            failure if isinstance(failure, ConfigError) else ConfigError(f"the limits cannot be set: {_describe_error(failure)}")
        ) from None
    return grader


def serve(channel: socket.socket) -> None:
    with channel.makefile("rb") as lines:
        first = lines.readline()
        if not first:
            return
        order = decode(first)
        die_with_parent(order["parent"])
        ignore_stop_signals()
        # From here on errors are sent on the channel; standard error goes to /dev/null like standard output.
        os.dup2(1, 2)
        try:
            grader = _prepared(order)
        except ConfigError as mistake:
            channel.sendall(encode({"mistake": str(mistake)}))
            return
        channel.sendall(encode({"ready": True}))
        for line in lines:
            item = decode(line)
            channel.sendall(encode({"item": item["item"], **judge(grader, order["knobs"], item["gold"], item["response"])}))


if __name__ == "__main__":
    try:
        serve(_take_channel())
    except OSError:
        pass
    finally:
        # A thread that a grader left running must not keep the process alive.
        os._exit(0)

"""The child process: `python -m tokencredit.grade.worker`, started by `Child` with a socket as its standard input.

First line in: which grader, with which knobs and limits. First line out: ready, or what is wrong with them. Then one
verdict per item, until the socket closes.

What a child process does to itself before it grades: it dies with its parent and not before, dumps no core and keeps to its memory.
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
    """Also when the parent is killed outright and this process is deep in C code. Elsewhere than on Linux the closed channel must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def leave_stopping_to_the_parent() -> None:
    """A scheduler may tell every process of a job to stop, while the parent still wants its verdicts to end well. Programs that the
    grader starts do not inherit this, as they would an ignored signal.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)


def no_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def bound_memory(mib: int) -> None:
    """On top of the address space held now, which the grader's imports decide and nobody should have to guess."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = _address_space() + mib * MIB
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _address_space() -> int:
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else 0


def as_verdict(result: object) -> Verdict:
    """What a grader returned, if it is a finite number."""
    score, reason = result if isinstance(result, Verdict) else (result, None)
    if not isinstance(score, Real):
        return ungraded(f"the grader returned {type(score).__name__}, not a number")
    number = float(score)
    if math.isfinite(number):
        return Verdict(number, reason)
    return ungraded(reason or f"the grader returned {number}")


def judge(grader: Grader, knobs: Mapping[str, Any], gold: str, response: str) -> dict[str, Any]:
    """The answer to one item. `spent`: the process should not be used again."""
    try:
        verdict = as_verdict(grader(gold, response, **knobs))
    except ConfigError as mistake:
        return {"mistake": str(mistake)}
    except MemoryError:
        return {"score": None, "reason": "the grader ran out of memory", "spent": True}
    except BaseException as failure:
        return {"score": None, "reason": f"the grader raised {_told(failure)}"}
    reason = None if verdict.reason is None else printable(verdict.reason)
    return {"score": None if math.isnan(verdict.score) else verdict.score, "reason": reason}


def _told(failure: BaseException) -> str:
    try:
        return f"{type(failure).__name__}: {printable(failure)}"
    except Exception:
        return type(failure).__name__


def _take_channel() -> socket.socket:
    """Move the socket off standard input, so that neither `input` nor `print` nor a program the grader starts can reach it."""
    channel = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    return channel


def _prepared(order: Mapping[str, Any]) -> Grader:
    """The grader, with the limits in force; ConfigError for anything that stands in the way."""
    try:
        no_core()
        grader = find_grader(order["grader"], order["knobs"])
        bound_memory(order["memory_mib"])
    except (OSError, ValueError) as failure:
        raise failure if isinstance(failure, ConfigError) else ConfigError(f"the limits cannot be set: {_told(failure)}") from None
    return grader


def serve(channel: socket.socket) -> None:
    with channel.makefile("rb") as lines:
        first = lines.readline()
        if not first:
            return
        order = decode(first)
        die_with_parent(order["parent"])
        leave_stopping_to_the_parent()
        # From here on everything that matters is said on the channel.
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
        # A thread that a grader left behind must not keep the process.
        os._exit(0)

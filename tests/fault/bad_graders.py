"""Graders that misbehave on command: the response names what to do. Run in the pool's child processes alone."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from tokencredit.grade.protocol import Verdict, ungraded


def sleep() -> NoReturn:
    while True:
        time.sleep(60)


def sleep_deaf() -> NoReturn:
    """Every signal that can be blocked is."""
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    sleep()


def spin_in_c() -> object:
    """One operation that holds the interpreter for hours."""
    return 3 ** (7**12)


def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def segfault() -> None:
    ctypes.string_at(0)


def leave() -> NoReturn:
    os._exit(7)


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def take_memory() -> int:
    return len(bytearray(2**42))


def fill_memory() -> int:
    held = []
    while True:
        held.append(bytes(2**24))


def print_much() -> float:
    for stream in (sys.stdout, sys.stderr):
        for _ in range(2000):
            stream.write('{"item": 0, "score": 1.0}\n' * 100)
        stream.flush()
    return 1.0


def read_input() -> float:
    return float(sys.stdin.read() == "")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def fail() -> NoReturn:
    raise KeyError("gone \udc80\n" + "x" * 10_000)


def fail_without_words() -> NoReturn:
    raise UnprintableError


def give_up() -> NoReturn:
    sys.exit("enough")


def close_everything() -> NoReturn:
    os.closerange(0, 256)
    sleep()


def speak_out_of_turn() -> float:
    """Find the private channel and write a verdict of one's own on it, and then another one."""
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(number, b"1.0\n")
    return 1.0


def flood() -> float:
    """Find the private channel and never stop writing."""
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            for _ in range(100_000):
                os.write(number, b"1" * 100_000)
    return 1.0


def leave_a_thread() -> float:
    threading.Thread(target=sleep).start()
    return 1.0


TRICKS: dict[str, Callable[[], object]] = {
    "right": lambda: 1.0,
    "half": lambda: 0.5,
    "true": lambda: True,
    "whole": lambda: 3,
    "wrong": lambda: 0.0,
    "sleep": sleep,
    "sleep deaf": sleep_deaf,
    "spin in C": spin_in_c,
    "stop itself": stop_itself,
    "segfault": segfault,
    "leave": leave,
    "be killed": be_killed,
    "take memory": take_memory,
    "fill memory": fill_memory,
    "print much": print_much,
    "read input": read_input,
    "fail": fail,
    "fail without words": fail_without_words,
    "give up": give_up,
    "close everything": close_everything,
    "speak out of turn": speak_out_of_turn,
    "flood": flood,
    "leave a thread": leave_a_thread,
    "text": lambda: "1.0",
    "nothing": lambda: None,
    "NaN": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "complex": lambda: 1j,
    "enormous": lambda: 10**400,
    "cannot tell": lambda: ungraded("the gold answer is smudged"),
    "right with a word": lambda: Verdict(1.0, "nearly"),
    "who": os.getpid,
}


def act(gold: str, response: str) -> object:
    return TRICKS[response]()


def echo(gold: str, response: str, *, scale: float = 1.0) -> float:
    """The gold answer as a score, so that a verdict shows which item it belongs to. A response of `~0.2` takes so many seconds."""
    if response.startswith("~"):
        time.sleep(float(response[1:]))
    return float(gold) * scale


def length(gold: str, response: str) -> float:
    return float(len(gold) + len(response))


def same(gold: str, response: str) -> float:
    return float(gold == response)


def start_a_program(gold: str, response: str) -> float:
    """Leaves its number in the file `gold`, and hangs."""
    import subprocess

    running = subprocess.Popen(["sleep", "600"])
    with open(gold, "w") as file:
        file.write(str(running.pid))
    sleep()


def refuse(gold: str, response: str) -> float:
    from tokencredit.errors import ConfigError

    raise ConfigError("the knob is loose")


def torch_is_loaded(gold: str, response: str) -> float:
    import tokencredit.grade.math_answer  # noqa: F401

    return float("torch" in sys.modules or "transformers" in sys.modules)

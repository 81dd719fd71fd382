"""Seeded damage to bytes, lines and values, and a judge of what a reader made of it.

A reader given rubbish may refuse it in words that name the file or the field, or read it rightly. Anything else (another exception,
a warning, a hang, a wrong reading, a changed or half-written file) is unhandled.
"""

import atexit
import contextlib
import copy
import io
import json
import math
import shutil
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

from tokencredit.errors import ConfigError

LONGEST_REFUSAL = 6_000
"""A message that repeats a whole damaged file names nothing."""


class Trial(NamedTuple):
    """A damaged input, ready to be read. A wrong reading is an AssertionError."""

    read: Callable[[], object]
    named: tuple[str, ...]
    """A refusal must say one of these: the file, or the field."""
    writes: tuple[Path, ...] = ()
    """What a correct run may leave behind."""


class Outcome(NamedTuple):
    kind: Literal["refused", "ran", "unhandled"]
    said: str


class Hung(BaseException):
    """No library catches this one."""


@contextlib.contextmanager
def _no_longer_than(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hung(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def lasting_folder() -> Path:
    """For what every trial starts from; gone when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _files(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


def judge(trial: Trial, place: Path, *, seconds: int = 60) -> Outcome:
    """Reads once, output swallowed by a terminal that knows UTF-8 and nothing else."""
    before = _files(place)
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", DeprecationWarning)
            with _no_longer_than(seconds):
                trial.read()
        found = Outcome("ran", "")
    except ConfigError as problem:
        found = _refusal(str(problem), trial.named)
    except SystemExit as stopped:
        found = Outcome("refused", "exit 2") if stopped.code == 2 else Outcome("unhandled", f"exit code {stopped.code}")
    except (Exception, Hung) as problem:
        last = traceback.extract_tb(problem.__traceback__)[-1]
        found = Outcome("unhandled", f"{type(problem).__name__}: {problem!s:.200} ({Path(last.filename).name}:{last.lineno})")
    allowed = trial.writes if found.kind == "ran" else ()
    after = {path: content for path, content in _files(place).items() if path not in allowed}
    if after != before:
        changed = sorted(str(path) for path in after.keys() | before.keys() if after.get(path) != before.get(path))
        return Outcome("unhandled", f"{found.kind} {found.said:.200}, and left or changed {', '.join(changed)}")
    return found


def _refusal(said: str, named: Sequence[str]) -> Outcome:
    if len(said) > LONGEST_REFUSAL:
        return Outcome("unhandled", f"a refusal of {len(said)} characters: {said[:120]}")
    if not any(name in said for name in named):
        return Outcome("unhandled", f"a refusal that names none of {', '.join(named)[:100]}: {said[:200]}")
    return Outcome("refused", said)


NASTY_BYTES = (
    b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\xc2\x85", b"\r", b"\n", b"\\ud800",
    b"\\u0000", b'"', b"{", b"}",
    b"[", b"]", b"=", b"#", b"'", b"\"\"\"", b",", b":", b"-", b"1e400", b"nan", b"inf", b"NaN", b"-Infinity", b"null", b"true",
    b"9" * 30, b"9" * 5_000, b"[" * 30_000, b"a." * 3_000, b'{"a":' * 20_000, b"a" * 100_000,
)  # fmt: skip

Damage = Callable[[Random, bytes], bytes]


def _span(rng: Random, data: bytes) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + 1 + int(rng.expovariate(0.05)))


def _lines(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True) or [b""]


def cut_off(rng: Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def cut_out(rng: Random, data: bytes) -> bytes:
    start, stop = _span(rng, data)
    return data[:start] + data[stop:]


def flip_bits(rng: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 20)) if changed else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def put_in(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(NASTY_BYTES) + data[at:]


def put_over(rng: Random, data: bytes) -> bytes:
    start, stop = _span(rng, data)
    return data[:start] + rng.choice(NASTY_BYTES) + data[stop:]


def repeat_part(rng: Random, data: bytes) -> bytes:
    start, stop = _span(rng, data)
    return data[:stop] + data[start:stop] * rng.choice((1, 2, 50)) + data[stop:]


def repeat_line(rng: Random, data: bytes) -> bytes:
    lines = _lines(data)
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    return b"".join(lines)


def splice_lines(rng: Random, data: bytes) -> bytes:
    """The beginning of one line and the end of another in place of both."""
    lines = _lines(data)
    one, other = rng.choice(lines), rng.choice(lines)
    lines[rng.randrange(len(lines))] = one[: rng.randrange(len(one) + 1)] + other[rng.randrange(len(other) + 1) :]
    return b"".join(lines)


def shuffle_lines(rng: Random, data: bytes) -> bytes:
    lines = _lines(data)
    rng.shuffle(lines)
    return b"".join(lines)


def begin_with_a_mark(rng: Random, data: bytes) -> bytes:
    return rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"PAR1", b"\x1f\x8b", b"\n" * 3)) + data


def nothing_left(rng: Random, data: bytes) -> bytes:
    return rng.choice((b"", b"\n", b" ", b"\x00", b"{}", b"[]", b"null", b"{}\n{}\n"))


def noise(rng: Random, data: bytes) -> bytes:
    return rng.randbytes(rng.choice((1, 12, 400)))


DAMAGES: tuple[Damage, ...] = (
    cut_off, cut_out, flip_bits, put_in, put_over, repeat_part, repeat_line, splice_lines, shuffle_lines, begin_with_a_mark, nothing_left,
    noise,
)  # fmt: skip


def damaged(rng: Random, data: bytes) -> bytes:
    """One damage most often, several now and then."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = rng.choice(DAMAGES)(rng, data)
    return data


def _deep(levels: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(levels):
        inner = [inner]
    return inner


DEEP = _deep(300)
NASTY_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 0.5, -0.0, 1e-320, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, 10**400, -(10**400),
    1e300, math.inf, -math.inf, math.nan, "", " ", "none", "nan", "1", "true", "delta", "a\x00b", "\u2028", "\x85", "\ud83d", "e\u0301",
    "\u202eabc", "👩‍👩‍👧", "ء", "x" * 100_000, [], {}, [[]], [None], [0], [1.5], ["a"], {"a": 1}, {"type": "delta"},
    {"type": 3}, {"type": []},
    {"type": {}}, _deep(60), DEEP,
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of what is inside, six levels down at most; of a long list its first entries."""
    inside = value.items() if isinstance(value, dict) else enumerate(value[:5]) if isinstance(value, list) else ()
    for key, inner in inside if len(path) < 6 else ():
        yield (*path, key)
        yield from _places(inner, (*path, key))


def _at(value: Any, path: Sequence[Any]) -> Any:
    for key in path:
        value = value[key]
    return value


def _put(holder: Any, key: Any, value: Any) -> None:
    holder[key] = value


def _drop(holder: Any, key: Any) -> None:
    del holder[key]


def damage_value(rng: Random, value: Any, nasty: Sequence[Any] = NASTY_VALUES) -> Any:
    """A copy with one place changed: another value, gone, under another name, in a list, twice, or swapped with a neighbour."""
    changed = copy.deepcopy(value)
    places = list(_places(changed))
    if not places:
        return changed
    *parents, key = rng.choice(places)
    holder = _at(changed, parents)
    kind = rng.choice(("other", "other", "other", "other", "gone", "renamed", "wrapped", "twice", "swapped"))
    neighbour = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    if kind == "other":
        _put(holder, key, copy.deepcopy(rng.choice(nasty)))
    elif kind == "gone":
        _drop(holder, key)
    elif kind == "renamed" and isinstance(holder, dict):
        holder[rng.choice(("", "x" * 500, f"{key}_", str(key).upper(), "type", "step", "a.b", "é", "\x00"))] = holder.pop(key)
    elif kind == "wrapped":
        _put(holder, key, [holder[key]])
    elif kind == "twice" and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    else:
        holder[key], holder[neighbour] = holder[neighbour], holder[key]
    return changed


def damage_values(rng: Random, value: Any, nasty: Sequence[Any] = NASTY_VALUES) -> Any:
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = damage_value(rng, value, nasty)
    return value


def json_line(value: Any) -> bytes:
    """As some trainers write it: NaN and Infinity in words, characters as they are or escaped."""
    try:
        return json.dumps(value, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value).encode() + b"\n"

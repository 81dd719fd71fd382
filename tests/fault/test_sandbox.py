"""Programs that nobody trusts: the list of attacks, each stopped in the sandbox and each shown to work without it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fault.attack_table import run_attack, what_happened
from fault.attacks import ATTACKS, Attack
from fault.scene import Scene, a_scene
from tokencredit.errors import ConfigError
from tokencredit.grade import sandbox
from tokencredit.grade.sandbox import CodeLimits, SandboxError, bubblewrap, run_program, seccomp, settle
from tokencredit.grade.sandbox import run as watch
from tokencredit.grade.sandbox.limits_only import NOT_COVERED

pytestmark = pytest.mark.bubblewrap
LIMITS = CodeLimits(wall_seconds=5.0)
BY_NAME = {attack.name: attack for attack in ATTACKS}


@pytest.fixture(scope="module", autouse=True)
def _bubblewrap_works() -> None:
    failure = sandbox.bubblewrap_failure()
    assert failure is None, (
        f"these tests need bubblewrap (Debian and Ubuntu: apt-get install bubblewrap), which does not work here: {failure}"
    )


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with a_scene(tmp_path) as around:
        yield around


def assert_stopped(attack: Attack, scene: Scene) -> None:
    end = run_attack(attack, scene, None)
    assert end.output.startswith("begun"), end
    assert not attack.succeeded(end, scene), end
    assert re.search(attack.how, what_happened(end)), end
    assert not scene.left_behind()
    assert scene.stranger_lives()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_the_sandbox_stops_it(attack: Attack, scene: Scene) -> None:
    assert_stopped(attack, scene)


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack.control], ids=lambda attack: attack.name)
def test_it_works_where_nothing_stops_it(attack: Attack, scene: Scene) -> None:
    end = run_attack(attack, scene, attack.control)
    assert attack.succeeded(end, scene), end


UNPRIVILEGED = (
    "network-tcp",
    "home-file",
    "accounts",
    "others-environment",
    "write-dev",
    "mount",
    "new-namespaces",
    "signal-the-parent",
    "daemon",
)


@pytest.mark.parametrize("name", UNPRIVILEGED)
def test_the_way_in_of_a_user_without_rights_stops_it_too(name: str, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "_is_full_root", lambda: False)
    assert_stopped(BY_NAME[name], scene)


def _without(*words: str) -> Callable[[list[str]], list[str]]:
    """The command less one option: its name, and as many words after it as are given."""

    def less(command: list[str]) -> list[str]:
        place = command.index(words[0])
        return command[:place] + command[place + len(words) :]

    return less


def _with_the_folder_shown(scene: Scene) -> Callable[[list[str]], list[str]]:
    def more(command: list[str]) -> list[str]:
        place = command.index("--tmpfs") + 2
        return [*command[:place], "--ro-bind", str(scene.folder), str(scene.folder), *command[place:]]

    return more


HOLES = {
    "network-tcp": lambda scene: _without("--unshare-net"),
    "disk-fill": lambda scene: _without("--size", "bytes"),
    "memory-no-limit-counts": lambda scene: _without("--seccomp", "number"),
    "write-dev": lambda scene: _without("--remount-ro", "/dev"),
    "home-file": _with_the_folder_shown,
}


@pytest.mark.mutants
@pytest.mark.parametrize("name", HOLES)
def test_a_sandbox_with_a_hole_is_noticed(name: str, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    command, hole = bubblewrap._command, HOLES[name](scene)
    monkeypatch.setattr(bubblewrap, "_is_full_root", lambda: False)
    monkeypatch.setattr(bubblewrap, "_command", lambda limits, **pipes: hole(command(limits, **pipes)))
    assert BY_NAME[name].succeeded(run_attack(BY_NAME[name], scene, None), scene)


@pytest.mark.parametrize("isolation", ["bubblewrap", "plain"])
def test_how_a_program_ends_is_told(isolation: sandbox.Settled) -> None:
    def run(source: str, given: str = "", limits: CodeLimits = LIMITS) -> tuple[object, ...]:
        end = run_program(source, limits=limits, given=given, isolation=isolation)
        return end.exit_code, end.signal, end.output, end.timed_out, end.output_truncated

    assert run("print(input()[::-1])", "né€") == (0, None, "€én\n", False, False)
    assert run("import sys; sys.exit(7)") == (7, None, "", False, False)
    assert run("import os; os.kill(os.getpid(), 11)") == (None, signal.SIGSEGV, "", False, False)
    assert run("raise SystemError")[:3] == (1, None, "")
    assert run("print(len(open(0).read()))", "x" * 3_000_000) == (0, None, "3000000\n", False, False)
    assert run("print('unread')", "x" * 3_000_000) == (0, None, "unread\n", False, False)
    silent = "import os; os.close(1); os.close(2); import time; time.sleep(30)"
    assert run(silent, limits=CodeLimits(wall_seconds=0.5)) == (None, None, "", True, False)
    assert run("print('y' * 300000)") == (None, None, "y" * LIMITS.output_bytes, False, True)


def test_processor_time_is_bounded_before_the_clock() -> None:
    end = run_program("while True: pass", limits=CodeLimits(cpu_seconds=1, wall_seconds=60))
    assert (end.signal in (signal.SIGKILL, signal.SIGXCPU), end.timed_out) == (True, False)


def test_programs_see_nothing_of_one_another() -> None:
    leave = "open('/tmp/left', 'w').write('x'); import os; print(os.listdir('/tmp'))"
    assert [run_program(leave, limits=LIMITS).output for _ in range(2)] == ["['left']\n"] * 2


def test_a_program_has_the_standard_library_and_no_more() -> None:
    program = (
        "import asyncio, bisect, ctypes, decimal, heapq, itertools, math, re, sqlite3, statistics, typing\nprint('there')\nimport torch"
    )
    end = run_program(program, limits=LIMITS)
    assert end.output == "there\n"
    assert "No module named 'torch'" in end.errors


CLEAN = """
import os, subprocess, sys
from tokencredit.grade.sandbox import CodeLimits, run_program
def held():
    return len(os.listdir("/proc/self/fd"))
before = held()
daemon = "import os, time\\nif os.fork() == 0:\\n    os.setsid()\\n    time.sleep(60)\\n"
for isolation in ("bubblewrap", "plain"):
    for program in ("pass", "while True: pass", "while True: print('x' * 9999)", *([daemon] if isolation == "bubblewrap" else [])):
        run_program(program, limits=CodeLimits(wall_seconds=0.5), isolation=isolation)
if sys.argv[1:] == ["leak"]:
    left = os.open("/dev/null", os.O_RDONLY), subprocess.Popen(["sleep", "0"])
print("descriptors", held() - before)
try:
    print("children", os.waitpid(-1, 0)[0] > 0)
except ChildProcessError:
    print("children none")
os._exit(0)
"""


@pytest.mark.parametrize(("arguments", "said"), [([], "descriptors 0\nchildren none\n"), (["leak"], "descriptors 1\nchildren True\n")])
def test_nothing_is_left_of_programs_that_ran(arguments: list[str], said: str) -> None:
    done = subprocess.run([sys.executable, "-c", CLEAN, *arguments], capture_output=True, text=True, timeout=120)
    assert done.stdout == said, done.stderr


def test_a_program_dies_with_a_grader_that_is_killed(scene: Scene) -> None:
    program = f"import os, sys\nos.execv(sys.executable, [sys.executable, '-S', '-c', 'import time; time.sleep(300)', {scene.marker!r}])"
    grade = f"from tokencredit.grade.sandbox import *\nrun_program({program!r}, limits=CodeLimits(wall_seconds=300))"
    with subprocess.Popen([sys.executable, "-c", grade]) as grader:
        assert _soon(lambda: any(pid != grader.pid for pid in _inside(scene)))
        grader.kill()
    assert _soon(lambda: not _inside(scene))


@pytest.mark.parametrize("isolation", ["bubblewrap", "plain"])
def test_a_program_dies_when_its_grader_is_interrupted(isolation: sandbox.Settled, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"import os, sys\nos.execv(sys.executable, [sys.executable, '-S', '-c', 'import time; time.sleep(300)', {scene.marker!r}])"
    seen = []

    def interrupted(self: watch.RunningProgram) -> bool:
        seen.append(bool(_inside(scene)))
        if seen[-1]:
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr(watch.RunningProgram, "_over", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_program(program, limits=CodeLimits(wall_seconds=300), isolation=isolation)
    assert seen[-1]
    assert not _inside(scene)


def _inside(scene: Scene) -> list[int]:
    """Those that carry the marker as an argument of its own, not in the text of a program."""
    return [pid for pid in scene.left_behind() if _arguments(pid)[-1:] == [scene.marker]]


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        return []


def _soon(true: Callable[[], bool], seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while not (now := true()) and time.monotonic() < end:
        time.sleep(0.02)
    return now


def _a_bwrap_that(folder: Path, does: str) -> str:
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def _untried() -> Iterator[None]:
    for known in (sandbox.bubblewrap_failure, sandbox._warn_once):
        known.cache_clear()
    yield
    for known in (sandbox.bubblewrap_failure, sandbox._warn_once):
        known.cache_clear()


BROKEN: dict[str, tuple[Callable[[Path], str | None], str]] = {
    "missing": (lambda folder: None, "bwrap is not installed"),
    "refuses": (lambda folder: _a_bwrap_that(folder, "echo 'bwrap: No permissions to create new namespace' >&2; exit 1"), "No permissions"),
    "silent": (lambda folder: _a_bwrap_that(folder, "exit 3"), "it ended with status 3"),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.usefixtures("_untried")
def test_a_sandbox_that_does_not_work_is_never_taken_for_one(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, said = BROKEN[case]
    monkeypatch.setattr(bubblewrap, "bubblewrap_path", lambda: path(tmp_path))
    with pytest.raises(SandboxError, match=said):
        run_program("print(1)", limits=LIMITS)
    with pytest.raises(ConfigError, match=rf"isolation is 'bubblewrap', which does not work here: .*{said}"):
        settle("bubblewrap")
    assert capsys.readouterr().err == ""
    assert [settle("auto"), settle("auto")] == ["plain", "plain"]
    warning = capsys.readouterr().err
    assert warning.count("warning: ") == 1
    assert said in warning
    assert [hole for hole in NOT_COVERED if hole not in warning] == []


@pytest.mark.usefixtures("_untried")
def test_the_sandbox_that_works_is_chosen_silently_and_plain_limits_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert [settle("bubblewrap"), settle("auto")] == ["bubblewrap", "bubblewrap"]
    assert capsys.readouterr().err == ""
    assert settle("plain") == "plain"
    assert "NOT covered" in capsys.readouterr().err


def test_a_machine_without_a_filter_is_refused() -> None:
    with pytest.raises(SandboxError, match="no system-call filter exists for vax"):
        seccomp.system_call_filter("vax")
    lengths = {len(seccomp.system_call_filter(machine)) for machine in ("x86_64", "aarch64")}
    assert lengths == {8 * (6 + 2 * len(seccomp.DENIED) + 2 + 5)}


@pytest.mark.parametrize(
    ("field", "value"), [("wall_seconds", 0), ("memory_mb", -1), ("cpu_seconds", float("nan")), ("output_bytes", float("inf"))]
)
def test_limits_that_limit_nothing_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} is {value}"):
        CodeLimits(**{field: value})


def test_two_programs_never_share_a_user_id() -> None:
    ids = [bubblewrap.unused_uid() for _ in range(64)]
    assert len(set(ids)) == 64
    assert min(ids) > max(os.getuid(), 1 << 30)

"""Graders that hang, crash, eat memory, lie or die: NaN with a reason for that response alone, and nothing left running."""

import gc
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import pytest

from tokencredit.errors import ConfigError
from tokencredit.grade import pool as pool_module
from tokencredit.grade.child import Child
from tokencredit.grade.pool import GraderPool
from tokencredit.grade.protocol import GradeLimits, Verdict

LIMITS = GradeLimits(seconds=2.0, memory_mib=256)
PATIENT = GradeLimits(seconds=60.0)
SMALL_SET = ("right", "sleep", "leave", "fail", "text")

EXPECTED: dict[str, tuple[float | None, str]] = {
    "right": (1.0, ""),
    "half": (0.5, ""),
    "true": (1.0, ""),
    "whole": (3.0, ""),
    "wrong": (0.0, ""),
    "sleep": (None, "no verdict within 2 s"),
    "sleep deaf": (None, "no verdict within 2 s"),
    "spin in C": (None, "no verdict within 2 s"),
    "stop itself": (None, "no verdict within 2 s"),
    "segfault": (None, "killed by SIGSEGV"),
    "leave": (None, "exit code 7"),
    "be killed": (None, "killed by SIGKILL"),
    "take memory": (None, "out of memory"),
    "fill memory": (None, "out of memory"),
    "print much": (1.0, ""),
    "read input": (1.0, ""),
    "fail": (None, "raised KeyError: 'gone"),
    "fail without words": (None, "raised UnprintableError"),
    "give up": (None, "raised SystemExit: enough"),
    "close everything": (None, "closed its channel"),
    "speak out of turn": (None, "not a verdict"),
    "flood": (None, "more than 65536 bytes"),
    "leave a thread": (1.0, ""),
    "text": (None, "returned str"),
    "nothing": (None, "returned NoneType"),
    "NaN": (None, "returned nan"),
    "infinity": (None, "returned inf"),
    "complex": (None, "returned complex"),
    "enormous": (None, "raised OverflowError"),
    "cannot tell": (None, "smudged"),
    "right with a word": (1.0, "nearly"),
}


def trickster(limits: GradeLimits = LIMITS, workers: int = 1, kind: type[GraderPool] = GraderPool) -> GraderPool:
    return kind(grader="fault.bad_graders:act", limits=limits, workers=workers)


def echoing(limits: GradeLimits = PATIENT, workers: int = 1, kind: type[GraderPool] = GraderPool) -> GraderPool:
    return kind(grader="fault.bad_graders:echo", limits=limits, workers=workers)


def process_of(pool: GraderPool) -> int:
    return int(pool.grade([("", "who")])[0].score)


def children() -> set[int]:
    """Of this process, zombies too."""
    found: set[int] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rsplit(")", 1)[1].split()[1]
        except OSError:
            continue
        found |= {int(stat.parent.name)} if int(parent) == os.getpid() else set()
    return found


def gone_soon(process: int) -> bool:
    """No longer running; whether an orphan's remains are swept up is its new parent's business."""
    for _ in range(200):
        try:
            if Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def misjudged(asked: Sequence[str], verdicts: Sequence[Verdict]) -> set[str]:
    """Tricks whose verdict is another than the table's."""
    wrong: set[str] = set()
    for trick, verdict in zip(asked, verdicts, strict=True):
        score, words = EXPECTED[trick]
        right = math.isnan(verdict.score) if score is None else verdict.score == score
        wrong |= set() if right and words in (verdict.reason or "") else {trick}
    return wrong


@pytest.fixture(scope="module")
def outcome() -> dict[str, Verdict]:
    """Every trick, each followed by a response that is right."""
    asked = [word for trick in EXPECTED for word in (trick, "right")]
    before = children()
    with trickster(workers=4) as pool:
        verdicts = pool.grade([("", word) for word in asked])
        again = pool.grade([("", "right")] * 8)
    assert children() == before
    assert {verdict.score for verdict in (*verdicts[1::2], *again)} == {1.0}
    return dict(zip(EXPECTED, verdicts[::2], strict=True))


@pytest.mark.parametrize("trick", EXPECTED)
def test_a_trick_costs_its_own_verdict_alone(outcome: dict[str, Verdict], trick: str) -> None:
    assert not misjudged([trick], [outcome[trick]]), outcome[trick]


def test_reasons_are_short_lines_any_log_can_hold(outcome: dict[str, Verdict]) -> None:
    for verdict in outcome.values():
        reason = verdict.reason or ""
        assert len(reason) < 400
        assert reason.encode("utf-8").decode().isprintable()
    assert all(verdict.reason for verdict in outcome.values() if math.isnan(verdict.score))


@pytest.mark.mutants
def test_the_table_rejects_a_pool_that_says_wrong_for_ungraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "ungraded", lambda reason: Verdict(0.0, reason))
    with trickster(GradeLimits(seconds=1.0), workers=2) as pool:
        verdicts = pool.grade([("", trick) for trick in SMALL_SET])
    assert misjudged(SMALL_SET, verdicts) == {"sleep", "leave", "fail", "text"}


class BlamesTheRest(GraderPool):
    """A wrong twin: when a process is lost, so is everything that waits."""

    def _lose(self, child: Child, why: str, verdicts: dict[int, Verdict], waiting: deque[int]) -> None:
        super()._lose(child, why, verdicts, waiting)
        while waiting:
            verdicts[waiting.popleft()] = Verdict(math.nan, why)


def test_the_table_rejects_a_pool_that_blames_the_rest() -> None:
    asked = ("right", "leave", "right", "half")
    results = {}
    for kind in (GraderPool, BlamesTheRest):
        with trickster(kind=kind) as pool:
            results[kind] = misjudged(asked, pool.grade([("", trick) for trick in asked]))
    assert results == {GraderPool: set(), BlamesTheRest: {"right", "half"}}


class AsTheyCome(GraderPool):
    """A wrong twin: verdicts in the order in which they arrive."""

    def _receive(self, child: Child, verdicts: dict[int, Verdict], waiting: deque[int]) -> None:
        super()._receive(child, verdicts, waiting)
        self.arrived = verdicts

    def _grade(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        super()._grade(pairs)
        return list(self.arrived.values())


def test_verdicts_come_in_the_order_asked() -> None:
    rng = random.Random(3)
    pairs = [(str(index), f"~{rng.choice([0.0, 0.01, 0.1])}") for index in range(40)]
    scores = {}
    for kind in (GraderPool, AsTheyCome):
        with echoing(workers=3, kind=kind) as pool:
            scores[kind] = [verdict.score for verdict in pool.grade(pairs)]
    assert scores[GraderPool] == list(range(40))
    assert scores[AsTheyCome] != list(range(40))


def test_knobs_reach_the_grader() -> None:
    with GraderPool(grader="fault.bad_graders:echo", knobs={"scale": 2.5}) as pool:
        assert [verdict.score for verdict in pool.grade([("2", ""), ("4", "")])] == [5.0, 10.0]


@pytest.mark.parametrize(
    "text", ["", "\x00", "a\x00b", "\udc80 alone \ud83d", "😀", "\n\r\n\u2028", '{"item": 0}\n', "x" * 150_000, "\udfff" * 150_000]
)
def test_any_text_arrives_as_it_was(text: str) -> None:
    with GraderPool(grader="fault.bad_graders:same", limits=PATIENT, workers=1) as pool:
        assert [verdict.score for verdict in pool.grade([(text, text), (text, text + "x"), ("", text)])] == [1.0, 0.0, float(text == "")]


def test_a_response_too_long_is_not_graded() -> None:
    with GraderPool(grader="fault.bad_graders:length", limits=GradeLimits(longest_response=10)) as pool:
        short, long = pool.grade([("", "x" * 10), ("", "x" * 11)])
    assert short == Verdict(10.0)
    assert math.isnan(long.score)
    assert "11 characters, more than the limit of 10" in (long.reason or "")


def test_nothing_is_started_before_it_is_needed() -> None:
    before = children()
    with trickster(workers=3) as pool:
        assert pool.grade([]) == []
        assert children() == before
        pool.grade([("", "right")])
        assert len(children() - before) == 1
    assert children() == before


def test_a_process_at_rest_that_is_killed_is_replaced_without_a_word() -> None:
    with trickster(PATIENT) as pool:
        first = process_of(pool)
        os.kill(first, signal.SIGKILL)
        assert gone_soon(first)
        assert pool.grade([("", "right")]) == [Verdict(1.0)]
        assert process_of(pool) != first


def test_a_stopped_process_does_not_stop_the_parent() -> None:
    """The question is larger than any pipe: a plain write would wait for ever."""
    with trickster(GradeLimits(seconds=1.0, longest_response=2_000_000)) as pool:
        os.kill(process_of(pool), signal.SIGSTOP)
        late, fine = pool.grade([("", "x" * 2_000_000), ("", "right")])
    assert math.isnan(late.score)
    assert late.reason == "no verdict within 1 s"
    assert fine == Verdict(1.0)


def test_a_process_is_replaced_after_its_share_and_after_running_out_of_memory() -> None:
    with trickster(GradeLimits(recycle_after=3)) as pool:
        who = [verdict.score for verdict in pool.grade([("", "who")] * 7)]
    assert [who.index(process) for process in who] == [0, 0, 0, 3, 3, 3, 6]
    with trickster(LIMITS) as pool:
        before, failed, fails, after, last = pool.grade([("", trick) for trick in ("who", "fail", "who", "take memory", "who")])
        assert before.score == fails.score
        assert math.isnan(failed.score)
        assert math.isnan(after.score)
        assert last.score != before.score


def test_a_closed_pool_may_be_used_again_and_a_forgotten_one_is_swept_up() -> None:
    before = children()
    pool = trickster()
    first = process_of(pool)
    pool.close()
    assert children() == before
    assert process_of(pool) != first
    assert children() != before
    del pool
    gc.collect()
    assert children() == before


def test_what_a_grader_started_ends_with_it(tmp_path: Path) -> None:
    number = tmp_path / "number"
    with GraderPool(grader="fault.bad_graders:start_a_program", limits=GradeLimits(seconds=1.5), workers=1) as pool:
        assert math.isnan(pool.grade([(str(number), "")])[0].score)
        assert gone_soon(int(number.read_text()))


def test_children_do_not_hear_the_terminal() -> None:
    with trickster() as pool:
        process = process_of(pool)
        assert os.getsid(process) == os.getpgid(process) == process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_that_is_meant_for_the_parent_costs_no_verdict(number: signal.Signals) -> None:
    """As a scheduler sends it to every process of a job, in the middle of a question."""
    before = children()
    with echoing() as pool:
        pool.grade([("1", "")])
        (process,) = children() - before
        threading.Timer(0.3, os.kill, (process, number)).start()
        assert pool.grade([("2", "~0.8"), ("3", "")]) == [Verdict(2.0), Verdict(3.0)]
        assert children() - before == {process}


@pytest.mark.parametrize("trick", ["sleep", "spin in C"])
def test_children_die_with_a_parent_that_is_killed(tmp_path: Path, trick: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from tokencredit.grade.protocol import GradeLimits\n"
        "from tokencredit.grade.pool import GraderPool\n"
        "pool = GraderPool(grader='fault.bad_graders:act', limits=GradeLimits(seconds=600.0), workers=1)\n"
        "print(int(pool.grade([('', 'who')])[0].score), flush=True)\n"
        f"pool.grade([('', {trick!r})])\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        process = int(parent.stdout.readline())
        time.sleep(0.5)
        assert Path(f"/proc/{process}").exists()
        parent.kill()
    assert gone_soon(process)


def test_an_interruption_leaves_nothing_behind_and_no_stale_verdict() -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = children()
    usual = signal.signal(signal.SIGALRM, interrupt)
    try:
        with echoing() as pool:
            pool.grade([("1", "")])
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                pool.grade([("1", "~1.0"), ("2", "")])
            assert children() == before
            assert [verdict.score for verdict in pool.grade([("3", ""), ("4", "")])] == [3.0, 4.0]
    finally:
        signal.signal(signal.SIGALRM, usual)


def test_a_thread_that_ends_takes_no_verdict_with_it() -> None:
    """Linux kills a child when the thread that started it ends, at rest or in the middle of another thread's question."""
    scores: list[float] = []
    may_end = threading.Event()

    def start(pool: GraderPool) -> None:
        scores.append(pool.grade([("1", "")])[0].score)
        may_end.wait()

    for busy in (False, True):
        may_end.clear()
        with echoing() as pool:
            first = threading.Thread(target=start, args=(pool,))
            first.start()
            while not scores:
                time.sleep(0.01)
            if busy:
                second = threading.Thread(target=lambda pool=pool: scores.append(pool.grade([("2", "~1.0")])[0].score))
                second.start()
                time.sleep(0.3)
                may_end.set()
                second.join()
            may_end.set()
            first.join()
            scores.append(pool.grade([("3", "")])[0].score)
        assert scores == ([1.0, 2.0, 3.0] if busy else [1.0, 3.0])
        scores.clear()


def test_a_forked_copy_of_the_parent_uses_processes_of_its_own() -> None:
    with trickster(PATIENT) as pool:
        mine = process_of(pool)
        read, write = os.pipe()
        copy = os.fork()
        if copy == 0:
            try:
                os.write(write, str(process_of(pool)).encode())
                pool.close()
            finally:
                os._exit(0)
        os.close(write)
        with open(read, "rb") as said:
            theirs = int(said.read())
        os.waitpid(copy, 0)
        assert theirs not in (0, mine)
        assert gone_soon(theirs)
        assert process_of(pool) == mine


def test_children_load_no_torch() -> None:
    with GraderPool(grader="fault.bad_graders:torch_is_loaded", limits=PATIENT) as pool:
        assert pool.grade([("", "")]) == [Verdict(0.0)]


GRADER_MISTAKES: dict[str, tuple[Callable[[], GraderPool], str]] = {
    "unknown name": (lambda: GraderPool(grader="maths"), "grader 'maths' is not known; give one of exact, regex, math"),
    "no such module": (lambda: GraderPool(grader="no_such:grade"), "'no_such:grade' cannot be imported: ModuleNotFoundError"),
    "no such function": (lambda: GraderPool(grader="fault.bad_graders:grade"), "cannot be imported: AttributeError"),
    "module that fails": (lambda: GraderPool(grader="fails_at_import:grade"), "cannot be imported: ZeroDivisionError"),
    "module that leaves": (lambda: GraderPool(grader="leaves_at_import:grade"), "ended with exit code 5 while it was starting"),
    "module that hangs": (
        lambda: GraderPool(grader="hangs_at_import:grade", limits=GradeLimits(start_seconds=1.0)),
        "did not start within 1 s",
    ),
    "knob it does not take": (lambda: GraderPool(grader="exact", knobs={"case": 1}), "unexpected keyword argument 'case'"),
    "knob it needs": (lambda: GraderPool(grader="regex"), "missing a required argument: 'pattern'"),
    "knob of a wrong value": (
        lambda: GraderPool(grader="regex", knobs={"pattern": "("}),
        "pattern is '(', which is not a regular expression",
    ),
    "pattern of two groups": (lambda: GraderPool(grader="regex", knobs={"pattern": "(a)(b)"}), "with 2 groups; keep one"),
    "mistake while grading": (lambda: GraderPool(grader="fault.bad_graders:refuse"), "the knob is loose"),
    "knob that is no JSON": (lambda: GraderPool(grader="exact", knobs={"fold_case": object()}), "must be plain JSON values"),
    "no workers": (lambda: GraderPool(grader="exact", workers=0), "workers is 0; give at least 1"),
    "no time": (lambda: GraderPool(grader="exact", limits=GradeLimits(seconds=0)), "grade limit seconds is 0"),
    "endless time": (lambda: GraderPool(grader="exact", limits=GradeLimits(seconds=math.inf)), "grade limit seconds is inf"),
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails_at_import.py").write_text("1 / 0\n")
    (tmp_path / "leaves_at_import.py").write_text("import os\nos._exit(5)\n")
    (tmp_path / "hangs_at_import.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("mistake", GRADER_MISTAKES)
def test_a_grader_that_cannot_be_used_is_a_mistake_and_no_verdict(mistake: str) -> None:
    make, words = GRADER_MISTAKES[mistake]
    before = children()
    with pytest.raises(ConfigError) as told:
        make().grade([("1", "1")] * 3)
    assert words in str(told.value)
    assert children() == before


@pytest.mark.parametrize(("program", "words"), [("/nonexistent/python", "cannot be started"), ("/bin/false", "exit code 1 while it was")])
def test_an_interpreter_that_does_not_start_is_a_mistake(monkeypatch: pytest.MonkeyPatch, program: str, words: str) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(ConfigError, match=words):
        trickster().grade([("", "right")])

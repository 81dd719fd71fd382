"""Every attack tried, as a table for docs/sandbox.md: `PYTHONPATH=tests python -m fault.attack_table`."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fault.attacks import ATTACKS, FORGERIES, PASSED, SUM, Attack, Control, Forgery, ran_on
from fault.scene import Scene, a_scene, run_bare
from tokencredit.grade.code import CodeGold, grade_code
from tokencredit.grade.sandbox import ProgramEnd, run_program

_NO_CONTROL = "not tried"


def naive_score(program: str, tests: tuple[str, ...], folder: Path) -> float:
    """What many graders do: the tests run after the program, in its process, which then says that they passed."""
    whole = "\n".join([program, *tests, f"print('{PASSED}')"])
    done = subprocess.run([sys.executable, "-S", "-c", whole], cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
    verdict = folder / "verdict"
    said = PASSED.encode() in done.stdout and done.returncode == 0
    return float(said or (verdict.exists() and PASSED in verdict.read_text()))


def run_attack(attack: Attack, scene: Scene, where: Control | None) -> ProgramEnd:
    """In the sandbox (None), or where nothing or little stops it."""
    program = scene.fill(attack.program)
    if where == "bare":
        return run_bare(program, scene, seconds=attack.limits.wall_seconds if attack.succeeded is not ran_on else 1.0)
    return run_program(program, limits=attack.limits, isolation="bubblewrap" if where is None else where)


def what_happened(end: ProgramEnd) -> str:
    """The last refusal it met, without the path that it names; or how it ended."""
    said = [line.removeprefix("no: ").split(": '")[0].strip() for line in end.output.splitlines() if line.startswith("no: ")]
    return said[-1] if said else "no effect outside" if end.reason == "exit code 0" else end.reason


def _row(name: str, tried: str, run_events: str, without: str) -> str:
    return f"| `{name}` | {tried} | {run_events} | {without} |"


def _attack_row(attack: Attack, folder: Path) -> str:
    with a_scene(folder) as scene:
        end = run_attack(attack, scene, None)
        run_events = "**SUCCEEDED**" if attack.succeeded(end, scene) else what_happened(end).replace(scene.marker, "...")
        without = _NO_CONTROL
        if attack.control is not None:
            succeeded = attack.succeeded(run_attack(attack, scene, attack.control), scene)
            without = f"{'succeeds' if succeeded else 'fails'} ({'plain limits' if attack.control == 'plain' else 'bare process'})"
    return _row(attack.name, attack.tried, run_events, without)


def _forgery_row(forgery: Forgery, folder: Path) -> str:
    score, naive = grade_code(CodeGold(SUM, "").dumps(), forgery.program), naive_score(forgery.program, SUM, folder)
    return _row(forgery.name, forgery.tried, f"score {score:g}", f"score {naive:g} (naive grader)")


def table() -> Iterator[str]:
    yield "| attack | what was tried | what happened in the sandbox | without it |"
    yield "| --- | --- | --- | --- |"
    rows: dict[str, Callable[[Path], str]] = {attack.name: partial(_attack_row, attack) for attack in ATTACKS}
    rows |= {forgery.name: partial(_forgery_row, forgery) for forgery in FORGERIES}
    for row in rows.values():
        with tempfile.TemporaryDirectory() as folder:
            yield row(Path(folder))


if __name__ == "__main__":
    for line in table():
        print(line, flush=True)

"""Runs whose answers are graded in child processes: what happens to the run, and to the processes, when things go wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

from engine.runs import files_of
from fault.command import tokencredit
from tokencredit.storage.atomic import remove_folder
from tokencredit.tasks.steps import Steps

SMALL = [
    "--sampling.prompts", "4", "--sampling.group-size", "4", "--optimizer.steps-per-batch", "2", "--evaluation.problems", "4",
    "--evaluation.samples", "1", "--evaluation.final-problems", "4", "--evaluation.final-samples", "1", "--evaluation.every", "0",
    "--diagnose.every", "0", "--no-report", "--sampling.max-new-tokens", "48", "--model", "steps-shift",
    "--task.type", "jsonl", "--task.path", "rows.jsonl", "--task.template", "{question}", "--task.workers", "1",
]  # fmt: skip
AFTER_THE_SIGN = ["--task.grading", "regex", "--task.pattern", "#(.)$", "--task.gold-pattern", "#(.)$"]


def write_rows(folder: Path) -> None:
    rng, task = Random(0), Steps()
    problems = [task.make_problem(rng) for _ in range(80)]
    rows = [{"question": problem.prompt, "answer": f"a:?;#{problem.answer}"} for problem in problems]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def events(folder: Path, kind: str) -> list[dict]:
    path = folder / "events.jsonl"
    return [event for line in path.read_text().splitlines() if (event := json.loads(line))["kind"] == kind] if path.exists() else []


def test_a_run_graded_in_child_processes_goes_on_from_another_folder_and_equals_one_that_never_stopped(tmp_path: Path) -> None:
    write_rows(tmp_path)
    for name in ("whole", "cut"):
        done = tokencredit("train", *SMALL, *AFTER_THE_SIGN, "--steps", "3", "--keep-every", "1", "--out", name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    (tmp_path / "cut" / "result.json").unlink()
    remove_folder(tmp_path / "cut" / "checkpoints" / "step-000003")
    (tmp_path / "elsewhere").mkdir()
    done = tokencredit("train", "--resume", "../cut", cwd=tmp_path / "elsewhere")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "cut" / "resumes.jsonl").read_text())["step"] == 2
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")
    assert json.loads((tmp_path / "cut" / "gold.json").read_text()) == {"checked": 80, "failed": []}


def test_rows_whose_own_answer_is_not_right_are_told_and_not_asked(tmp_path: Path) -> None:
    rows = [{"question": f"{number}+1=", "answer": "{{{" if number == 2 else str(number + 1)} for number in range(60)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = tokencredit("train", *SMALL, "--task.grading", "math", "--steps", "1", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (event,) = events(tmp_path / "run", "gold")
    assert (event["step"], event["failed"], event["checked"]) == (0, 1, 60)
    assert "1 of 60 gold answers are not graded right and are left out: line 3 of" in event["message"]
    assert "gold: 1 of 60 gold answers" in done.stdout
    assert json.loads((tmp_path / "run" / "gold.json").read_text())["failed"][0][0] == 3


def test_a_grader_that_hangs_on_every_answer_stops_the_run_with_the_reason(tmp_path: Path) -> None:
    """The pattern backtracks without end on what the policy writes; nobody gets a 0 for it."""
    write_rows(tmp_path)
    hanging = ["--task.grading", "regex", "--task.pattern", r"((?:[^!]+)+)+!", "--task.deadline", "0.2"]
    few = ["--sampling.prompts", "2", "--sampling.group-size", "2", "--evaluation.final-problems", "1"]
    done = tokencredit("train", *SMALL, *few, *hanging, "--steps", "2", "--out", "run", cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "100.0 % of the responses could not be graded: no verdict within 0.2 s (4)" in done.stderr
    (event,) = events(tmp_path / "run", "ungraded")
    assert event["share"] == 1.0
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def workers_of(parent: int) -> set[int]:
    """Processes that grade for it; read from /proc because a process that died leaves its children to another."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                above = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            if b"tokencredit.grade.worker" in words and above == parent:
                found.add(int(entry.name))
    return found


def is_running(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_grading_processes_are_gone_however_the_run_ends(tmp_path: Path) -> None:
    write_rows(tmp_path)
    for number, code in ((signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        command = [sys.executable, "-m", "tokencredit", "train", *SMALL, *AFTER_THE_SIGN, "--steps", "500", "--out", f"run-{code}"]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        workers: set[int] = set()
        while not workers or not (tmp_path / f"run-{code}" / "metrics.jsonl").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            workers = workers_of(process.pid)
            time.sleep(0.05)
        os.kill(process.pid, number)
        process.communicate(timeout=60)
        assert process.returncode == code
        while any(is_running(pid) for pid in workers):
            assert time.monotonic() < deadline
            time.sleep(0.05)

"""Kill a training run with SIGKILL again and again, wherever it is, resume it each time, and compare its end with a run left alone.

PYTHONPATH=tests python -m soak.kills --count 200 --seed 0 --out kills.json
"""

import argparse
import ctypes
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from tokencredit.config.train import TrainConfig

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tokencredit.trainer.loop", "engine.runs"])

STAGES = ("start", "sample", "grade", "credit", "update", "record", "evaluate", "save", "prune")
RUN: dict[str, Any] = {
    "recipe": "fade",
    "steps": 12,
    "sampling": {"prompts": 8},
    "optimizer": {"steps_per_batch": 3},
    "evaluation": {"every": 3},
    "tokens_every": 2,
    "diagnose": {"every": 6},
    "threads": 1,
}
"""What differs from the short run of the tests."""


def config_of(seed: int) -> TrainConfig:
    from engine.runs import small_config

    return small_config(**RUN, seed=seed)


def _marked(where: "Synchronized[int]") -> None:
    """Say in shared memory which stage the run is in."""
    from tokencredit.timing import Stopwatch
    from tokencredit.trainer import run as training

    stage = Stopwatch.stage

    @contextmanager
    def marking(self: Stopwatch, name: str) -> Any:
        before = where.value
        where.value = STAGES.index(name) if name in STAGES else STAGES.index("record")
        try:
            with stage(self, name):
                yield
        finally:
            where.value = before

    def marked(name: str, work: Any) -> Any:
        def wrapper(*given: Any, **named: Any) -> Any:
            before, where.value = where.value, STAGES.index(name)
            try:
                return work(*given, **named)
            finally:
                where.value = before

        return wrapper

    Stopwatch.stage = marking  # pyright: ignore[reportAttributeAccessIssue]
    training.save_checkpoint = marked("save", training.save_checkpoint)
    training.prune = marked("prune", training.prune)


def _train(seed: int, folder: Path, where: "Synchronized[int]") -> None:
    from engine.runs import run

    libc = ctypes.CDLL(None)
    libc.prctl(1, signal.SIGKILL)
    _marked(where)
    run(config_of(seed), folder, resume=(folder / "config.toml").is_file())


def launch(seed: int, folder: Path) -> tuple[Any, "Synchronized[int]"]:
    where = _SERVER.Value("i", 0)
    process = _SERVER.Process(target=_train, args=(seed, folder, where))
    process.start()
    return process, where


def kill_in(stage: int, process: Any, where: "Synchronized[int]", rng: random.Random) -> int | None:
    """Wait for the stage, wait a moment more, kill; the stage it really was in, or None where the run was over first."""
    passes = rng.randint(1, 4)
    inside = False
    while process.is_alive():
        now = where.value == stage
        passes -= now and not inside
        inside = now
        if passes <= 0 and now:
            time.sleep(rng.choice((0.0, 0.001, 0.003, 0.01, 0.03)))
            at = where.value
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            return at if process.exitcode == -signal.SIGKILL else None
        time.sleep(0.0003)
    process.join()
    return None


def unlike(one: dict[str, bytes], two: dict[str, bytes]) -> list[str]:
    return [name for name in sorted({*one, *two}) if one.get(name) != two.get(name)]


def soak(count: int, seed: int, tell: Any = print) -> dict[str, Any]:
    from engine.runs import files_of

    rng = random.Random(seed)
    kills: Counter[str] = Counter()
    unusable: list[str] = []
    different: list[str] = []
    runs, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        while sum(kills.values()) < count:
            whole, cut = Path(scratch) / "whole", Path(scratch) / "cut"
            alone, _ = launch(seed + runs, whole)
            alone.join()
            for _ in range(200):
                process, where = launch(seed + runs, cut)
                at = kill_in(rng.randrange(len(STAGES)), process, where, rng)
                if at is not None:
                    kills[STAGES[at]] += 1
                elif process.exitcode == 0:
                    break
                elif process.exitcode != -signal.SIGKILL:
                    unusable.append(f"run {runs}: exit {process.exitcode} after {sum(kills.values())} kills")
                    break
            if not (cut / "result.json").exists():
                unusable.append(f"run {runs}: never finished")
            elif other := unlike(files_of(whole), files_of(cut)):
                different.append(f"run {runs}: {', '.join(other)}")
            runs += 1
            done = f"{sum(kills.values())} kills, {runs} runs, {len(unusable)} unusable, {len(different)} different"
            tell(f"{done}, {time.monotonic() - began:.0f} s")
            shutil.rmtree(whole)
            shutil.rmtree(cut)
    return {
        "kills": sum(kills.values()),
        "by_stage": dict(kills),
        "runs": runs,
        "unusable": unusable,
        "different": different,
        "seconds": time.monotonic() - began,
    }


def in_parallel(count: int, seed: int, jobs: int) -> dict[str, Any]:
    """Each job is a process of its own with seeds of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        files = [Path(scratch) / f"{job}.json" for job in range(jobs)]
        command = [sys.executable, "-m", "soak.kills", "--count", str(-(-count // jobs))]
        started = [subprocess.Popen([*command, "--seed", str(seed + 1000 * job), "--out", str(file)]) for job, file in enumerate(files)]
        for process in started:
            process.wait()
        parts = [json.loads(file.read_text()) for file in files]
    return {
        "kills": sum(part["kills"] for part in parts),
        "by_stage": dict(sum((Counter(part["by_stage"]) for part in parts), Counter())),
        "runs": sum(part["runs"] for part in parts),
        "unusable": [said for part in parts for said in part["unusable"]],
        "different": [said for part in parts for said in part["different"]],
        "seconds": max(part["seconds"] for part in parts),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=200)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    found = soak(given.count, given.seed) if given.jobs == 1 else in_parallel(given.count, given.seed, given.jobs)
    print(json.dumps(found, indent=2))
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=2) + "\n")
    raise SystemExit(1 if found["unusable"] or found["different"] else 0)


if __name__ == "__main__":
    main()

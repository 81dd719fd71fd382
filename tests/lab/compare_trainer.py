"""Stands in for `tokencredit train` under a comparison: a run folder in no time, or one that breaks or hangs half done.

    python -IS compare_trainer.py CONFIG.toml RUN      what is asked of a seed is in trouble.json beside the comparison

Standard library only, so that it starts at once.
"""

import fcntl
import hashlib
import json
import os
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

JOURNAL, TROUBLE, ENVIRONMENT = "journal.txt", "trouble.json", "environment.json"


def accuracy(recipe: str, rate: float, seed: int, share: float) -> float:
    """Best at a rate of 3e-4; delta learns more."""
    luck = int(hashlib.sha256(f"{recipe}{seed}".encode()).hexdigest(), 16) % 100 / 5000
    return 0.2 + share * (0.5 + 0.2 * (recipe == "delta") - 200 * abs(rate - 3e-4)) + luck


def told_of(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def train(config_file: Path, folder: Path) -> int:
    place = next(parent for parent in folder.absolute().parents if parent.name == "runs").parent.parent
    config = tomllib.loads(config_file.read_text())
    recipe, seed, rate, steps = config["recipe"], config["seed"], config["optimizer"]["learning_rate"], config["steps"]
    with (place / JOURNAL).open("a") as journal:
        journal.write(f"{recipe} {rate:g} {seed}\n")
    trouble = told_of(place / TROUBLE).get(f"{recipe} {seed}")
    if trouble == "break":
        print("stopped: weights are not finite")
        return 3
    folder.mkdir()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"process {os.getpid()} on here\n")
        lock.flush()
        (folder / "checkpoints").mkdir()
        (folder / "config.toml").write_text(config_file.read_text())
        (folder / "env.json").write_text(json.dumps(json.loads(os.environ["MADE_UP_ENVIRONMENT"]) | told_of(place / ENVIRONMENT)))
        data = {"held_out": {"sha256": f"{config['evaluation']['seed']}"}, "first_step": {"sha256": f"{seed}"}}
        (folder / "data.json").write_text(json.dumps(data))
        for step in range(1, steps + 1):
            row = {"step": step, "rollouts_used": 100 * step, "entropy": 0.3 - 0.1 * step / steps}
            with (folder / "metrics.jsonl").open("a") as metrics:
                metrics.write(json.dumps(row | {"held_out/sampled": accuracy(recipe, rate, seed, step / steps)}) + "\n")
            if step == 1 and trouble == "hang":
                time.sleep(600)
            if step == 1 and trouble == "break later":
                print("stopped: out of memory")
                return 3
        shared = {"greedy": 0.9, "pass_at_k": 0.95, "k": 8, "length": 20.0, "problems": 64}
        before, after = ({"sampled": accuracy(recipe, rate, seed, share), **shared} for share in (0, 1))
        result = {"recipe": recipe, "seed": seed, "steps": steps, "before": before, "after": after, "rollouts_used": 100 * steps}
        (folder / "result.json").write_text(json.dumps(result | {"best_step": steps, "seconds": {"sample": 1.0}}))
    return 0


if __name__ == "__main__":
    sys.exit(train(Path(sys.argv[1]), Path(sys.argv[2])))

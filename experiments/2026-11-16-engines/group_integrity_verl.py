"""How many optimizer steps of verl hold a part of a prompt group whose other part is in another step: stock verl, and ours.

    python experiments/2026-11-16-engines/group_integrity_verl.py --seeds 3 --batches 8 --out experiments/<date>-group-integrity-verl

Run it in an environment with verl. 4 groups of 8 responses in 4 optimizer steps, on the embedded task, with one training rank and
with two, through `verl.trainer.main_ppo` on the test bench of `tests/verl_cpu`. Rows are recorded where a rank trains on them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from in_verl.real_run import WHOLE_GROUPS, real_run  # noqa: E402
from verl_cpu.command import Shape  # noqa: E402
from verl_cpu.integrity import group_integrity  # noqa: E402

GROUPS, GROUP_SIZE, OPTIMIZER_STEPS = 4, 8, 4
TRAINERS: dict[str, tuple[str, ...]] = {
    "stock": (),
    "delta, query-preserved": WHOLE_GROUPS,
    "cancellation": ("algorithm.adv_estimator=tokencredit", "trainer.v1.trainer_mode=tokencredit", "+tokencredit.recipe=cancellation"),
}


def splitting_shares(name: str, folder: Path, *, ranks: int, batches: int, seed: int) -> list[float]:
    """One share per batch of generations, over the rows of all ranks."""
    shape = Shape(ranks=ranks, prompts=GROUPS, group_size=GROUP_SIZE, mini_batch_prompts=GROUPS // OPTIMIZER_STEPS, steps=batches)
    steps = real_run(folder, shape, *TRAINERS[name], stock=name == "stock", seed=seed).mini_batches
    assert [len(rows) for rows in steps] == [GROUPS * GROUP_SIZE // OPTIMIZER_STEPS] * (batches * OPTIMIZER_STEPS), "every row once"
    return [group_integrity(steps[first : first + OPTIMIZER_STEPS]).share for first in range(0, len(steps), OPTIMIZER_STEPS)]


def measure(*, batches: int, seeds: int) -> list[dict[str, Any]]:
    """A row per trainer, number of ranks and seed."""
    rows = []
    for ranks in (1, 2):
        for name in TRAINERS:
            for seed in range(seeds):
                with tempfile.TemporaryDirectory() as folder:
                    shares = splitting_shares(name, Path(folder), ranks=ranks, batches=batches, seed=seed)
                rows.append({"trainer": name, "ranks": ranks, "seed": seed, "shares": shares})
                print(json.dumps(rows[-1]), flush=True)
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'trainer':24} {'ranks':>5} {'batches':>7} {'steps that split a group':>25}")
    for name in TRAINERS:
        for ranks in (1, 2):
            shares = [share for row in rows if (row["trainer"], row["ranks"]) == (name, ranks) for share in row["shares"]]
            print(f"{name:24} {ranks:5} {len(shares):7} {100 * sum(shares) / len(shares):24.1f}%")


def commit() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=8, help="batches of generations per seed")
    parser.add_argument("--out", type=Path, help="folder for results.json")
    asked = parser.parse_args()
    found = measure(batches=asked.batches, seeds=asked.seeds)
    print_table(found)
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        about = {"commit": commit(), "versions": {name: version(name) for name in ("tokencredit", "verl", "ray", "transformers", "torch")}}
        setting = {"groups": GROUPS, "group_size": GROUP_SIZE, "optimizer_steps": OPTIMIZER_STEPS}
        (asked.out / "results.json").write_text(json.dumps({**about, **setting, "rows": found}, indent=1) + "\n")

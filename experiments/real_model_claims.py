"""Flips and coupling on a real language model: two-digit addition after three worked examples, looked at through a rollout file.

    python experiments/real_model_claims.py --model DIR --seeds 3 --out experiments/<date>-real-model

DIR holds a causal LM whose generation_config names the newline as its end token (an answer is one line). The rollouts are
sampled here, written to a file as any trainer could, and `tokencredit diagnose --model --rollouts` looks at one training step on them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from statistics import mean, stdev
from typing import Any

import torch

from tokencredit.policy.policy import Policy, choose_device, load_policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.sampler import sample
from tokencredit.rollout_io.write import rollout_rows, write_rows
from tokencredit.storage.run_dir import describe_environment

SHOWN = (
    "accuracy", "flips/first/band/positive/boosted", "flips/first/band/negative/boosted",
    "flips/step/band/positive/boosted", "flips/step/band/negative/boosted",
    "effect/first/correlation", "effect/step/correlation", "effect/raw/correlation", "cancellation/mass", "cancellation/mini/mass",
    "coupling/outvoted", "coupling/pairs/same",
    "coupling/pairs/same_coupling", "coupling/pairs/low_of_same", "coupling/pairs/low_of_same_coupling", "tax/certain/kl", "tax/dead/kl",
    "drift/equal/absolute", "drift/unequal/mean", "entropy/before", "entropy/after", "masses/dead_groups",
)  # fmt: skip

SHOTS = "23+45=68\n17+31=48\n56+27=83\n"


def write_rollouts(policy: Policy, file: Path, *, prompts: int, group_size: int, seed: int) -> float:
    """Returns the share of right answers."""
    rng = Random(seed)
    terms = [(rng.randrange(10, 100), rng.randrange(10, 100)) for _ in range(prompts)]
    asked = [policy.encode(f"{SHOTS}{left}+{right}=") for left, right in terms]
    rollouts = sample(policy, asked, SamplingParams(group_size=group_size, max_new_tokens=8, seed=seed)).rollouts
    ids = [rollouts.tokens[row][rollouts.mask[row]].tolist() for row in range(len(rollouts.prompts))]
    right = [policy.decode(ids[row]).strip() == str(sum(terms[int(rollouts.group[row])])) for row in range(len(ids))]
    classes = [["end" if token in policy.end_tokens else "answer" for token in row] for row in ids]
    write_rows(file, rollout_rows(rollouts, torch.tensor(right, dtype=torch.float32), token_class=classes))
    return mean(right)


def diagnose(model: Path, file: Path, out: Path, rate: float, recipe: str) -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-m", "tokencredit", "diagnose", "--model", str(model), "--rollouts", str(file), "--recipe", recipe]
    command += ["--learning-rate", str(rate), "--groups", "0", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr)[-3000:])
    found = json.loads((out / "findings" / "step-000001.json").read_text())
    return {finding["name"]: finding for finding in found["findings"]}


def print_tables(rows: list[dict[str, Any]]) -> None:
    keys = [key for key in SHOWN if key in rows[0]]
    arms = list(dict.fromkeys((row["recipe"], row["rate"]) for row in rows))
    print(f"| number | {' | '.join(f'{recipe}, rate {rate:g}' for recipe, rate in arms)} |\n|{' --- |' * (1 + len(arms))}")
    for key in keys:
        cells = []
        for arm in arms:
            values = [row[key] for row in rows if (row["recipe"], row["rate"]) == arm and row.get(key) is not None]
            cells.append(f"{mean(values):.3f} ± {stdev(values):.3f}" if len(values) > 1 else "–")
        print(f"| {key} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    file = options.out / "results.json"
    if options.model is None:
        print_tables(json.loads(file.read_text()))
        return
    policy = load_policy(str(options.model), device=choose_device("auto"), dtype="float32")
    rows: list[dict[str, Any]] = []
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as scratch:
            rollouts = Path(scratch) / "rollouts.parquet"
            accuracy = write_rollouts(policy, rollouts, prompts=options.prompts, group_size=options.group_size, seed=seed)
            for recipe, rate in (("dapo", 1e-6), ("dapo", 1e-5), ("delta", 1e-6)):
                found = diagnose(options.model, rollouts, Path(scratch) / f"{recipe}-{rate}", rate, recipe)
                numbers = {f"{name}/{key}": value for name, finding in found.items() for key, value in finding["numbers"].items()}
                tables = {"pairs": found["coupling"]["tables"]["pairs"], "flip_matrix": found["flips"]["tables"]["matrix"]}
                known = {"seed": seed, "recipe": recipe, "rate": rate, "accuracy": accuracy, "commit": describe_environment()["commit"]}
                rows.append(known | numbers | tables)
                file.write_text(json.dumps(rows, indent=1) + "\n")
    print_tables(rows)


if __name__ == "__main__":
    main()

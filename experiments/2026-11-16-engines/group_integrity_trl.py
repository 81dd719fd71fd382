"""How many optimizer steps of TRL hold a part of a prompt group whose other part is in another step: stock TRL, and ours.

    python experiments/2026-11-16-engines/group_integrity_trl.py --seeds 3 --batches 8 --out experiments/<date>-group-integrity

Run it in an environment with TRL. 4 groups of 8 responses in 4 optimizer steps, on the embedded task, with one process and with
two (torchrun, gloo). Rows are recorded where the loss is computed, so what counts is what was trained on.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from tokencredit.batching.microbatch import splitting_share
from tokencredit.integrations.trl import CreditGRPOTrainer
from tokencredit.models import model_folder
from tokencredit.tasks.protocol import Problem
from tokencredit.tasks.steps import Steps

GROUPS, GROUP_SIZE, OPTIMIZER_STEPS = 4, 8, 4
TRAINERS: dict[str, Any] = {
    "stock": None,
    "delta, query-preserved": {"recipe": "delta", "batching": {"type": "query-preserved"}},
    "cancellation": "cancellation",
}


class RecordingStock(GRPOTrainer):
    """Rows carry their number through TRL's shuffle and split; nothing else is changed."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.rows_of_step: dict[int, list[int]] = defaultdict(list)
        super().__init__(*given, **named)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        made = super()._generate_and_score_completions(inputs)
        first = self.accelerator.process_index * len(inputs)
        return {**made, "row": torch.arange(first, first + len(inputs))}

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        self.rows_of_step[self.state.global_step] += inputs["row"].tolist()
        return super()._compute_loss(model, inputs)


class RecordingOurs(CreditGRPOTrainer):
    def __init__(self, *given: Any, **named: Any) -> None:
        self.rows_of_step: dict[int, list[int]] = defaultdict(list)
        super().__init__(*given, **named)
        self.rows_of_step.clear()  # the start-up test computes a loss too

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        self.rows_of_step[self.state.global_step] += inputs["tokencredit"].inputs.row.tolist()
        return super()._compute_loss(model, inputs)


def _trainer(recipe: Any, folder: Path, *, ranks: int, batches: int, seed: int) -> Any:
    task, base = Steps(), str(model_folder("steps-shift"))
    problems = task.problems(GROUPS * batches, split="train", seed=seed)

    def right_answer(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [task.grade(Problem(prompt="", answer=right), text) for right, text in zip(answer, completions, strict=True)]

    config = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=GROUPS * GROUP_SIZE // (OPTIMIZER_STEPS * ranks),
        steps_per_generation=OPTIMIZER_STEPS,
        num_generations=GROUP_SIZE,
        max_completion_length=40,
        max_steps=batches * OPTIMIZER_STEPS,
        seed=seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    chosen, named = (RecordingStock, {}) if recipe is None else (RecordingOurs, {"recipe": recipe})
    return chosen(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        right_answer,
        config,
        train_dataset=Dataset.from_list([{"prompt": problem.prompt, "answer": problem.answer} for problem in problems]),
        processing_class=AutoTokenizer.from_pretrained(base),
        **named,
    )


def splitting_shares(recipe: Any, folder: Path, *, ranks: int = 1, batches: int = 3, seed: int = 0) -> list[float]:
    """One share per batch of generations, over the rows of all ranks."""
    trainer = _trainer(recipe, folder, ranks=ranks, batches=batches, seed=seed)
    trainer.train()
    parts: list[Any] = [trainer.rows_of_step]
    if ranks > 1:
        parts = [None] * ranks
        torch.distributed.all_gather_object(parts, trainer.rows_of_step)
    steps = [[row for part in parts for row in part[number]] for number in range(batches * OPTIMIZER_STEPS)]
    group = [row // GROUP_SIZE for row in range(GROUPS * GROUP_SIZE)]
    assert all(len(rows) == len(group) // OPTIMIZER_STEPS for rows in steps), "every row is trained on once"
    return [splitting_share(steps[first : first + OPTIMIZER_STEPS], group) for first in range(0, len(steps), OPTIMIZER_STEPS)]


def measure(folder: Path, *, ranks: int, batches: int, seeds: int) -> list[dict[str, Any]]:
    """A row per trainer and seed."""
    return [
        {"trainer": name, "ranks": ranks, "seed": seed, "shares": splitting_shares(recipe, folder, ranks=ranks, batches=batches, seed=seed)}
        for name, recipe in TRAINERS.items()
        for seed in range(seeds)
    ]


def measure_in_processes(ranks: int, *, batches: int, seeds: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), __file__]
        asked = ["--batches", str(batches), "--seeds", str(seeds), "--inside", folder]
        quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        subprocess.run([*launch, *asked], env={**os.environ, **quiet}, check=True)
        return json.loads((Path(folder) / "rows.json").read_text())


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'trainer':24} {'ranks':>5} {'batches':>7} {'steps that split a group':>25}")
    for name in TRAINERS:
        for ranks in sorted({row["ranks"] for row in rows}):
            shares = [share for row in rows if (row["trainer"], row["ranks"]) == (name, ranks) for share in row["shares"]]
            print(f"{name:24} {ranks:5} {len(shares):7} {100 * sum(shares) / len(shares):24.1f}%")


def commit() -> str:
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=8, help="batches of generations per seed")
    parser.add_argument("--out", type=Path, help="folder for results.json")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside is not None:
        torch.set_num_threads(1)
        found = measure(asked.inside / "run", ranks=int(os.environ["WORLD_SIZE"]), batches=asked.batches, seeds=asked.seeds)
        if os.environ["RANK"] == "0":
            (asked.inside / "rows.json").write_text(json.dumps(found))
    else:
        rows = [row for ranks in (1, 2) for row in measure_in_processes(ranks, batches=asked.batches, seeds=asked.seeds)]
        print_table(rows)
        if asked.out is not None:
            asked.out.mkdir(parents=True, exist_ok=True)
            about = {"commit": commit(), "versions": {name: version(name) for name in ("tokencredit", "trl", "transformers", "torch")}}
            setting = {"groups": GROUPS, "group_size": GROUP_SIZE, "optimizer_steps": OPTIMIZER_STEPS}
            (asked.out / "results.json").write_text(json.dumps({**about, **setting, "rows": rows}, indent=1) + "\n")

"""Run by torchrun with two processes: everything that must be seen with two ranks, each rank leaving its own files."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from group_integrity_trl import TRAINERS, splitting_shares

from conformance import outcome
from conformance.cases import CASES
from in_trl.real_run import reward_curve
from in_trl.small_run import problems, small_trainer, trained
from in_trl.stored_run import run_stored

RANKS = 2


def case_file(folder: Path, name: str, rank: int) -> Path:
    return folder / f"{name.replace(' ', '-')}.{rank}.pt"


def conformance(folder: Path, rank: int) -> None:
    for name, case in CASES.items():
        outcome.write(run_stored(case, folder / "run", ranks=RANKS), case_file(folder, name, rank))
    accumulated = run_stored(CASES["clip-cov"], folder / "run", ranks=RANKS, accumulated=2)
    outcome.write(accumulated, case_file(folder, "accumulated", rank))


def resume(folder: Path, rank: int) -> None:
    """Checkpoints in the middle of a generation cycle; a fresh trainer goes on from there."""
    settings = {"ranks": RANKS, "max_steps": 8, "save_strategy": "steps", "save_steps": 6}
    never_stopped = trained(small_trainer(folder / "resume", "delta", **settings))
    resumed = trained(small_trainer(folder / "resume", "delta", **settings), resume_from_checkpoint=str(folder / "resume/checkpoint-6"))
    torch.save({"never stopped": never_stopped, "resumed": resumed}, folder / f"resumed.{rank}.pt")


def evaluation(folder: Path, rank: int) -> None:
    """Five prompts of four responses on two ranks with six rows each: groups lie over ranks, and the last batch is filled up."""
    named = {"eval_dataset": problems(5, "held-out")}
    found = {}
    for recipe in ("delta", "clip-cov"):
        trainer = small_trainer(folder / "run", recipe, ranks=RANKS, named=named, per_device_eval_batch_size=6)
        found[recipe] = trainer.evaluate()
        trainer.train()
    (folder / f"evaluation.{rank}.json").write_text(json.dumps(found))


def integrity(folder: Path, rank: int) -> None:
    found = {name: splitting_shares(recipe, folder / "run", ranks=RANKS) for name, recipe in TRAINERS.items()}
    (folder / f"integrity.{rank}.json").write_text(json.dumps(found))


def real_run(folder: Path, rank: int) -> None:
    (folder / f"real_run.{rank}.json").write_text(json.dumps(reward_curve(folder / "run", ranks=RANKS)))


JOBS: tuple[Callable[[Path, int], None], ...] = (conformance, resume, evaluation, integrity, real_run)

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    for job in JOBS:
        job(Path(sys.argv[1]), torch.distributed.get_rank())
    torch.distributed.destroy_process_group()

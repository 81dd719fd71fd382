"""Run under torchrun: every case through one start of verl's worker; rank 0 writes what came out of each.

torchrun --nproc-per-node N all_cases.py FOLDER
"""

import os
import shutil
import sys
import traceback
from pathlib import Path

import torch

from conformance.outcome import write
from in_verl.cases import CASES, file_of
from in_verl.row_queue import Queue
from in_verl.stored_run import Workers, case_overrides, hydra_config, make_worker, ranks_here, run_stored, shape_of

CUT_BY_TOKENS = {"delta, whole groups", "dfpo", "grpo"}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    workers, queue = None, Queue()
    for name, case in CASES.items():
        own = folder / f"rank {rank} {file_of(name)}"
        config = hydra_config(own, shape_of(case, ranks_here()), *case_overrides(case))
        if workers is None:
            workers = Workers(make_worker(config), queue)
        workers.cut(rows=2, tokens=100 if name in CUT_BY_TOKENS else None)
        try:
            outcome = run_stored(case, workers, config, queue)
        except Exception:
            traceback.print_exc()
            (folder / f"{file_of(name)}.error").write_text(traceback.format_exc())
            continue
        finally:
            shutil.rmtree(own, ignore_errors=True)
        if rank == 0:
            write(outcome, folder / f"{file_of(name)}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

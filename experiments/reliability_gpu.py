"""On a GPU: a real out-of-memory and what it does to the weights, a stop and resume inside a batch, and what a checkpoint costs.

python experiments/reliability_gpu.py --out DIR
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tokencredit.config.resolve import resolve
from tokencredit.config.train import TrainConfig
from tokencredit.errors import GuardError
from tokencredit.policy.policy import Policy
from tokencredit.storage.checkpoints import checkpoints_in
from tokencredit.storage.manifest import damage
from tokencredit.tasks.steps import ALPHABET
from tokencredit.tasks.tokenizer import character_tokenizer
from tokencredit.trainer.callbacks import NoCallback
from tokencredit.trainer.checkpoint import Progress, load_optimizer, save_checkpoint
from tokencredit.trainer.loop import train
from tokencredit.trainer.signals import StopSignal

SMOLLM2_SHAPE = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "tie_word_embeddings": True,
}  # fmt: skip


def large(**changes: Any) -> TrainConfig:
    """One pass per optimizer step, so that activations are most of the memory."""
    return resolve([
        {
            "device": "cuda",
            "steps": 3,
            "sampling": {"prompts": 256, "group_size": 16},
            "optimizer": {"max_tokens": 400_000, "steps_per_batch": 2},
            "evaluation": {"every": 0, "final_problems": 64, "final_samples": 1},
            "diagnose": {"every": 0},
            "tokens_every": 0,
            "save_every": 1,
        },
        changes,
    ])  # fmt: skip


def newest(folder: Path) -> Path:
    return checkpoints_in(folder / "checkpoints")[-1][1]


def distance(one: Path, two: Path) -> float:
    """Largest difference of a weight, as a share of the largest weight."""
    first, second = (AutoModelForCausalLM.from_pretrained(newest(folder)).state_dict() for folder in (one, two))
    return max(float((first[name] - second[name]).abs().max() / first[name].abs().max()) for name in first)


def limited(share: float, peak: int) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, share * peak / total))


def out_of_memory(scratch: Path) -> dict[str, Any]:
    torch.cuda.reset_peak_memory_stats()
    train(large(), scratch / "roomy")
    peak = torch.cuda.max_memory_allocated()
    found: dict[str, Any] = {"peak_mib": peak / 2**20}
    for share in (0.7, 0.4, 0.15):
        limited(share, peak)
        folder = scratch / f"tight-{share}"
        try:
            train(large(), folder)
            said = [json.loads(line)["message"] for line in (folder / "events.jsonl").read_text().splitlines()]
            found[str(share)] = {"retries": len(said), "first": said[0], "weights_differ_by": distance(scratch / "roomy", folder)}
        except GuardError as problem:
            found[str(share)] = {"stopped": str(problem), "steps_saved": len(checkpoints_in(folder / "checkpoints"))}
        limited(1e9, peak)
    return found


def resumed(scratch: Path) -> dict[str, Any]:
    """Stopped after the first of two optimizer steps of the second batch."""
    config = large(sampling={"prompts": 32, "group_size": 8}, steps=4)
    for name in ("whole", "again"):
        train(config, scratch / name)
    stop, taken, step = StopSignal(), [0], torch.optim.AdamW.step

    def counting(self: Any, *given: Any) -> Any:
        taken[0] += 1
        if taken[0] == 3:
            stop.ask(15)
        return step(self, *given)

    torch.optim.AdamW.step = counting
    assert train(config, scratch / "cut", NoCallback(), stop).interrupted
    torch.optim.AdamW.step = step
    at = newest(scratch / "cut").name
    train(config, scratch / "cut", resume=True)
    return {
        "stopped_at": at,
        "two_runs_left_alone_differ_by": distance(scratch / "whole", scratch / "again"),
        "stopped_and_resumed_differs_by": distance(scratch / "whole", scratch / "cut"),
    }


def checkpoint_cost(scratch: Path) -> dict[str, Any]:
    """Weights and both moments of a model of SmolLM2-135M's shape, in float32, from the GPU to the disk."""
    tokenizer = character_tokenizer(ALPHABET)
    model = LlamaForCausalLM(LlamaConfig(**SMOLLM2_SHAPE, eos_token_id=1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    policy = Policy(model=model, tokenizer=tokenizer, end_tokens=(1,))
    seconds = []
    for number in range(1, 4):
        progress = Progress(step=number, rollouts_used=0, best_step=0, best_accuracy=0.0, before={}, stage_state={}, seconds={})
        began = time.perf_counter()
        folder = save_checkpoint(policy, optimizer, progress, scratch / "saved")
        seconds.append(time.perf_counter() - began)
    began = time.perf_counter()
    assert damage(folder) is None
    verifying = time.perf_counter() - began
    began = time.perf_counter()
    load_optimizer(optimizer, folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    return {
        "mib": size / 2**20,
        "save_seconds": seconds,
        "verify_seconds": verifying,
        "load_optimizer_seconds": time.perf_counter() - began,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as scratch:
        for name, measure in (("checkpoint", checkpoint_cost), ("resume", resumed), ("out_of_memory", out_of_memory)):
            found[name] = measure(Path(scratch))
            print(json.dumps({name: found[name]}, indent=2), flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "gpu.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

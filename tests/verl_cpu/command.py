"""Runs `verl.trainer.main_ppo` on the embedded task and returns what it logged."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple
from uuid import uuid4

from verl_cpu.scene import Scene

TESTS = Path(__file__).parent.parent
MARK = "TOKENCREDIT_VERL_RUN"
"""Environment variable by which every process of a run is found again."""
STOCK = {"VERL_USE_EXTERNAL_PLUGINS": "none"}
"""Extra environment for a run without the project's own plug-in."""


class Shape(NamedTuple):
    """How much is sampled and how it is cut into optimizer steps."""

    ranks: int = 1
    prompts: int = 16
    group_size: int = 8
    mini_batch_prompts: int = 4
    steps: int = 4
    learning_rate: float = 5e-4
    max_new_tokens: int = 48


class Finished(NamedTuple):
    metrics: list[dict[str, float]]
    """One entry per training step, under verl's own names."""
    seconds: float
    output: str


class VerlRunError(RuntimeError):
    """verl did not finish; the message ends with what it said last."""


def overrides(scene: Scene, shape: Shape) -> list[str]:
    rows = shape.prompts * shape.group_size
    rows_per_rank = shape.mini_batch_prompts * shape.group_size // shape.ranks
    precise = "{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}"
    actor, rollout, model = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
    return [
        "hydra.run.dir=.",
        "hydra.output_subdir=null",
        f"data.train_files={scene.train}",
        f"data.val_files={scene.held_out}",
        f"data.train_batch_size={shape.prompts}",
        f"data.max_prompt_length={scene.prompt_tokens}",
        f"data.max_response_length={shape.max_new_tokens}",
        "data.dataloader_num_workers=0",
        "data.seed=0",
        f"{model}.path={scene.model}",
        f"{model}.use_remove_padding=False",
        f"{model}.enable_gradient_checkpointing=False",
        f"++{model}.override_config.attn_implementation=sdpa",
        f"{actor}.strategy=fsdp2",
        f"+{actor}.fsdp_config.mixed_precision={precise}",
        f"{actor}.fsdp_config.use_torch_compile=False",
        f"{actor}.use_torch_compile=False",
        f"{actor}.ppo_mini_batch_size={shape.mini_batch_prompts}",
        f"{actor}.ppo_micro_batch_size_per_gpu={rows_per_rank}",
        f"{actor}.optim.lr={shape.learning_rate}",
        f"{actor}.optim.lr_warmup_steps=2",
        f"{actor}.optim.weight_decay=0.0",
        f"{actor}.optim.betas=[0.9,0.95]",
        f"{rollout}.name=huggingface",
        f"{rollout}.n={shape.group_size}",
        # One server for all ranks; verl counts a rank per slice of the model.
        f"{rollout}.tensor_model_parallel_size={shape.ranks}",
        f"{rollout}.log_prob_micro_batch_size_per_gpu={rows // shape.ranks}",
        f"{rollout}.calculate_log_probs=True",
        f"{rollout}.agent.num_workers=1",
        "algorithm.adv_estimator=grpo",
        "reward.num_workers=1",
        f"reward.custom_reward_function.path={scene.reward}",
        "trainer.device=cpu",
        "trainer.nnodes=1",
        f"trainer.n_gpus_per_node={shape.ranks}",
        f"trainer.total_training_steps={shape.steps}",
        "trainer.total_epochs=1000",
        "trainer.logger=[file]",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
        # Logical resources. With too few CPUs, or with verl's eight storage units, Ray waits for ever without a word.
        "++ray_kwargs.ray_init.num_cpus=16",
        f"++ray_kwargs.ray_init.num_gpus={shape.ranks}",
        "++ray_kwargs.ray_init.include_dashboard=False",
        "++ray_kwargs.ray_init.object_store_memory=200000000",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    ]


def environment() -> dict[str, str]:
    """Of every process of the run: Ray's workers inherit it."""
    return {
        **{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
        "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])),
        "VERL_USE_EXTERNAL_MODULES": "verl_cpu.platform",
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HYDRA_FULL_ERROR": "1",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        # Ray would start a Python process for each of the logical CPUs.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_metrics_collection": "0",
    }


def _end_marked(mark: str) -> None:
    """End every process that carries the mark: Ray's daemons outlive a driver that was killed."""
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue


def read_metrics(file: Path) -> list[dict[str, float]]:
    lines = map(json.loads, file.read_text().splitlines())
    return [{name: math.nan if value is None else value for name, value in line["data"].items()} for line in lines]


def run_verl(
    scene: Scene,
    folder: Path,
    shape: Shape,
    *,
    extra_overrides: Sequence[str] = (),
    extra_environment: Mapping[str, str] | None = None,
    time_limit: float = 180,
) -> Finished:
    """Train in `folder`, which gets `output.txt` and `metrics.jsonl`; a run that fails or takes too long raises."""
    folder.mkdir(parents=True, exist_ok=True)
    mark, output, metrics = uuid4().hex, folder / "output.txt", folder / "metrics.jsonl"
    # Ray keeps sockets here, whose paths may not be long.
    ray_folder = tempfile.mkdtemp(prefix="verl")
    own = {MARK: mark, "VERL_FILE_LOGGER_PATH": str(metrics), "RAY_TMPDIR": ray_folder}
    began = perf_counter()
    try:
        with output.open("w") as said:
            code = subprocess.run(
                [sys.executable, "-m", "verl.trainer.main_ppo", *overrides(scene, shape), *extra_overrides],
                cwd=folder,
                env=environment() | own | dict(extra_environment or {}),
                stdout=said,
                stderr=subprocess.STDOUT,
                timeout=time_limit,
                check=False,
            ).returncode
        how = f"ended with code {code}" if code else ""
    except subprocess.TimeoutExpired:
        how = f"did not end within {time_limit:g} s"
    finally:
        _end_marked(mark)
        shutil.rmtree(ray_folder, ignore_errors=True)
    said = output.read_text(errors="replace")
    if how:
        raise VerlRunError(f"verl {how}; it said last:\n" + "\n".join(said.splitlines()[-60:]))
    return Finished(metrics=read_metrics(metrics), seconds=perf_counter() - began, output=said)

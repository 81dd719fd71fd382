"""A finding that is not timed: what TRL's gradient is when prompts differ in length and are padded on the left.

A query of the padding may see nothing. Attention kernels must cope with that; cuDNN's backward, which torch prefers on Hopper
GPUs from 2.11 on, gives nan for rows whose length leaves 64 over after division by 128 (pytorch issue 196678).
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tokencredit.lab.speed.agreement import broken, without_cudnn_attention, written
from tokencredit.lab.speed.our_update import OurPath, bench_config, prepare
from tokencredit.lab.speed.part import Bench
from tokencredit.lab.speed.settings import trl_settings
from tokencredit.lab.speed.timing import free
from tokencredit.lab.speed.workload import Load, make_batch


def loads(bench: Bench) -> tuple[Load, Load]:
    """Rows of 576 tokens, which leave 64 over, and of 512."""
    return (Load(4, 4, 6, 12), Load(4, 4, 6, 10)) if bench.small else (Load(4, 8, 64, 512), Load(4, 8, 64, 448))


def look(bench: Bench, name: str, load: Load, kernels: AbstractContextManager[None]) -> dict[str, Any]:
    shape = bench.shapes[0]
    batch = make_batch(shape, load, device=bench.device, seed=bench.seed, ragged_prompts=True)
    config = bench_config(bench, load, "dapo", max_tokens=load.rows * load.positions)
    ours = list(OurPath(bench, shape, load, batch, config)().gradient_norm)
    (setting, *_) = trl_settings(bench, shape, load, prepare(bench, shape, load, batch, config), config, checkpointing=False)
    path: Any = setting.make()
    with kernels:
        norms = path()
    del path
    free(bench.device)
    verdict = broken(norms, ours)
    bench.report(f"  trl, prompts of different length, {name}, rows of {load.positions}: {verdict or 'agrees with ours'}")
    return {
        "name": name,
        "row_tokens": load.positions,
        "gradient_norm": written(norms),
        "our_gradient_norm": written(ours),
        "broken": verdict,
    }


def look_at_left_padding(bench: Bench) -> list[dict[str, Any]]:
    wide, narrow = loads(bench)
    return [
        look(bench, "kernels as torch chooses them", wide, nullcontext()),
        look(bench, "without cuDNN's attention", wide, without_cudnn_attention()),
        look(bench, "kernels as torch chooses them", narrow, nullcontext()),
    ]

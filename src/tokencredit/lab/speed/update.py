"""Part `update`: score, credit and four optimizer steps on a given batch, ours and TRL's in turn.

Gradient norms of every optimizer step prove that all implementations did the same work. A separate check, not timed, covers TRL with
left-padded prompts.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from typing import Any

import torch

from tokencredit.lab.speed.contenders import OPTIMIZER_STEPS, Contest, OurPath, bench_config, load_of, prepare, trl_settings
from tokencredit.lab.speed.timing import compiled_graphs, free, in_turns, ratios, spread
from tokencredit.lab.speed.trl_loss import load_trl, why_no_trl
from tokencredit.lab.speed.workload import Batch, Bench, Load, Result, Shape, Shown, gib, make_batch, ms, percent, times, update_flops

TOLERANCE = 0.02
"""Relative, for gradient norms; bfloat16 sums in different orders differ by far less."""


def broken(norms: Sequence[float], right: Sequence[float] | None = None) -> str | None:
    """Why these gradient norms are wrong, or None. Without `right` they must only be finite."""
    if not norms or not all(math.isfinite(norm) for norm in norms):
        bad = next((norm for norm in norms if not math.isfinite(norm)), None)
        return "broken: no gradient" if bad is None else f"broken: gradient is {bad}"
    if right is None:
        return None
    if len(norms) != len(right):
        return f"broken: {len(norms)} optimizer steps instead of {len(right)}"
    apart = max(abs(norm - wanted) / max(abs(wanted), 1e-12) for norm, wanted in zip(norms, right, strict=True))
    return None if apart <= TOLERANCE else f"broken: gradient norm is off by {100 * apart:.1f} %"


def written(norms: Sequence[float]) -> list[float | str]:
    """NaN and infinity as strings, which JSON lacks."""
    return [norm if math.isfinite(norm) else str(norm) for norm in norms]


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Make torch choose another attention kernel than cuDNN's.

    A left-padded row has queries that attend to nothing. cuDNN's backward, which torch >= 2.11 prefers on Hopper GPUs, then gives NaN if
    the row length modulo 128 is 64 (pytorch issue 196678).
    """
    was = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was)


def loads(bench: Bench) -> tuple[Load, Load]:
    """Rows of 576 tokens (64 modulo 128), and of 512."""
    return (Load(4, 4, 6, 12), Load(4, 4, 6, 10)) if bench.small else (Load(4, 8, 64, 512), Load(4, 8, 64, 448))


def check_left_padding(bench: Bench, name: str, load: Load, kernels: AbstractContextManager[None]) -> dict[str, Any]:
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


def check_left_padding_cases(bench: Bench) -> list[dict[str, Any]]:
    wide, narrow = loads(bench)
    return [
        check_left_padding(bench, "kernels as torch chooses them", wide, nullcontext()),
        check_left_padding(bench, "without cuDNN's attention", wide, without_cudnn_attention()),
        check_left_padding(bench, "kernels as torch chooses them", narrow, nullcontext()),
    ]


STAGES = ("score", "credit", "update")


def _lengths(batch: Batch, load: Load) -> dict[str, Any]:
    return {"loss_tokens": batch.loss_tokens, "all_tokens": batch.all_tokens, "padded_tokens": load.rows * load.positions}


def same_work(name: str) -> bool:
    """Whether the gradient must equal dapo's; DelTA's credit, and so its gradient, differs."""
    return "delta" not in name


def verdicts(norms: Mapping[str, list[float]]) -> dict[str, str | None]:
    """Implementations whose gradient differs from ours, which rules out a comparison."""
    right = norms.get("ours dapo")
    return {name: broken(found, right if same_work(name) else None) for name, found in norms.items()}


def measure_shape(bench: Bench, shape: Shape, *, even: bool) -> Result:
    """Measure one model. With `even` lengths there is no padding, so it explains no difference."""
    load = load_of(bench, shape)
    batch = make_batch(shape, load, device=bench.device, seed=bench.seed, even=even)
    bench.report(f"update: {shape.name}, {load.rows} rows of {'even' if even else 'ragged'} length, {batch.all_tokens} tokens")
    contest = Contest(bench, shape, load, batch)
    contest.gather(even=even)
    running = contest.start()
    stages: dict[str, list[dict[str, float]]] = {name: [] for name in running}
    graphs = compiled_graphs()
    with contest.spent.stage("turns"):
        taken = in_turns(
            {name: one.path for name, one in running.items()},
            bench.device,
            repeats=bench.repeats,
            warm_up=0,
            after=lambda name: stages[name].append(dict(running[name].path.stages)),
        )
    graphs = compiled_graphs() - graphs
    flops = update_flops(shape, batch.rows)
    verdict = verdicts({name: one.norms for name, one in running.items()})
    rows = {
        name: {
            "setting": running[name].setting,
            "broken": verdict[name],
            "seconds": spread(values),
            "stages": {stage: spread([turn.get(stage, 0.0) for turn in stages[name]]) for stage in STAGES},
            "loss_tokens_per_second": spread([batch.loss_tokens / value for value in values]),
            "all_tokens_per_second": spread([batch.all_tokens / value for value in values]),
            "model_flop_utilisation": spread([flops / value / bench.ceilings.flops_per_second for value in values]),
            "peak_bytes": running[name].peak,
            "gradient_norm": written(running[name].norms),
            "first_call_seconds": running[name].first,
            "compile_seconds": max(0.0, running[name].first - median(values))
            + (contest.searched[name].compiling if name in contest.searched else 0.0),
        }
        for name, values in taken.items()
    }
    running.clear()
    contest.chosen.clear()
    free(bench.device)
    bench.report("  time went to " + ", ".join(f"{name} {value:.0f} s" for name, value in contest.spent.seconds.items()))
    why_not = why_no_trl()
    return {
        "shape": shape._asdict(),
        "load": load._asdict() | _lengths(batch, load) | {"lengths": "even" if even else "ragged"},
        "model_flops": flops,
        "contenders": rows,
        "left_out": contest.left_out,
        "tried": {name: found.to_json() for name, found in contest.searched.items()},
        "trl_over_ours": compare(rows, taken),
        "graphs_compiled_during_turns": graphs,
        "spent_seconds": dict(contest.spent.seconds),
        "trl": {"why_not": why_not} if why_not else {"version": load_trl().version, "stand_ins": list(load_trl().stand_ins)},
    }


def compare(rows: Mapping[str, Any], taken: Mapping[str, list[float]]) -> dict[str, Any]:
    """TRL's time over ours, and our share of its memory, for every pair without a wrong gradient."""
    found: dict[str, Any] = {}
    sound = [name for name, row in rows.items() if not row["broken"]]
    for ours in (name for name in sound if name.startswith("ours")):
        for theirs in (name for name in sound if name.startswith("trl")):
            peaks = rows[ours]["peak_bytes"], rows[theirs]["peak_bytes"]
            share = peaks[0] / peaks[1] if peaks[0] and peaks[1] else None
            found[f"{theirs} / {ours}"] = {"seconds": ratios(taken[theirs], taken[ours]), "our_share_of_memory": share}
    return found


def measure(bench: Bench) -> Result:
    shown = [(shape, False) for shape in bench.shapes] + [(bench.shapes[0], True)]
    return {
        "what": f"score + credit + {OPTIMIZER_STEPS} optimizer steps on one given batch; prompts of one length; every update ran "
        "twice before it was timed; compile_seconds is the extra time of first calls, paid by the implementation that compiles first",
        "formula": "model FLOPs = 4 x forward (scoring 1, forward and backward 3); forward = 2 x layer weights x tokens "
        "+ 4 x layers x width x causal pairs + 2 x head weights x predicted tokens; over the measured matrix-product peak",
        "runs": [measure_shape(bench, shape, even=even) for shape, even in shown],
        "findings": check_left_padding_cases(bench) if why_no_trl() is None else [],
    }


def _norm(norms: list[float | str]) -> str:
    """The gradient norm of the first optimizer step."""
    first = norms[0] if norms else "-"
    return first if isinstance(first, str) else f"{first:.4g}"


def _row(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    if row["broken"]:
        return (name, row["broken"], *("-",) * 7, _norm(row["gradient_norm"]))
    return (
        name,
        row["setting"],
        ms(row["seconds"]["median"]),
        *(ms(row["stages"][stage]["median"] or None) for stage in STAGES),
        f"{row['loss_tokens_per_second']['median']:,.0f}",
        percent(row["model_flop_utilisation"]["median"]),
        gib(row["peak_bytes"]),
        _norm(row["gradient_norm"]),
    )


def show(result: Result) -> list[Shown]:
    tables = []
    for run in result["runs"]:
        load = run["load"]
        notes = [
            f"{pair}: {times(found['seconds'])} the time, ours needs {percent(found['our_share_of_memory'])} of the memory"
            for pair, found in run["trl_over_ours"].items()
        ]
        notes += [f"{name} is left out: {why}" for name, why in run["left_out"].items()]
        if run["trl"].get("why_not"):
            notes.append(f"TRL is left out: {run['trl']['why_not']}")
        if run["graphs_compiled_during_turns"]:
            notes.append(f"{run['graphs_compiled_during_turns']} graphs were compiled during the measurement: measure again")
        compiling = sum(row["compile_seconds"] for row in run["contenders"].values())
        notes.append(f"first calls took {compiling:.1f} s beyond later ones (compiling, choosing kernels, allocating)")
        tables.append(
            Shown(
                f"update: {run['shape']['name']}, {load['groups']} x {load['group_size']} rows, {load['lengths']} lengths, "
                f"{load['all_tokens']:,} tokens ({load['padded_tokens']:,} padded)",
                ("", "best setting", "time", *STAGES, "loss tokens/s", "MFU", "peak", "first gradient norm"),
                [_row(name, row) for name, row in run["contenders"].items()],
                tuple(notes),
            )
        )
    found = [
        (
            one["name"],
            str(one["row_tokens"]),
            _norm(one["gradient_norm"]),
            _norm(one["our_gradient_norm"]),
            one["broken"] or "agrees with ours",
        )
        for one in result["findings"]
    ]
    if found:
        title = "finding, not timed: TRL on prompts of different length, padded on the left"
        tables.append(Shown(title, ("", "row tokens", "TRL's first gradient norm", "ours", ""), found))
    return tables

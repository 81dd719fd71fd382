"""Part `update`: score, credit and four optimizer steps on a batch that is given, ours and TRL's loss path in turn."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from tokencredit.lab.speed.agreement import broken, written
from tokencredit.lab.speed.contenders import Contest
from tokencredit.lab.speed.left_padding import look_at_left_padding
from tokencredit.lab.speed.our_update import OPTIMIZER_STEPS, load_of
from tokencredit.lab.speed.part import Bench, Result, Shown, gib, ms, percent, times
from tokencredit.lab.speed.shapes import Shape, update_flops
from tokencredit.lab.speed.timing import compiled_graphs, free, in_turns, ratios, spread
from tokencredit.lab.speed.trl_loss import load_trl, why_no_trl
from tokencredit.lab.speed.workload import Batch, Load, make_batch

STAGES = ("score", "credit", "update")


def _lengths(batch: Batch, load: Load) -> dict[str, Any]:
    return {"loss_tokens": batch.loss_tokens, "all_tokens": batch.all_tokens, "padded_tokens": load.rows * load.positions}


def same_work(name: str) -> bool:
    """DelTA gives tokens other credit, so that its gradient is another one."""
    return "delta" not in name


def verdicts(norms: Mapping[str, list[float]]) -> dict[str, str | None]:
    """Who computes something else than ours, and so is no one to compare with."""
    right = norms.get("ours dapo")
    return {name: broken(found, right if same_work(name) else None) for name, found in norms.items()}


def measure_shape(bench: Bench, shape: Shape, *, even: bool) -> Result:
    """Even lengths leave nothing to pad: what then is left of the difference is not padding's."""
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
    """How many times as long TRL takes, and what part of its memory ours needs, for every pair that is not broken."""
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
        "what": f"score + credit + {OPTIMIZER_STEPS} optimizer steps on one given batch; prompts of one length; every update was run "
        "twice before it was timed; compile_seconds is what first calls took beyond later ones, paid by whoever comes first",
        "formula": "model FLOPs = 4 x forward (scoring 1, forward and backward 3); forward = 2 x layer weights x tokens "
        "+ 4 x layers x width x causal pairs + 2 x head weights x predicted tokens; over the measured matrix-product peak",
        "runs": [measure_shape(bench, shape, even=even) for shape, even in shown],
        "findings": look_at_left_padding(bench) if why_no_trl() is None else [],
    }


def _norm(norms: list[float | str]) -> str:
    """Of the first optimizer step."""
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
            notes.append(f"{run['graphs_compiled_during_turns']} graphs were compiled while time was taken: measure again")
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

"""Part `growth`: how the time of a training step grows with rollouts, length and model, and the largest pass that fits."""

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from tokencredit.forward.modes import ForwardOptions, choose_forward_mode
from tokencredit.lab.speed.contenders import OurPath, bench_config
from tokencredit.lab.speed.timing import Call, allocated, free, peak_bytes, ran_out
from tokencredit.lab.speed.trl_loss import TrlKnobs, TrlPath, why_no_trl
from tokencredit.lab.speed.whole_step import Training, load_of
from tokencredit.lab.speed.workload import Bench, Load, Result, Shape, Shown, build_model, gib, make_batch, make_tokenizer, ms, save_model
from tokencredit.optim.update import accumulate_gradient
from tokencredit.rollout.scoring import score_tokens
from tokencredit.types import Credited, StepPlan

RECIPE = "delta"


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Least-squares slope of log value over log size: 1 is linear."""
    if len(sizes) != len(values) or len(sizes) < 2:
        raise ValueError(
            f"sizes holds {len(sizes)} and values {len(values)} numbers; give two or more of each, as many of one as of the other"
        )
    x, y = ([math.log(number) for number in numbers] for numbers in (sizes, values))
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    spread_x = sum((one - middle_x) ** 2 for one in x)
    if spread_x == 0:
        raise ValueError(f"sizes are all {sizes[0]}; growth needs different ones")
    return sum((one - middle_x) * (other - middle_y) for one, other in zip(x, y, strict=True)) / spread_x


class Point(NamedTuple):
    size: float
    shape: Shape
    load: Load


def axes(bench: Bench) -> dict[str, list[Point]]:
    """Each axis doubles one size twice; all axes share their middle point."""
    shape, load = bench.shapes[0], load_of(bench)

    def with_layers(layers: int) -> Shape:
        return shape._replace(layers=max(1, layers))

    parts = (0.5, 1, 2)
    models = [with_layers(round(shape.layers * part)) for part in parts]
    return {
        "rollouts": [Point(load.rows * part, shape, load._replace(groups=max(1, round(load.groups * part)))) for part in parts],
        "length": [Point(load.response * part, shape, load._replace(response=max(1, round(load.response * part)))) for part in parts],
        "model": [Point(model.body + model.head, model, load) for model in models],
    }


def measure_point(bench: Bench, point: Point) -> dict[str, float]:
    """Median seconds by stage."""
    with tempfile.TemporaryDirectory() as folder:
        save_model(point.shape, Path(folder), device=bench.device, load=point.load, seed=bench.seed)
        run = Training(bench, Path(folder), point.shape, point.load, RECIPE)
        run()
        run()
        run.forget()
        for _ in range(min(2, bench.repeats)):
            run()
    found = run.to_json()["stages"]
    found["whole"] = median(run.totals())
    del run
    free(bench.device)
    return found


class Fit(NamedTuple):
    """Tokens of the largest forward-backward pass that fitted into memory, and of the first that did not."""

    tokens: int
    peak: int | None
    too_many: int | None

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


def largest(attempt: Callable[[int], Call], tokens_of: Callable[[int], int], bench: Bench, *, most: int, tell: str) -> Fit:
    """Double the rows until memory runs out, at most to `most`."""
    rows, fit = (8 if bench.small else 128), Fit(0, None, None)
    while rows <= most:
        free(bench.device)
        before, call = allocated(bench.device), None
        try:
            call = attempt(rows)
            fit = Fit(tokens_of(rows), peak_bytes(call, bench.device, before=before), None)
        except Exception as problem:
            if not ran_out(problem):
                raise
            fit = fit._replace(too_many=tokens_of(rows))
        finally:
            del call
            free(bench.device)
        if fit.too_many is not None:
            break
        rows *= 2
    bench.report(f"  {tell}: {fit.tokens} tokens in a pass, {gib(fit.peak)}")
    return fit


def whole_plan(path: OurPath, credited: Credited, load: Load, *, packed: bool) -> StepPlan:
    """One optimizer step of one micro-batch."""
    cost = [load.positions] * load.rows
    return path.pipeline.plan(credited, optimizer_steps=1, max_tokens=sum(cost), cost=cost, seed=path.config.seed, packed=packed)


def one_pass(bench: Bench, shape: Shape, load: Load, rows: int, *, recompute: bool) -> Call:
    """A forward and backward over all rows at once."""
    wide = load._replace(groups=rows // load.group_size)
    batch = make_batch(shape, wide, device=bench.device, seed=bench.seed, even=True)
    config = bench_config(bench, wide, "dapo", max_tokens=wide.rows * wide.positions, recompute=recompute)
    path = OurPath(bench, shape, wide, batch, config)
    credited = path.credit(score_tokens(config, path.policy.model, batch.rollouts, keep_hidden=False)).credited
    mode = choose_forward_mode(config, path.policy.model)
    plan = whole_plan(path, credited, wide, packed=mode.packed)

    def call() -> None:
        accumulate_gradient(
            path.policy,
            credited,
            plan.steps[0],
            path.pipeline.objective,
            ForwardOptions(temperature=1.0, dtype=bench.dtype, recompute=recompute, mode=mode),
        )

    return call


def trl_pass(bench: Bench, shape: Shape, load: Load, rows: int, *, checkpointing: bool) -> Call:
    wide = load._replace(groups=rows // load.group_size)
    batch = make_batch(shape, wide, device=bench.device, seed=bench.seed, even=True)
    config = bench_config(bench, wide, "dapo", max_tokens=32 * wide.positions)
    path = OurPath(bench, shape, wide, batch, config)
    credited = path.credit(path.score()).credited
    plan = whole_plan(path, credited, wide, packed=False)
    del path
    free(bench.device)
    theirs = TrlPath(
        build_model(shape, device=bench.device, positions=wide.positions, seed=bench.seed),
        make_tokenizer(shape.vocab),
        credited,
        plan,
        TrlKnobs(wide.rows, checkpointing),
        learning_rate=1e-6,
        gradient_clip=1.0,
        betas=(0.9, 0.95),
    )
    old_logp = torch.zeros_like(credited.old_logp)

    def call() -> None:
        theirs.trainer.accelerator.backward(theirs.loss(plan.steps[0].rows, old_logp, plan.steps[0].tokens))

    return call


def measure_fit(bench: Bench) -> dict[str, Any]:
    shape = bench.shapes[0]
    load = Load(4, 4, 6, 12) if bench.small else Load(32, 8, 64, 448)
    most = 16 if bench.small else 2048
    ways: dict[str, Callable[[int], Call]] = {
        "ours": lambda rows: one_pass(bench, shape, load, rows, recompute=False),
        "ours, layers computed again": lambda rows: one_pass(bench, shape, load, rows, recompute=True),
    }
    if why_no_trl() is None:
        ways["trl"] = lambda rows: trl_pass(bench, shape, load, rows, checkpointing=False)
        ways["trl checkpointing"] = lambda rows: trl_pass(bench, shape, load, rows, checkpointing=True)
    return {
        "row_tokens": load.positions,
        "at_most_tokens": most * load.positions,
        "passes": {
            name: largest(way, lambda rows: rows * load.positions, bench, most=most, tell=name).to_json() for name, way in ways.items()
        },
    }


def measure(bench: Bench) -> Result:
    found: dict[str, Any] = {}
    known: dict[tuple[Shape, Load], dict[str, float]] = {}
    for name, points in axes(bench).items():
        for point in points:
            key = (point.shape, point.load)
            if key not in known:
                bench.report(f"growth: {name} {point.size:,.0f}")
                known[key] = measure_point(bench, point)
        seconds = [known[point.shape, point.load] for point in points]
        sizes = [point.size for point in points]
        found[name] = {
            "sizes": sizes,
            "seconds": seconds,
            "exponents": {
                stage: exponent(sizes, [row[stage] for row in seconds]) for stage in seconds[0] if all(row[stage] > 0 for row in seconds)
            },
        }
    bench.report("growth: the largest pass that fits")
    return {
        "what": f"a training step of {RECIPE}; exponent = least-squares slope of log seconds over log size",
        "shape": bench.shapes[0]._asdict(),
        "axes": found,
        "largest_pass": measure_fit(bench),
    }


def show(result: Result) -> list[Shown]:
    rows = []
    for name, axis in result["axes"].items():
        times = ", ".join(f"{size:,.0f}: {ms(row['whole'])}" for size, row in zip(axis["sizes"], axis["seconds"], strict=True))
        stages = ", ".join(
            f"{stage} {axis['exponents'][stage]:.2f}" for stage in ("sample", "score", "update") if stage in axis["exponents"]
        )
        rows.append((name, times, f"{axis['exponents']['whole']:.2f}", stages))
    grown = Shown(f"growth of a step: {result['shape']['name']}", ("", "whole step", "exponent", "exponents by stage"), rows)
    fitted = result["largest_pass"]
    table = [
        (name, f"{fit['tokens']:,}", gib(fit["peak"]), "-" if fit["too_many"] is None else f"{fit['too_many']:,}")
        for name, fit in fitted["passes"].items()
    ]
    title = f"largest pass with its backward that fits (rows of {fitted['row_tokens']} tokens, tried up to {fitted['at_most_tokens']:,})"
    return [grown, Shown(title, ("", "tokens", "peak", "does not fit"), table)]

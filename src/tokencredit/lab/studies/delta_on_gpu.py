"""DelTA from stored features on a GPU: equality with a float64 reference, time against the memory bound, memory, waits.

python -m tokencredit.lab.studies.delta_on_gpu
"""

import statistics
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tokencredit.credit.delta import delta_coefficients
from tokencredit.credit.delta import dispatch as swept
from tokencredit.credit.delta.accumulators import Temperature
from tokencredit.credit.delta.algorithm import DeltaOptions, scope_coefficients
from tokencredit.credit.delta.vectors import DenseVectors, HeadVectors, hidden_gradient_vectors
from tokencredit.credit.features import DeviceFeatures, FeatureStore
from tokencredit.kernels.delta import fused_scoring, triton_scores, triton_sweeps
from tokencredit.kernels.delta import reference as plain
from tokencredit.kernels.delta import triton_layout as rows

GPU = torch.device("cuda")
PEAK = 4.3e12
EPS = 1e-8


def section(work: Callable[[], None]) -> None:
    begun = time.perf_counter()
    try:
        work()
    except Exception:
        print(f"FAILED {work.__name__}:", *traceback.format_exc().strip().splitlines()[-6:], sep="\n  ")
    torch.cuda.empty_cache()
    print(f"  [{work.__name__}: {time.perf_counter() - begun:.1f} s]")
    sys.stdout.flush()


def median_ms(call: Callable[[], object], repeats: int = 7) -> float:
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    took = []
    for _ in range(repeats):
        one, two = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        one.record()
        call()
        two.record()
        torch.cuda.synchronize()
        took.append(one.elapsed_time(two))
    return statistics.median(took)


class Launches(TorchDispatchMode):
    """Operations that start something on the device, and the kernels that are ours."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __enter__(self) -> "Launches":
        self.before = rows.launch
        rows.launch = triton_scores.launch = self.launch
        return super().__enter__()

    def __exit__(self, *why: object) -> None:
        super().__exit__(*why)
        rows.launch = triton_scores.launch = self.before

    def launch(self, *given: Any, **named: Any) -> None:
        self.number += 1
        self.before(*given, **named)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += not func.is_view and "empty" not in str(func)
        return func(*args, **(kwargs or {}))


class Batch:
    """Rows of uneven length, sixteen to a group; features with a few large columns, a common mean and a small difference of sides."""

    def __init__(self, count: int, width: int, dtype: torch.dtype = torch.bfloat16, longest: int = 640) -> None:
        draw = torch.Generator(GPU).manual_seed(count + width)
        rows = max(32, int(count / (longest * 0.6)) // 16 * 16)
        length = torch.randint(longest // 5, longest + 1, (rows,), generator=draw, device=GPU)
        self.mask = torch.arange(longest, device=GPU) < length[:, None]
        self.group = torch.arange(rows, device=GPU) // 16
        self.advantage = torch.randn(rows, generator=draw, device=GPU)
        self.advantage[torch.rand(rows, generator=draw, device=GPU) < 0.05] = 0.0
        self.count = int(self.mask.sum())
        self.row = self.mask.nonzero()[:, 0]
        logp = -torch.rand(rows, longest, generator=draw, device=GPU) * 3
        self.logp = logp * (torch.rand(rows, longest, generator=draw, device=GPU) < 0.6)
        common = torch.randn(width, generator=draw, device=GPU)
        common[:4] *= 30
        sideways = 0.05 * torch.randn(width, generator=draw, device=GPU)
        self.features = torch.empty(self.count, width, dtype=dtype, device=GPU)
        for start in range(0, self.count, 65_536):
            run = slice(start, min(start + 65_536, self.count))
            noise = torch.randn(run.stop - run.start, width, generator=draw, device=GPU)
            self.features[run] = noise + common + self.advantage[self.row[run], None] * sideways

    def coefficients(self, **knobs: Any) -> torch.Tensor:
        knobs = {"hidden": DeviceFeatures(self.features), **knobs}
        return delta_coefficients(self.logp, advantage=self.advantage, mask=self.mask, group=self.group, **knobs)


def reference(batch: Batch, scope: str) -> torch.Tensor:
    """The published steps in float64, K = 1, a chunk at a time, written without the package."""
    advantage = batch.advantage.double()[batch.row]
    scope_of = torch.zeros_like(batch.row) if scope == "batch" else batch.group[batch.row]
    scopes = int(scope_of.max()) + 1
    scale = -batch.logp.double()[batch.mask].expm1()
    side = 2 * scope_of + (advantage < 0)
    judged = (advantage != 0).double()

    def by(index: torch.Tensor, value: torch.Tensor, size: int) -> torch.Tensor:
        return torch.zeros(size, *value.shape[1:], dtype=torch.float64, device=GPU).index_add_(0, index, value)

    def centroids(share: torch.Tensor) -> torch.Tensor:
        weight, sums = advantage.abs() * share, torch.zeros(2 * scopes, batch.features.shape[1], dtype=torch.float64, device=GPU)
        for start in range(0, batch.count, 16_384):
            run = slice(start, start + 16_384)
            own = torch.zeros(2 * scopes, len(side[run]), dtype=torch.float64, device=GPU)
            sums += own.scatter_(0, side[None, run], (scale * weight)[None, run]) @ batch.features[run].double()
        return sums / by(side, weight, 2 * scopes).clamp(min=EPS)[:, None]

    def margins(centre: torch.Tensor) -> torch.Tensor:
        parts = []
        for start in range(0, batch.count, 16_384):
            run = slice(start, start + 16_384)
            v = batch.features[run].double() * scale[run, None]
            far, near = (v - centre[2 * scope_of[run] + 1]).square().sum(1), (v - centre[2 * scope_of[run]]).square().sum(1)
            parts.append(far - near)
        return torch.cat(parts) * advantage.sign()

    def deviation(margin: torch.Tensor) -> torch.Tensor:
        number = by(side, judged, 2 * scopes).clamp(min=1)
        mean = by(side, margin * judged, 2 * scopes) / number
        return (by(side, (margin - mean[side]).square() * judged, 2 * scopes) / number).clamp(min=EPS).sqrt()[side]

    first = margins(centroids(torch.ones_like(advantage)))
    gamma = deviation(first)
    final = margins(centroids((first / gamma).sigmoid()))
    value = 0.8 + 0.4 * (final / gamma).sigmoid() * judged
    value = value / (by(scope_of, value, scopes) / by(scope_of, torch.ones_like(value), scopes).clamp(min=1))[scope_of]
    mass = by(side, advantage.abs(), 2 * scopes).view(scopes, 2)
    return value.where((mass > 0).all(1)[scope_of], 1.0)


def kernels_equal_their_twins() -> None:
    draw = torch.Generator(GPU).manual_seed(0)
    worst: dict[str, float] = {}
    for dtype in (torch.bfloat16, torch.float32):
        for number, width, tiles, slots in ((50, 40, 5, 16), (3000, 897, 37, 128)):
            features = torch.randn(number, width, generator=draw, device=GPU).to(dtype)
            features[0] = torch.nan
            place = torch.randint(-1, number, (tiles, slots), generator=draw, device=GPU).to(torch.int32)
            place[place == 0] = -1
            weight = torch.randn(tiles, slots, generator=draw, device=GPU).where(place >= 0, 0.0)
            scope = torch.randint(0, 3, (tiles,), generator=draw, device=GPU)
            direction = torch.randn(3, width, generator=draw, device=GPU)
            first = torch.tensor([0, 1, 1, tiles - 1], device=GPU)
            sums = plain.tile_sums(features, place, weight)
            pairs = {
                "tile_sums": (triton_sweeps.tile_sums(features, place, weight), sums),
                "project": (triton_sweeps.project(features, place, scope, direction), plain.project(features, place, scope, direction)),
                "squared_norms": (triton_sweeps.squared_norms(features, place), plain.squared_norms(features, place)),
                "scope_sums": (triton_sweeps.scope_sums(sums, first), plain.scope_sums(sums, first)),
            }
            for name, (one, two) in pairs.items():
                gap = float((one - two).abs().max() / two.abs().max())
                worst[name] = max(worst.get(name, 0.0), gap)
    print("kernels vs twins, largest relative gap:", {name: f"{gap:.1e}" for name, gap in worst.items()})


def few_launches_equal_many() -> None:
    """The fused path against the plain algorithm, every variant; and the launches of each (the plain one's sweeps not counted)."""
    batch = Batch(20_000, 576)
    batch.features.mul_(0.3)
    head = (torch.randn(1024, 576, device=GPU) * 0.1).bfloat16()
    tokens = torch.randint(1024, batch.mask.shape, device=GPU)
    cells = batch.mask.flatten().nonzero()[:, 0]
    logp = (batch.features.float() @ head.float().T).log_softmax(-1)
    batch.logp.view(-1)[cells] = logp.gather(1, tokens[batch.mask][:, None])[:, 0]
    padded = torch.full((*batch.mask.shape, 576), torch.nan, dtype=torch.bfloat16, device=GPU)
    padded[batch.mask] = batch.features
    variants = {
        "batch": {},
        "group": {"scope": "group"},
        "K=0": {"refinements": 0},
        "K=3": {"refinements": 3},
        "hard": {"assignment": "hard"},
        "symmetric": {"coefficient_map": "symmetric", "scope": "group"},
        "fixed": {"fixed_temperature": Temperature(20.0, 30.0, 25.0)},
        "not normalised": {"normalize": False, "gamma_scale": 2.0},
        "hidden gradient": {"proxy": "hidden-gradient", "tokens": tokens, "head": head},
        "chunks": {"hidden": DeviceFeatures(batch.features, chunk=3000), "scope": "group"},
        "padded": {"hidden": padded},
    }
    said = []
    for name, knobs in variants.items():
        with Launches() as few:
            found = batch.coefficients(**knobs)
        swept.fused_scoring = lambda _: None
        with Launches() as many:
            plainly = batch.coefficients(**knobs)
        swept.fused_scoring = fused_scoring
        said.append(f"{name} {few.number}/{many.number} {float((found - plainly).abs().max()):.0e}")
    print("launches few/many, gap:", ", ".join(said))


def row_proxy() -> None:
    print("row proxy, K = 1        N    d   scope |     ms  floor    GB/s  of 4.3T | vs float64 | extra MB | waits | same bits | launches")
    for width in (576, 2048, 4096):
        for count in (100_000, 1_000_000):
            batch = Batch(count, width)
            for scope in ("batch", "group"):
                one = batch.coefficients(scope=scope)
                gap = float((one[batch.mask].double() - reference(batch, scope)).abs().max())
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                held = torch.cuda.memory_allocated()
                torch.cuda.set_sync_debug_mode("error")
                try:
                    again, waits = batch.coefficients(scope=scope), "none"
                except RuntimeError:
                    again, waits = one, "SOME"
                torch.cuda.set_sync_debug_mode("default")
                extra = (torch.cuda.max_memory_allocated() - held) / 1e6
                took = median_ms(partial(batch.coefficients, scope=scope), 15)
                with Launches() as launches:
                    batch.coefficients(scope=scope)
                swept = 4 * batch.features.numel() * 2
                speed = swept / took / 1e6
                print(
                    f"{batch.count:>25,} {width:>4} {scope:>7} | {took:6.2f} {swept / PEAK * 1e3:6.2f}"
                    f" {speed:7.0f} {speed / PEAK * 1e11:7.0f}% | {gap:10.1e} | {extra:8.0f} | {waits:>5}"
                    f" | {torch.equal(one, again)!s:>9} | {launches.number}"
                )
            del batch, one, again


def single_steps() -> None:
    """Time of each kernel alone at N = 10^6, K = 1, in us; the floor of one sweep beside it."""
    for count, width in ((1_000_000, 576), (250_000, 4096)):
        batch = Batch(count, width)
        scope = torch.zeros_like(batch.group)
        found = rows.number_scopes(scope, batch.advantage, batch.mask, 1)
        layout = partial(rows.fill_slots, found, batch.advantage, batch.mask, batch.logp, scopes=1, response_stride=0, scaled=True)
        slots = layout(runs=[slice(0, batch.count)])
        values = torch.empty(len(slots.feature_row), width, device=GPU)
        raw, parts, score = torch.empty_like(slots.size), triton_scores.new_parts(slots), torch.empty(batch.mask.numel(), device=GPU)
        sums = partial(triton_scores.sums, slots, slots.size, batch.features, 0, values)
        sums()
        direction = triton_scores.direction(slots, values, slots.mass, torch.float32)
        dots = partial(triton_scores.dots, slots, slots.size, batch.features, 0, direction, raw, parts)
        dots()
        moments = triton_scores.moments(slots, parts)
        options = triton_scores.ScoreOptions(None, 1.0, False)
        known = {"low": 0.8, "high": 1.2, "normalize": True, "expected": batch.count}
        steps = {
            "rows": partial(rows.number_scopes, scope, batch.advantage, batch.mask, 1),
            "slots": partial(layout, runs=[slice(0, batch.count)]),
            "sums": sums,
            "direction": partial(triton_scores.direction, slots, values, slots.mass, torch.float32),
            "dots": dots,
            "moments": partial(triton_scores.moments, slots, parts),
            "judge": partial(triton_scores.score_margins, slots, raw, slots.mass, moments, moments, options, out=score, last=True),
            "map": partial(triton_scores.coefficients, score, batch.mask, found, slots.mass, slots.tokens, **known),
        }
        floor = batch.features.numel() * 2 / PEAK * 1e6
        print(
            f"N={batch.count:,} d={width} us:", " ".join(f"{name} {median_ms(step, 5) * 1e3:.0f}" for name, step in steps.items()), end=""
        )
        print(f" | floor of a sweep {floor:.0f}")


def other_places() -> None:
    batch = Batch(100_000, 2048)
    expected = batch.coefficients()
    padded = torch.full((*batch.mask.shape, 2048), torch.nan, dtype=torch.bfloat16, device=GPU)
    padded[batch.mask] = batch.features
    store = FeatureStore(batch.count, 2048, torch.bfloat16, GPU, device_bytes=64 << 20, chunk=16_384)
    store.put(slice(0, batch.count), batch.features)
    torch.cuda.synchronize()
    for name, hidden in (("padded", padded), ("host", store.source()), ("chunks", DeviceFeatures(batch.features, chunk=16_384))):
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        found = batch.coefficients(hidden=hidden)
        extra = (torch.cuda.max_memory_allocated() - held) / 1e6
        took = median_ms(partial(batch.coefficients, hidden=hidden), 5)
        gap = float((found - expected).abs().max())
        print(f"{name:>7} d=2048 N={batch.count:,}: {took:.2f} ms, extra {extra:.0f} MB, off packed {gap:.1e}")
    small = Batch(10_000, 576)
    begun = time.perf_counter()
    for _ in range(20):
        small.coefficients()
    torch.cuda.synchronize()
    print(f"launches alone (N=1e4, d=576): {(time.perf_counter() - begun) * 50:.2f} ms a batch")
    begun = time.perf_counter()
    for _ in range(20):
        small.coefficients()
    print(f"host's part of it: {(time.perf_counter() - begun) * 50:.2f} ms a batch")


def head_proxies() -> None:
    width, vocab = 576, 49_152
    for count in (4_000, 100_000):
        batch = Batch(count, width)
        batch.features.mul_(0.3)
        head = (torch.randn(vocab, width, device=GPU) * 0.1).bfloat16()
        tokens = torch.randint(vocab, batch.mask.shape, device=GPU)
        packed = tokens[batch.mask]
        for start in range(0, batch.count, 4096):
            run = slice(start, start + 4096)
            logp = (batch.features[run].float() @ head.float().T).log_softmax(-1)
            cells = batch.mask.flatten().nonzero()[run, 0]
            batch.logp.view(-1)[cells] = logp.gather(1, packed[run, None])[:, 0]
        for proxy in ("head", "hidden-gradient"):
            call = partial(batch.coefficients, proxy=proxy, tokens=tokens, head=head)
            found = call()
            states, weight = batch.features.double(), head.double()
            vectors = HeadVectors(states, packed, weight, 1.0, 4096)
            if proxy != "head":
                vectors = DenseVectors(hidden_gradient_vectors(states, packed, weight, temperature=1.0, top_k=32, chunk=4096).vectors)
            exact = scope_coefficients(vectors, batch.advantage.double()[batch.row], DeltaOptions()).coefficient
            gap = float((found[batch.mask] - exact).abs().max())
            del states, weight, vectors, exact
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
            took = median_ms(call, 3)
            extra = (torch.cuda.max_memory_allocated() - held) / 1e6
            product = 2 * vocab * width * batch.count / 1e12
            print(
                f"{proxy:>15} N={batch.count:,} d={width} V={vocab}: {took:.1f} ms"
                f" = {took / 1e3 * 989 / product:.1f} products at 989 TFLOP/s,"
                f" extra {extra:.0f} MB, vs float64 {gap:.1e}"
            )

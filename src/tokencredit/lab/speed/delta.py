"""Part `delta`: what DelTA's coefficients cost from stored features, and what the released algorithm pays in forward passes.

The authors' code stores nothing, so every phase passes the whole batch through the model again: the scoring pass gives old log-probs and
the first centroids; then one pass for the first temperatures, one per refinement and one for the final scores, K + 2 more passes
(2605.21467). Only the row proxy, and one scope.
"""

from collections.abc import Callable, Iterator
from statistics import median
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokencredit.credit.delta import delta_coefficients
from tokencredit.kernels import at_least_float32
from tokencredit.lab.speed.contenders import OurPath, bench_config, load_of
from tokencredit.lab.speed.timing import allocated, enough_calls, free, in_turns, peak_bytes, ratios, seconds, spread
from tokencredit.lab.speed.workload import Bench, Result, Shape, Shown, gib, make_batch, ms, percent, times
from tokencredit.rollout.scoring import score_tokens
from tokencredit.types import TokenScores

LEAST = 1e-8


class Chunk(NamedTuple):
    """Some rows of the batch, with the outputs of one pass for their tokens, row by row without padding."""

    rows: Tensor
    logp: Float[Tensor, " tok"]
    hidden: Float[Tensor, "tok hid"]


ForwardMode = Callable[[], Iterator[Chunk]]
"""Passes the batch through the model, a chunk at a time."""


class _Sides(NamedTuple):
    positive: Tensor
    negative: Tensor


def _vectors(chunk: Chunk) -> Float[Tensor, "tok hid"]:
    return (1 - at_least_float32(chunk.logp).exp())[:, None] * at_least_float32(chunk.hidden)


def _token_advantage(chunk: Chunk, advantage: Tensor, mask: Tensor) -> Float[Tensor, " tok"]:
    shown = mask[chunk.rows]
    return advantage[chunk.rows][:, None].expand(shown.shape)[shown].double()


class _Sums:
    def __init__(self) -> None:
        self.sum: list[Tensor | float] = [0.0, 0.0]
        self.mass: list[Tensor | float] = [0.0, 0.0]

    def add(self, vectors: Tensor, advantage: Tensor, share: Tensor | float) -> None:
        for side, sign in enumerate((1, -1)):
            weight = (sign * advantage).clamp(min=0) * share
            self.sum[side] = self.sum[side] + (weight.to(vectors.dtype) @ vectors).double()
            self.mass[side] = self.mass[side] + weight.sum()

    def centroids(self) -> _Sides:
        positive, negative = (total / torch.as_tensor(mass).clamp(min=LEAST) for total, mass in zip(self.sum, self.mass, strict=True))
        return _Sides(torch.as_tensor(positive), torch.as_tensor(negative))


class _Moments:
    """Sums and sums of squares of the margins of each side."""

    def __init__(self) -> None:
        self.count: list[Tensor | float] = [0.0, 0.0]
        self.first: list[Tensor | float] = [0.0, 0.0]
        self.second: list[Tensor | float] = [0.0, 0.0]

    def add(self, margin: Tensor, advantage: Tensor) -> None:
        for side, own in enumerate((advantage > 0, advantage < 0)):
            self.count[side] = self.count[side] + own.sum()
            self.first[side] = self.first[side] + margin.where(own, 0.0).sum()
            self.second[side] = self.second[side] + margin.where(own, 0.0).square().sum()

    def temperatures(self) -> _Sides:
        found = []
        for count, first, second in zip(self.count, self.first, self.second, strict=True):
            among = torch.as_tensor(count).clamp(min=1)
            found.append((second / among - (first / among) ** 2).clamp(min=LEAST).sqrt())
        return _Sides(*found)


def _margin(vectors: Tensor, advantage: Tensor, centroids: _Sides) -> Float[Tensor, " tok"]:
    """Margin by the linear identity; a difference of distances would lose precision."""
    direction = (centroids.positive - centroids.negative).to(vectors.dtype)
    offset = centroids.negative.square().sum() - centroids.positive.square().sum()
    return (2 * (vectors @ direction).double() + offset) * advantage.sign()


def _share(margin: Tensor, advantage: Tensor, temperature: _Sides) -> Tensor:
    return torch.sigmoid(margin / torch.where(advantage > 0, temperature.positive, temperature.negative))


@torch.no_grad()
def first_centroids(chunks: Iterator[Chunk], advantage: Float[Tensor, " seq"], mask: Bool[Tensor, "seq tok"]) -> _Sides:
    """Centroids from the scoring pass."""
    sums = _Sums()
    for chunk in chunks:
        sums.add(_vectors(chunk), _token_advantage(chunk, advantage, mask), 1.0)
    return sums.centroids()


@torch.no_grad()
def published_coefficients(
    passes: ForwardMode,
    centroids: _Sides,
    advantage: Float[Tensor, " seq"],
    mask: Bool[Tensor, "seq tok"],
    *,
    refinements: int = 1,
    lam_min: float = 0.8,
    lam_max: float = 1.2,
) -> Float[Tensor, "seq tok"]:
    """Coefficients of mean 1, in `refinements` + 2 passes over the batch."""
    moments = _Moments()
    for chunk in passes():
        token_advantage = _token_advantage(chunk, advantage, mask)
        moments.add(_margin(_vectors(chunk), token_advantage, centroids), token_advantage)
    temperature = moments.temperatures()
    for _ in range(refinements):
        sums, moments = _Sums(), _Moments()
        for chunk in passes():
            vectors, token_advantage = _vectors(chunk), _token_advantage(chunk, advantage, mask)
            margin = _margin(vectors, token_advantage, centroids)
            sums.add(vectors, token_advantage, _share(margin, token_advantage, temperature))
            moments.add(margin, token_advantage)
        centroids, temperature = sums.centroids(), moments.temperatures()
    coefficient = torch.zeros(mask.shape, dtype=torch.float64, device=mask.device)
    for chunk in passes():
        vectors, token_advantage = _vectors(chunk), _token_advantage(chunk, advantage, mask)
        score = _share(_margin(vectors, token_advantage, centroids), token_advantage, temperature).where(token_advantage != 0, 0.0)
        shown = mask[chunk.rows]
        coefficient[chunk.rows] = torch.zeros(shown.shape, dtype=torch.float64, device=mask.device).masked_scatter(
            shown, lam_min + (lam_max - lam_min) * score
        )
    return coefficient * mask.sum() / coefficient.sum().clamp(min=LEAST)


REFINEMENTS = 1
PASS_TOKENS = 32_768


def packed_features(evidence: TokenScores, mask: Bool[Tensor, "seq tok"]) -> Float[Tensor, "tok hid"]:
    """Hidden states of the tokens in the mask, row after row, however the pass kept them."""
    if evidence.features is not None:
        return torch.cat([chunk.clone() for _, chunk in evidence.features.chunks()])
    assert evidence.hidden is not None
    return evidence.hidden[mask]


class _Cost:
    """One policy and batch, and the calls compared on them."""

    def __init__(self, bench: Bench, shape: Shape) -> None:
        load = load_of(bench, shape)
        budget = 2 * load.positions if bench.small else PASS_TOKENS
        self.batch = make_batch(shape, load, device=bench.device, seed=bench.seed)
        self.path = OurPath(bench, shape, load, self.batch, bench_config(bench, load, "delta", max_tokens=budget))
        self.evidence = self.path.score(keep_hidden=True)
        self.advantage = self.path.credit(self.evidence).credited.advantage
        rollouts = self.batch.rollouts
        rows = torch.arange(len(rollouts.prompts)).split(max(1, budget // load.positions))
        self.parts = [(index.to(bench.device), rollouts.select(index)) for index in rows]
        self.first = first_centroids(self.passes(), self.advantage, self.mask)

    @property
    def mask(self) -> Tensor:
        return self.batch.rollouts.loss_mask

    def ours(self) -> Tensor:
        """Our coefficients, from stored features."""
        kept = self.evidence.hidden if self.evidence.features is None else self.evidence.features
        assert kept is not None
        return delta_coefficients(self.evidence.logp, kept, self.advantage, self.mask, refinements=REFINEMENTS)

    def passes(self) -> Iterator[Chunk]:
        """Micro-batches through our scoring pass; the released code's pass is no faster."""
        for index, part in self.parts:
            evidence = score_tokens(self.path.config, self.path.policy.model, part, keep_hidden=True)
            yield Chunk(index, evidence.logp[part.loss_mask], packed_features(evidence, part.loss_mask))

    def published(self) -> Tensor:
        return published_coefficients(self.passes, self.first, self.advantage, self.mask, refinements=REFINEMENTS)

    def oracle(self) -> Tensor:
        """The released algorithm in float64 on the same features as ours."""
        every = torch.arange(len(self.mask), device=self.mask.device)
        kept = Chunk(every, self.evidence.logp[self.mask].double(), packed_features(self.evidence, self.mask).double())

        def passes() -> Iterator[Chunk]:
            yield kept

        centroids = first_centroids(passes(), self.advantage, self.mask)
        return published_coefficients(passes, centroids, self.advantage, self.mask, refinements=REFINEMENTS)


def measure_shape(bench: Bench, shape: Shape) -> Result:
    bench.report(f"delta: {shape.name}")
    cost = _Cost(bench, shape)
    calls = enough_calls(cost.ours, bench.device)
    taken = in_turns(
        {"ours": lambda: [cost.ours() for _ in range(calls)], "published": cost.published}, bench.device, repeats=bench.repeats
    )
    taken["ours"] = [value / calls for value in taken["ours"]]
    bench.report(f"  coefficients {ms(min(taken['ours']))}, {REFINEMENTS + 2} passes {ms(min(taken['published']))}")
    scoring = in_turns(
        {"without": lambda: cost.path.score(keep_hidden=False), "with": lambda: cost.path.score(keep_hidden=True)},
        bench.device,
        repeats=max(3, bench.repeats),
    )
    keeping = [more - plain for more, plain in zip(scoring["with"], scoring["without"], strict=True)]
    coefficient, mask = cost.ours(), cost.mask
    apart = {
        "from_float64_on_the_same_features": float((coefficient - cost.oracle()).abs()[mask].max()),
        "from_published_by_its_own_passes": float((coefficient - cost.published()).abs()[mask].max()),
    }
    del coefficient
    free(bench.device)
    before, features = allocated(bench.device), packed_features(cost.evidence, mask)
    kept = features.numel() * features.element_size()
    del features
    peaks = {name: peak_bytes(call, bench.device, before=before) for name, call in (("ours", cost.ours), ("published", cost.published))}
    cost.path()
    whole = [seconds(cost.path, bench.device) for _ in range(bench.repeats)]
    return {
        "shape": shape._asdict(),
        "tokens": cost.batch.loss_tokens,
        "refinements": REFINEMENTS,
        "passes": {"ours": 0, "published": REFINEMENTS + 2},
        "seconds": {name: spread(values) for name, values in taken.items()},
        "published_over_ours": ratios(taken["published"], taken["ours"]),
        "keeping_features_seconds": spread(keeping),
        "update_seconds": spread(whole),
        "share_of_update": spread([value / update for value, update in zip(taken["ours"], whole, strict=True)]),
        "share_of_update_with_keeping": (median(taken["ours"]) + max(0.0, median(keeping))) / median(whole),
        "published_share_of_update": spread([value / update for value, update in zip(taken["published"], whole, strict=True)]),
        "peak_bytes": peaks | {"ours": None if peaks["ours"] is None else peaks["ours"] + kept},
        "feature_bytes": kept,
        "largest_difference": apart,
    }


def measure(bench: Bench) -> Result:
    runs = []
    for shape in bench.shapes:
        runs.append(measure_shape(bench, shape))
        free(bench.device)
    return {"what": "DelTA's coefficients for one batch, row proxy, one scope", "runs": runs}


def show(result: Result) -> list[Shown]:
    tables = []
    for run in result["runs"]:
        seconds_of, peaks, apart = run["seconds"], run["peak_bytes"], run["largest_difference"]
        rows = [
            (
                "ours, from kept features",
                "0",
                ms(seconds_of["ours"]["median"]),
                percent(run["share_of_update"]["median"]),
                gib(peaks["ours"]),
            ),
            (
                "published, a pass per phase",
                str(run["passes"]["published"]),
                ms(seconds_of["published"]["median"]),
                percent(run["published_share_of_update"]["median"]),
                gib(peaks["published"]),
            ),
        ]
        notes = (
            f"published / ours: {times(run['published_over_ours'])} the time",
            f"keeping features adds {ms(run['keeping_features_seconds']['median'])} to scoring and takes {gib(run['feature_bytes'])}; "
            f"with it DelTA is {percent(run['share_of_update_with_keeping'])} of an update",
            f"coefficients differ by {apart['from_float64_on_the_same_features']:.1e} from float64 on the same features, "
            f"by {apart['from_published_by_its_own_passes']:.1e} from the passes' own",
        )
        tables.append(
            Shown(f"delta: {run['shape']['name']}, {run['tokens']:,} tokens", ("", "passes", "time", "of the update", "peak"), rows, notes)
        )
    return tables

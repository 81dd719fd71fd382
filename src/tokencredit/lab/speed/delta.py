"""Part `delta`: what DelTA's coefficients cost from features that are kept, and what the released algorithm pays in passes."""

from collections.abc import Iterator
from statistics import median

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokencredit.credit.delta import delta_coefficients
from tokencredit.lab.speed.delta_published import Chunk, first_centroids, published_coefficients
from tokencredit.lab.speed.our_update import OurPath, bench_config, load_of
from tokencredit.lab.speed.part import Bench, Result, Shown, gib, ms, percent, times
from tokencredit.lab.speed.timing import allocated, enough_calls, free, in_turns, peak_bytes, ratios, seconds, spread
from tokencredit.lab.speed.workload import Shape, make_batch
from tokencredit.rollout.scoring import score_tokens
from tokencredit.types import TokenScores

REFINEMENTS = 1
PASS_TOKENS = 32_768


def packed_features(evidence: TokenScores, mask: Bool[Tensor, "seq tok"]) -> Float[Tensor, "tok hid"]:
    """Hidden states of the tokens in the mask, row after row, however the pass kept them."""
    if evidence.features is not None:
        return torch.cat([chunk.clone() for _, chunk in evidence.features.chunks()])
    assert evidence.hidden is not None
    return evidence.hidden[mask]


class _Cost:
    """One policy and batch, and the calls that are compared on them."""

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
        """From what the scoring pass kept."""
        kept = self.evidence.hidden if self.evidence.features is None else self.evidence.features
        assert kept is not None
        return delta_coefficients(self.evidence.logp, kept, self.advantage, self.mask, refinements=REFINEMENTS)

    def passes(self) -> Iterator[Chunk]:
        """A micro-batch at a time, by the same scoring pass as ours: the released code's own is no faster."""
        for index, part in self.parts:
            evidence = score_tokens(self.path.config, self.path.policy.model, part, keep_hidden=True)
            yield Chunk(index, evidence.logp[part.loss_mask], packed_features(evidence, part.loss_mask))

    def published(self) -> Tensor:
        return published_coefficients(self.passes, self.first, self.advantage, self.mask, refinements=REFINEMENTS)

    def oracle(self) -> Tensor:
        """The released algorithm in float64 on the very features ours was given."""
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

"""Wrong sweeps: the real source with one place changed."""

from types import SimpleNamespace
from typing import Any

from torch import Tensor

from laws.harness import Edit, loaded_with
from tokencredit.credit import CreditInputs
from tokencredit.credit.features import DeviceFeatures

MODULES = (
    "credit.delta.vectors",
    "credit.delta.accumulators",
    "credit.delta.algorithm",
    "credit.features",
    "credit.delta.layout",
    "credit.delta.batched_vectors",
    "credit.delta.batched",
    "credit.delta.dispatch",
    "credit.delta.method",
)  # fmt: skip
"""In the order in which they import one another."""


def delta_with(edit: Edit | None = None) -> SimpleNamespace:
    return loaded_with(MODULES, edit)


def always_swept(delta: SimpleNamespace) -> SimpleNamespace:
    """The same implementation, given packed features wherever it is given padded ones: for the laws that hold of any DelTA."""

    def delta_coefficients(logp: Tensor, hidden: Tensor, advantage: Tensor, mask: Tensor, group: Tensor, **knobs: Any) -> Tensor:
        return delta.delta_coefficients(logp, DeviceFeatures(hidden[mask]), advantage, mask, group, **knobs)

    def delta_credit(inputs: CreditInputs, state: dict[str, Any], **knobs: Any) -> Any:
        return delta.delta_credit(inputs._replace(hidden=DeviceFeatures(inputs.hidden[inputs.mask])), state, **knobs)

    return SimpleNamespace(**{**vars(delta), "delta_coefficients": delta_coefficients, "delta_credit": delta_credit})


LEAN, SWEPT, TILES = "credit.delta.batched", "credit.delta.dispatch", "credit.delta.layout"

SWEEPS: dict[str, Edit] = {
    "one centroid's share of the offset": Edit(LEAN, "weighted.view(-1, 2).sum(1)", "weighted[::2]"),
    "offset of the same sign for both sides": Edit(LEAN, "flip * _for_both(", "_for_both("),
    "temperature of the margins judged": Edit(LEAN, "gammas = measured if lagged is None else lagged", "gammas = measured"),
    "a constant temperature": Edit(LEAN, "options.gamma_scale * moments.spread(), moments", "torch.ones_like(mean), moments"),
    "own side without norms": Edit(LEAN, "[dot - norm for dot, norm", "[dot - 0 * norm for dot, norm"),
    "symmetric map at each side's own temperature": Edit(LEAN, "slope, shift = slope * again, shift * again", ""),
    "pooled temperature of unturned margins": Edit(LEAN, "negative._replace(mean=-negative.mean)", "negative"),
    "sides share one mass": Edit(LEAN, ".total[:, 0].clamp(min=FLOOR)", ".total[:, 0].view(-1, 2).sum(1).repeat_interleave(2)"),
    "empty slots of the head have products": Edit("credit.delta.batched_vectors", "dot.where(tiles.feature_row >= 0, 0.0)", "dot"),
    "row proxy without confidence": Edit(SWEPT, "-logp[chunk.tiles.cell].expm1()", "1 + 0 * logp[chunk.tiles.cell]"),
    "hidden gradient of all tokens": Edit("credit.delta.vectors", "if top_k >= len(head):", "if True:"),
    "a chunk replaces the sum before it": Edit(LEAN, "total = summed if total is None else total + summed", "total = summed"),
    "places of other tokens": Edit(
        SWEPT, "2 * scopes.max_scopes, feature_row - run.start", "2 * scopes.max_scopes, (feature_row - run.start) // 2"
    ),
    "chunks of a scope forgotten": Edit(SWEPT, "for number in wanted or [0]:", "for number in wanted[:1] or [0]:"),
    "merged means unweighted": Edit(LEAN, "self.mean + gap * weight", "self.mean + gap / 2"),
    "merged deviations forget the gap": Edit(LEAN, " + gap.square() * self.tokens * weight", ""),
    "padded states in rows as wide as the mask": Edit(SWEPT, "[:, None] * response_stride +", "[:, None] * tok +"),
    "zero advantage is laid out": Edit(SWEPT, "scored = (batch.advantage != 0) & ", "scored = "),
    "the only bound is the only scope": Edit(SWEPT, "by_row.where((scopes.of_row == 0)[:, None], 0.0)", "by_row"),
    "scopes are counted": Edit(TILES, "count = max(1, min(max_scopes, len(scope) // 2))", "count = max(1, int(two_sided.sum()))"),
    "tokens are picked by a mask": Edit(TILES, "    length = active.sum(1)\n", "    length = active.sum(1)\n    active[active]\n"),
    "temperatures are read at once": Edit(LEAN, "self._read: list[Temperature] | None = None", "self._read = None; self._list()"),
    "all features are copied": Edit(
        "credit.delta.batched_vectors", "yield features, chunk.tiles, scale", "yield features * 1, chunk.tiles, scale"
    ),
    "temperatures cost a sweep": Edit(
        LEAN, "        columns = [", "        sweeps.dots(direction, by_scope=contrast)\n        columns = ["
    ),
}
"""Offsets, temperatures, layouts, chunks, and what is promised of memory and waits."""

GENERAL: dict[str, Edit] = {
    "range starts at zero": Edit(SWEPT, "coefficient = low + (high - low) * score", "coefficient = high * score"),
    "zero advantage left out of the mean": Edit(SWEPT, "64), mask.sum(1)]", "64), (mask & (score != 0)).sum(1)]"),
    "mean of rounded coefficients": Edit(SWEPT, "(high - low) * total / count.clamp(min=1)", "high * total - low * total"),
    "an empty side is discriminated": Edit(SWEPT, "coefficient.where((scopes.of_row < scopes.max_scopes)[:, None], 1.0)", "coefficient"),
    "a floor that advantages meet": Edit(LEAN, ".total[:, 0].clamp(min=FLOOR)", ".total[:, 0].clamp(min=1.0)"),
    "the positive temperature for both sides": Edit(
        LEAN, "slope, shift = flip / gammas.sides, shift", "slope, shift = flip / gammas.sides[:1], shift"
    ),
    "rows are laid out as they come": Edit(TILES, "order = side.argsort(stable=True)", "order = torch.arange(rows)"),
    "group scope pools the batch": Edit("credit.delta.method", "    return group\n", "    return torch.zeros_like(rows)\n"),
    "each rank its own scopes": Edit(TILES, "reduce(TensorSum(mine)).total", "mine"),
    "each rank its own masses": Edit(
        LEAN, "options.reduce(TensorSum(side_sums(weights, chunks)))", "TensorSum(side_sums(weights, chunks))"
    ),
    "each rank its own direction": Edit(LEAN, "direction = options.reduce(TensorSum(", "direction = (TensorSum("),
    "each rank its own offset": Edit(LEAN, "options.reduce(TensorSum(sums[:, 0]))", "TensorSum(sums[:, 0])"),
    "each rank its own temperature": Edit(LEAN, "moments = options.reduce(SideMoments(", "moments = (SideMoments("),
    "each rank its own mean": Edit(SWEPT, "total, count = options.reduce(TensorSum(", "total, count = (TensorSum("),
}
"""Mistakes that the laws of any DelTA must find in the sweeps too."""

"""Wrong DelTAs: the real source with one line changed."""

from types import SimpleNamespace

from laws.harness import Edit, loaded_with

MODULES = ("credit.delta.vectors", "credit.delta.accumulators", "credit.delta.algorithm", "credit.delta.method")
"""In the order in which they import one another."""


def delta_with(edit: Edit | None = None) -> SimpleNamespace:
    return loaded_with(MODULES, edit)


LAGGED = (
    "        temperature = _temperature(margin, advantage, options)\n",
    "        margin = _margin(centroids, vectors, advantage, options)\n",
)

PER_SIDE_NORMALISATION = """\
    coefficient = torch.ones_like(advantage)
    for side in (advantage > 0, advantage < 0, advantage == 0):
        if side.any():
            coefficient[side] = _coefficient(score.where(advantage != 0, 0.0)[side], options)
    return ScopeResult(coefficient, temperature)
"""

SCORING: dict[str, Edit] = {
    "centroids are sums": Edit("credit.delta.accumulators", "summed / max(mass, FLOOR)", "summed"),
    "an empty side is discriminated": Edit("credit.delta.algorithm", "if centroids.one_sided:", "if False:"),
    "margins without offset": Edit(
        "credit.delta.accumulators", "self.positive - self.negative, 2.0) + offset", "self.positive - self.negative, 2.0)"
    ),
    "margins of half the slope": Edit(
        "credit.delta.accumulators", "self.positive - self.negative, 2.0)", "self.positive - self.negative, 1.0)"
    ),
    "offset by absolute values": Edit(
        "credit.delta.accumulators",
        "self.negative.square().sum() - self.positive.square().sum()",
        "self.negative.abs().sum() - self.positive.abs().sum()",
    ),
    "sample variance": Edit("credit.delta.accumulators", "deviation / max(count, 1.0)", "deviation / max(count - 1.0, 1.0)"),
    "advantage-weighted variance": Edit(
        "credit.delta.accumulators",
        "parts = (margin[advantage > 0],",
        "parts = (margin[advantage > 0].repeat_interleave((1000 * advantage[advantage > 0]).long()),",
    ),
    "the other side's temperature": Edit(
        "credit.delta.algorithm", "gamma for gamma in measured", "gamma for gamma in measured[1::-1] + measured[2:]"
    ),
    "the positive temperature for both sides": Edit(
        "credit.delta.algorithm", "gamma for gamma in measured", "measured[0] for _ in measured"
    ),
    "a constant temperature": Edit("credit.delta.algorithm", "options.gamma_scale * gamma for gamma in measured", "1.0 for _ in measured"),
    "temperature without lag": Edit("credit.delta.algorithm", LAGGED[0] + LAGGED[1], LAGGED[1] + LAGGED[0]),
    "temperature never measured again": Edit("credit.delta.algorithm", LAGGED[0] + LAGGED[1], LAGGED[1]),
    "one refinement too many": Edit("credit.delta.algorithm", "range(options.refinements)", "range(options.refinements + 1)"),
    "one refinement too few": Edit("credit.delta.algorithm", "range(options.refinements)", "range(max(options.refinements - 1, 0))"),
    "range starts at zero": Edit("credit.delta.algorithm", "coefficient = low + (high - low) * score", "coefficient = high * score"),
    "zero advantage scores in full": Edit("credit.delta.algorithm", "score.where(advantage != 0, 0.0)", "score.where(advantage != 0, 1.0)"),
    "every map is symmetric": Edit("credit.delta.algorithm", 'options.coefficient_map == "symmetric"', "True"),
    "no map is symmetric": Edit("credit.delta.algorithm", 'options.coefficient_map == "symmetric"', "False"),
    "symmetric map at each side's own temperature": Edit(
        "credit.delta.algorithm",
        "_decisiveness(margin, temperature, options) if",
        "(2 * _assign(margin, advantage, temperature, options) - 1).abs() if",
    ),
    "random scores ignore the seed": Edit(
        "credit.delta.algorithm", "torch.Generator().manual_seed(options.seed)", "torch.Generator().manual_seed(1)"
    ),
    "random scores are unseeded": Edit("credit.delta.algorithm", "generator=torch.Generator().manual_seed(options.seed), ", ""),
    "zero advantage left out of the mean": Edit("credit.delta.algorithm", "ScoreMass().add(score)", "ScoreMass().add(score[score != 0])"),
    "each side normalised alone": Edit(
        "credit.delta.algorithm",
        "    return ScopeResult(_coefficient(score.where(advantage != 0, 0.0), options), temperature, first, sum(sums.masses))\n",
        PER_SIDE_NORMALISATION,
    ),
    "mean of rounded coefficients": Edit(
        "credit.delta.algorithm", "coefficient / mean if mean > 0 else coefficient", "coefficient / coefficient.mean()"
    ),
}
"""Centroids, margins, temperatures, refinements, scores, their map and its normalisation."""

CUTTING: dict[str, Edit] = {
    "a chunk replaces the sum before it": Edit("credit.delta.accumulators", "summed if previous is None else previous + summed", "summed"),
    "merged masses forget a rank": Edit(
        "credit.delta.accumulators", "mine + theirs for mine, theirs in zip(self.masses", "mine for mine, _ in zip(self.masses"
    ),
    "a chunk's norm is its first token's": Edit(
        "credit.delta.accumulators", "[chunk.squared_norm() for", "[chunk.squared_norm()[:1].expand(len(chunk)) for"
    ),
    "merged means unweighted": Edit("credit.delta.accumulators", "one[1] + gap * two[0] / count", "one[1] + gap / 2"),
    "merged deviations forget the gap": Edit("credit.delta.accumulators", " + gap * gap * one[0] * two[0] / count", ""),
    "merged counts forget a rank": Edit("credit.delta.accumulators", "self.count + other.count", "self.count"),
    "padding is valid": Edit("credit.delta.method", "    options.check()\n", "    options.check()\n    mask = torch.ones_like(mask)\n"),
    "batch scope cut by row number": Edit("credit.delta.method", "return torch.zeros_like(rows)", "return rows % 2"),
    "group scope pools the batch": Edit("credit.delta.method", "    return group\n", "    return torch.zeros_like(rows)\n"),
    "only scopes on every rank": Edit("credit.delta.accumulators", "self.ids | other.ids", "self.ids & other.ids"),
    "each rank its own scopes": Edit("credit.delta.method", "options.reduce(ScopeIds().add(token_scope))", "ScopeIds().add(token_scope)"),
    "each rank its own temperature": Edit(
        "credit.delta.algorithm", "options.reduce(MarginMoments().add(margin, advantage))", "MarginMoments().add(margin, advantage)"
    ),
    "each rank its own refined centroids": Edit(
        "credit.delta.algorithm",
        "options.reduce(CentroidSums().add(vectors, advantage, share))",
        "CentroidSums().add(vectors, advantage, share)",
    ),
    "each rank its own mean": Edit("credit.delta.algorithm", "options.reduce(ScoreMass().add(score))", "ScoreMass().add(score)"),
}
"""Padding, rows, chunks, merges and ranks."""

PROXIES: dict[str, Edit] = {
    "row proxy without confidence": Edit("credit.delta.vectors", "(-at_least_float32(logp).expm1())[:, None] * at_least", "at_least"),
    "head proxy is the row proxy": Edit("credit.delta.method", 'if options.proxy == "row":', 'if options.proxy in ("row", "head"):'),
    "head sum without the expected row": Edit(
        "credit.delta.vectors", "expected_row = -(self._probabilities() *", "expected_row = -(0 * self._probabilities() *"
    ),
    "head dot without the expected row": Edit("credit.delta.vectors", " - (self._probabilities() * scores).sum(-1)", ""),
    "head norm without the cross term": Edit("credit.delta.vectors", "(1 - 2 * chosen + ", "(1 + "),
    "head at sampling temperature one": Edit(
        "credit.delta.vectors", "(self.hidden @ self.head.T / self.temperature)", "(self.hidden @ self.head.T)"
    ),
    "hidden gradient at sampling temperature one": Edit(
        "credit.delta.vectors", "(hidden[run] @ head.T / temperature)", "(hidden[run] @ head.T)"
    ),
    "hidden gradient without renormalisation": Edit(
        "credit.delta.vectors", "logit.softmax(-1)", "(logit - logit.logsumexp(-1, True) - 0.1).exp()"
    ),
}
"""What a token's vector is."""

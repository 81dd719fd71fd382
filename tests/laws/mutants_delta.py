"""Wrong DelTAs: the real source with one line changed, loaded beside the real modules. A line that has gone is an error, not a pass."""

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple
from unittest import mock

MODULES = ("vectors", "phases", "discriminator", "delta")
"""In the order in which they import one another."""


class Edit(NamedTuple):
    module: str
    right: str
    wrong: str


def delta_with(edit: Edit | None = None) -> SimpleNamespace:
    """Every name of DelTA's modules, freshly executed; without an edit, the code as it is."""
    names: dict[str, object] = {}
    with mock.patch.dict(sys.modules):
        for module in MODULES:
            qualified = f"tokencredit.credit.{module}"
            path = Path(str(importlib.import_module(qualified).__file__))
            source = path.read_text()
            if edit is not None and edit.module == module:
                if source.count(edit.right) != 1:
                    raise ValueError(f"{module}.py holds {edit.right!r} {source.count(edit.right)} times; a mutant needs it once")
                source = source.replace(edit.right, edit.wrong)
            sys.modules[qualified] = ModuleType(qualified)
            exec(compile(source, path, "exec"), vars(sys.modules[qualified]))
            names |= vars(sys.modules[qualified])
    return SimpleNamespace(**names)


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
    "centroids are sums": Edit("phases", "summed / max(mass, FLOOR)", "summed"),
    "an empty side is discriminated": Edit("discriminator", "if centroids.one_sided:", "if False:"),
    "margins without offset": Edit("phases", "self.positive - self.negative, 2.0) + offset", "self.positive - self.negative, 2.0)"),
    "margins of half the slope": Edit("phases", "self.positive - self.negative, 2.0)", "self.positive - self.negative, 1.0)"),
    "offset by absolute values": Edit(
        "phases", "self.negative.square().sum() - self.positive.square().sum()", "self.negative.abs().sum() - self.positive.abs().sum()"
    ),
    "sample variance": Edit("phases", "deviation / max(count, 1.0)", "deviation / max(count - 1.0, 1.0)"),
    "advantage-weighted variance": Edit(
        "phases",
        "parts = (margin[advantage > 0],",
        "parts = (margin[advantage > 0].repeat_interleave((1000 * advantage[advantage > 0]).long()),",
    ),
    "the other side's temperature": Edit(
        "discriminator", "gamma for gamma in measured", "gamma for gamma in measured[1::-1] + measured[2:]"
    ),
    "the positive temperature for both sides": Edit("discriminator", "gamma for gamma in measured", "measured[0] for _ in measured"),
    "a constant temperature": Edit("discriminator", "options.gamma_scale * gamma for gamma in measured", "1.0 for _ in measured"),
    "temperature without lag": Edit("discriminator", LAGGED[0] + LAGGED[1], LAGGED[1] + LAGGED[0]),
    "temperature never measured again": Edit("discriminator", LAGGED[0] + LAGGED[1], LAGGED[1]),
    "one refinement too many": Edit("discriminator", "range(options.refinements)", "range(options.refinements + 1)"),
    "one refinement too few": Edit("discriminator", "range(options.refinements)", "range(max(options.refinements - 1, 0))"),
    "range starts at zero": Edit("discriminator", "coefficient = low + (high - low) * score", "coefficient = high * score"),
    "zero advantage scores in full": Edit("discriminator", "score.where(advantage != 0, 0.0)", "score.where(advantage != 0, 1.0)"),
    "every map is symmetric": Edit("discriminator", 'options.coefficient_map == "symmetric"', "True"),
    "no map is symmetric": Edit("discriminator", 'options.coefficient_map == "symmetric"', "False"),
    "symmetric map at each side's own temperature": Edit(
        "discriminator",
        "_decisiveness(margin, temperature, options) if",
        "(2 * _assign(margin, advantage, temperature, options) - 1).abs() if",
    ),
    "random scores ignore the seed": Edit(
        "discriminator", "torch.Generator().manual_seed(options.seed)", "torch.Generator().manual_seed(1)"
    ),
    "random scores are unseeded": Edit("discriminator", "generator=torch.Generator().manual_seed(options.seed), ", ""),
    "zero advantage left out of the mean": Edit("discriminator", "ScoreMass().add(score)", "ScoreMass().add(score[score != 0])"),
    "each side normalised alone": Edit(
        "discriminator",
        "    return ScopeResult(_coefficient(score.where(advantage != 0, 0.0), options), temperature)\n",
        PER_SIDE_NORMALISATION,
    ),
    "mean of rounded coefficients": Edit(
        "discriminator", "coefficient / mean if mean > 0 else coefficient", "coefficient / coefficient.mean()"
    ),
}
"""Centroids, margins, temperatures, refinements, scores, their map and its normalisation."""

CUTTING: dict[str, Edit] = {
    "a chunk replaces the sum before it": Edit("phases", "summed if previous is None else previous + summed", "summed"),
    "merged masses forget a rank": Edit(
        "phases", "mine + theirs for mine, theirs in zip(self.masses", "mine for mine, _ in zip(self.masses"
    ),
    "a chunk's norm is its first token's": Edit("phases", "[chunk.squared_norm() for", "[chunk.squared_norm()[:1].expand(len(chunk)) for"),
    "merged means unweighted": Edit("phases", "one[1] + gap * two[0] / count", "one[1] + gap / 2"),
    "merged deviations forget the gap": Edit("phases", " + gap * gap * one[0] * two[0] / count", ""),
    "merged counts forget a rank": Edit("phases", "self.count + other.count", "self.count"),
    "padding is valid": Edit("delta", "    options.check()\n", "    options.check()\n    mask = torch.ones_like(mask)\n"),
    "batch scope cut by row number": Edit("delta", "return torch.zeros_like(rows)", "return rows % 2"),
    "group scope pools the batch": Edit("delta", "    return group\n", "    return torch.zeros_like(rows)\n"),
    "only scopes on every rank": Edit("phases", "self.ids | other.ids", "self.ids & other.ids"),
    "each rank its own scopes": Edit("delta", "options.reduce(ScopeIds().add(token_scope))", "ScopeIds().add(token_scope)"),
    "each rank its own temperature": Edit(
        "discriminator", "options.reduce(MarginMoments().add(margin, advantage))", "MarginMoments().add(margin, advantage)"
    ),
    "each rank its own refined centroids": Edit(
        "discriminator", "options.reduce(CentroidSums().add(vectors, advantage, share))", "CentroidSums().add(vectors, advantage, share)"
    ),
    "each rank its own mean": Edit("discriminator", "options.reduce(ScoreMass().add(score))", "ScoreMass().add(score)"),
}
"""Padding, rows, chunks, merges and ranks."""

PROXIES: dict[str, Edit] = {
    "row proxy without confidence": Edit("vectors", "(-at_least_float32(logp).expm1())[:, None] * at_least", "at_least"),
    "head proxy is the row proxy": Edit("delta", 'if options.proxy == "row":', 'if options.proxy in ("row", "head"):'),
    "head sum without the expected row": Edit("vectors", "away = -(self._probabilities() *", "away = -(0 * self._probabilities() *"),
    "head dot without the expected row": Edit("vectors", " - (self._probabilities() * scores).sum(-1)", ""),
    "head norm without the cross term": Edit("vectors", "(1 - 2 * own + ", "(1 + "),
    "head at sampling temperature one": Edit("vectors", "(self.hidden @ self.head.T / self.temperature)", "(self.hidden @ self.head.T)"),
    "hidden gradient at sampling temperature one": Edit("vectors", "(hidden[run] @ head.T / temperature)", "(hidden[run] @ head.T)"),
    "hidden gradient without renormalisation": Edit("vectors", "logit.softmax(-1)", "(logit - logit.logsumexp(-1, True) - 0.1).exp()"),
}
"""What a token's vector is."""

"""Is a token moved by its own credit, by other occurrences of the same token, or by different tokens?

The claim is published without a formula (The Cancellation Hypothesis, arXiv 2605.08666): coupling is mainly between identical tokens
that are both predicted with low confidence. Measuring it by the LM-head kernel is our reading.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.credit.delta.vectors import HeadVectors
from tokencredit.diagnose.common import SIDES, class_parts, confidence_names, confidence_parts, count, mean_where, percent
from tokencredit.diagnose.head_kernel import CouplingParts, PairSums, head_mismatch, head_parts, pair_sums
from tokencredit.diagnose.table import TokenTable
from tokencredit.kernels import at_least_float32
from tokencredit.types import Finding, TableRow

MISMATCH = 1e-2
"""Above it the head's log-probs differ from the model's (soft-capped or shifted logits), so the kernel is approximate."""


class Sources(NamedTuple):
    """The tokens of one optimizer step, each with the signed weight of its log-prob in minus the loss."""

    hidden: Float[Tensor, "src hid"]
    token: Int[Tensor, " src"]
    weight: Float[Tensor, " src"]


class CouplingResult(NamedTuple):
    own: Float[Tensor, " tok"]
    same: Float[Tensor, " tok"]
    other: Float[Tensor, " tok"]
    finding: Finding


def coupling(
    table: TokenTable,
    hidden: Float[Tensor, "tok hid"],
    head: Float[Tensor, "vocab hid"],
    sources: Sources,
    own_index: Int[Tensor, " tok"],
    *,
    temperature: float,
    limit: int = 2048,
    seed: int = 0,
    chunk: int = 512,
) -> CouplingResult:
    """Own, same-token and other-token parts of the head's first-order effect on every observed token, as a finding.

    `own_index`: place of each looked-at token among the sources, -1 for a token of another optimizer step: it has no own part, so
    it is in no share. Shares are of summed absolute parts. `chunk` tokens x vocabulary are held at once; pairs are counted over
    `limit` tokens at most.
    Computation runs on the device of `hidden`, head, sources and index; the parts are returned on the CPU, as the table is.
    """
    head, token, logp = at_least_float32(head), table.token.to(hidden.device), table.logp.to(hidden.device)
    looked_at = HeadVectors(at_least_float32(hidden), token, head, temperature, chunk)
    pushing = HeadVectors(at_least_float32(sources.hidden), sources.token, head, temperature, chunk)
    parts = CouplingParts(*(part.cpu() for part in head_parts(looked_at, pushing, sources.weight, own_index)))
    pairs = _sampled_pairs(looked_at, logp, limit=limit, seed=seed, chunk=chunk)
    mismatch = head_mismatch(looked_at, logp)
    finding = _finding(table, parts, own_index.cpu() >= 0, pairs, mismatch, sources=len(sources.weight), limit=limit)
    return CouplingResult(*parts, finding)


def pair_table(
    vectors: HeadVectors, logp: Float[Tensor, " tok"], *, limit: int = 2048, seed: int = 0, chunk: int = 512
) -> tuple[TableRow, ...]:
    """Coupling of pairs by token identity and both confidences, without credit; above `limit` tokens a sample without replacement."""
    return _pair_rows(_sampled_pairs(vectors, logp, limit=limit, seed=seed, chunk=chunk))


def _sampled_pairs(vectors: HeadVectors, logp: Float[Tensor, " tok"], *, limit: int, seed: int, chunk: int) -> PairSums:
    if len(vectors) > limit:
        chosen = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(seed))[:limit].sort().values.to(logp.device)
        vectors, logp = vectors.take(chosen), logp[chosen]
    return PairSums(*(total.cpu() for total in pair_sums(vectors, logp, chunk=chunk)))


def _pair_rows(sums: PairSums) -> tuple[TableRow, ...]:
    names, total = confidence_names(), float(sums.magnitude.sum())
    rows: list[TableRow] = []
    for kind, low, high in (sums.pairs > 0).nonzero().tolist():
        pairs, factor, kernel, magnitude = (float(value[kind, low, high]) for value in sums)
        rows.append(
            {
                "identity": "same" if kind else "different",
                "confidence": names[low],
                "other_confidence": names[high],
                "pairs": int(pairs),
                "mean_factor": factor / pairs,
                "mean_kernel": kernel / pairs,
                "mean_abs_kernel": magnitude / pairs,
                "share": _ratio(magnitude, total),
            }
        )
    return tuple(rows)


def _finding(
    table: TokenTable, parts: CouplingParts, inside: Tensor, pairs: PairSums, mismatch: float, *, sources: int, limit: int
) -> Finding:
    whole = _shares(parts, inside)
    total = parts.own + parts.same + parts.other
    outvoted = mean_where(total * parts.own < 0, parts.own != 0)
    same, low = pairs.magnitude[1], pairs.magnitude[1, 0, 0]
    numbers = {
        **{f"share/{name}": share for name, share in whole.items()},
        "outvoted": outvoted,
        "pairs/same": _ratio(float(pairs.pairs[1].sum()), float(pairs.pairs.sum())),
        "pairs/same_coupling": _ratio(float(same.sum()), float(pairs.magnitude.sum())),
        "pairs/low_of_same": _ratio(float(pairs.pairs[1, 0, 0]), float(pairs.pairs[1].sum())),
        "pairs/low_of_same_coupling": _ratio(float(low), float(same.sum())),
        "head_mismatch": mismatch,
        "tokens": float(inside.sum()),
        "tokens/sources": float(sources),
        "tokens/pairs": float(min(len(table), limit)),
    }
    tables = {
        "by_side": _by("side", parts, inside, {name: table.side == sign for name, sign in (SIDES | {"none": 0}).items()}),
        "by_confidence": _by("confidence", parts, inside, confidence_parts(table)),
        "by_class": _by("token_class", parts, inside, class_parts(table)),
        "pairs": _pair_rows(pairs),
    }
    return Finding(name="coupling", note=_note(numbers, sources, sampled=len(table) > limit), numbers=numbers, tables=tables)


def _shares(parts: CouplingParts, chosen: Tensor) -> dict[str, float]:
    sizes = {name: float(part[chosen].abs().sum()) for name, part in parts._asdict().items()}
    return {name: _ratio(size, sum(sizes.values())) for name, size in sizes.items()}


def _by(label: str, parts: CouplingParts, inside: Tensor, masks: Mapping[str, Tensor]) -> tuple[TableRow, ...]:
    chosen = {name: mask & inside for name, mask in masks.items()}
    return tuple({label: name, "tokens": int(mask.sum()), **_shares(parts, mask)} for name, mask in chosen.items())


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan


def _note(numbers: Mapping[str, float], sources: int, *, sampled: bool) -> str:
    unsure = confidence_names()[0]
    words = ["None of the observed tokens is in the first optimizer step, so the push by their own gradient is unknown."]
    if numbers["tokens"]:
        words = [
            f"Through the LM head, {count(sources, 'token')} of one optimizer step push {count(int(numbers['tokens']), 'token')} of them: "
            f"{percent(numbers['share/own'])} of the summed absolute push is a token's own, {percent(numbers['share/same'])} comes from "
            f"other occurrences of the same token, {percent(numbers['share/other'])} from different tokens.",
            f"The others overrule a token's own push for {percent(numbers['outvoted'])} of tokens that have one.",
        ]
    words += [
        f"Same-token pairs with both at {unsure} are {percent(numbers['pairs/low_of_same'])} of same-token pairs and carry "
        f"{percent(numbers['pairs/low_of_same_coupling'])} of their coupling.",
    ]
    if sampled:
        words.append(f"Pairs were counted over a sample of {int(numbers['tokens/pairs'])} tokens.")
    if numbers["head_mismatch"] > MISMATCH:
        words.append(
            f"The head alone misses the model's log-probs by up to {numbers['head_mismatch']:.2g}: its logits are changed "
            "after the head (a soft cap or a bias), and the kernel is only approximate."
        )
    return " ".join(words)

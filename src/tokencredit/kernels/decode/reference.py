"""The functions of a decode step in plain torch, rounded where `transformers` rounds: after a product, a norm, an activation.

The residual stream `x` comes with `squares`, sums of its squares by tile, and `weighted`, x times the weight of the next norm: a norm
is then a factor of each row after the product and needs no separate pass. In bfloat16 that is one rounding fewer. Random numbers are
counter-based: a row's draw at a position is a function of the seed, the row and the position only.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from tokencredit.kernels.decode.state import (
    VOCABULARY_BLOCK,
    HeadNorm,
    Keys,
    Knobs,
    Rotary,
    Slots,
    Statistics,
    Written,
    blocks,
    square_tile,
)
from tokencredit.kernels.logits import at_least_float32

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
LOW = 0xFFFFFFFF


class TwoUniforms(NamedTuple):
    """In [0, 1), multiples of 2⁻²⁴: one to choose a block of the vocabulary, one to choose in it."""

    block: Float[Tensor, "..."]
    token: Float[Tensor, "..."]


def _wide_product(factor: int, value: Int[Tensor, "..."]) -> tuple[Tensor, Tensor]:
    """Upper and lower half of a 64-bit product of two 32-bit numbers, with signed 64-bit integers."""
    low_part, high_part = factor * (value & 0xFFFF), factor * (value >> 16)
    middle = high_part + (low_part >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (low_part & 0xFFFF)


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10 (Salmon et al., 2011) over 32-bit numbers held in int64."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _wide_product(MULTIPLIERS[0], c0)
        high1, low1 = _wide_product(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + KEY_STEPS[0]) & LOW, (k1 + KEY_STEPS[1]) & LOW
    return c0, c1, c2, c3


def uniforms(seed: Int[Tensor, " one"], row: Int[Tensor, "..."], position: Int[Tensor, "..."]) -> TwoUniforms:
    row, position = row.long() & LOW, position.long() & LOW
    nothing = torch.zeros_like(row)
    block, token, _, _ = philox((position, row, nothing, nothing), (seed & LOW, (seed >> 32) & LOW))
    return TwoUniforms(*((bits >> 8).float() * 2.0**-24 for bits in (block, token)))


LOWEST = -1e30
"""Stands for minus infinity where it is subtracted."""


def squares_of(x: Float[Tensor, "slot hid"]) -> Float[Tensor, "slot tile"]:
    tile = square_tile(x.shape[1])
    padded = functional.pad(at_least_float32(x).square(), (0, -x.shape[1] % tile))
    return padded.unflatten(1, (-1, tile)).sum(-1)


def norm_scale(squares: Float[Tensor, "slot tile"], hidden: int, eps: float) -> Float[Tensor, "slot 1"]:
    return (squares.sum(-1, keepdim=True) / hidden + eps).rsqrt()


def weighted_of(x: Float[Tensor, "slot hid"], norm: Float[Tensor, " hid"], compute: torch.dtype) -> Float[Tensor, "slot hid"]:
    return (at_least_float32(x) * at_least_float32(norm)).to(compute)


def normed(x: Float[Tensor, "slot hid"], squares: Float[Tensor, "slot tile"], norm: Float[Tensor, " hid"], eps: float) -> Tensor:
    return norm * (at_least_float32(x) * norm_scale(squares, x.shape[1], eps)).to(x.dtype)


def _product(given: Tensor, weight: Tensor) -> Tensor:
    return at_least_float32(given) @ at_least_float32(weight).T


def norm_linear(
    weighted: Float[Tensor, "slot hid"],
    squares: Float[Tensor, "slot tile"],
    weights: Sequence[Float[Tensor, "_ hid"]],
    biases: Sequence[Float[Tensor, " _"]] | None,
    out: Float[Tensor, "slot all"],
    *,
    eps: float,
) -> None:
    """`out` = norm(x) Wᵀ + b for a query, a key and a value matrix, side by side."""
    sums = _product(weighted, torch.cat(list(weights))) * norm_scale(squares, weighted.shape[1], eps)
    out.copy_(sums + torch.cat(list(biases)) if biases else sums)


def linear_add(
    given: Float[Tensor, "slot in"],
    weight: Float[Tensor, "hid in"],
    x: Float[Tensor, "slot hid"],
    squares: Float[Tensor, "slot tile"],
    norm: Float[Tensor, " hid"],
    weighted: Float[Tensor, "slot hid"],
) -> None:
    """`x` += given Wᵀ, the squares of the new x, and the new x times the weight of the norm that reads it."""
    x += functional.linear(given, weight)
    squares.copy_(squares_of(x))
    weighted.copy_(weighted_of(x, norm, weighted.dtype))


def norm_gate_up(
    weighted: Float[Tensor, "slot hid"],
    squares: Float[Tensor, "slot tile"],
    gate: Float[Tensor, "ffn hid"],
    up: Float[Tensor, "ffn hid"],
    out: Float[Tensor, "slot ffn"],
    *,
    eps: float,
) -> None:
    """`out` = silu(norm(x) Gᵀ) · norm(x) Uᵀ."""
    scale = norm_scale(squares, weighted.shape[1], eps)
    gates, ups = ((_product(weighted, weight) * scale).to(out.dtype) for weight in (gate, up))
    out.copy_(functional.silu(gates) * ups)


def final_norm(
    x: Float[Tensor, "slot hid"],
    squares: Float[Tensor, "slot tile"],
    norm: Float[Tensor, " hid"],
    out: Float[Tensor, "slot hid"],
    kept: Float[Tensor, "seq tok hid"] | None,
    slots: Slots,
    written: Written,
    *,
    eps: float,
) -> None:
    """Input of the LM head; with storage, also stored by row and position."""
    given = normed(x, squares, norm, eps)
    out.copy_(given)
    if kept is not None:
        going = _going(slots, written)
        kept[slots.row[going].long(), slots.position[going].long()] = given[going].to(kept.dtype)


def _going(slots: Slots, written: Written) -> Tensor:
    """Slots whose row has not ended."""
    rows = slots.row.long()
    return ((rows >= 0) & (written.ended[rows.clamp(min=0)] == 0)).nonzero()[:, 0]


def turned(heads: Float[Tensor, "... hd"], norm: Tensor | None, cos: Tensor, sin: Tensor, eps: float) -> Float[Tensor, "... hd"]:
    """Each head normed, where there is a norm, and turned by its place."""
    exact = at_least_float32(heads)
    if norm is not None:
        scale = (exact.square().mean(-1, keepdim=True) + eps).rsqrt()
        exact = at_least_float32(norm * (exact * scale).to(heads.dtype))
    first, second = exact.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(heads.dtype)


def attend(
    qkv: Float[Tensor, "slot all"],
    norms: HeadNorm | None,
    rotary: Rotary,
    keys: Keys,
    slots: Slots,
    written: Written,
    out: Float[Tensor, "slot q"],
    *,
    eps: float,
    scale: float,
) -> None:
    """Attention of each slot's new token over its prompt and its own response; its key and value are put into the cache.

    Slots of rows that have ended are left alone.
    """
    kv_heads, head_dim = keys.own_k.shape[1], keys.own_k.shape[3]
    going = _going(slots, written)
    row, prompt, place = slots.row[going].long(), slots.prompt[going].long(), slots.position[going].long() - 1
    length = keys.prompt_length[prompt].long()
    heads = qkv[going].unflatten(1, (-1, head_dim))
    q, k, v = heads[:, : -2 * kv_heads], heads[:, -2 * kv_heads : -kv_heads], heads[:, -kv_heads:]
    cos, sin = (table[length + place][:, None] for table in rotary)
    q = turned(q, norms.q if norms else None, cos, sin, eps).unflatten(1, (kv_heads, -1))
    keys.own_k[row, :, place] = turned(k, norms.k if norms else None, cos, sin, eps)
    keys.own_v[row, :, place] = v
    longest, deepest = (int(value.max()) if len(going) else 0 for value in (length, place + 1))
    columns = torch.arange(max(longest, deepest), device=qkv.device)
    seen = torch.cat([columns[:longest] < length[:, None], columns[:deepest] <= place[:, None]], 1)
    all_k = torch.cat([keys.prompt_k[prompt, :, :longest], keys.own_k[row, :, :deepest]], 2)
    all_v = torch.cat([keys.prompt_v[prompt, :, :longest], keys.own_v[row, :, :deepest]], 2).where(seen[:, None, :, None], 0.0)
    scores = at_least_float32(q) @ at_least_float32(all_k).transpose(2, 3) * scale
    weights = scores.where(seen[:, None, None], float("-inf")).softmax(-1)
    out[going] = (weights @ at_least_float32(all_v)).flatten(1).to(out.dtype)


def head(
    given: Float[Tensor, "slot hid"],
    weight: Float[Tensor, "vocab hid"],
    temperature: Float[Tensor, " one"],
    logits: Float[Tensor, "slot vocab"],
    statistics: Statistics,
) -> None:
    """`logits` = given Wᵀ / temperature in full precision, summed up by blocks of the vocabulary."""
    logits.copy_(_product(given, weight) / temperature)
    count = blocks(logits.shape[1], VOCABULARY_BLOCK)
    padded = functional.pad(logits, (0, count * VOCABULARY_BLOCK - logits.shape[1]), value=float("-inf"))
    z = padded.view(len(logits), count, VOCABULARY_BLOCK)
    top = z.amax(-1)
    below = z - top.clamp(min=LOWEST)[..., None]
    weights = below.exp()
    statistics.top.copy_(top)
    statistics.mass.copy_(weights.sum(-1))
    statistics.moment.copy_((weights * below).where(weights != 0, 0.0).sum(-1))


def draw(
    logits: Float[Tensor, "slot vocab"],
    statistics: Statistics,
    knobs: Knobs,
    slots: Slots,
    written: Written,
    embeddings: Float[Tensor, "vocab hid"],
    x: Float[Tensor, "slot hid"],
    squares: Float[Tensor, "slot tile"],
    norm: Float[Tensor, " hid"],
    weighted: Float[Tensor, "slot hid"],
) -> None:
    """One token for each slot whose row has not ended, with its log-prob and the entropy; its embedding is the next input.

    A block of the vocabulary is chosen by its probability, then a token of the block: the first whose cumulative sum is above a
    uniform number. Greedy takes the likeliest token, the first of equal ones. Where nothing is above (rounding) it is the likeliest.
    """
    going = _going(slots, written)
    row, position = slots.row[going].long(), slots.position[going].long()
    top, mass, moment = (value[going] for value in statistics)
    highest = top.amax(-1, keepdim=True)
    weight = (top - highest.clamp(min=LOWEST)).exp()
    mass, moment = weight * mass, weight * moment + (weight * mass * (top - highest)).where(mass != 0, 0.0)
    total = mass.sum(-1, keepdim=True)
    entropy = total.log() - moment.sum(-1, keepdim=True) / total
    chance = uniforms(knobs.seed, row + knobs.first_row, position)
    greedy = bool(knobs.greedy)
    block = _first_above(mass, chance.block[:, None] * total, top, greedy)
    count = blocks(logits.shape[1], VOCABULARY_BLOCK)
    padded = functional.pad(logits[going], (0, count * VOCABULARY_BLOCK - logits.shape[1]), value=float("-inf"))
    z = padded.view(len(going), count, VOCABULARY_BLOCK)[torch.arange(len(going), device=logits.device), block]
    weights = (z - highest.clamp(min=LOWEST)).exp()
    inside = _first_above(weights, chance.token[:, None] * weights.sum(-1, keepdim=True), z, greedy)
    token = block * VOCABULARY_BLOCK + inside
    written.bad[row[~total[:, 0].isfinite() | (total[:, 0] <= 0)]] = 1
    token = token.clamp(max=logits.shape[1] - 1)
    written.tokens[row, position] = token
    written.logp[row, position] = (z.gather(-1, inside[:, None]) - highest - total.log()).squeeze(-1)
    written.entropy[row, position] = entropy.squeeze(-1)
    written.length[row] = (position + 1).to(written.length.dtype)
    ended = torch.isin(token, knobs.ends)
    written.ended[row[ended]] = 1
    slots.position[going] += 1
    x[going] = embeddings[token].to(x.dtype)
    squares[going] = squares_of(x[going])
    weighted[going] = weighted_of(x[going], norm, weighted.dtype)


def _first_above(weights: Tensor, chance: Tensor, likeliness: Tensor, greedy: bool) -> Tensor:
    above = (weights.cumsum(-1) > chance) & (weights > 0)
    likeliest = likeliness.nan_to_num(float("-inf")).argmax(-1)
    return likeliest if greedy else torch.where(above.any(-1), above.int().argmax(-1), likeliest)

"""Counted random numbers against published values, and drawing from logits against a search written out."""

import math

import pytest
import torch

from tokencredit.kernels.decode import reference
from tokencredit.kernels.decode.reference import philox, uniforms
from tokencredit.kernels.decode.state import VOCABULARY_BLOCK, Knobs, Slots, Statistics, Written, blocks

KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]
"""Known answers published with Philox4x32-10: counter, key, result."""


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_published_numbers(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    c0, c1, c2, c3 = (torch.tensor([value]) for value in counter)
    k0, k1 = (torch.tensor([value]) for value in key)
    assert tuple(int(value) for value in philox((c0, c1, c2, c3), (k0, k1))) == expected


def test_uniforms_are_below_one_and_differ_by_seed_row_and_position() -> None:
    row, position = torch.arange(200)[:, None].expand(200, 50), torch.arange(50).expand(200, 50)
    drawn = [uniforms(torch.tensor([seed]), row, position) for seed in (3, 4, 3 + 2**33)]
    values = torch.stack([value for pair in drawn for value in pair])
    assert values.min() >= 0
    assert values.max() < 1
    assert len(values.unique()) > 0.99 * values.numel()
    assert values.mean((1, 2)).sub(0.5).abs().max() < 5 / math.sqrt(12 * 10000)


def naive_token(z: list[float], block_chance: float, token_chance: float) -> int:
    """A block by its share of the whole, a token by its share of the block, both by running sums."""
    top = max(z)
    weights = [math.exp(value - top) for value in z]
    cut = [weights[first : first + VOCABULARY_BLOCK] for first in range(0, len(z), VOCABULARY_BLOCK)]

    def search(parts: list[float], chance: float) -> int:
        running, target = 0.0, chance * sum(parts)
        for place, part in enumerate(parts):
            running += part
            if running > target:
                return place
        return parts.index(max(parts))

    block = search([sum(part) for part in cut], block_chance)
    return block * VOCABULARY_BLOCK + search(cut[block], token_chance)


def test_drawing_is_the_search_written_out() -> None:
    rows, vocabulary = 60, 300
    logits = 2 * torch.randn(rows, vocabulary, dtype=torch.float64)
    logits[0, :] = 0.0
    logits[1, 5:] = float("-inf")
    temperature = torch.tensor([0.8], dtype=torch.float64)
    z = torch.zeros_like(logits)
    statistics = Statistics(*torch.zeros(3, rows, blocks(vocabulary, VOCABULARY_BLOCK), dtype=torch.float64))
    reference.head(torch.eye(rows, dtype=torch.float64), logits.nan_to_num(neginf=-1e9).T, temperature, z, statistics)
    slots = Slots(torch.arange(rows, dtype=torch.int32), torch.zeros(rows, dtype=torch.int32), torch.full((rows,), 2, dtype=torch.int32))
    written = Written(
        torch.zeros(rows, 4, dtype=torch.long), *torch.zeros(2, rows, 4, dtype=torch.float64), *torch.zeros(3, rows, dtype=torch.int32)
    )
    zero, first = torch.zeros(1, dtype=torch.int32), torch.tensor([7], dtype=torch.int32)
    knobs = Knobs(temperature, zero, torch.tensor([11]), first, torch.tensor([0, 1, 2, 3]))
    x, squares, norm, weighted = torch.zeros(rows, 40), torch.zeros(rows, 2), torch.randn(40), torch.zeros(rows, 40)
    embeddings = torch.randn(vocabulary, 40)
    reference.draw(z, statistics, knobs, slots, written, embeddings, x, squares, norm, weighted)
    block_chance, token_chance = uniforms(knobs.seed, torch.arange(rows) + 7, torch.full((rows,), 2))
    logp = (logits / 0.8).log_softmax(-1)
    for row in range(rows):
        token = naive_token(z[row].tolist(), float(block_chance[row]), float(token_chance[row]))
        assert written.tokens[row].tolist() == [0, 0, token, 0]
        assert float(written.logp[row, 2]) == pytest.approx(float(logp[row, token]), abs=1e-9)
        entropy = -(logp[row].exp() * logp[row].clamp(min=-1e300)).sum()
        assert float(written.entropy[row, 2]) == pytest.approx(float(entropy), abs=1e-9)
        assert bool(written.ended[row]) == (token < 4)
        assert torch.equal(x[row], embeddings[token])
    assert int(written.bad.sum()) == 0
    assert written.length.tolist() == slots.position.tolist() == [3] * rows
    torch.testing.assert_close(squares, torch.stack([x[:, :32].square().sum(1), x[:, 32:].square().sum(1)], 1))
    torch.testing.assert_close(weighted, x * norm)


def test_what_has_no_weight_is_not_drawn_however_sums_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parallel scan may grow where nothing is added; here it does, far more than by rounding."""
    exact = torch.Tensor.cumsum
    monkeypatch.setattr(torch.Tensor, "cumsum", lambda self, dim: exact(self, dim) + 0.3 * torch.arange(1, self.shape[dim] + 1))
    weights = torch.zeros(50, 10).index_fill_(1, torch.tensor([7]), 1.0)
    assert reference._first_above(weights, torch.rand(50, 1), weights, False).unique().tolist() == [7]

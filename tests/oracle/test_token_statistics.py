"""Log-prob and entropy of tokens against a softmax written out over the vocabulary, value and gradient."""

import math
from random import Random
from typing import NamedTuple

import pytest
import torch

from tokencredit.kernels import token_logp, token_statistics

TEMPERATURES = (1.0, 0.7, 2.5)


class NaiveToken(NamedTuple):
    logp: float
    entropy: float
    logp_gradient: list[float]
    entropy_gradient: list[float]


def naive_token(logits: list[float], token: int, temperature: float) -> NaiveToken:
    scaled = [logit / temperature for logit in logits]
    top = max(scaled)
    normaliser = top + math.log(sum(math.exp(logit - top) for logit in scaled))
    logps = [logit - normaliser for logit in scaled]
    probabilities = [math.exp(logp) for logp in logps]
    entropy = -sum(p * logp for p, logp in zip(probabilities, logps, strict=True))
    return NaiveToken(
        logp=logps[token],
        entropy=entropy,
        logp_gradient=[((entry == token) - p) / temperature for entry, p in enumerate(probabilities)],
        entropy_gradient=[-p * (logp + entropy) / temperature for p, logp in zip(probabilities, logps, strict=True)],
    )


def random_logits(rows: int, columns: int, vocabulary: int, scale: float) -> list[list[list[float]]]:
    random = Random(3)
    return [[[random.gauss(0, scale) for _ in range(vocabulary)] for _ in range(columns)] for _ in range(rows)]


LOGITS = random_logits(2, 3, 5, scale=2.0)
TOKENS = [[0, 4, 2], [1, 1, 3]]


def twin(temperature: float) -> list[NaiveToken]:
    return [naive_token(LOGITS[row][column], TOKENS[row][column], temperature) for row in range(2) for column in range(3)]


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("function", [token_logp, lambda *inputs, **knobs: token_statistics(*inputs, **knobs).logp])
def test_logp_and_its_gradient(function, temperature: float) -> None:
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    logp = function(logits, torch.tensor(TOKENS), temperature=temperature)
    (gradient,) = torch.autograd.grad(logp.sum(), logits)
    expected = twin(temperature)
    assert logp.flatten().tolist() == pytest.approx([token.logp for token in expected], rel=1e-12)
    assert gradient.flatten().tolist() == pytest.approx([g for token in expected for g in token.logp_gradient], rel=1e-10, abs=1e-14)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_entropy_and_its_gradient(temperature: float) -> None:
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    entropy = token_statistics(logits, torch.tensor(TOKENS), temperature=temperature).entropy
    (gradient,) = torch.autograd.grad(entropy.sum(), logits)
    expected = twin(temperature)
    assert entropy.flatten().tolist() == pytest.approx([token.entropy for token in expected], rel=1e-12)
    assert gradient.flatten().tolist() == pytest.approx([g for token in expected for g in token.entropy_gradient], rel=1e-10, abs=1e-14)


def test_uniform_and_certain_distributions_by_hand() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 900.0, 0.0, 0.0]], dtype=torch.float64)
    logp, entropy = token_statistics(logits, torch.tensor([2, 1]))
    assert logp.tolist() == pytest.approx([-math.log(4), 0.0], abs=1e-12)
    assert entropy.tolist() == pytest.approx([math.log(4), 0.0], abs=1e-12)


def test_a_common_offset_of_large_logits_does_not_overflow() -> None:
    tokens = torch.tensor(TOKENS)
    shifted = token_statistics(torch.tensor(LOGITS, dtype=torch.float64) + 1024.0, tokens)
    assert shifted.logp.flatten().tolist() == pytest.approx([token.logp for token in twin(1.0)], abs=1e-9)
    assert shifted.entropy.flatten().tolist() == pytest.approx([token.entropy for token in twin(1.0)], abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_read_exactly(dtype: torch.dtype) -> None:
    """Only the logits are rounded; everything after them is float32, so the twin of the rounded logits is met to float32."""
    logits = torch.tensor(LOGITS).to(dtype)
    logp, entropy = token_statistics(logits, torch.tensor(TOKENS))
    rounded = logits.double().tolist()
    expected = [naive_token(rounded[row][column], TOKENS[row][column], 1.0) for row in range(2) for column in range(3)]
    assert logp.flatten().tolist() == pytest.approx([token.logp for token in expected], rel=1e-5)
    assert entropy.flatten().tolist() == pytest.approx([token.entropy for token in expected], rel=1e-5)
    assert token_logp(logits, torch.tensor(TOKENS)).flatten().tolist() == logp.flatten().tolist()

"""Random rollouts for DelTA's laws, and the ways a law asks an implementation about them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from tokencredit.credit import CreditInputs

VOCAB, WIDTH, COLUMNS = 6, 3, 5
SOFT = 10.0


class Case(NamedTuple):
    inputs: CreditInputs
    knobs: dict[str, Any]
    draw: torch.Generator


Law = Callable[[SimpleNamespace, Case], None]
"""Takes the implementation under test (see `mutants_delta.delta_with`) and raises AssertionError where it is wrong."""


def make_case(seed: int, responses: int, refinements: int, lam: tuple[float, float]) -> Case:
    """Both sides hold two tokens or more, so that no variance sits on its floor; masks have holes, advantages zeros."""
    draw = torch.Generator().manual_seed(seed)
    advantage = torch.randn(responses, generator=draw, dtype=torch.float64)
    advantage[:2] = (advantage[:2].abs() + 0.2) * torch.tensor([1.0, -1.0])
    advantage[2:] *= torch.rand(responses - 2, generator=draw) > 0.3
    mask = torch.rand(responses, COLUMNS, generator=draw) > 0.3
    mask[:2, :3] = True
    hidden = torch.randn(responses, COLUMNS, WIDTH, generator=draw, dtype=torch.float64)
    head = torch.randn(VOCAB, WIDTH, generator=draw, dtype=torch.float64)
    tokens = torch.randint(VOCAB, (responses, COLUMNS), generator=draw)
    logp = log_probs(hidden, head, tokens)
    group = torch.arange(responses) // 3
    inputs = CreditInputs(advantage, mask, group, tokens, logp, torch.zeros_like(logp), seed, 1.0, hidden, head)
    return Case(inputs, {"refinements": refinements, "lam_min": lam[0], "lam_max": lam[1]}, draw)


cases = st.builds(
    make_case,
    seed=st.integers(0, 2**31),
    responses=st.integers(2, 8),
    refinements=st.integers(0, 3),
    lam=st.sampled_from([(0.8, 1.2), (0.0, 2.0), (0.5, 0.6), (1.0, 3.0)]),
)


def typical_case() -> Case:
    return make_case(seed=3, responses=7, refinements=1, lam=(0.8, 1.2))


def log_probs(hidden: Tensor, head: Tensor, tokens: Tensor, temperature: float = 1.0) -> Tensor:
    return (hidden @ head.T / temperature).log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)


def assert_near(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def coefficients(delta: SimpleNamespace, inputs: CreditInputs, **knobs: Any) -> Tensor:
    evidence = {"tokens": inputs.tokens, "head": inputs.head}
    return delta.delta_coefficients(inputs.logp, inputs.hidden, inputs.advantage, inputs.mask, inputs.group, **evidence, **knobs)


def tokens_of(case: Case) -> tuple[Tensor, Tensor]:
    """Vectors and advantages of the valid tokens; hidden states stand for the vectors."""
    return case.inputs.hidden[case.inputs.mask], case.inputs.advantage[:, None].expand_as(case.inputs.mask)[case.inputs.mask]


def scope(delta: SimpleNamespace, vectors: Tensor, advantage: Tensor, **knobs: Any) -> Any:
    return delta.scope_coefficients(delta.DenseVectors(vectors), advantage, delta.DeltaOptions(**knobs))


def own_margins(delta: SimpleNamespace, vectors: Tensor, advantage: Tensor, refinements: int) -> Tensor:
    """Read back from unnormalised scores in (0, 1), sigma^-1(a) gamma, at temperatures so high (SOFT) that no score rounds to 1."""
    knobs = {"lam_min": 0.0, "lam_max": 1.0, "normalize": False, "gamma_scale": SOFT}
    score, gamma, *_ = scope(delta, vectors, advantage, refinements=refinements, **knobs)
    return score.logit() * torch.where(advantage > 0, *torch.tensor(gamma[:2], dtype=torch.float64))

"""Every input and setting DelTA refuses, in the words a user reads: the field, its value, what would be right."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tokencredit.credit import CreditInputs, delta_coefficients
from tokencredit.credit.delta import delta_credit

RESPONSES, COLUMNS, WIDTH, VOCAB = 4, 3, 2, 5
BY_HEAD = ("hidden-gradient", "head")


@pytest.fixture
def evidence() -> dict[str, Any]:
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(RESPONSES, COLUMNS, WIDTH, generator=draw)
    head = torch.randn(VOCAB, WIDTH, generator=draw)
    tokens = torch.randint(VOCAB, (RESPONSES, COLUMNS), generator=draw)
    return {
        "logp": log_probs(hidden @ head.T, tokens),
        "hidden": hidden,
        "advantage": torch.tensor([1.0, -1.0, 0.5, -0.5]),
        "mask": torch.ones(RESPONSES, COLUMNS, dtype=torch.bool),
        "group": torch.tensor([0, 0, 1, 1]),
        "tokens": tokens,
        "head": head,
    }


def log_probs(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"lam_min": -0.1}, r"lam_min is -0\.1 and lam_max 1\.2; need 0 <= lam_min <= lam_max and lam_max > 0"),
        ({"lam_min": 1.3}, r"lam_min is 1\.3 and lam_max 1\.2; need"),
        ({"lam_min": 0.0, "lam_max": 0.0}, r"lam_min is 0\.0 and lam_max 0\.0; need"),
        ({"lam_min": float("nan")}, r"lam_min is nan and lam_max 1\.2; need"),
        ({"lam_max": float("nan")}, r"lam_min is 0\.8 and lam_max nan; need"),
        ({"refinements": -1}, r"refinements is -1; it must be at least 0"),
        ({"scope": "shard", "shards": 0}, r"shards is 0; it must be at least 1"),
        ({"scope": "prompt"}, r"scope is 'prompt'; it must be one of batch, group, shard"),
        ({"proxy": "column"}, r"proxy is 'column'; it must be one of row, hidden-gradient, head"),
        ({"proxy": "head", "top_k": 0}, r"top_k is 0; it must be at least 1"),
        ({"score": "contrats"}, r"score is 'contrats'; it must be one of contrast, own-side, random"),
        ({"assignment": "firm"}, r"assignment is 'firm'; it must be one of soft, hard"),
        ({"coefficient_map": "symetric"}, r"coefficient_map is 'symetric'; it must be one of bounded, raw, symmetric"),
        ({"gamma_scale": 0.0}, r"holds 0\.0; a temperature must be above 0"),
        ({"gamma_scale": float("nan")}, r"holds nan; a temperature must be above 0"),
        ({"score": "own-side", "coefficient_map": "symmetric"}, r"'symmetric' needs score 'contrast'"),
        ({"score": "own-side", "assignment": "hard"}, r"'hard' needs score 'contrast'"),
    ],
)
def test_settings(evidence: dict[str, Any], knobs: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        delta_coefficients(**evidence, **knobs)
    evidence["entropy"] = torch.zeros_like(evidence["logp"])
    with pytest.raises(ValueError, match=words):
        delta_credit(CreditInputs(**evidence, seed=0), {}, **knobs)


def test_group_scope_without_groups(evidence: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"scope is 'group' but group is None; give the group of each response"):
        delta_coefficients(**{**evidence, "group": None}, scope="group")


def test_credit_without_hidden_states(evidence: dict[str, Any]) -> None:
    inputs = CreditInputs(**{**evidence, "hidden": None}, entropy=torch.zeros(RESPONSES, COLUMNS), seed=0)
    with pytest.raises(ValueError, match=r"hidden is missing; DelTA needs the LM head's input from the scoring pass"):
        delta_credit(inputs, {})


@pytest.mark.parametrize("missing", ["tokens", "head"])
@pytest.mark.parametrize("proxy", BY_HEAD)
def test_proxies_by_the_head_need_it_and_the_sampled_ids(evidence: dict[str, Any], proxy: str, missing: str) -> None:
    with pytest.raises(ValueError, match=rf"proxy '{proxy}' needs tokens \(the sampled ids\) and head \(the LM-head weight\)"):
        delta_coefficients(**{**evidence, missing: None}, proxy=proxy)


@pytest.mark.parametrize("proxy", BY_HEAD)
def test_head_of_another_width(evidence: dict[str, Any], proxy: str) -> None:
    with pytest.raises(ValueError, match=r"head has width 7 but hidden has width 2; they must be the same"):
        delta_coefficients(**{**evidence, "head": torch.zeros(VOCAB, 7)}, proxy=proxy)


@pytest.mark.parametrize("family", ["logit scale", "soft-cap", "head bias", "NaN hidden state"])
@pytest.mark.parametrize("proxy", BY_HEAD)
def test_head_that_does_not_explain_the_log_probs(evidence: dict[str, Any], proxy: str, family: str) -> None:
    logits = evidence["hidden"] @ evidence["head"].T
    if family == "NaN hidden state":
        evidence["hidden"][1, 1] = float("nan")
    else:
        done = {"logit scale": 3 * logits, "soft-cap": 0.2 * torch.tanh(logits / 0.2), "head bias": logits + 2 * torch.arange(VOCAB)}
        evidence["logp"] = log_probs(done[family], evidence["tokens"])
    with pytest.raises(ValueError, match=r"hidden and head give log-probs up to \S+ away from logp; .* so use proxy 'row'"):
        delta_coefficients(**evidence, proxy=proxy)


@pytest.mark.parametrize("proxy", BY_HEAD)
def test_log_probs_of_another_temperature_are_not_explained_either(evidence: dict[str, Any], proxy: str) -> None:
    with pytest.raises(ValueError, match=r"hidden and head give log-probs up to"):
        delta_coefficients(**evidence, proxy=proxy, sampling_temperature=0.2)


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("logp", (4, 2), r"logp is \(4, 2\), hidden \(4, 3, 2\) and mask \(4, 3\); their first two axes must agree"),
        ("hidden", (3, 3, 2), r"logp is \(4, 3\), hidden \(3, 3, 2\) and mask \(4, 3\); their first two axes must agree"),
        ("mask", (4, 5), r"logp is \(4, 3\), hidden \(4, 3, 2\) and mask \(4, 5\); their first two axes must agree"),
        ("advantage", (5,), r"advantage holds 5 responses but mask holds 4; they must be the same"),
        ("group", (3,), r"group holds 3 responses but mask holds 4; they must be the same"),
    ],
)
def test_shapes_that_disagree(evidence: dict[str, Any], name: str, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        delta_coefficients(**{**evidence, name: torch.ones(shape, dtype=evidence[name].dtype)})


def test_tokens_of_another_shape(evidence: dict[str, Any]) -> None:
    evidence["tokens"] = evidence["tokens"][:, :-1]
    with pytest.raises(ValueError, match=r"tokens is \(\d+, \d+\) but mask is \(\d+, \d+\); they must be the same"):
        delta_coefficients(**evidence)


def test_unknown_temperature_mode(evidence: dict[str, Any]) -> None:
    inputs = CreditInputs(**evidence, entropy=torch.zeros_like(evidence["logp"]), seed=0)
    with pytest.raises(ValueError, match=r"temperature is 'first_batch'; it must be one of adaptive, first-batch, constant"):
        delta_credit(inputs, {}, temperature="first_batch")
    with pytest.raises(ValueError, match=r"holds nan; a temperature must be above 0"):
        delta_credit(inputs, {}, temperature="constant", constant_gamma=float("nan"))

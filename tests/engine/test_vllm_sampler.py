"""What is asked of vLLM and what is made of its answers, with a stand-in that draws from the weights it was last given."""

import math
import sys
from copy import deepcopy
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tiny import tiny_policy
from tokencredit.config.resolve import resolve
from tokencredit.errors import ConfigError
from tokencredit.forward.padded import score_rows
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.policy.token_text import StopWatcher
from tokencredit.rollout.sampler import sample, sample_plainly, with_sampler
from tokencredit.rollout.vllm import VllmSampler

PROMPTS = [[3, 4, 5], [6, 7], [3, 4, 5, 6]]
DRAWING: dict[str, Any] = {"group_size": 4, "max_new_tokens": 6, "seed": 3, "temperature": 0.8}


@dataclass
class Engine:
    """Draws token by token without a cache; weights start as noise, as those of a model that was never told."""

    policy: Policy
    model: PreTrainedModel
    given: dict[str, Any]
    log: list[str] = field(default_factory=list)
    remembered: dict[tuple[int, ...], Tensor] = field(default_factory=dict)
    """Logits of prompts, as a prefix cache would keep them."""
    forgets_log_probs: bool = False
    asked: list[Any] = field(default_factory=list)

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        assert method == "reload_weights"
        self.log.append("weights")
        with torch.no_grad():
            own = dict(self.model.named_parameters())
            for name, value in kwargs["weights_iterator"]:
                assert not value.requires_grad
                own[name].copy_(value)

    def reset_prefix_cache(self) -> bool:
        self.log.append("forgot")
        self.remembered.clear()
        return True

    def generate(self, prompts: list[dict[str, list[int]]], asked: list[Any], *, use_tqdm: bool) -> list[Any]:
        assert not use_tqdm
        self.log.append("draw")
        self.asked = asked
        return [SimpleNamespace(outputs=[self._answer(row["prompt_token_ids"], want)]) for row, want in zip(prompts, asked, strict=True)]

    @torch.no_grad()
    def _logits(self, ids: list[int]) -> Tensor:
        return self.model(input_ids=torch.tensor([ids])).logits[0, -1]

    def _answer(self, prompt: list[int], want: Any) -> Any:
        draws = torch.Generator().manual_seed(want.seed)
        tokens: list[int] = []
        told: list[dict[int, Any]] = []
        while len(tokens) < want.max_tokens:
            first = self.remembered.setdefault(tuple(prompt), self._logits(prompt))
            logits = first if not tokens else self._logits([*prompt, *tokens])
            logp = (logits / (want.temperature or 1.0)).log_softmax(-1)
            token = int(logp.argmax() if want.temperature == 0 else torch.multinomial(logp.exp(), 1, generator=draws))
            tokens.append(token)
            told.append({token: SimpleNamespace(logprob=float(logp[token]))})
            if token in want.stop_token_ids or self._stopped(tokens, want):
                break
        return SimpleNamespace(token_ids=tuple(tokens), logprobs=None if self.forgets_log_probs else told)

    def _stopped(self, tokens: list[int], want: Any) -> bool:
        """Like vLLM, from text; here a token late, as where text is held back."""
        text = self.policy.tokenizer.decode(tokens[:-1])
        return any(stop in text for stop in want.stop or ())


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    policy = tiny_policy(torch.float32)
    # A random model hardly ever draws its one end token.
    policy = replace(policy, end_tokens=(*policy.end_tokens, 9, 12, 14))
    noise = deepcopy(policy.model)
    with torch.no_grad():
        for parameter in noise.parameters():
            parameter.normal_()
    made = Engine(policy, noise, {})

    def make(**given: Any) -> Engine:
        made.given = given
        return made

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=make, SamplingParams=lambda **given: SimpleNamespace(**given)))
    return made


def asking(engine: Engine, **changes: Any) -> Policy:
    return with_sampler(replace(engine.policy, **changes), "vllm", dtype="float32", memory=0.3)


def test_responses_and_log_probs_are_those_of_the_policy(engine: Engine) -> None:
    policy = asking(engine)
    drawn = sample(policy, PROMPTS, SamplingParams(**DRAWING))
    scored = score_rows(policy.model, drawn.rollouts, temperature=0.8, max_tokens=500)
    mask = drawn.rollouts.mask
    assert torch.allclose(drawn.rollouts.behavior_logp[mask], scored.logp[mask], atol=1e-5)
    assert drawn.rollouts.prompts == tuple(tuple(prompt) for prompt in PROMPTS for _ in range(4))
    assert drawn.rollouts.group.tolist() == [group for group in range(3) for _ in range(4)]
    lengths = mask.sum(-1)
    assert lengths.max() == mask.shape[1]
    for row, length in enumerate(lengths.tolist()):
        ended = int(drawn.rollouts.tokens[row, length - 1]) in policy.end_tokens
        assert bool(drawn.rollouts.finished[row]) == ended
        assert ended or length == 6
    assert drawn.rollouts.finished.any()
    assert not drawn.rollouts.finished.all()
    assert len({tuple(row) for row in drawn.rollouts.tokens.tolist()}) > 6


@pytest.mark.parametrize("fused", [False, True])
def test_weights_that_moved_are_given_and_prompts_forgotten(engine: Engine, fused: bool) -> None:
    """A fused optimizer writes to weights without raising their versions."""
    policy = asking(engine)
    sample(policy, PROMPTS, SamplingParams(**DRAWING))
    assert engine.log == ["weights", "forgot", "draw"]
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=0.3, fused=fused)
    for parameter in policy.model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    drawn = sample(policy, PROMPTS, SamplingParams(**DRAWING))
    assert engine.log[3:] == ["weights", "forgot", "draw"]
    scored = score_rows(policy.model, drawn.rollouts, temperature=0.8, max_tokens=500)
    assert torch.allclose(drawn.rollouts.behavior_logp[drawn.rollouts.mask], scored.logp[drawn.rollouts.mask], atol=1e-5)


def test_another_model_is_given_too_although_its_weights_never_moved(engine: Engine) -> None:
    policy = asking(engine)
    sample(policy, PROMPTS, SamplingParams(**DRAWING))
    other = replace(policy, model=deepcopy(tiny_policy(torch.float32, seed=7).model))
    drawn = sample(other, PROMPTS, SamplingParams(**DRAWING))
    scored = score_rows(other.model, drawn.rollouts, temperature=0.8, max_tokens=500)
    assert torch.allclose(drawn.rollouts.behavior_logp[drawn.rollouts.mask], scored.logp[drawn.rollouts.mask], atol=1e-5)


def test_greedy_is_that_of_the_plain_loop(engine: Engine) -> None:
    policy, knobs = asking(engine), {"group_size": 1, "max_new_tokens": 6, "seed": 0, "temperature": 1.0, "greedy": True}
    drawn = sample(policy, PROMPTS, SamplingParams(**knobs)).rollouts
    plain = sample_plainly(policy, PROMPTS, SamplingParams(**knobs, keep_hidden=False, dtype="float32")).rollouts
    assert torch.equal(drawn.tokens * drawn.mask, plain.tokens * plain.mask)
    assert torch.equal(drawn.finished, plain.finished)


def test_a_response_ends_with_its_stop_string_whatever_was_drawn_beyond(engine: Engine) -> None:
    stops = ("1", "=")
    free = sample(asking(engine), PROMPTS, SamplingParams(**DRAWING | {"group_size": 20})).rollouts
    held = sample(asking(engine, stops=stops), PROMPTS, SamplingParams(**DRAWING | {"group_size": 20})).rollouts
    ended = 0
    for row in range(len(free.tokens)):
        tokens = free.tokens[row][free.mask[row]].tolist()
        watcher = StopWatcher(engine.policy.tokenizer, stops, 1)
        cut = next((count for count, token in enumerate(tokens, 1) if watcher.ended([0], [token])[0]), None)
        assert held.tokens[row][held.mask[row]].tolist() == tokens[:cut]
        assert bool(held.finished[row]) == (cut is not None or tokens[-1] in engine.policy.end_tokens)
        ended += cut is not None
    assert ended > 5


def test_a_response_does_not_depend_on_those_beside_it(engine: Engine) -> None:
    policy = asking(engine)
    few, many = (sample(policy, prompts, SamplingParams(**DRAWING)).rollouts for prompts in (PROMPTS[:1], PROMPTS))
    width = few.tokens.shape[1]
    assert torch.equal(few.tokens, many.tokens[:4, :width])
    assert len({want.seed for want in engine.asked}) == len(engine.asked)


def test_tokens_without_a_log_prob_leave_the_loss(engine: Engine) -> None:
    engine.forgets_log_probs = True
    drawn = sample(asking(engine), PROMPTS, SamplingParams(**DRAWING)).rollouts
    assert drawn.behavior_logp[drawn.mask].isnan().all()
    assert not drawn.loss_mask.any()
    assert not math.isnan(float(drawn.behavior_logp[~drawn.mask].sum()))


def test_what_is_asked_of_vllm(engine: Engine) -> None:
    sample(asking(engine), PROMPTS, SamplingParams(**DRAWING))
    assert engine.given["gpu_memory_utilization"] == 0.3
    assert engine.given["logprobs_mode"] == "processed_logprobs"
    want = engine.asked[0]
    assert (want.max_tokens, want.temperature, want.logprobs, want.detokenize) == (6, 0.8, 0, False)
    assert want.stop_token_ids == list(engine.policy.end_tokens)


def test_refusals_name_what_would_be_right(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no hidden states.*scoring 'auto'"):
        sample(asking(engine), PROMPTS, SamplingParams(**DRAWING, keep_hidden=True))
    with pytest.raises(ConfigError, match="does not load adapters"):
        resolve([{"sampler": "vllm", "lora": {"rank": 2}}])
    with pytest.raises(ConfigError, match=r"no entropies; use scoring 'auto'"):
        resolve([{"sampler": "vllm", "scoring": "sampler"}])
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match=r"tokencredit\[vllm\]"):
        VllmSampler(engine.policy, memory=0.3)

"""The fast sampler, on its plain kernels: what it keeps is what a scoring pass finds, and a row's draws are its own."""

import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from tiny import tiny_policy
from tokencredit.errors import BadNumbersError, ConfigError
from tokencredit.forward.padded import score_rows
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import Sampled, SamplingParams
from tokencredit.policy.token_text import StopWatcher
from tokencredit.rollout.cuda_graph import FastSampler, steps
from tokencredit.rollout.cuda_graph.steps import slot_counts
from tokencredit.rollout.sampler import sample, sample_plainly
from tokencredit.types import Rollouts

PROMPTS = [[5, 6, 7], [8, 9], [3, 4, 5, 6, 7], [10], [5, 6, 7]]
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 36,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def _qwen2() -> PreTrainedModel:
    sizes = {name: size for name, size in SIZES.items() if name != "head_dim"}
    return Qwen2ForCausalLM(Qwen2Config(**sizes | {"hidden_size": 48}))


FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "llama3": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LLAMA3, tie_word_embeddings=True)),
    "qwen2": _qwen2,
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
}


def family_policy(name: str) -> Policy:
    torch.manual_seed(1)
    model = FAMILIES[name]().eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if "norm" in key or "bias" in key:
                weight += 0.3 * torch.randn_like(weight)
    return replace(tiny_policy(), model=model, end_tokens=(7, 11, 60, 61, 62, 63))


def fast(policy: Policy, **how: Any) -> Policy:
    return replace(policy, sampler=FastSampler(policy, backend="plain", **how))


def draw(policy: Policy, prompts: list[list[int]] = PROMPTS, **asked: Any) -> Sampled:
    return sample(policy, prompts, SamplingParams(**{"group_size": 3, "max_new_tokens": 12, "seed": 1, "dtype": "float32"} | asked))


def assert_same(one: Rollouts, other: Rollouts) -> None:
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.mask, other.mask)
    assert torch.equal(one.finished, other.finished)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy(torch.float32)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_the_sampler_saw_is_what_a_scoring_pass_finds(name: str) -> None:
    policy = family_policy(name)
    rollouts, seen = draw(fast(policy, interval=3), temperature=0.8, keep_hidden=True)[:2]
    scored = score_rows(policy.model, rollouts, temperature=0.8, max_tokens=1000, keep_hidden=True)
    inside = rollouts.mask
    assert 0 < inside.sum() < inside.numel()
    assert seen.hidden is not None
    assert scored.hidden is not None
    for found, expected in ((seen.logp, scored.logp), (seen.entropy, scored.entropy), (seen.hidden, scored.hidden)):
        torch.testing.assert_close(found[inside], expected[inside], atol=3e-5, rtol=3e-5)
        assert not found[~inside].any()
    assert torch.equal(rollouts.behavior_logp, seen.logp)
    assert rollouts.group.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    assert rollouts.prompts == tuple(tuple(prompt) for prompt in PROMPTS for _ in range(3))


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_is_greedy_of_the_plain_twin(name: str) -> None:
    policy = family_policy(name)
    twin = sample(policy, PROMPTS, SamplingParams(group_size=1, max_new_tokens=14, seed=0, greedy=True)).rollouts
    found = draw(fast(policy, interval=2), group_size=1, max_new_tokens=14, greedy=True).rollouts
    assert_same(found, twin)
    assert found.group.tolist() == twin.group.tolist()


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    heads=st.sampled_from([(1, 1), (4, 2), (6, 1), (3, 3)]),
    half=st.integers(1, 5),
    columns=st.integers(1, 22),
    ffn=st.integers(1, 40),
    vocabulary=st.integers(12, 400),
    family=st.sampled_from([LlamaForCausalLM, Qwen3ForCausalLM]),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    how=st.fixed_dictionaries({"interval": st.integers(1, 9), "most_rows": st.integers(0, 5)}),
    seed=st.integers(0, 99),
)
def test_models_of_any_shape_are_sampled_as_by_the_plain_twin(
    heads: tuple[int, int],
    half: int,
    columns: int,
    ffn: int,
    vocabulary: int,
    family: type,
    lengths: list[int],
    how: dict[str, int],
    seed: int,
) -> None:
    torch.manual_seed(seed)
    sizes = {"vocab_size": vocabulary, "hidden_size": heads[0] * columns, "intermediate_size": ffn, "num_attention_heads": heads[0]}
    config = family.config_class(**SIZES | sizes | {"num_key_value_heads": heads[1], "head_dim": 2 * half})
    # In float64 no two tokens are so equally likely that rounding decides.
    policy = replace(tiny_policy(), model=family(config).double().eval(), end_tokens=(1, 2, 3))
    prompts = [torch.randint(vocabulary, (length,)).tolist() for length in lengths]
    asked: dict[str, Any] = {"group_size": 2, "max_new_tokens": 9, "greedy": True, "keep_hidden": True}
    found, expected = draw(fast(policy, **how), prompts, **asked), draw(policy, prompts, **asked)
    assert_same(found.rollouts, expected.rollouts)
    for one, other in zip(found.evidence[:3], expected.evidence[:3], strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_tokens_are_drawn_with_the_model_s_probabilities() -> None:
    policy, draws = family_policy("llama"), 6000
    first = draw(fast(policy), PROMPTS[:1], group_size=draws, max_new_tokens=1, temperature=1.3).rollouts.tokens[:, 0]
    with torch.no_grad():
        expected = draws * (policy.model(input_ids=torch.tensor(PROMPTS[:1])).logits[0, -1] / 1.3).softmax(-1)
    order = expected.argsort()
    # Tokens expected fewer than 10 times are counted together.
    bins = (expected[order].cumsum(0) / 10).floor().clamp(max=80)
    counted = torch.bincount(first, minlength=len(expected))[order].float()
    seen, due = (torch.zeros(81).index_add_(0, bins.long(), values) for values in (counted, expected[order]))
    filled = due > 0
    chi_square, freedom = float(((seen - due)[filled].square() / due[filled]).sum()), int(filled.sum()) - 1
    assert freedom > 40
    # Four standard deviations either way: too even is wrong as well.
    assert abs(chi_square - freedom) < 4 * (2 * freedom) ** 0.5


def test_positions_and_rows_draw_independently(policy: Policy) -> None:
    """With probabilities that are the same everywhere, neighbours agree as often as chance says."""
    torch.manual_seed(0)
    flat = LlamaForCausalLM(LlamaConfig(**SIZES | {"vocab_size": 16})).eval()
    with torch.no_grad():
        flat.lm_head.weight.zero_()
    tokens = draw(fast(replace(policy, model=flat, end_tokens=(-1,))), [[1]], group_size=64, max_new_tokens=32).rollouts.tokens
    for one, other in ((tokens[:, 1:], tokens[:, :-1]), (tokens[1:], tokens[:-1])):
        assert abs(float((one == other).float().mean()) - 1 / 16) < 5 * (1 / 16 * 15 / 16 / one.numel()) ** 0.5
    assert torch.bincount(tokens.flatten(), minlength=16).min() > 0


@pytest.mark.parametrize("how", [{"interval": 1}, {"interval": 1000}, {"interval": 3, "most_rows": 4}, {"interval": 2, "most_rows": 7}])
def test_a_row_draws_the_same_whoever_is_beside_it_and_whoever_has_ended(how: dict[str, int]) -> None:
    policy = family_policy("llama")
    asked = {"group_size": 7, "max_new_tokens": 20, "keep_hidden": True}
    together, seen = draw(fast(policy, interval=4), **asked)[:2]
    assert 0.2 < together.finished.float().mean() < 1
    other, also_seen = draw(fast(policy, **how), **asked)[:2]
    assert_same(together, other)
    for one, another in zip(seen[:3], also_seen[:3], strict=True):
        torch.testing.assert_close(one, another, atol=1e-5, rtol=1e-5)
    fewer = draw(fast(policy, **how), PROMPTS[:2], **asked).rollouts
    width = fewer.tokens.shape[1]
    assert torch.equal(fewer.tokens, together.tokens[:14, :width])
    assert torch.equal(fewer.mask, together.mask[:14, :width])


def test_randomness_follows_the_seed_and_leaves_the_global_generator_alone(policy: Policy) -> None:
    torch.manual_seed(9)
    untouched = torch.rand(3)
    torch.manual_seed(9)
    sampler = fast(policy)
    one = draw(sampler, seed=3).rollouts
    assert torch.equal(torch.rand(3), untouched)
    assert_same(one, draw(sampler, seed=3).rollouts)
    assert not torch.equal(one.tokens[:, :3], draw(sampler, seed=4).rollouts.tokens[:, :3])
    assert not torch.equal(one.tokens[:, :3], draw(sampler, seed=3 + 2**40).rollouts.tokens[:, :3])
    assert not torch.equal(one.tokens[0, :3], one.tokens[12, :3])


def test_a_response_holds_nothing_after_its_end_and_is_no_wider_than_the_longest() -> None:
    policy = family_policy("llama")
    rollouts = draw(fast(policy, interval=5), group_size=8, max_new_tokens=40, seed=2).rollouts
    ended = torch.isin(rollouts.tokens, torch.tensor(policy.end_tokens)) & rollouts.mask
    assert rollouts.finished.any()
    assert torch.equal(ended.any(-1), rollouts.finished)
    for row in rollouts.finished.nonzero()[:, 0].tolist():
        assert int(ended[row].nonzero()[0]) == int(rollouts.mask[row].sum()) - 1
    assert not rollouts.tokens[~rollouts.mask].any()
    assert (rollouts.mask.sum(-1)[~rollouts.finished] == 40).all()
    everything = replace(policy, end_tokens=tuple(range(16)), model=LlamaForCausalLM(LlamaConfig(**SIZES | {"vocab_size": 16})).eval())
    short = draw(fast(everything, interval=5), [[3]], max_new_tokens=9).rollouts
    assert short.tokens.shape == (3, 1)
    assert short.finished.all()
    cut = draw(fast(replace(policy, end_tokens=(-1,))), max_new_tokens=5).rollouts
    assert cut.mask.shape == (15, 5)
    assert cut.mask.all()
    assert not cut.finished.any()


@pytest.mark.parametrize("interval", [1, 4, 50])
def test_stop_strings_end_rows_where_stopping_at_once_would(policy: Policy, interval: int) -> None:
    free, seen = draw(fast(policy), group_size=8, max_new_tokens=12)[:2]
    stopping = replace(policy, stops=("+", "3;"))
    held, held_seen = draw(fast(stopping, interval=interval), group_size=8, max_new_tokens=12)[:2]
    ended_by_stop = 0
    for row in range(len(free.prompts)):
        watcher = StopWatcher(policy.tokenizer, stopping.stops, 1)
        drawn = free.tokens[row][free.mask[row]].tolist()
        end = next((place for place, token in enumerate(drawn, 1) if watcher.ended([0], [token])[0]), None)
        length = len(drawn) if end is None else end
        assert held.tokens[row][held.mask[row]].tolist() == drawn[:length]
        assert bool(held.finished[row]) == (end is not None or bool(free.finished[row]))
        torch.testing.assert_close(held_seen.logp[row, :length], seen.logp[row, :length])
        assert not held_seen.logp[row, length:].any()
        ended_by_stop += end is not None
    assert ended_by_stop > 3
    assert held.tokens.shape[1] == int(held.mask.sum(-1).max())


def test_prompts_read_in_several_passes_are_read_alike(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = draw(fast(policy), keep_hidden=True)
    monkeypatch.setattr(steps, "PREFILL_TOKENS", 11)
    parts = draw(fast(policy), keep_hidden=True)
    assert_same(whole.rollouts, parts.rollouts)
    for one, other in zip(whole.evidence[:3], parts.evidence[:3], strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_calls_of_other_sizes_share_a_workspace_and_change_nothing() -> None:
    policy = family_policy("qwen2")
    sampler = fast(policy)
    calls: list[tuple[list[list[int]], dict[str, Any]]] = [
        (PROMPTS, {"max_new_tokens": 12}),
        (PROMPTS[:2], {"max_new_tokens": 6, "group_size": 2}),
        ([list(range(3, 90)), [4]], {"max_new_tokens": 3, "keep_hidden": True}),
        (PROMPTS, {"greedy": True, "temperature": 0.5}),
        (PROMPTS, {"max_new_tokens": 12, "temperature": 0.5}),
    ]
    for prompts, asked in calls:
        assert_same(draw(sampler, prompts, **asked).rollouts, draw(fast(policy), prompts, **asked).rollouts)
    assert isinstance(sampler.sampler, FastSampler)
    sampler.sampler.release()
    assert_same(draw(sampler).rollouts, draw(fast(policy)).rollouts)


def test_what_was_drawn_is_the_caller_s_and_released_memory_is_free(policy: Policy) -> None:
    sampler = FastSampler(policy, backend="plain")
    asking = replace(policy, sampler=sampler)
    drawn = draw(asking, keep_hidden=True)
    kept = [value.clone() for value in (drawn.rollouts.tokens, *drawn.evidence[:3])]
    draw(asking, seed=2, keep_hidden=True)
    for before, now in zip(kept, (drawn.rollouts.tokens, *drawn.evidence[:3]), strict=True):
        assert torch.equal(before, now)
    held = [weakref.ref(part) for part in (sampler._space, sampler._weights, sampler._steps)]
    assert all(part() is not None for part in held)
    sampler.release()
    assert all(part() is None for part in held)


def test_ends_and_stops_are_those_of_the_policy_that_asks(policy: Policy) -> None:
    sampler = FastSampler(policy, backend="plain")
    others = (policy, replace(policy, end_tokens=(4, 5, 6)), replace(policy, stops=("+",)), policy)
    drawn = [draw(replace(asking, sampler=sampler)).rollouts for asking in others]
    for asking, found in zip(others, drawn, strict=True):
        assert_same(found, draw(fast(asking)).rollouts)
    assert not torch.equal(drawn[0].mask, drawn[1].mask)
    assert not torch.equal(drawn[0].mask, drawn[2].mask)


def test_whoever_it_cannot_serve_is_sampled_plainly(policy: Policy) -> None:
    sampler, asked = FastSampler(policy, backend="plain"), {"group_size": 3, "max_new_tokens": 12, "seed": 1, "dtype": "float32"}
    fully = {"temperature": 1.0, "greedy": False, "keep_hidden": False} | asked
    # Without a GPU the Triton kernels cannot run at all.
    served = [(family_policy("llama"), sampler), (replace(policy, end_tokens=tuple(range(40, 57))), sampler), (policy, FastSampler(policy))]
    for asking, its_sampler in served:
        found, expected = (
            its_sampler.sample(asking, PROMPTS, SamplingParams(**asked)),
            sample_plainly(asking, PROMPTS, SamplingParams(**fully)),
        )
        assert_same(found.rollouts, expected.rollouts)
        assert torch.equal(found.evidence.logp, expected.evidence.logp)
        assert not torch.equal(found.rollouts.tokens[:, :4], draw(fast(policy)).rollouts.tokens[:, :4])


def test_numbers_that_are_none_name_their_rows(policy: Policy) -> None:
    broken = tiny_policy(torch.float32, seed=3)
    with torch.no_grad():
        # Only who reads this token breaks down.
        broken.model.get_input_embeddings().weight[9] = float("nan")
    with pytest.raises(BadNumbersError, match="not finite") as raised:
        draw(fast(broken, most_rows=5), [[5], [6], [4, 9]], max_new_tokens=1)
    assert raised.value.rows == (6, 7, 8)
    with pytest.raises(ConfigError, match="no tokens"):
        draw(fast(policy), [[5], []])


def test_a_row_that_breaks_down_on_its_way_is_named_alone() -> None:
    policy = family_policy("llama")
    whole = draw(fast(policy), group_size=8).rollouts
    poison = int(whole.tokens[3, 2])
    # Drawn, and read by the next position.
    read = ((whole.tokens == poison) & whole.mask.roll(-1, 1))[:, :-1].any(1)
    assert 0 < int(read.sum()) < len(read) / 2
    with torch.no_grad():
        policy.model.get_input_embeddings().weight[poison] = float("nan")
    with pytest.raises(BadNumbersError, match="not finite") as raised:
        draw(fast(policy, interval=2), group_size=8)
    assert raised.value.rows == tuple(read.nonzero()[:, 0].tolist())


def test_slots_shrink_in_few_sizes() -> None:
    assert slot_counts(256) == [256, 192, 128, 96, 64, 48, 32, 24, 16, 8]
    for rows in (1, 7, 8, 9, 33, 100, 1000):
        counts = slot_counts(rows)
        assert rows <= counts[0] < rows + 8
        assert counts == sorted(set(counts), reverse=True)
        assert all(count % 8 == 0 for count in counts)
        assert counts[-1] == 8

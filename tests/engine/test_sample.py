"""Sampling: what is kept is what a scoring pass finds, randomness is private, padding and dropping rows change nothing."""

import pytest
import torch

from tiny import tiny_policy
from tokencredit.forward.padded import score_rows
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.sampler import sample

PROMPTS = [[5, 6, 7], [8, 9], [3, 4, 5, 6, 7], [10]]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy()


def test_what_the_sampler_saw_is_what_a_scoring_pass_finds(policy: Policy) -> None:
    rollouts, seen = sample(policy, PROMPTS, SamplingParams(group_size=3, max_new_tokens=12, seed=1, temperature=0.8, keep_hidden=True))
    scored = score_rows(policy.model, rollouts, temperature=0.8, max_tokens=1000, keep_hidden=True)
    inside = rollouts.mask
    assert 0 < inside.sum() < inside.numel()
    torch.testing.assert_close(seen.logp[inside], scored.logp[inside], atol=1e-10, rtol=0)
    torch.testing.assert_close(seen.entropy[inside], scored.entropy[inside], atol=1e-10, rtol=0)
    assert seen.hidden is not None
    assert scored.hidden is not None
    torch.testing.assert_close(seen.hidden[inside], scored.hidden[inside], atol=1e-10, rtol=0)
    torch.testing.assert_close(rollouts.behavior_logp[inside], scored.logp[inside], atol=1e-10, rtol=0)


def test_greedy_takes_the_likeliest_token_and_is_the_same_alone_and_padded(policy: Policy) -> None:
    together = sample(policy, PROMPTS, SamplingParams(group_size=1, max_new_tokens=12, seed=0, greedy=True)).rollouts
    for row, prompt in enumerate(PROMPTS):
        ids = list(prompt)
        for position in range(12):
            with torch.no_grad():
                expected = int(policy.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
            assert int(together.tokens[row, position]) == expected
            assert bool(together.mask[row, position])
            ids.append(expected)
            if expected in policy.end_tokens:
                assert bool(together.finished[row])
                assert not together.mask[row, position + 1 :].any()
                break
        else:
            assert not bool(together.finished[row])


def test_randomness_follows_the_seed_and_leaves_the_global_generator_alone(policy: Policy) -> None:
    torch.manual_seed(9)
    untouched = torch.rand(3)
    torch.manual_seed(9)
    one = sample(policy, PROMPTS, SamplingParams(group_size=4, max_new_tokens=10, seed=3)).rollouts
    assert torch.equal(torch.rand(3), untouched)
    again = sample(policy, PROMPTS, SamplingParams(group_size=4, max_new_tokens=10, seed=3)).rollouts
    other = sample(policy, PROMPTS, SamplingParams(group_size=4, max_new_tokens=10, seed=4)).rollouts
    assert torch.equal(one.tokens, again.tokens)
    assert not torch.equal(one.tokens[:, :3], other.tokens[:, :3])


def test_tokens_are_drawn_with_the_model_s_probabilities(policy: Policy) -> None:
    draws = 4000
    first = sample(policy, [PROMPTS[0]], SamplingParams(group_size=draws, max_new_tokens=1, seed=11, temperature=1.3)).rollouts.tokens[:, 0]
    with torch.no_grad():
        expected = (policy.model(input_ids=torch.tensor([PROMPTS[0]])).logits[0, -1] / 1.3).softmax(-1)
    measured = torch.bincount(first, minlength=len(expected)) / draws
    # Five standard errors of a share.
    assert ((measured - expected).abs() < 5 * (expected * (1 - expected) / draws).sqrt() + 1e-3).all()


def test_a_response_holds_nothing_after_its_end(policy: Policy) -> None:
    rollouts = sample(policy, PROMPTS, SamplingParams(group_size=8, max_new_tokens=30, seed=2)).rollouts
    ended = torch.isin(rollouts.tokens, torch.tensor(policy.end_tokens)) & rollouts.mask
    assert rollouts.finished.any()
    assert torch.equal(ended.any(-1), rollouts.finished)
    for row in rollouts.finished.nonzero()[:, 0].tolist():
        assert int(ended[row].nonzero()[0]) == int(rollouts.mask[row].sum()) - 1
    assert rollouts.group.tolist() == [group for group in range(4) for _ in range(8)]

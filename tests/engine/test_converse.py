"""Sampling in turns: what the environment says is read and never learned from, and nothing else differs from one response."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.conversations import PROBLEMS, Counting, talkative_policy, written_by_hand
from laws.harness import Edit, loaded_with
from tiny import tiny_policy
from tokencredit.errors import BadNumbersError, ConfigError
from tokencredit.forward.padded import score_rows
from tokencredit.policy.policy import Policy
from tokencredit.policy.prompting import Prompting, render_chat
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout import multi_turn
from tokencredit.rollout.generate import generate
from tokencredit.rollout.grading import grade_with_reasons, reward_parts
from tokencredit.rollout.multi_turn import generate_turns, turn_tokens, turns_of
from tokencredit.rollout.sampler import sample
from tokencredit.tasks import Problem, Steps
from tokencredit.trainer.token_table import label_tokens

LIMIT = 14


@pytest.fixture(scope="module")
def policy() -> Policy:
    return talkative_policy()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_what_the_sampler_saw_is_what_a_scoring_pass_finds(dtype: torch.dtype, tolerance: float) -> None:
    policy = talkative_policy(dtype)
    rollouts, seen = generate_turns(
        policy, Counting(), PROBLEMS, SamplingParams(group_size=5, max_new_tokens=LIMIT, seed=1, temperature=0.8, keep_hidden=True)
    )
    scored = score_rows(policy.model, rollouts, temperature=0.8, max_tokens=100, keep_hidden=True)
    inside = rollouts.mask
    assert max(len(turn_tokens(rollouts, row)) for row in range(20)) == 4
    assert seen.hidden is not None
    assert scored.hidden is not None
    for found, expected in ((seen.logp, scored.logp), (seen.entropy, scored.entropy), (seen.hidden, scored.hidden)):
        torch.testing.assert_close(found[inside], expected[inside], atol=tolerance, rtol=0)
        assert not found[~inside].any()
    assert torch.equal(rollouts.behavior_logp, seen.logp)


def holds_by_hand(code: SimpleNamespace, policy: Policy) -> None:
    """The likeliest conversations are those that are written token by token, with the same mask, whatever the limit."""
    kinds: set[tuple[bool, int]] = set()
    for limit in range(1, 20):
        rollouts, _ = code.generate_turns(
            policy, Counting(), PROBLEMS, SamplingParams(group_size=1, max_new_tokens=limit, seed=0, greedy=True)
        )
        for row, problem in enumerate(PROBLEMS):
            expected = written_by_hand(policy, Counting(), problem, limit)
            length = len(expected.tokens)
            assert rollouts.tokens[row, :length].tolist() == expected.tokens
            assert rollouts.mask[row].tolist() == expected.mask + [False] * (rollouts.mask.shape[1] - length)
            assert bool(rollouts.finished[row]) == expected.finished
            assert rollouts.prompts[row] == tuple(policy.encode(problem.prompt))
            kinds.add((expected.finished, min(2, len(turn_tokens(rollouts, row)))))
    assert kinds == {(True, 1), (True, 2), (False, 1), (False, 2)}


MUTANTS = {
    "environment learned from": Edit("rollout.multi_turn", "self._append(reply_ids, False,", "self._append(reply_ids, True,"),
    "environment not read": Edit("rollout.multi_turn", "[[*row.prompt, *row.tokens] for", "[[*row.prompt] for"),
    "a limit per turn": Edit("rollout.multi_turn", "self.left -= len(written)", "self.left -= 0"),
    "what lies beyond the limit kept": Edit("rollout.multi_turn", "turn.tokens[: self.left]", "turn.tokens"),
    "one turn too many": Edit("rollout.multi_turn", "len(self.turns) < self.task.turns", "len(self.turns) <= self.task.turns"),
    "cut is finished": Edit("rollout.multi_turn", "if not turn.ended or", "if"),
    "nobody replies": Edit("rollout.multi_turn", "self._reply() if len", "None if len"),
}


def test_a_conversation_is_what_one_writes_by_hand(policy: Policy) -> None:
    holds_by_hand(loaded_with(["rollout.multi_turn"]), policy)


@pytest.mark.mutants
@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_conversation_would_be_noticed(policy: Policy, name: str) -> None:
    broken = loaded_with(["rollout.multi_turn"], MUTANTS[name])
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        holds_by_hand(broken, policy)


def test_randomness_follows_the_seed_and_rows_of_a_group_differ(policy: Policy) -> None:
    knobs: dict[str, Any] = {"group_size": 3, "max_new_tokens": LIMIT}
    one, again, other = (generate_turns(policy, Counting(), PROBLEMS, SamplingParams(seed=seed, **knobs)).rollouts for seed in (3, 3, 4))
    assert torch.equal(one.tokens, again.tokens)
    assert one.tokens[:, :3].tolist() != other.tokens[:, :3].tolist()
    assert one.group.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert len({tuple(row) for row in one.tokens[:3].tolist()}) > 1


def test_turns_are_read_one_by_one_and_graded_together(policy: Policy) -> None:
    task = Counting()
    rollouts = generate_turns(policy, task, PROBLEMS, SamplingParams(group_size=4, max_new_tokens=LIMIT, seed=5)).rollouts
    graded = grade_with_reasons(policy, task, PROBLEMS, rollouts)
    turns = [turns_of(policy, rollouts, row) for row in range(16)]
    assert {len(taken) for taken in turns} >= {1, 2, 3}
    assert graded.score.tolist() == [float(len(taken) % 2) for taken in turns]
    assert not graded.reasons
    for row, taken in enumerate(turns):
        whole = policy.tokenizer.decode(rollouts.tokens[row].tolist())
        assert all(turn in whole for turn in taken)
        # The environment's answers, given again, are what stands between the turns.
        heard = [task.reply(PROBLEMS[row // 4], taken[:count]) for count in range(1, len(taken))]
        ids = [policy.encode(reply or "") for reply in heard]
        assert int((~rollouts.mask[row])[: int(rollouts.mask[row].nonzero().max())].sum()) == sum(map(len, ids))


def test_every_turn_is_labelled_by_itself(policy: Policy) -> None:
    rollouts = generate_turns(policy, Counting(), PROBLEMS, SamplingParams(group_size=4, max_new_tokens=LIMIT, seed=5)).rollouts
    labels = label_tokens(policy, Counting(), PROBLEMS, rollouts)
    assert len(labels.text) == len(labels.token_class) == int(rollouts.mask.sum())
    expected: list[str] = []
    for row in range(16):
        for ids in turn_tokens(rollouts, row):
            read, at = len(policy.decode(ids)), 0
            after = "end" if ids[-1] in policy.end_tokens else "stop"
            for text in policy.token_texts(ids):
                expected.append(f"place {at}" if at < read else after)
                at += len(text)
    assert labels.token_class == expected


def test_the_format_is_kept_if_every_turn_keeps_it(policy: Policy) -> None:
    rollouts = generate_turns(policy, Counting(), PROBLEMS[:1], SamplingParams(group_size=2, max_new_tokens=LIMIT, seed=5)).rollouts
    rollouts = replace(rollouts, finished=torch.ones(2, dtype=torch.bool))
    first, second = ([policy.decode(turn) for turn in turn_tokens(rollouts, row)] for row in range(2))
    assert min(len(first), len(second)) > 1
    assert first[-1] not in second

    class AllBut(Prompting):
        def well_formed(self, text: str) -> bool:
            return text != first[-1]

    kept = reward_parts(replace(policy, prompting=AllBut(tags=True)), rollouts, torch.ones(2), limit=LIMIT)["format"]
    assert kept.tolist() == [0.0, 1.0]


def test_an_environment_that_fails_ends_the_conversation_ungraded_with_the_reason(policy: Policy) -> None:
    class Failing(Counting):
        def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
            if problem == PROBLEMS[1]:
                raise RuntimeError("out of order")
            return super().reply(problem, turns)

    rollouts = generate_turns(policy, Failing(), PROBLEMS, SamplingParams(group_size=2, max_new_tokens=LIMIT, seed=5)).rollouts
    score, reasons = grade_with_reasons(policy, Failing(), PROBLEMS, rollouts)
    assert [len(turn_tokens(rollouts, row)) for row in (2, 3)] == [1, 1]
    assert score.isnan().tolist() == [False, False, True, True, False, False, False, False]
    assert reasons == {"the grader raised RuntimeError: out of order": 2}


def test_an_environment_that_says_nothing_is_refused(policy: Policy) -> None:
    class Mute(Counting):
        def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
            return ""

    with pytest.raises(ConfigError, match="the environment replied '', which has no tokens in this model"):
        generate_turns(policy, Mute(), PROBLEMS, SamplingParams(group_size=1, max_new_tokens=LIMIT, seed=5))


def test_a_breakdown_in_a_later_turn_names_the_responses_of_the_batch(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    before = generate_turns(policy, Counting(), PROBLEMS, SamplingParams(group_size=2, max_new_tokens=LIMIT, seed=5)).rollouts
    going = [row for row in range(8) if len(turn_tokens(before, row)) > 1]
    assert going != list(range(len(going)))

    def breaking(policy: Policy, prompts: list[list[int]], params: SamplingParams) -> Any:
        if len(prompts) < 8:
            raise BadNumbersError("log-probs", "broken down", range(len(prompts)))
        return sample(policy, prompts, params)

    monkeypatch.setattr(multi_turn, "sample", breaking)
    with pytest.raises(BadNumbersError, match="broken down") as found:
        generate_turns(policy, Counting(), PROBLEMS, SamplingParams(group_size=2, max_new_tokens=LIMIT, seed=5))
    assert (found.value.stage, found.value.rows) == ("log-probs", tuple(going))


TEMPLATE = (
    "{% for message in messages %}{{ '#' if message['role'] == 'user' else 'a' }}:{{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


def test_a_chat_reads_as_its_template_would_render_the_whole_conversation() -> None:
    policy = replace(tiny_policy(), prompting=Prompting(chat=True))
    policy.tokenizer.chat_template = TEMPLATE
    task = Counting(enough=30)
    rollouts = generate_turns(policy, task, PROBLEMS, SamplingParams(group_size=8, max_new_tokens=60, seed=2)).rollouts
    several = [row for row in range(32) if len(turn_tokens(rollouts, row)) > 1 and bool(rollouts.finished[row])]
    assert several
    for row in several:
        problem, turns = PROBLEMS[row // 8], turns_of(policy, rollouts, row)
        messages = [{"role": "user", "content": problem.prompt}]
        for count, turn in enumerate(turns, 1):
            messages.append({"role": "assistant", "content": turn})
            reply = task.reply(problem, turns[:count]) if count < len(turns) else None
            messages += [] if reply is None else [{"role": "user", "content": reply}]
        length = int(rollouts.mask[row].nonzero().max()) + 1
        whole = [*rollouts.prompts[row], *rollouts.tokens[row, :length].tolist()]
        assert policy.tokenizer.decode(whole) == render_chat(policy.tokenizer, messages, answering=False)


def test_a_task_without_turns_is_sampled_as_ever(policy: Policy) -> None:
    knobs: dict[str, Any] = {"group_size": 2, "max_new_tokens": LIMIT, "seed": 7}
    asked = Steps().problems(3, split="train", seed=0)
    one = generate(policy, Steps(), asked, SamplingParams(**knobs)).rollouts
    two = sample(policy, [policy.ask(problem.prompt) for problem in asked], SamplingParams(**knobs)).rollouts
    assert torch.equal(one.tokens, two.tokens)
    assert torch.equal(one.mask, two.mask)
    in_turns = generate(policy, Counting(), PROBLEMS, SamplingParams(**knobs)).rollouts
    assert torch.equal(in_turns.mask, generate_turns(policy, Counting(), PROBLEMS, SamplingParams(**knobs)).rollouts.mask)

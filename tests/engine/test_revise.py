"""Compare and correct: who is shown to whom, what a repair is worth, and where it edited a response."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.runs import small_config
from tiny import tiny_policy
from tokencredit.config import IbpoShape
from tokencredit.config.train import TrainConfig
from tokencredit.policy.policy import Policy, load_policy
from tokencredit.policy.sampling import Sampled, SamplingParams
from tokencredit.rollout import revision as module
from tokencredit.rollout.collect import collect_rollouts
from tokencredit.rollout.grading import response_text
from tokencredit.rollout.revision import Comparison, Revisions, choose_comparisons, revise
from tokencredit.tasks import CotAdd, Problem, Steps, revision_prompt
from tokencredit.timing import Stopwatch
from tokencredit.types import Rollouts, TokenScores

NAN = math.nan

# --- who is compared with whom


def compared(score: Sequence[float], group: Sequence[int], *, seed: int = 0, **choice: Any) -> list[Comparison]:
    return choose_comparisons(torch.tensor(score), torch.tensor(group), IbpoShape(**choice), seed=seed)


@given(
    responses=st.lists(st.tuples(st.sampled_from([0.0, 1.0, 0.5, 0.75, NAN]), st.sampled_from([7, 2, -1])), min_size=1, max_size=14),
    references=st.integers(1, 4),
    prefer_correct=st.booleans(),
    correct_above=st.sampled_from([0.5, 0.0]),
    seed=st.integers(0, 2**40),
)
def test_every_failure_meets_as_many_graded_siblings_as_asked_right_ones_first(
    responses: list[tuple[float, int]], references: int, prefer_correct: bool, correct_above: float, seed: int
) -> None:
    score, group = [one for one, _ in responses], [one for _, one in responses]
    knobs = {"references": references, "prefer_correct": prefer_correct, "correct_above": correct_above}
    pairs = compared(score, group, seed=seed, **knobs)
    assert pairs == compared(score, group, seed=seed, **knobs)
    assert [pair.failed for pair in pairs] == sorted(pair.failed for pair in pairs)
    for row, own in enumerate(score):
        chosen = [pair.sibling for pair in pairs if pair.failed == row]
        if math.isnan(own) or own > correct_above:
            assert not chosen
            continue
        others = [other for other in range(len(score)) if other != row and group[other] == group[row] and not math.isnan(score[other])]
        assert len(chosen) == len(set(chosen)) == min(references, len(others))
        assert set(chosen) <= set(others)
        if prefer_correct:
            right = [score[sibling] > correct_above for sibling in chosen]
            assert right == sorted(right, reverse=True)
            assert sum(right) == min(references, sum(score[other] > correct_above for other in others))


def test_failures_stand_in_where_no_sibling_is_right() -> None:
    assert set(compared([0.0, 0.0, 0.0], [3, 3, 3])) == {Comparison(row, other) for row in range(3) for other in range(3) if row != other}
    assert compared([0.0, 1.0, 1.0], [0, 1, 2]) == []
    assert compared([0.0, NAN], [0, 0]) == []


def test_a_preference_for_right_siblings_still_draws_among_them_and_none_draws_among_all() -> None:
    """Row 0 failed; rows 1 and 2 are right, rows 3 and 4 failed too. One reference, 600 seeds: 300 each, or 150 each."""
    score, group = [0.0, 1.0, 1.0, 0.0, 0.0], [0] * 5

    def first(prefer_correct: bool) -> Counter[int]:
        draws = (compared(score, group, seed=seed, references=1, prefer_correct=prefer_correct)[0] for seed in range(600))
        return Counter(pair.sibling for pair in draws)

    preferred, plain = first(True), first(False)
    assert preferred.keys() == {1, 2}
    assert all(240 < times < 360 for times in preferred.values())
    assert plain.keys() == {1, 2, 3, 4}
    assert all(105 < times < 195 for times in plain.values())


# --- what is asked


def test_a_task_s_own_revision_prompt_wins() -> None:
    problem = Problem(prompt="5+3-1=", answer="7")
    assert revision_prompt(Steps(), problem, "a:5+3=9", "b:5+3=8") == "5+3-1=?a:5+3=9?b:5+3=8>"

    @dataclass(frozen=True)
    class Asking(CotAdd):
        def revise(self, problem: Problem, failed: str, sibling: str) -> str:
            return f"{sibling}|{failed}|{problem.prompt}"

    assert revision_prompt(Asking(), problem, "1", "2") == "2|1|5+3-1="


def test_other_tasks_are_asked_in_words() -> None:
    asked = revision_prompt(CotAdd(), Problem(prompt="What is {x}?", answer="12"), "failed: {prompt}", "sibling {}")
    assert asked.startswith("What is {x}?\n")
    assert 0 < asked.index("failed: {prompt}") < asked.index("sibling {}") < asked.index("correct the mistake")
    assert "12" not in asked


# --- revisions on a script


def rollouts_of(policy: Policy, problems: Sequence[Problem], written: Sequence[tuple[int, str]]) -> Rollouts:
    """Responses as (problem, text), each with its end token."""
    ids = [[*policy.encode(text), policy.end_tokens[0]] for _, text in written]
    width = max(map(len, ids))
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in ids])
    return Rollouts(
        prompts=tuple(tuple(policy.encode(problems[problem].prompt)) for problem, _ in written),
        tokens=tokens,
        mask=torch.arange(width) < torch.tensor([len(row) for row in ids])[:, None],
        group=torch.tensor([problem for problem, _ in written]),
        behavior_logp=torch.zeros(len(ids), width),
        finished=torch.ones(len(ids), dtype=torch.bool),
    )


class Script:
    """Stands in for `sample`: `answer(prompt, copy)` is what the policy writes. Keeps what it was asked."""

    def __init__(self, answer: Callable[[str, int], str]) -> None:
        self.answer = answer
        self.prompts: list[list[str]] = []
        self.settings: list[dict[str, Any]] = []

    def __call__(self, policy: Policy, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Sampled:
        texts = [policy.decode(list(prompt)) for prompt in prompts]
        self.prompts.append(texts)
        self.settings.append(asdict(params))
        asked = [Problem(prompt=text, answer="") for text in texts]
        written = [(row, self.answer(text, copy)) for row, text in enumerate(texts) for copy in range(params.group_size)]
        whole = rollouts_of(policy, asked, written)
        mask = whole.mask[:, : params.max_new_tokens]
        drawn = Rollouts(
            prompts=whole.prompts,
            tokens=whole.tokens[:, : params.max_new_tokens],
            mask=mask,
            group=whole.group,
            behavior_logp=whole.behavior_logp[:, : params.max_new_tokens],
            finished=whole.finished,
        )
        return Sampled(drawn, TokenScores(torch.zeros(mask.shape), torch.zeros(mask.shape), None))


POLICY = tiny_policy()
PROBLEMS = [Problem(prompt="5+3-1=", answer="7"), Problem(prompt="1+1-0=", answer="2")]
WRITTEN = [
    (0, "a:5+3=8;8-1=7;#7"),
    (0, "a:5+3=8;8-1=9;#9"),
    (0, "b:5+3=7,7-1=6,#6"),
    (0, "b:5+3=8;8-1=7,#7"),
    (1, "a:1+1=3;3-0=3;#3"),
    (1, "a:1+1=2;2-0=2;#3"),
    (1, "#2"),
]
SCORE = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, NAN]
REVISED = {
    # Both right: by row 0 in two edits, by row 3 in three more.
    (1, 0): "a:5+3=8;8-1=7;#7",
    (1, 3): "b:5+3=8,8-1=7;;#7",
    # One right.
    (2, 0): "b:5+3=7,7-1=5,#5",
    (2, 3): "b:5+3=8,8-1=7,#7",
    # Failures without a right sibling are shown to one another; the ungraded row 6 is shown to nobody.
    (4, 5): "a:1+1=2;#2",
    (5, 4): "a:1+1=2;2-0=2;#4",
}
EDITED = {
    1: [12, 15],
    2: [6, 8, 12, 15],
    # 3 -> 2, "3-0=3;" taken out, 3 -> 2: which of the alike characters go is the alignment's choice.
    4: None,
}


def scripted(answers: dict[tuple[int, int], str] = REVISED) -> Script:
    table = {Steps().revise(PROBLEMS[WRITTEN[f][0]], WRITTEN[f][1], WRITTEN[s][1]): text for (f, s), text in answers.items()}
    return Script(lambda prompt, copy: table[prompt])


def revised(
    monkeypatch: pytest.MonkeyPatch, script: Script, *, task: Steps | None = None, seed: int = 0, config: TrainConfig | None = None
) -> Revisions:
    monkeypatch.setattr(module, "sample", script)
    rollouts = rollouts_of(POLICY, PROBLEMS, WRITTEN)
    config = config or small_config(recipe="ibpo")
    return revise(POLICY, task or Steps(), PROBLEMS, rollouts, torch.tensor(SCORE), IbpoShape(), config, seed=seed)


@pytest.mark.parametrize("seed", range(4))
def test_repairs_by_hand(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Whatever the order in which siblings are drawn."""
    script = scripted()
    found = revised(monkeypatch, script, seed=seed)
    assert sorted(prompt for call in script.prompts for prompt in call) == sorted(
        Steps().revise(PROBLEMS[WRITTEN[failed][0]], WRITTEN[failed][1], WRITTEN[sibling][1]) for failed, sibling in REVISED
    )
    assert found.repaired.tolist() == [0.0, 1.0, 0.5, 0.0, 1.0, 0.0, 0.0]
    assert (found.tried, found.succeeded, found.identical) == (6, 4, 0)
    for row, (_, text) in enumerate(WRITTEN):
        inside = found.edited[row, : len(text) + 1]
        if row not in EDITED:
            assert inside.all(), row
        elif EDITED[row] is not None:
            assert inside.nonzero()[:, 0].tolist() == EDITED[row], row
    # Row 4: seven characters are deleted or replaced ("3;3-0=3" shrinks to "2", the answer changes); the preamble and the end stay.
    assert int(found.edited[4, :17].sum()) == 8
    assert not found.edited[4, :6].any()
    assert not found.edited[4, 16]


def test_revisions_are_sampled_as_responses_are(monkeypatch: pytest.MonkeyPatch) -> None:
    script = scripted()
    sampling = {"temperature": 0.7, "max_new_tokens": 31}
    revised(monkeypatch, script, config=small_config(recipe="ibpo", sampling=sampling, dtype="bfloat16"))
    (settings,) = script.settings
    assert settings.pop("seed") >= 0
    expected = {"group_size": 1, "max_new_tokens": 31, "temperature": 0.7, "dtype": "bfloat16", "greedy": False, "keep_hidden": False}
    assert settings == expected


def test_a_revision_beyond_the_length_limit_is_judged_as_it_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 9 tokens no revision reaches the digit after `#`."""
    found = revised(monkeypatch, scripted(), config=small_config(recipe="ibpo", sampling={"max_new_tokens": 9}))
    assert found.tried == 6
    assert found.succeeded == 0
    assert not found.repaired.any()
    assert found.edited.all()


def test_calls_of_two_give_what_one_call_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = revised(monkeypatch, scripted())
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 2)
    script = scripted()
    cut = revised(monkeypatch, script)
    assert [len(prompts) for prompts in script.prompts] == [2, 2, 2]
    assert len({settings["seed"] for settings in script.settings}) == 3
    assert torch.equal(whole.repaired, cut.repaired)
    assert torch.equal(whole.edited, cut.edited)
    assert whole[2:] == cut[2:]


@dataclass(frozen=True)
class Lenient(Steps):
    """Finds every revision right, even one that changed nothing."""

    def grade(self, problem: Problem, response: str) -> float:
        return 1.0


def test_a_repair_that_changes_nothing_leaves_every_token_its_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    same = {pair: WRITTEN[pair[0]][1] for pair in REVISED} | {(1, 0): REVISED[1, 0], (2, 3): REVISED[2, 3], (5, 4): REVISED[5, 4]}
    found = revised(monkeypatch, scripted(same), task=Lenient())
    assert found.repaired.tolist() == [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
    # Row 5 was changed in one place; for rows 1 and 2 the unchanged revision is the nearest, for row 4 the only one.
    assert found.identical == 3
    assert found.edited[:5].all()
    assert found.edited[5, :17].nonzero()[:, 0].tolist() == [15]


@dataclass(frozen=True)
class Unsure(Steps):
    def grade(self, problem: Problem, response: str) -> float:
        return NAN


def test_a_revision_that_cannot_be_graded_repairs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = revised(monkeypatch, scripted(), task=Unsure())
    assert (found.tried, found.succeeded) == (6, 0)
    assert not found.repaired.any()


def test_without_failures_nothing_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    script = scripted()
    monkeypatch.setattr(module, "sample", script)
    rollouts = rollouts_of(POLICY, PROBLEMS, WRITTEN)
    found = revise(POLICY, Steps(), PROBLEMS, rollouts, torch.ones(7), IbpoShape(), small_config(recipe="ibpo"), seed=0)
    assert not script.prompts
    assert (found.tried, found.succeeded, found.identical) == (0, 0, 0)
    assert not found.repaired.any()
    assert found.edited.all()


# --- the shipped base that was shown revisions


@pytest.fixture(scope="module")
def attempts() -> dict[str, Any]:
    """24 problems x 6 responses of the shipped base, revised: twice with one seed, once with another."""
    config = small_config(recipe="ibpo", sampling={"prompts": 24, "group_size": 6})
    policy, task = load_policy("steps-revise", device=torch.device("cpu"), dtype="float32"), Steps()
    batch = collect_rollouts(policy, task, config, step=0, watch=Stopwatch(), keep_hidden=False)

    def attempt(seed: int, noise: int) -> Revisions:
        torch.manual_seed(noise)
        return revise(policy, task, batch.problems, batch.rollouts, batch.score, config.shape, config, seed=seed)

    return {"policy": policy, "batch": batch, "one": attempt(5, 1), "again": attempt(5, 2), "other": attempt(6, 1)}


def test_the_base_for_revisions_repairs_some_failures_and_not_others(attempts: dict[str, Any]) -> None:
    failed: Tensor = attempts["batch"].score == 0
    repaired = attempts["one"].repaired
    share = float((repaired[failed] > 0).double().mean())
    assert int(failed.sum()) > 60
    assert 0.4 < share < 0.98
    assert set(repaired.tolist()) == {0.0, 0.5, 1.0}
    assert not repaired[~failed].any()
    assert 0 < attempts["one"].succeeded < attempts["one"].tried


def test_a_real_repair_changes_results_and_leaves_operators_alone(attempts: dict[str, Any]) -> None:
    batch, edited, repaired = attempts["batch"], attempts["one"].edited, attempts["one"].repaired > 0
    seen, changed = Counter[str](), Counter[str]()
    for row in repaired.nonzero()[:, 0].tolist():
        problem, text = batch.problems[int(batch.rollouts.group[row])], response_text(attempts["policy"], batch.rollouts, row)
        marks = edited[row][batch.rollouts.mask[row]].tolist()
        assert any(marks)
        for label, mark in zip(Steps().token_class(problem, text), marks, strict=False):
            seen[label] += 1
            changed[label] += mark
    share = {label: changed[label] / seen[label] for label in seen}
    assert share["result"] > 0.25
    assert max(share["operator"], share["operand"]) < 0.1
    assert edited[~repaired].all()


def test_the_seed_alone_decides(attempts: dict[str, Any]) -> None:
    one, again, other = (attempts[name] for name in ("one", "again", "other"))
    assert torch.equal(one.repaired, again.repaired)
    assert torch.equal(one.edited, again.edited)
    assert one[2:] == again[2:]
    assert not torch.equal(one.repaired, other.repaired)

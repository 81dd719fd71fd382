"""Runs on a task of several turns: the environment's words get no credit and no gradient, resumes are exact, what cannot be is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import log_softmax

from engine.conversations import PROBLEMS, Counting, talkative_policy
from engine.runs import collected_by, files_of, planned_by, rows_of, run, same_weights, small_config, trainer_of
from tiny import CONSTANT, gradient_of, plan_for
from tokencredit.analysis.replay import recreate
from tokencredit.analysis.showcase import showcase
from tokencredit.config.train import TrainConfig
from tokencredit.credit import CREDITS, CreditInputs
from tokencredit.errors import ConfigError
from tokencredit.forward.modes import ForwardOptions
from tokencredit.objective import OBJECTIVES
from tokencredit.optim.update import accumulate_gradient
from tokencredit.pipeline.build import AggregatedObjective
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.multi_turn import generate_turns, turns_of
from tokencredit.storage.run_dir import RunDir
from tokencredit.tasks import Guess, Problem, Steps
from tokencredit.trainer.preflight import check_turns
from tokencredit.types import Credited, Rollouts, Scored


def guessing(**changes: Any) -> TrainConfig:
    return small_config(task={"type": "guess"}, **changes)


@pytest.mark.parametrize("credit", ["uniform", "delta", "ntf", "forking", "one-sided", "ktae"])
def test_every_credit_leaves_out_what_the_environment_said(credit: str) -> None:
    trainer = trainer_of(guessing(recipe="dapo", credit={"type": credit}, filter_groups=False))
    planned = planned_by(trainer, 0)
    rollouts, given = planned.credited.rollouts, planned.credited.credit
    said = ~rollouts.mask & (rollouts.tokens != 0)
    assert said.any()
    assert given[rollouts.mask].any()
    assert not given[said].any()
    assert sum(step.tokens for step in planned.plan.steps) == int(rollouts.mask.sum())
    before = [parameter.clone() for parameter in trainer.policy.model.parameters()]
    trainer.update(planned)
    assert any(not torch.equal(one, two) for one, two in zip(before, trainer.policy.model.parameters(), strict=True))


def credits_of(rollouts: Rollouts, tokens: torch.Tensor, kind: str) -> torch.Tensor:
    inputs = CreditInputs(
        advantage=torch.tensor([1.0, -1.0] * (len(tokens) // 2)).double(),
        mask=rollouts.mask,
        group=rollouts.group,
        tokens=tokens,
        logp=rollouts.behavior_logp,
        entropy=-rollouts.behavior_logp,
        seed=0,
        score=torch.tensor([1.0, 0.0] * (len(tokens) // 2)).double(),
        prefix_value=torch.full(tokens.shape, torch.nan).double().index_fill(1, torch.tensor([2, 5]), 0.25),
    )
    return CREDITS[kind](inputs, {}).credit


@pytest.mark.parametrize("kind", ["uniform", "ntf", "forking", "one-sided", "ktae", "process"])
def test_credit_does_not_depend_on_what_stands_between_the_turns(kind: str) -> None:
    rollouts = generate_turns(talkative_policy(), Counting(), PROBLEMS, SamplingParams(group_size=4, max_new_tokens=14, seed=5)).rollouts
    other = torch.where(rollouts.mask, rollouts.tokens, 9)
    assert not torch.equal(other, rollouts.tokens)
    assert torch.equal(credits_of(rollouts, rollouts.tokens, kind), credits_of(rollouts, other, kind))
    assert not credits_of(rollouts, other, kind)[~rollouts.mask].any()


def summed_by_hand(policy: Policy, credited: Credited, rows: tuple[int, ...], denominator: float) -> torch.Tensor:
    """The gradient of sum over the policy's own tokens of credit x log-prob, a sequence and a token at a time."""
    rollouts = credited.rollouts
    policy.model.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        ids = [*rollouts.prompts[row], *rollouts.tokens[row].tolist()]
        logp = log_softmax(policy.model(input_ids=torch.tensor([ids])).logits[0], -1)
        for place in rollouts.mask[row].nonzero()[:, 0].tolist():
            at = len(rollouts.prompts[row]) + place
            total = total - credited.credit[row, place] * logp[at - 1, ids[at]]
    (total / denominator).backward()
    return gradient_of(policy)


def test_the_gradient_is_that_of_the_policy_s_own_tokens_and_a_loss_on_the_environment_s_would_be_noticed() -> None:
    policy = talkative_policy()
    rollouts, seen = generate_turns(policy, Counting(), PROBLEMS, SamplingParams(group_size=4, max_new_tokens=14, seed=5))

    def credited(mask: torch.Tensor) -> Credited:
        advantage = torch.tensor([1.0, -0.5, 0.25, -0.75] * 4, dtype=torch.float64)
        scored = Scored(rollouts=replace(rollouts, mask=mask), score=advantage, reward=advantage)
        coefficient = mask.double()
        return Credited(
            scored=scored,
            old_logp=seen.logp,
            entropy=seen.entropy,
            advantage=advantage,
            coefficient=coefficient,
            credit=coefficient * advantage[:, None],
        )

    def engine(made: Credited) -> torch.Tensor:
        policy.model.zero_grad()
        objective = AggregatedObjective(OBJECTIVES["policy-gradient"](), "token-mean", CONSTANT)
        accumulate_gradient(policy, made, step, objective, ForwardOptions(temperature=1.0))
        return gradient_of(policy)

    right = credited(rollouts.mask)
    step = plan_for(right, 60, optimizer_steps=1).steps[0]
    assert step.denominator == float(rollouts.mask.sum())
    expected = summed_by_hand(policy, right, step.rows, step.denominator)
    assert expected.norm() > 1e-3
    torch.testing.assert_close(engine(right), expected, atol=1e-10, rtol=1e-8)
    columns = torch.arange(rollouts.mask.shape[1])
    last = (columns * rollouts.mask).amax(-1)
    everything = credited(columns <= last[:, None])
    assert (engine(everything) - expected).norm() > 0.01 * expected.norm()


def test_a_stopped_and_resumed_run_equals_one_that_never_stopped(tmp_path: Path) -> None:
    config = guessing(steps=3, diagnose={"every": 2, "groups": 1, "drift_budget": 8})
    run(config, tmp_path / "whole")
    assert run(config, tmp_path / "cut", stop_after=2).interrupted
    run(config, tmp_path / "cut", resume=True)
    assert same_weights(tmp_path / "whole", tmp_path / "cut")
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")


def test_a_run_leaves_the_policy_s_tokens_with_gaps_where_the_environment_spoke(tmp_path: Path) -> None:
    from pyarrow.parquet import read_table

    config = guessing(recipe="ntf", sampling={"group_size": 1, "prompts": 24})
    outcome = run(config, tmp_path / "run")
    table = read_table(sorted((tmp_path / "run").rglob("tokens*/*.parquet"))[0]).to_pydict()
    rows: dict[int, list[int]] = {}
    for row, position in zip(table["row"], table["position"], strict=True):
        rows.setdefault(row, []).append(position)
    assert any(places != list(range(len(places))) for places in rows.values())
    assert set(table["token_class"]) <= {"guess", "other", "end"}
    assert rows_of(tmp_path / "run")[0]["completions/max_length"] <= 16
    shown = showcase(config, outcome.policy, outcome.task, outcome.state)
    # What the environment said is shown, and has no credit.
    told = [(piece, credit) for response in shown for piece, credit in zip(response.pieces, response.credit, strict=True)]
    assert {piece for piece, credit in told if credit == 0} >= {"?"}
    assert not any(credit for piece, credit in told if piece in "<>!?")


def test_a_step_is_taken_again_from_the_run(tmp_path: Path) -> None:
    config = guessing(steps=3)
    run(config, tmp_path / "run")
    assert recreate(RunDir(tmp_path / "run"), config, 3).same_plan
    asked = config.model_copy(update={"diagnose": config.diagnose.model_copy(update={"value_budget": 64})})
    with pytest.raises(ConfigError, match=r"diagnose\.value_budget is 64 but task 'guess' converses in turns"):
        recreate(RunDir(tmp_path / "run"), asked, 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipe": "ibpo"}, "shape.type is 'ibpo' but task 'guess' converses in turns"),
        ({"recipe": "vineppo"}, "credit.type is 'process' but task 'guess' converses in turns"),
        ({"recipe": "vineppo", "credit": {"boundary": "tokens"}}, "credit.type is 'process' but task 'guess' converses in turns"),
        ({"diagnose": {"value_budget": 64}}, "diagnose.value_budget is 64 but task 'guess' converses in turns"),
        ({"prompt": {"few_shot": 2}}, "few_shot is 2 but task 'guess'"),
        ({"task": {"type": "guess", "width": 101}}, "task.width is 101 but there are only 100 numbers"),
    ],
)
def test_what_takes_a_response_in_one_piece_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        run(small_config(**({"task": {"type": "guess"}, "model": "guess"} | changes)), tmp_path / "run")
    assert words in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_half_an_environment_is_refused() -> None:
    class Half(Steps):
        def reply(self, problem: Problem, turns: list[str]) -> str:
            return "?"

    check_turns(Steps(), small_config())
    with pytest.raises(ConfigError, match="task 'steps' has a method reply but lacks turns, grade_turns"):
        check_turns(Half(), small_config())
    with pytest.raises(ConfigError, match="task 'guess' has 0 turns; it must have at least 1"):
        check_turns(Counting(turns=0), guessing())


def test_greedy_conversations_are_graded_whole() -> None:
    """Recipe remax compares with the policy's greedy conversation."""
    trainer = trainer_of(guessing(recipe="remax"))
    gathered = collected_by(trainer, 0)
    assert gathered.sampled.greedy_score is not None
    drawn = generate_turns(
        trainer.policy, Guess(), gathered.problems, SamplingParams(group_size=1, max_new_tokens=16, seed=0, greedy=True)
    ).rollouts
    expected = [Guess().grade_turns(problem, turns_of(trainer.policy, drawn, row)) for row, problem in enumerate(gathered.problems)]
    assert gathered.sampled.greedy_score.tolist() == [expected[group] for group in gathered.rollouts.group.tolist()]

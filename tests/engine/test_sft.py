"""A supervised warm start: cross-entropy on a task's own demonstrations, in the same engine and run folder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from engine.runs import collected_by, files_of, planned_by, rows_of, run, trainer_of
from tokencredit.commands.flags import parse_train
from tokencredit.commands.sft import SFT
from tokencredit.config.resolve import resolve
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.forward.modes import ForwardOptions
from tokencredit.optim.update import accumulate_gradient
from tokencredit.rollout.multi_turn import turn_tokens, turns_of
from tokencredit.tasks import Guess, Problem, Steps
from tokencredit.trainer.preflight import check_turns
from tokencredit.trainer.step import PolicyTrainer

SMALL: dict[str, Any] = {
    "steps": 3,
    "sampling": {"prompts": 12},
    "evaluation": {"every": 0, "problems": 16, "samples": 2, "final_problems": 16, "final_samples": 2},
    "save_every": 1,
}


def warm(**changes: Any) -> TrainConfig:
    return resolve([SFT.layer, SMALL, changes])


def test_the_gradient_is_that_of_cross_entropy_on_the_demonstrations() -> None:
    trainer = trainer_of(warm(dtype="float64"))
    gathered = collected_by(trainer, 0)
    planned = planned_by(trainer, 0, gathered)
    assert bool((planned.credited.credit[gathered.rollouts.mask] == 1).all())
    [step] = planned.plan.steps
    accumulate_gradient(
        trainer.policy, planned.credited, step, trainer.pipeline.objective, ForwardOptions(temperature=1.0, dtype="float64")
    )
    found = {name: parameter.grad.clone() for name, parameter in trainer.policy.model.named_parameters() if parameter.grad is not None}
    trainer.policy.model.zero_grad()
    rollouts, losses = gathered.rollouts, []
    for row, prompt in enumerate(rollouts.prompts):
        response = rollouts.tokens[row][rollouts.mask[row]].tolist()
        logits = trainer.policy.model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        losses.append(cross_entropy(logits, torch.tensor(response), reduction="none"))
    torch.cat(losses).mean().backward()
    for name, parameter in trainer.policy.model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(found[name], parameter.grad, rtol=1e-5, atol=1e-8), name


def test_demonstrations_are_right_whole_and_follow_from_the_seed() -> None:
    trainer = trainer_of(warm())
    one, two = collected_by(trainer, 0), collected_by(trainer, 0)
    assert bool((one.score == 1).all())
    assert bool(one.rollouts.finished.all())
    assert torch.equal(one.rollouts.tokens, two.rollouts.tokens)
    assert not torch.equal(one.rollouts.tokens[:, :4], collected_by(trainer, 1).rollouts.tokens[:, :4])
    last = one.rollouts.mask.sum(-1) - 1
    assert bool((one.rollouts.tokens.gather(1, last[:, None])[:, 0] == trainer.policy.end_tokens[0]).all())
    assert one.rollouts_used == 0
    # What the policy did not sample it has no log-prob of its own for: the pass's stand in, and mismatch is none.
    assert torch.equal(one.rollouts.behavior_logp, one.evidence.logp)


def test_a_warm_start_learns_and_resumes_to_the_bit(tmp_path: Path) -> None:
    config = warm(steps=6, optimizer={"learning_rate": 2e-3})
    run(config, tmp_path / "whole")
    run(config, tmp_path / "stopped", stop_after=3)
    run(config, tmp_path / "stopped", resume=True)
    whole, stopped = files_of(tmp_path / "whole"), files_of(tmp_path / "stopped")
    whole.pop("env.json"), stopped.pop("env.json")
    assert whole == stopped
    rows = rows_of(tmp_path / "whole")
    assert rows[-1]["rollouts_used"] == 0
    first, last = (_log_prob(PolicyTrainer(config, source=name)) for name in (config.model, str(tmp_path / "whole")))
    assert last > first + 0.02


def _log_prob(trainer: PolicyTrainer) -> float:
    gathered = collected_by(trainer, 100)
    return float(gathered.evidence.logp[gathered.rollouts.mask].mean())


def test_revisions_can_be_demonstrated() -> None:
    trainer = trainer_of(warm(model="steps-revise", revision_share=1.0))
    gathered = collected_by(trainer, 0)
    assert bool((gathered.score == 1).all())
    for problem, prompt in zip(gathered.problems, gathered.rollouts.prompts, strict=True):
        question, failed, sibling = trainer.policy.decode(list(prompt)).removesuffix(">").split("?")
        assert question == problem.prompt
        assert trainer.task.grade(problem, sibling) == 1.0
        assert "#" in failed
    some = collected_by(trainer_of(warm(model="steps-revise", revision_share=0.5)), 0)
    revised = sum(">" in trainer.policy.decode(list(prompt)) for prompt in some.rollouts.prompts)
    assert 0 < revised < len(some.problems)


class Wrong(Steps):
    def demonstrate(self, problem: Problem, *, seed: int) -> str:
        return f"a:#{(int(problem.answer) + (len(problem.prompt) + seed) % 2) % 10}"


def test_a_demonstration_that_is_not_right_teaches_nothing_and_is_counted() -> None:
    config = warm(sampling={"prompts": 40})
    trainer = PolicyTrainer(config, source=config.model, task=Wrong())
    gathered = collected_by(trainer, 0)
    wrong = gathered.score.isnan()
    assert 5 < int(wrong.sum()) < 35
    assert gathered.ungraded == {"the demonstration is not graded right": int(wrong.sum())}
    assert gathered.responses == 40
    credited = planned_by(trainer, 0, gathered).credited
    assert not bool(credited.credit[wrong].any())
    assert bool((credited.credit[~wrong][gathered.rollouts.mask[~wrong]] == 1).all())


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="source is 'demonstrations', which are all right"):
        warm(recipe="grpo", sampling={"group_size": 4})
    with pytest.raises(ConfigError, match=r"revision_share is 0.5 but is read only when source is 'demonstrations'"):
        resolve([{"revision_share": 0.5}])
    with pytest.raises(ConfigError, match="advantage 'c-rf' reads the verifier's score"):
        warm(reward={"format": 0.5})


def test_a_demonstration_that_is_too_long_teaches_nothing_and_is_counted() -> None:
    lengths = collected_by(trainer_of(warm()), 0).rollouts.mask.sum(-1)
    limit = int(lengths.median())
    gathered = collected_by(trainer_of(warm(sampling={"prompts": 12, "max_new_tokens": limit})), 0)
    long = lengths > limit
    assert 0 < int(long.sum()) < 12
    assert gathered.score.isnan().tolist() == long.tolist()
    assert gathered.ungraded == {"the demonstration is longer than sampling.max_new_tokens": int(long.sum())}
    assert int(gathered.rollouts.mask.sum(-1).max()) == limit


def test_the_command_lays_its_defaults_under_files_and_flags(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("steps = 7\n[optimizer]\nlearning_rate = 0.25\n")
    config = parse_train([str(tmp_path / "own.toml"), "--sampling.prompts", "5"], SFT).config
    assert (config.steps, config.optimizer.learning_rate, config.sampling.prompts, config.source) == (7, 0.25, 5, "demonstrations")
    assert (config.sampling.group_size, config.objective.type, config.optimizer.steps_per_batch) == (1, "policy-gradient", 1)
    assert parse_train([]).config.source == "policy"


def test_conversations_are_demonstrated_with_the_environment_masked_out() -> None:
    trainer = trainer_of(warm(task={"type": "guess"}, model="guess", sampling={"prompts": 12, "max_new_tokens": 24}))
    gathered = collected_by(trainer, 0)
    assert bool((gathered.score == 1).all())
    several = 0
    for row, problem in enumerate(gathered.problems):
        turns = turns_of(trainer.policy, gathered.rollouts, row)
        assert turns[-1] == problem.answer
        assert [trainer.policy.encode(turn) for turn in turns] == [tokens[:-1] for tokens in turn_tokens(gathered.rollouts, row)]
        several += len(turns) > 1
    assert several > 3
    credited = planned_by(trainer, 0, gathered).credited
    assert torch.equal(credited.credit != 0, gathered.rollouts.mask)


def test_turns_without_demonstrations_are_refused() -> None:
    config = warm(task={"type": "guess"}, model="guess", sampling={"max_new_tokens": 24})
    with pytest.raises(ConfigError, match="must show them with a method demonstrate_turns"):
        check_turns(Silent(), config)
    with pytest.raises(ConfigError, match=r"revision_share is 0.5 but task 'guess' converses in turns"):
        check_turns(Guess(), warm(task={"type": "guess"}, model="guess", revision_share=0.5))
    check_turns(Guess(), config)


class Silent:
    """Converses, and shows nothing."""

    turns = 2

    def problems(self, count: int, *, split: str, seed: int) -> list[Problem]:
        return []

    def grade(self, problem: Problem, response: str) -> float:
        return 0.0

    def token_class(self, problem: Problem, response: str) -> list[str]:
        return []

    def reply(self, problem: Problem, turns: object) -> str | None:
        return None

    def grade_turns(self, problem: Problem, turns: object) -> float:
        return 0.0

"""What counts beside the verifier's score, part by part, and how it reaches the reward."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.runs import collected_by, planned_by, rows_of, run, small_config, trainer_of
from tiny import tiny_policy
from tokencredit.config.train import Reward
from tokencredit.policy.prompting import Prompting
from tokencredit.rollout.grading import bonus, part_means, reward_parts
from tokencredit.tasks.tokenizer import character_tokenizer
from tokencredit.types import Rollouts

WRITTEN = ["<think>1</think><answer>2</answer>", "<answer>2</answer>", "2", "<think></think><answer>3</answer>"]


def written(texts: list[str], finished: list[bool]) -> tuple[object, Rollouts]:
    policy = replace(tiny_policy(), tokenizer=character_tokenizer("<>/thinkaswer0123456789"), prompting=Prompting(tags=True))
    ids = [policy.encode(text) for text in texts]
    width = max(len(row) for row in ids)
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in ids])
    mask = torch.arange(width) < torch.tensor([len(row) for row in ids])[:, None]
    rollouts = Rollouts(
        prompts=((3,),) * len(ids),
        tokens=tokens,
        mask=mask,
        group=torch.zeros(len(ids), dtype=torch.long),
        behavior_logp=torch.zeros(tokens.shape),
        finished=torch.tensor(finished),
    )
    return policy, rollouts


def test_the_parts_tell_right_from_wrong_kept_from_broken_long_from_short() -> None:
    policy, rollouts = written(WRITTEN, [True, True, True, False])
    score = torch.tensor([1.0, 0.0, torch.nan, 1.0])
    parts = reward_parts(policy, rollouts, score, limit=100)  # pyright: ignore[reportArgumentType]
    assert parts["correct"][:2].tolist() == [1.0, 0.0]
    assert bool(parts["correct"][2].isnan())
    assert parts["format"].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert parts["length"].tolist() == pytest.approx([len(text) / 100 for text in WRITTEN])
    assert part_means(parts) == pytest.approx({
        "reward/correct": 2 / 3, "reward/format": 1 / 4, "reward/length": sum(len(text) for text in WRITTEN) / 400,
    })  # fmt: skip
    assert "reward/correct" not in part_means({"correct": torch.full((2,), torch.nan)})


def test_format_is_earned_and_length_is_paid_by_the_right_alone() -> None:
    parts = {
        "correct": torch.tensor([1.0, 0.0, torch.nan]),
        "format": torch.tensor([1.0, 1.0, 0.0]),
        "length": torch.tensor([0.5, 1.0, 1.0]),
    }
    assert bonus(parts, Reward()) is None
    found = bonus(parts, Reward(format=0.2, length=0.1))
    assert found is not None
    assert found.tolist() == pytest.approx([0.2 - 0.05, 0.2, 0.0])


def test_the_bonus_reaches_the_reward_and_leaves_the_score(tmp_path: Path) -> None:
    trainer = trainer_of(small_config(reward={"format": 0.25, "length": 0.5}, recipe="grpo", shape={"type": "none"}))
    gathered = collected_by(trainer, 0)
    scored = planned_by(trainer, 0, gathered).credited.scored
    rollouts = gathered.rollouts
    expected = gathered.score + 0.25 * rollouts.finished - 0.5 * rollouts.mask.sum(-1) / 48 * (gathered.score == 1)
    assert torch.allclose(scored.reward, expected)
    assert torch.equal(scored.score, gathered.score)
    run(small_config(steps=2, reward={"format": 0.25}, save_every=0), tmp_path / "run")
    row = rows_of(tmp_path / "run")[0]
    assert row["reward"] > row["score"]
    assert 0 <= row["reward/correct"] <= 1

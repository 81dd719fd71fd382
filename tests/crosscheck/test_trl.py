"""Our mathematics against TRL's trainers: the losses they compute, and the advantages and ratios they make of scored completions."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from crosscheck.agreement import Loss, agree, difference, gradients_agree, loss_difference, losses_agree
from crosscheck.batches import SEEDS, Batch, random_batch
from crosscheck.ours import halved_knobs, our_loss
from crosscheck.trl_driver import build_trainer, save_model, their_loss, their_scores
from tokencredit.advantage import ADVANTAGES, AdvantageInputs
from tokencredit.objective import OBJECTIVES, with_correction, with_kl
from tokencredit.objective.correction import correction_weight
from tokencredit.rollout_io.convert import convert_rows, format_of
from tokencredit.rollout_io.load import load

MAX_LENGTH = 11
CLIP = {"epsilon": 0.2, "epsilon_high": 0.28}
OUR_CLIP = {"clip_low": 0.2, "clip_high": 0.28}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model(folder)
    return folder


class LossCase(NamedTuple):
    settings: dict[str, Any]
    ours: str
    knobs: dict[str, Any]
    aggregation: str
    trainer: str = "grpo"
    constant_length: int | None = None
    credits: tuple[str, ...] = ("uniform", "per token")


SEQUENCE = {"importance_sampling_level": "sequence"}
LOSS_CASES = {
    "grpo": LossCase({"loss_type": "grpo", **CLIP}, "ppo-clip", OUR_CLIP, "sequence-mean"),
    "bnpo": LossCase({"loss_type": "bnpo", **CLIP}, "ppo-clip", OUR_CLIP, "token-mean"),
    "dapo": LossCase({"loss_type": "dapo", **CLIP}, "ppo-clip", OUR_CLIP, "token-mean"),
    "dr_grpo": LossCase(
        {"loss_type": "dr_grpo", "max_completion_length": MAX_LENGTH, **CLIP}, "ppo-clip", OUR_CLIP, "constant", constant_length=MAX_LENGTH
    ),
    # TRL caps the ratio whatever the sign; above 1 + epsilon_high that is a bound on negative credit alone, the dual clip.
    "dapo with delta": LossCase({"loss_type": "dapo", "delta": 3.0, **CLIP}, "ppo-clip", {**OUR_CLIP, "dual_clip": 3.0}, "token-mean"),
    # TRL's epsilon_high is the largest weight itself, and there is no smallest.
    "cispo": LossCase({"loss_type": "cispo", "epsilon_high": 1.6}, "cispo", {"clip_low": 1.0, "clip_high": 0.6}, "token-mean"),
    # TRL's temperatures are float32 whatever the log-probs are: 7e-8 apart.
    "sapo": LossCase(
        {"loss_type": "sapo", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.3},
        "sapo",
        {"tau_positive": 1.0, "tau_negative": 1.3},
        "sequence-mean",
    ),
    "grpo at sequence level": LossCase(
        {"loss_type": "grpo", **SEQUENCE, **CLIP}, "gspo", {**OUR_CLIP, "form": "sequence"}, "sequence-mean"
    ),
    # The length-unbiased sum over a response is a constant length of 1.
    "luspo": LossCase({"loss_type": "luspo", **SEQUENCE, **CLIP}, "gspo", {**OUR_CLIP, "form": "sequence"}, "constant", constant_length=1),
    "gmpo": LossCase(
        {"epsilon": 0.3, "epsilon_high": 0.4},
        "gmpo",
        {"clip_low": 0.3, "clip_high": 0.4, "form": "sequence"},
        "sequence-mean",
        trainer="gmpo",
        credits=("uniform",),
    ),
}


def both_credits(batch: Batch, kind: str) -> tuple[Tensor, Tensor]:
    """For us and for TRL, which takes one number per response as it is."""
    return (batch.uniform, batch.advantage) if kind == "uniform" else (batch.credit, batch.credit)


def our_side(case: LossCase, batch: Batch, credit: Tensor, **changes: Any) -> Loss:
    objective = OBJECTIVES[case.ours](**{**case.knobs, **changes})
    return our_loss(objective, batch, credit, aggregation=case.aggregation, constant_length=case.constant_length)


def their_side(case: LossCase, trainer: Any, batch: Batch, advantages: Tensor) -> Loss:
    loss = their_loss(trainer, batch, advantages)
    if case.trainer != "gmpo":
        return loss
    # Their GMPO gives a response without tokens the ratio 1: a constant in the value, and no gradient.
    empty = batch.length == 0
    return loss._replace(value=loss.value + advantages[empty].sum() / len(empty))


@pytest.mark.parametrize("name", LOSS_CASES)
def test_losses(name: str, folder: Path) -> None:
    case = LOSS_CASES[name]
    trainer = build_trainer(folder, case.trainer, **case.settings)
    for seed in SEEDS:
        batch = random_batch(seed)
        for kind in case.credits:
            ours, theirs = both_credits(batch, kind)
            losses_agree(f"loss {name}, {kind} credit", our_side(case, batch, ours), their_side(case, trainer, batch, theirs))


@pytest.mark.parametrize("name", LOSS_CASES)
def test_a_near_miss_is_told_apart(name: str, folder: Path) -> None:
    """Every number halved, and another denominator, must show in some batch: else the comparison says nothing."""
    case = LOSS_CASES[name]
    trainer = build_trainer(folder, case.trainer, **case.settings)
    batches = [random_batch(seed) for seed in SEEDS]
    theirs = [their_side(case, trainer, batch, batch.advantage) for batch in batches]
    other = "sequence-mean" if case.aggregation == "token-mean" else "token-mean"
    for halved in halved_knobs(case.knobs):
        wrong = (our_side(case, batch, batch.uniform, **halved) for batch in batches)
        assert max(map(loss_difference, wrong, theirs)) > 1e-4, halved
    wrong = (our_side(case._replace(aggregation=other), batch, batch.uniform) for batch in batches)
    assert min(map(loss_difference, wrong, theirs)) > 1e-4


@pytest.mark.parametrize("name", ["grpo at sequence level", "gmpo"])
def test_our_token_forms_have_the_gradient_of_their_sequence_forms(name: str, folder: Path) -> None:
    case = LOSS_CASES[name]
    trainer = build_trainer(folder, case.trainer, **case.settings)
    for seed in SEEDS:
        batch = random_batch(seed)
        token_form = our_side(case, batch, batch.uniform, form="token")
        gradients_agree(f"gradient {name}, our token form", token_form, their_loss(trainer, batch, batch.advantage))


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo", "cispo", "sapo", "grpo at sequence level"])
def test_their_accumulation_window_is_our_step(name: str, folder: Path) -> None:
    """Micro-batches of as many responses each; bnpo is not here because it divides by the tokens of each micro-batch."""
    case = LOSS_CASES[name]
    trainer = build_trainer(folder, gradient_accumulation_steps=3, **case.settings)
    for seed in SEEDS:
        batch = random_batch(seed, group_size=3)
        losses_agree(f"loss {name} over a window", our_side(case, batch, batch.credit), their_loss(trainer, batch, batch.credit, cuts=3))


def test_loss_with_kl(folder: Path) -> None:
    """TRL multiplies a token's KL by its ratio unless told not to; our term is the plain one."""
    case = LOSS_CASES["dapo"]
    trainer = build_trainer(folder, **case.settings, beta=0.3, use_bias_correction_kl=False)
    objective = with_kl(OBJECTIVES[case.ours](**case.knobs), beta=0.3, estimator="k3")
    for seed in SEEDS:
        batch = random_batch(seed)
        losses_agree("loss dapo with kl", our_loss(objective, batch, batch.credit), their_loss(trainer, batch, batch.credit))


def our_advantage(batch: Batch, name: str, **knobs: Any) -> Tensor:
    return ADVANTAGES[name](AdvantageInputs(batch.reward, batch.group), {}, preset="trl", **knobs).advantage


ADVANTAGE_CASES = {
    "scale_rewards group": ("grpo", {"scale_rewards": "group"}, "grpo"),
    "scale_rewards none": ("grpo", {"scale_rewards": "none"}, "dr-grpo"),
    "rloo": ("rloo", {}, "rloo"),
}


def scored_batch(seed: int, group_size: int) -> Batch:
    """Rewards as TRL holds them, and some that could not be graded."""
    batch = random_batch(seed, group_size=group_size)
    ungraded = torch.rand(len(batch.reward), generator=torch.Generator().manual_seed(seed)) < 0.15
    return batch._replace(reward=batch.reward.float().double().masked_fill(ungraded, torch.nan))


@pytest.mark.parametrize("group_size", [2, 3, 6])
@pytest.mark.parametrize("name", ADVANTAGE_CASES)
def test_advantages(name: str, group_size: int, folder: Path) -> None:
    kind, settings, ours = ADVANTAGE_CASES[name]
    trainer = build_trainer(folder, kind, num_generations=group_size, **settings)
    for seed in SEEDS:
        batch = scored_batch(seed, group_size)
        agree(f"advantage {name}", our_advantage(batch, ours), their_scores(trainer, batch)["advantages"])


def test_a_near_miss_advantage_is_told_apart(folder: Path) -> None:
    """The epsilon of another preset, and every other estimator."""
    batch = scored_batch(0, 3)
    for name, (kind, settings, ours) in ADVANTAGE_CASES.items():
        theirs = their_scores(build_trainer(folder, kind, num_generations=3, **settings), batch)["advantages"]
        assert all(difference(our_advantage(batch, other), theirs) > 1e-2 for other in ("grpo", "dr-grpo", "rloo") if other != ours), name
        if ours == "grpo":
            assert difference(our_advantage(batch, ours, epsilon=1e-6), theirs) > 1e-5


CORRECTIONS = {
    "token_truncate": {"kind": "tis", "level": "token"},
    "token_mask": {"kind": "mis", "level": "token"},
    "sequence_truncate": {"kind": "tis", "level": "sequence"},
    "sequence_mask": {"kind": "mis", "level": "sequence"},
}


@pytest.mark.parametrize("mode", CORRECTIONS)
def test_correction(mode: str, folder: Path) -> None:
    """The ratio that TRL makes of a sampler's log-probs, and a loss that is multiplied by it."""
    case = LOSS_CASES["dapo"]
    bounds = {"vllm_importance_sampling_clip_min": 0.6, "vllm_importance_sampling_clip_max": 1.4}
    trainer = build_trainer(folder, vllm_importance_sampling_mode=mode, **bounds, **case.settings)
    objective = with_correction(OBJECTIVES[case.ours](**case.knobs))
    for seed in SEEDS:
        batch = random_batch(seed, group_size=2)
        # A list of Python numbers becomes float32 in TRL.
        sampler_logp = batch.sampler_logp.float().double()
        ratio = their_scores(trainer, batch, sampler_logp=sampler_logp)["importance_sampling_ratio"]
        weight = correction_weight(batch.old_logp, sampler_logp, batch.mask, cap=1.4, floor=0.6, **CORRECTIONS[mode])
        agree(f"correction {mode}", weight, ratio.expand(batch.mask.shape) * batch.mask)
        wrong = correction_weight(batch.old_logp, sampler_logp, batch.mask, cap=1.0, floor=0.6, **CORRECTIONS[mode])
        assert difference(wrong, ratio.expand(batch.mask.shape) * batch.mask) > 1e-2
        ours = our_loss(objective, batch, batch.credit, correction=weight)
        losses_agree("loss dapo with correction", ours, their_loss(trainer, batch, batch.credit, ratio=ratio))


def test_completions_that_trl_logs_are_read(folder: Path) -> None:
    """A real training step's file; its advantages follow from the scores that are read from it."""
    trainer = build_trainer(folder, num_generations=4, log_completions=True, logging_steps=1, max_steps=1, max_completion_length=4)
    trainer.reward_funcs = [lambda completions, **_: [None, 0.0, 0.25, 1.0]]
    trainer.train()
    loaded = load(folder / "run" / "completions" / "completions_00001.parquet")
    assert (format_of(loaded), loaded.step) == ("trl", 1)
    rows = convert_rows(loaded, "trl").rows
    assert [row["prompt"] for row in rows] == ["a"] * 4
    assert [row["response"] for row in rows] == list(trainer._logs["completion"])
    score, logged = (torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in ("score", "advantage"))
    assert score[1:].tolist() == [0.0, 0.25, 1.0]
    assert bool(score[0].isnan())
    inputs = AdvantageInputs(score, torch.zeros(4, dtype=torch.long))
    agree("advantage from logged completions", ADVANTAGES["grpo"](inputs, {}, preset="trl").advantage, logged)

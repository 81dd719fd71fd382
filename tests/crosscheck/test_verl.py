"""Our mathematics against verl's own functions (verl.trainer.ppo), run as they are."""

import ast
import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import agg_loss, get_adv_estimator_fn, get_policy_loss_fn, kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig

from crosscheck.agreement import Loss, agree, difference, gradients_agree, loss_difference, losses_agree
from crosscheck.batches import SEEDS, Batch, random_batch
from crosscheck.ours import halved_knobs, our_loss
from tokencredit.advantage import ADVANTAGES, AdvantageInputs
from tokencredit.batching.microbatch import step_denominator
from tokencredit.objective import OBJECTIVES, kl_estimate, token_weight, with_correction
from tokencredit.objective.correction import correction_weight
from tokencredit.rollout_io.convert import convert_rows, format_of
from tokencredit.rollout_io.load import load

CONSTANT_LENGTH = 7
AGGREGATIONS = {"token-mean": "token-mean", "seq-mean-token-mean": "sequence-mean", "seq-mean-token-sum-norm": "constant"}


NOTHING: dict[str, Any] = {}
VERL: dict[str, Any] = {"preset": "verl"}


class AdvantageCase(NamedTuple):
    theirs: str
    ours: str
    settings: dict[str, Any] = NOTHING
    knobs: dict[str, Any] = VERL
    smallest_group: int = 1
    """verl gives a lone response its raw reward, or refuses it."""
    greedy: bool = False
    """Compares with a greedy response to each prompt, which verl's trainer samples beside the others."""


# Numbers that verl keeps in float32 whatever the rewards are leave about 1e-7: the 1 + epsilon of a lone response, n / (n - 1) when
# whitening, and gpg's share of rewarded responses.
ADVANTAGE_CASES = {
    "grpo": AdvantageCase("grpo", "grpo"),
    "grpo without std": AdvantageCase("grpo", "dr-grpo", {"norm_adv_by_std_in_grpo": False}),
    "rloo": AdvantageCase("rloo", "rloo"),
    "reinforce_plus_plus": AdvantageCase("reinforce_plus_plus", "reinforce++", {"config": AlgoConfig(gamma=1.0)}),
    "reinforce_plus_plus_baseline": AdvantageCase("reinforce_plus_plus_baseline", "reinforce++-baseline"),
    "opo": AdvantageCase("opo", "opo"),
    "gpg": AdvantageCase("gpg", "gpg"),
    "grpo_passk": AdvantageCase("grpo_passk", "pass-at-k", {"config": AlgoConfig()}, smallest_group=2),
    "grpo_passk without std": AdvantageCase(
        "grpo_passk", "pass-at-k", {"config": AlgoConfig(norm_adv_by_std_in_grpo=False)}, {**VERL, "normalize": False}, smallest_group=2
    ),
    "remax": AdvantageCase("remax", "remax", knobs=NOTHING, greedy=True),
}


def greedy_score(batch: Batch) -> Tensor:
    """Another number for every prompt, on either side of the rewards, the same for all its responses."""
    return (1 + batch.group.double()).sin()


def their_advantage(batch: Batch, name: str, *, greedy: bool = False, **settings: Any) -> Tensor:
    """Per token; the reward stands on the last token of its response, as verl's reward managers write it.

    Where their remax has a hole in a response it leaves the bare reward; no loss ever reads that, so it is masked here.
    """
    last = batch.mask.long() * torch.arange(batch.mask.shape[1])
    rewards = torch.zeros_like(batch.logp)
    rewards[torch.arange(len(batch.reward)), last.argmax(-1)] = batch.reward
    uid = np.array([f"prompt {group}" for group in batch.group.tolist()], dtype=object)
    settings |= {"reward_baselines": greedy_score(batch)} if greedy else {}
    theirs = get_adv_estimator_fn(name)(token_level_rewards=rewards, response_mask=batch.mask.long(), index=uid, **settings)[0]
    return theirs * batch.mask if greedy else theirs


def our_advantage(batch: Batch, name: str, **knobs: Any) -> Tensor:
    inputs = AdvantageInputs(batch.reward, batch.group, length=batch.length, greedy_score=greedy_score(batch))
    return ADVANTAGES[name](inputs, {}, **knobs).advantage[:, None] * batch.mask


@pytest.mark.parametrize("name", ADVANTAGE_CASES)
def test_advantages(name: str) -> None:
    case = ADVANTAGE_CASES[name]
    for seed in SEEDS:
        batch = random_batch(seed, smallest_group=case.smallest_group)
        theirs = their_advantage(batch, case.theirs, greedy=case.greedy, **case.settings)
        agree(f"advantage {name}", our_advantage(batch, case.ours, **case.knobs), theirs)


def test_a_near_miss_advantage_is_told_apart() -> None:
    """Every other estimator, the population's standard deviation, the epsilon of another preset, another prompt's greedy score."""
    batch = random_batch(0)
    for name, case in ADVANTAGE_CASES.items():
        theirs = their_advantage(batch, case.theirs, greedy=case.greedy, **case.settings)
        for other, wrong in ADVANTAGE_CASES.items():
            assert other == name or difference(our_advantage(batch, wrong.ours, **wrong.knobs), theirs) > 1e-2, (name, other)
    theirs, centred = their_advantage(batch, "grpo"), our_advantage(batch, "dr-grpo", **VERL)
    squares = torch.zeros(6, dtype=torch.float64).index_add_(0, batch.group, centred[:, 0].square())
    population = (squares / torch.bincount(batch.group)).sqrt()[batch.group]
    assert difference(centred / (population[:, None] + 1e-6), theirs) > 1e-2
    assert difference(our_advantage(batch, "grpo", **VERL, epsilon=1e-4), theirs) > 1e-5
    next_prompt = batch._replace(group=(batch.group + 1) % 6)
    assert difference(our_advantage(next_prompt, "remax"), their_advantage(batch, "remax", greedy=True)) > 1e-2


class LossCase(NamedTuple):
    ours: str
    knobs: dict[str, Any]
    settings: dict[str, Any] = NOTHING
    policy_loss: dict[str, Any] = NOTHING
    aggregations: dict[str, str] = AGGREGATIONS


CLIP = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
OUR_CLIP = {"clip_low": 0.2, "clip_high": 0.28}
SEQUENCE_MEAN_ONLY = {"seq-mean-token-mean": "sequence-mean"}

LOSS_CASES = {
    "vanilla": LossCase("ppo-clip", {**OUR_CLIP, "dual_clip": 3.0}, {**CLIP, "clip_ratio_c": 3.0}),
    "gspo": LossCase("gspo", {"clip_low": 0.1, "clip_high": 0.15}, {"clip_ratio_low": 0.1, "clip_ratio_high": 0.15}),
    "sapo": LossCase("sapo", {"tau_positive": 1.0, "tau_negative": 1.3}, {"tau_pos": 1.0, "tau_neg": 1.3}, aggregations=SEQUENCE_MEAN_ONLY),
    "cispo": LossCase("cispo", OUR_CLIP, CLIP),
    "gpg": LossCase("policy-gradient", {}),
    # A share of 1 draws every candidate, so that verl's dice do not matter.
    "clip_cov": LossCase(
        "clip-cov",
        {**OUR_CLIP, "share": 1, "cov_low": 0.1, "cov_high": 1.5},
        CLIP,
        {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.1, "clip_cov_ub": 1.5},
    ),
    "kl_cov": LossCase("kl-cov", {"share": 0.2, "penalty": 0.7}, policy_loss={"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.7}),
}


def actor_config(batch: Batch, case: LossCase) -> ActorConfig:
    """With the normalisers of the whole step, as verl's workers hand them to a loss."""
    step = {
        "dp_size": 1,
        "batch_num_tokens": int(batch.mask.sum()),
        "global_batch_size": len(batch.group),
        "loss_scale_factor": CONSTANT_LENGTH,
    }
    return ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(**case.policy_loss),
        global_batch_info=step,
        **case.settings,
    )


def their_loss(
    name: str, batch: Batch, credit: Tensor, config: ActorConfig, *, mode: str, weights: Tensor | None = None, cuts: int = 1
) -> Loss:
    """`cuts` > 1 gives their function one micro-batch after another and adds up, as gradient accumulation does."""
    logp = batch.logp.clone().requires_grad_()
    value = torch.zeros((), dtype=torch.float64)
    for rows in torch.arange(len(batch.group)).chunk(cuts):
        value = (
            value
            + get_policy_loss_fn(name)(
                old_log_prob=batch.old_logp[rows],
                log_prob=logp[rows],
                advantages=credit[rows],
                response_mask=batch.mask[rows].long(),
                loss_agg_mode=mode,
                config=config,
                rollout_is_weights=None if weights is None else weights[rows],
            )[0]
        )
    return Loss(value.detach(), torch.autograd.grad(value, logp)[0])


def credits(batch: Batch) -> dict[str, Tensor]:
    return {"uniform": batch.uniform, "per token": batch.credit}


def our_side(case: LossCase, batch: Batch, credit: Tensor, aggregation: str, *, correction: Tensor | None = None, **changes: Any) -> Loss:
    objective = OBJECTIVES[case.ours](**{**case.knobs, **changes})
    objective = objective if correction is None else with_correction(objective)
    return our_loss(objective, batch, credit, aggregation=aggregation, constant_length=CONSTANT_LENGTH, correction=correction)


@pytest.mark.parametrize("name", LOSS_CASES)
def test_losses(name: str) -> None:
    case = LOSS_CASES[name]
    for seed in SEEDS:
        batch = random_batch(seed)
        for kind, credit in (("uniform", batch.uniform), ("per token", batch.credit)):
            for mode, aggregation in case.aggregations.items():
                theirs = their_loss(name, batch, credit, actor_config(batch, case), mode=mode)
                losses_agree(f"loss {name}, {kind} credit", our_side(case, batch, credit, aggregation), theirs)


@pytest.mark.parametrize("name", LOSS_CASES)
def test_a_near_miss_is_told_apart(name: str) -> None:
    """Every number halved, and another denominator, must show in some batch: else the comparison says nothing."""
    case = LOSS_CASES[name]
    batches = [random_batch(seed) for seed in SEEDS]
    for mode, aggregation in case.aggregations.items():
        theirs = [their_loss(name, batch, batch.credit, actor_config(batch, case), mode=mode) for batch in batches]
        for halved in halved_knobs(case.knobs):
            wrong = (our_side(case, batch, batch.credit, aggregation, **halved) for batch in batches)
            assert max(map(loss_difference, wrong, theirs)) > 1e-4, halved
        other = "sequence-mean" if aggregation == "token-mean" else "token-mean"
        assert min(map(loss_difference, (our_side(case, batch, batch.credit, other) for batch in batches), theirs)) > 1e-4


@pytest.mark.parametrize("name", ["vanilla", "gspo", "sapo", "cispo", "gpg"])
def test_their_micro_batches_add_up_to_our_step(name: str) -> None:
    """Losses without statistics of the step, whose cut changes nothing on either side."""
    case = LOSS_CASES[name]
    for seed in SEEDS:
        batch = random_batch(seed)
        for mode, aggregation in case.aggregations.items():
            theirs = their_loss(name, batch, batch.credit, actor_config(batch, case), mode=mode, cuts=3)
            losses_agree(f"loss {name} in micro-batches", our_side(case, batch, batch.credit, aggregation), theirs)


@pytest.mark.parametrize("name", LOSS_CASES)
def test_losses_with_correction(name: str) -> None:
    case = LOSS_CASES[name]
    for seed in SEEDS:
        batch = random_batch(seed)
        for kind in ("tis", "mis"):
            weights = correction_weight(batch.old_logp, batch.sampler_logp, batch.mask, kind=kind, cap=1.5, floor=0.4)
            for mode, aggregation in case.aggregations.items():
                ours = our_side(case, batch, batch.credit, aggregation, correction=weights)
                theirs = their_loss(name, batch, batch.credit, actor_config(batch, case), mode=mode, weights=weights)
                losses_agree(f"loss {name} with rollout weights", ours, theirs)


def test_gspo_sequence_form() -> None:
    """Theirs is the token form; over one response with uniform credit the sequence form is the same loss and gradient."""
    case = LOSS_CASES["gspo"]
    for seed in SEEDS:
        batch = random_batch(seed)
        theirs = their_loss("gspo", batch, batch.uniform, actor_config(batch, case), mode="seq-mean-token-mean")
        losses_agree("loss gspo, our sequence form", our_side(case, batch, batch.uniform, "sequence-mean", form="sequence"), theirs)


GEO_MEAN = LossCase("gmpo", {"clip_low": 0.3, "clip_high": 0.4, "form": "sequence"}, {"clip_ratio_low": 0.3, "clip_ratio_high": 0.4})


def their_geo_mean(batch: Batch, weights: Tensor | None = None) -> Loss:
    """Always a mean over responses; credit is uniform because verl averages it over each."""
    return their_loss("geo_mean", batch, batch.uniform, actor_config(batch, GEO_MEAN), mode="seq-mean-token-mean", weights=weights)


def test_geo_mean() -> None:
    for seed in SEEDS:
        batch = random_batch(seed)
        theirs = their_geo_mean(batch)
        losses_agree("loss geo_mean, our sequence form", our_side(GEO_MEAN, batch, batch.uniform, "sequence-mean"), theirs)
        token_form = our_side(GEO_MEAN, batch, batch.uniform, "sequence-mean", form="token")
        gradients_agree("gradient geo_mean, our token form", token_form, theirs)
        # Weights of tokens enter verl's loss by their geometric mean; where a response has one weight both mean the same.
        weights = correction_weight(batch.old_logp, batch.sampler_logp, batch.mask, kind="tis", level="sequence")
        ours = our_side(GEO_MEAN, batch, batch.uniform, "sequence-mean", correction=weights)
        losses_agree("loss geo_mean with rollout weights", ours, their_geo_mean(batch, weights))


def test_a_near_miss_geo_mean_is_told_apart() -> None:
    batches = [random_batch(seed) for seed in SEEDS]
    for halved in halved_knobs(GEO_MEAN.knobs):
        wrong = (our_side(GEO_MEAN, batch, batch.uniform, "sequence-mean", **halved) for batch in batches)
        assert max(map(loss_difference, wrong, map(their_geo_mean, batches))) > 1e-4


def test_clip_cov_draws_as_many() -> None:
    """Where only some candidates are drawn the draw is each side's own; how many tokens go silent is not."""
    knobs = {**OUR_CLIP, "share": 0.1, "cov_low": -0.2, "cov_high": 2.0}
    case = LossCase("clip-cov", knobs, CLIP, {"clip_cov_ratio": 0.1, "clip_cov_lb": -0.2, "clip_cov_ub": 2.0})
    clip_alone = LossCase("ppo-clip", OUR_CLIP)
    for seed in SEEDS:
        torch.manual_seed(seed)
        batch = random_batch(seed)
        theirs = their_loss("clip_cov", batch, batch.credit, actor_config(batch, case), mode="token-mean")
        ours = our_side(case, batch, batch.credit, "token-mean")
        heard = our_side(clip_alone, batch, batch.credit, "token-mean").gradient != 0
        drawn_by_them, drawn_by_us = (int(((loss.gradient == 0) & heard).sum()) for loss in (theirs, ours))
        assert drawn_by_us == drawn_by_them == max(1, int(0.1 * int(batch.mask.sum())))


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_aggregation(mode: str) -> None:
    """Of any token losses. A response without tokens counts for us; for verl too, once it is told the size of the step."""
    for seed in SEEDS:
        batch = random_batch(seed)
        mask = batch.mask
        theirs = agg_loss(
            batch.credit,
            mask.long(),
            mode,
            batch_num_tokens=int(mask.sum()),
            global_batch_size=len(mask),
            loss_scale_factor=CONSTANT_LENGTH,
        )
        aggregation, length = AGGREGATIONS[mode], mask.sum(-1)
        denominator = step_denominator(length.tolist(), aggregation=aggregation, constant_length=CONSTANT_LENGTH)
        ours = (token_weight(mask, length.double(), aggregation=aggregation) * batch.credit).sum() / denominator
        agree(f"aggregation {mode}", ours, theirs)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_correction_weights(level: str) -> None:
    """verl: one bound truncates, two bounds drop what lies outside. Ratios beyond exp(+-20) included."""
    for seed in SEEDS:
        batch = random_batch(seed)
        batch.sampler_logp[0] -= 30.0
        batch.sampler_logp[1] += 30.0
        theirs = {
            kind: compute_rollout_correction_weights(
                batch.old_logp - batch.sampler_logp, batch.mask.long(), rollout_is=level, rollout_is_threshold=bounds
            )[0]
            for kind, bounds in (("tis", 1.4), ("mis", "0.6_1.4"), ("untruncated", 1e12))
        }
        sides = (batch.old_logp, batch.sampler_logp, batch.mask)
        agree(f"correction {level}, truncated", correction_weight(*sides, kind="tis", level=level, cap=1.4), theirs["tis"])
        agree(f"correction {level}, dropped", correction_weight(*sides, kind="mis", level=level, cap=1.4, floor=0.6), theirs["mis"])
        agree(f"correction {level}, untruncated", correction_weight(*sides, kind="tis", level=level, cap=1e12), theirs["untruncated"])
        assert difference(correction_weight(*sides, kind="tis", level=level, cap=1.5), theirs["tis"]) > 1e-2


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_estimators(estimator: str) -> None:
    """Theirs bounds a token's k3 by 10; no token here comes near."""
    for seed in SEEDS:
        batch = random_batch(seed)
        logp = batch.logp.clone().requires_grad_()
        ours, theirs = kl_estimate(logp, batch.reference_logp, kind=estimator), kl_penalty(logp, batch.reference_logp, estimator)
        agree(f"kl {estimator}", ours.detach(), theirs.detach())
        agree(f"kl {estimator}", torch.autograd.grad(ours.sum(), logp)[0], torch.autograd.grad(theirs.sum(), logp)[0])


def verls_writer() -> Callable[..., None]:
    """The function that dumps generations, taken from the trainer's source: its module would load Ray and a rollout server."""
    source = Path(str(importlib.util.find_spec("verl.trainer.ppo").origin)).with_name("ray_trainer.py").read_text()
    trainer = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "RayPPOTrainer")
    writer = next(node for node in trainer.body if isinstance(node, ast.FunctionDef) and node.name == "_write_generations")
    writer.decorator_list = []
    names: dict[str, Any] = {"os": os, "json": json}
    exec(compile(ast.Module([writer], []), "ray_trainer.py", "exec"), names)
    return names["_write_generations"]


def test_generations_that_verl_dumps_are_read(tmp_path: Path) -> None:
    prompts, responses = ["user\n1+1", "user\n1+1", "é\u2028"], ["2", "", 'x\r\n"🙂"']
    scores, extras = [1.0, float("nan"), 0.5], {"acc": [True, False, True], "short": [1]}
    verls_writer()(prompts, responses, ["2", ["2", "two"], None], scores, extras, str(tmp_path), 7)
    loaded = load(tmp_path / "7.jsonl")
    assert (format_of(loaded), loaded.step) == ("verl", 7)
    rows = convert_rows(loaded, "verl").rows
    assert [(row["prompt"], row["response"]) for row in rows] == list(zip(prompts, responses, strict=True))
    assert [row["answer"] for row in rows] == ["2", '["2", "two"]', None]
    assert [row["score"] for row in rows[::2]] == [1.0, 0.5]
    assert rows[1]["score"] != rows[1]["score"]

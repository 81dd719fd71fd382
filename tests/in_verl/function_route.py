"""A batch sent through verl's tables as verl's trainer and worker send it, and through our stages as the local engine does."""

from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig
from verl.workers.utils.losses import ppo_loss

from tokencredit.config import Recipe
from tokencredit.config.recipes import RECIPES
from tokencredit.integrations.support import AGGREGATIONS, PREFIX
from tokencredit.objective.kappa import token_kappa
from tokencredit.pipeline.credit import BatchEvidence, CreditPipeline
from tokencredit.pipeline.microbatch import gather_rows
from tokencredit.types import Rollouts, TokenScores

LIMIT = 9
"""Longest response, in tokens."""
ROWS = 24


class Rows(NamedTuple):
    """One entry per response, padded on the right."""

    uid: list[str]
    prompt_length: list[int]
    length: list[int]
    mask: Tensor
    """Of the tokens in the loss: tool output inside a response is not."""
    reward: Tensor
    old_logp: Tensor
    logp: Tensor

    def taken(self, rows: list[int]) -> "Rows":
        return Rows(*([column[row] for row in rows] if isinstance(column, list) else column[rows] for column in self))


def random_rows(seed: int = 0) -> Rows:
    """Uneven lengths, holes, a group all right, a group all wrong, an ungraded response; ratios on either side of every clip."""
    generator = torch.Generator().manual_seed(seed)
    group_size, count = 6, ROWS
    length = torch.randint(2, LIMIT + 1, (count,), generator=generator)
    place = torch.arange(LIMIT)
    mask = (place < length[:, None]) & ~((torch.arange(count)[:, None] % 3 == 0) & (place == 1))
    reward = torch.randint(0, 2, (count,), generator=generator).float()
    reward[:group_size], reward[group_size : 2 * group_size] = 1.0, 0.0
    reward[2 * group_size : 3 * group_size] = torch.tensor([1.0, torch.nan, 0.0, 0.0, 0.0, 0.0])
    reward[3 * group_size : 3 * group_size + 2] = torch.tensor([1.0, 0.0])
    old_logp = -3 * torch.rand(count, LIMIT, generator=generator)
    logp = (old_logp + 0.4 * torch.randn(count, LIMIT, generator=generator)).clamp(max=-1e-3)
    return Rows(
        uid=[f"prompt {row // group_size}" for row in range(count)],
        prompt_length=torch.randint(1, 5, (count,), generator=generator).tolist(),
        length=length.tolist(),
        mask=mask,
        reward=reward,
        old_logp=old_logp,
        logp=logp,
    )


def filling_rows(count: int) -> Rows:
    """As verl makes them to fill up a batch: one token that is not in the loss, under a name of their own."""
    nothing = torch.zeros(count, LIMIT)
    return Rows(["padfeed"] * count, [5] * count, [1] * count, nothing.bool(), nothing[:, 0], nothing, nothing)


def joined_rows(one: Rows, other: Rows) -> Rows:
    return Rows(*(a + b if isinstance(a, list) else torch.cat([a, b]) for a, b in zip(one, other, strict=True)))


def advantages_in_verl(rows: Rows, name: str) -> Tensor:
    """Per token, through the function of verl's trainer that calls estimators; the reward stands on the last token."""
    rewards = torch.zeros(len(rows.uid), LIMIT)
    rewards[torch.arange(len(rows.uid)), torch.tensor(rows.length) - 1] = rows.reward
    data = DataProto(batch=TensorDict({"response_mask": rows.mask.long(), "token_level_rewards": rewards}, batch_size=len(rows.uid)))
    data.non_tensor_batch["uid"] = np.array(rows.uid, dtype=object)
    keys = [f"{uid}_{row}_0" for row, uid in enumerate(rows.uid)]
    config = AlgoConfig(adv_estimator=name)
    done = compute_advantage_for_multi_trajectories(data, batch_keys=keys, adv_estimator=name, config=config)
    assert torch.equal(done.batch["advantages"], done.batch["returns"])
    return done.batch["advantages"]


def actor_config(name: str, **changes: Any) -> ActorConfig:
    """With a registered recipe as the policy loss, set as the recipe asks for."""
    aggregation = RECIPES[name.removeprefix(PREFIX)].recipe.objective.aggregation
    settings = {
        "loss_agg_mode": AGGREGATIONS[aggregation],
        "loss_scale_factor": LIMIT if aggregation == "constant" else None,
        "policy_loss": PolicyLossConfig(loss_mode=name),
    }
    return ActorConfig(strategy="fsdp2", rollout_n=4, ppo_micro_batch_size_per_gpu=1, **{**settings, **changes})


class LossInVerl(NamedTuple):
    loss: float
    gradient: Tensor
    """By the log-prob of each token."""
    metrics: list[dict[str, Any]]
    """Of each micro-batch."""


def loss_in_verl(
    rows: Rows, advantages: Tensor, config: ActorConfig, shares: list[list[list[int]]], *, weights: Tensor | None = None
) -> LossInVerl:
    """A mini-batch whose `shares[rank][micro_batch]` hold its rows; gradients are averaged over ranks, as FSDP does."""
    dealt = [row for share in shares for micro_batch in share for row in micro_batch]
    assert sorted(dealt) == list(range(len(rows.uid)))
    leaf = rows.logp.clone().requires_grad_()
    total, metrics = torch.zeros(()), []
    for micro_batch in (micro_batch for share in shares for micro_batch in share):
        given = [(row, rows.prompt_length[row], rows.length[row]) for row in micro_batch]

        def ragged(value: Tensor, given: list[tuple[int, int, int]] = given) -> Tensor:
            return torch.nested.as_nested_tensor([value[row, :length] for row, _, length in given], layout=torch.jagged)

        fields = {
            "prompts": torch.nested.as_nested_tensor([torch.ones(prompt) for _, prompt, _ in given], layout=torch.jagged),
            "responses": ragged(torch.ones_like(rows.logp)),
            "response_mask": ragged(rows.mask.long()),
            "old_log_probs": ragged(rows.old_logp),
            "advantages": ragged(advantages),
        }
        fields |= {} if weights is None else {"rollout_is_weights": ragged(weights)}
        counts = {"dp_size": len(shares), "batch_num_tokens": int(rows.mask.sum()), "global_batch_size": len(rows.uid)}
        data = tu.get_tensordict(fields, counts)
        # One entry per position of prompt and response, at the one that predicts.
        log_probs = torch.cat(
            [torch.cat([torch.full((prompt - 1,), -7.0), leaf[row, :length], torch.full((1,), -7.0)]) for row, prompt, length in given]
        )
        loss, told = ppo_loss(config, {"log_probs": log_probs}, data)
        total = total + loss
        metrics.append(told)
    total = total / len(shares)
    return LossInVerl(float(total.detach()), torch.autograd.grad(total, leaf)[0], metrics)


class Locally(NamedTuple):
    advantage: Tensor
    loss: float
    kappa: Tensor
    silenced_share: float


def locally(rows: Rows, recipe: Recipe) -> Locally:
    """The stages over all rows as one optimizer step; rows of a prompt lie side by side."""
    pipeline = CreditPipeline(recipe, max_new_tokens=LIMIT, temperature=1.0)
    rollouts = Rollouts(
        prompts=tuple((0,) * length for length in rows.prompt_length),
        tokens=torch.zeros_like(rows.mask, dtype=torch.long),
        mask=rows.mask,
        group=torch.tensor([int(uid.split()[-1]) for uid in rows.uid]),
        behavior_logp=rows.old_logp.where(rows.mask, 0.0),
        finished=torch.ones(len(rows.uid), dtype=torch.bool),
    )
    old_logp = rows.old_logp.where(rows.mask, 0.0)
    evidence = BatchEvidence(TokenScores(old_logp, torch.zeros_like(old_logp), None))
    credited, _ = pipeline.credit(rollouts, rows.reward, evidence, seed=0)
    (step,) = pipeline.plan(credited, optimizer_steps=1, max_tokens=10**6, cost=[1] * len(rows.uid), seed=0).steps
    batch = gather_rows(credited, step, torch.arange(len(rows.uid)), pipeline.objective, width=LIMIT, seed=0)
    inputs = batch.inputs._replace(logp=rows.logp.where(rows.mask, 0.0))
    kappa, loss = token_kappa(pipeline.objective.objective, inputs, None, batch.weight, denominator=batch.denominator)
    has_credit = (inputs.credit != 0) & inputs.mask
    silenced = (has_credit & (kappa == 0)).sum() / has_credit.sum()
    return Locally(credited.advantage, float(loss), kappa, float(silenced))

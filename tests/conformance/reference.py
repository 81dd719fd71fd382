"""What the local engine makes of the stored rollouts: its stages and its optimizer steps, with plain SGD."""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch

from conformance.cases import CASES, Case
from conformance.outcome import Outcome, batch_outcome, flat_gradient, flat_weights
from conformance.stored import BASE, GROUP_SIZE, LIMIT, StoredBatch, stored_batches
from tokencredit.config.resolve import resolve
from tokencredit.config.train import TrainConfig
from tokencredit.forward.modes import ForwardOptions
from tokencredit.forward.padded import row_cost
from tokencredit.optim.update import UpdateOptions, run_plan
from tokencredit.pipeline.credit import BatchEvidence, MethodState
from tokencredit.policy.policy import load_policy
from tokencredit.rollout.scoring import credit_pipeline, model_facts, score_tokens
from tokencredit.seeds import derive_seed
from tokencredit.types import Rollouts, StepResult

SEED = 7
"""Of the run: engines that count batches alike draw alike."""


class Reference(NamedTuple):
    outcome: Outcome
    results: tuple[StepResult, ...]
    """One for every pass over a batch."""


def _config(case: Case) -> TrainConfig:
    sampling = {"prompts": case.groups, "group_size": GROUP_SIZE, "max_new_tokens": LIMIT, "temperature": case.temperature}
    run = {"sampling": sampling, "optimizer": {"steps_per_batch": case.optimizer_steps}, "seed": SEED}
    return resolve([dict(case.recipe), run])


def batches_of(case: Case) -> tuple[StoredBatch, ...]:
    return stored_batches(groups=case.groups, tools=case.tools)


def _rollouts(case: Case, batch: StoredBatch) -> Rollouts:
    rollouts = batch.rollouts(other_sampler=case.other_sampler)
    return replace(rollouts, mask=rollouts.mask & rollouts.finished[:, None]) if case.without_cut else rollouts


def run_case(case: Case) -> Reference:
    config = _config(case)
    pipeline = credit_pipeline(config)
    policy, first = (load_policy(BASE, device=torch.device("cpu"), dtype="float32") for _ in range(2))
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=case.learning_rate)
    state, made, results, gradients = MethodState(), [], [], []

    def watch(number: int, norm: float) -> None:
        gradients.append(flat_gradient(policy.model))

    for number, batch in enumerate(batches_of(case)):
        rollouts = _rollouts(case, batch)
        evidence = score_tokens(config, policy.model, rollouts, keep_hidden=pipeline.keeps_hidden)
        with_kl = config.kl.beta > 0
        reference = score_tokens(config, first.model, rollouts, keep_hidden=False).logp if with_kl else None
        known = BatchEvidence(evidence, reference, model=model_facts(policy))
        seed = derive_seed(SEED, "credit", number)
        credited, state = pipeline.credit(rollouts, torch.tensor(batch.score), known, state, seed=seed)
        cost = row_cost(rollouts)
        plan = pipeline.plan(
            credited,
            optimizer_steps=case.optimizer_steps,
            max_tokens=max(cost) * len(cost),
            cost=cost,
            seed=derive_seed(SEED, "plan", number),
        )
        made.append(batch_outcome(credited, plan))
        for _ in range(case.iterations):
            results.append(
                run_plan(
                    policy,
                    credited,
                    plan,
                    pipeline.objective,
                    optimizer,
                    UpdateOptions(ForwardOptions(temperature=case.temperature), float("inf"), derive_seed(SEED, "objective", number)),
                    after_step=watch,
                )
            )
    losses = tuple(loss for result in results for loss in result.loss)
    return Reference(Outcome(tuple(made), losses, torch.stack(gradients), flat_weights(policy.model)), tuple(results))


@lru_cache
def reference(name: str) -> Reference:
    return run_case(CASES[name])

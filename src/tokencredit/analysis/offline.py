"""Credit for rollouts that another trainer sampled: the same stages as in training, started without memory.

Credit of stored rollouts as a table: one row per sampled token, in the columns of a run's token files.

One training step on rollouts of another trainer, under the microscope.

The other trainer's optimizer is not known, so the step is ours: the recipe's credit and objective, a fresh AdamW.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokencredit.config.recipes import RECIPES
from tokencredit.config.resolve import overlay, resolve
from tokencredit.config.train import Optimizer, TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.forward.modes import choose_forward_mode
from tokencredit.forward.padded import row_cost
from tokencredit.optim.optimizer import make_optimizer
from tokencredit.pipeline.build import sampled_evidence, why_needed
from tokencredit.pipeline.credit import BatchEvidence, CreditPipeline, MethodState, TokenCredit, scores_without_entropy
from tokencredit.policy.lora import add_adapters
from tokencredit.policy.policy import Policy
from tokencredit.rollout.collect import CollectedBatch
from tokencredit.rollout.scoring import check_budget, credit_pipeline, model_facts, plan_steps, score_tokens
from tokencredit.rollout_io.read import StoredRollouts
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Problem
from tokencredit.trainer.step import StepState, update_policy
from tokencredit.trainer.token_table import TokenLabels
from tokencredit.types import Credited, Rollouts, TokenScores


class OfflineBatch(NamedTuple):
    credited: Credited
    evidence: TokenScores
    pipeline: CreditPipeline


def offline_config(stored: StoredRollouts, layers: Sequence[Mapping[str, Any]]) -> TrainConfig:
    """The layers, with prompts and group size from the data, and what they leave open fitted to it.

    The length limit is the layers', which must hold for the data, or else the longest response. Where no response was cut
    that is a guess, so a recipe's overlong penalty, which goes by it, is left out (`offline_notes` says so).
    """
    rollouts = stored.rollouts
    sizes = torch.bincount(rollouts.group)
    longest = int(rollouts.mask.sum(-1).max())
    asked: dict[str, Any] = {}
    for layer in layers:
        asked = overlay(asked, layer)
    named = asked.get("sampling", {}).get("max_new_tokens")
    limit = longest if named is None else named
    if isinstance(limit, int) and limit < longest:
        raise ConfigError(f"sampling.max_new_tokens is {limit} but a response in the file has {longest} tokens; give at least that")
    measured: dict[str, Any] = {"sampling": {"prompts": len(sizes), "group_size": int(sizes.max()), "max_new_tokens": limit}}
    budget = max(Optimizer().max_tokens, max(row_cost(rollouts)), limit + 1 if isinstance(limit, int) else 0)

    def fitted(steps: int) -> TrainConfig:
        return resolve([{"optimizer": {"steps_per_batch": steps, "max_tokens": budget}}, asked, measured])

    chosen = fitted(1)
    if chosen.shape.reads_length_limit and named is None and bool(rollouts.finished.all()):
        if "shape" in asked:
            raise ConfigError(
                f"{chosen.shape.label} {chosen.shape.reads_length_limit}, but no response in the file was cut; set sampling.max_new_tokens"
            )
        measured["shape"] = {"type": "none"}
    parts = len(sizes) if chosen.batching.deals_prompts else len(rollouts.prompts)
    parts = int(sizes.max()) if chosen.batching.spreads_prompts else parts
    return fitted(min(Optimizer().steps_per_batch, parts))


def offline_notes(config: TrainConfig) -> tuple[str, ...]:
    """What `offline_config` left out of a recipe, in words."""
    if not RECIPES[config.recipe].recipe.shape.reads_length_limit or config.shape.changes_reward:
        return ()
    return (
        f"the overlong penalty of recipe {config.recipe!r} is left out: the length limit is not known where no response was cut; "
        "name it as sampling.max_new_tokens in a config file",
    )


def credit_stored(policy: Policy, stored: StoredRollouts, config: TrainConfig) -> OfflineBatch:
    """Score every token with the policy, then reward, advantage and credit as in training, ready for `pipeline.plan`.

    Without sampler log-probs in the file the policy's own take their place: rollouts are taken to be on-policy.
    """
    check_offline(config, stored)
    pipeline = credit_pipeline(config)
    rollouts = _moved(stored.rollouts, policy.device)
    if not stored.logp_known:
        # Unknown is not unscored: every token takes part, so every token's hidden state is kept.
        rollouts = replace(rollouts, behavior_logp=torch.zeros_like(rollouts.behavior_logp))
    check_budget(config, rollouts)
    evidence = score_tokens(config, policy.model, rollouts, keep_hidden=pipeline.keeps_hidden)
    if not stored.logp_known:
        rollouts = replace(rollouts, behavior_logp=evidence.logp)
    known = BatchEvidence(evidence, model=model_facts(policy))
    credited, _ = pipeline.credit(rollouts, stored.score.to(evidence.logp), known, seed=_seed(config, stored))
    return OfflineBatch(credited, evidence, pipeline)


def credit_without_model(stored: StoredRollouts, config: TrainConfig) -> TokenCredit:
    """Reward, advantage and credit from scores, tokens and sampler log-probs alone, for recipes that need no more."""
    check_offline(config, stored)
    if not stored.logp_known:
        raise ConfigError("the file has no logp, so a model must score its tokens; give --model DIR")
    if (why := why_a_model(config)) is not None:
        raise ConfigError(f"{why}; give --model DIR")
    pipeline, rollouts = credit_pipeline(config), stored.rollouts
    logp = rollouts.behavior_logp.where(rollouts.loss_mask, 0.0)
    evidence = BatchEvidence(scores_without_entropy(logp))
    scored = pipeline.shape_reward(rollouts, stored.score, evidence)
    return pipeline.credit_tokens(scored, evidence, seed=_seed(config, stored))


def why_a_model(config: TrainConfig) -> str | None:
    """Why credit cannot be assigned without a model, or None."""
    for choice in (config.credit, config.advantage):
        in_a_pass = [choice.needs[need] for need in ("hidden", "entropy") if need in choice.needs]
        if (use := in_a_pass[0] if in_a_pass else choice.needs_model) is not None:
            return f"{choice.label} {use}"
    return "correction compares the model's log-probs with the sampler's" if config.correction.enabled else None


def check_offline(config: TrainConfig, stored: StoredRollouts) -> None:
    """Refuse what a file of rollouts cannot give."""
    for need in sorted(sampled_evidence(config)):
        raise ConfigError(
            f"recipe {config.recipe!r} {why_needed(config)[need]}, so it cannot credit rollouts from a file; use it in training"
        )
    if config.kl.beta > 0:
        raise ConfigError(f"kl.beta is {config.kl.beta:g} but a rollout file comes without a reference policy; set kl.beta to 0")
    if config.correction.enabled and not stored.logp_known:
        raise ConfigError(
            f"correction.kind is {config.correction.kind!r} but the file has no logp of the sampler to correct for; use 'none'"
        )


def _seed(config: TrainConfig, stored: StoredRollouts) -> int:
    """That of the training step, counted from 1 in a run's files."""
    return derive_seed(config.seed, "credit", (stored.step or 1) - 1)


def _moved(rollouts: Rollouts, device: torch.device) -> Rollouts:
    tensors = {name: getattr(rollouts, name).to(device) for name in ("tokens", "mask", "group", "behavior_logp", "finished")}
    return replace(rollouts, **tensors)


GIVEN_ADVANTAGE = "given_advantage"
"""Beside record.TOKEN_COLUMNS: the advantage that the file brought along."""


def stored_texts(policy: Policy, stored: StoredRollouts) -> list[str]:
    """Of every sampled token, row after row."""
    tokens, mask = stored.rollouts.tokens, stored.rollouts.mask
    return [piece for row in range(len(mask)) for piece in policy.pieces(tokens[row][mask[row]].tolist())]


def offline_columns(stored: StoredRollouts, found: Credited | TokenCredit, policy: Policy | None) -> dict[str, list[Any]]:
    """None where something is not known: what only a task can tell, and without a model what only a model can tell."""
    scored = found.scored
    rollouts = stored.rollouts
    mask = rollouts.mask
    row, position = (index.tolist() for index in mask.nonzero(as_tuple=True))
    nothing: list[Any] = [None] * len(row)

    def per_token(value: Tensor | None) -> list[Any]:
        return nothing if value is None else value.cpu()[mask].double().tolist()

    def per_response(value: Tensor | None) -> list[Any]:
        return nothing if value is None else value.cpu().double()[row].tolist()

    classes = stored.token_class
    ids = rollouts.tokens[mask].tolist()
    return {
        "step": [stored.step] * len(row),
        "row": row,
        "group": rollouts.group[row].tolist(),
        "position": position,
        "prompt": [stored.prompts[index] for index in row],
        "text": nothing if policy is None else stored_texts(policy, stored),
        "token_class": nothing if classes is None else [name for names in classes for name in names],
        "step_right": nothing,
        "token_id": ids,
        "logp": per_token(found.old_logp if isinstance(found, Credited) else None),
        "behavior_logp": per_token(rollouts.behavior_logp if stored.logp_known else None),
        "entropy": per_token(found.entropy if isinstance(found, Credited) else None),
        "score": per_response(scored.score),
        "reward": per_response(scored.reward),
        "advantage": per_response(found.advantage),
        "coefficient": per_token(found.coefficient),
        "credit": per_token(found.credit),
        "optimizer_step": nothing,
        GIVEN_ADVANTAGE: per_response(stored.advantage),
    }


def train_once(policy: Policy, stored: StoredRollouts, config: TrainConfig) -> StepState:
    """One observed training step on stored rollouts; it changes the policy, as training would."""
    credited, _, pipeline = credit_stored(policy, stored, config)
    mode = choose_forward_mode(config, policy.model)
    plan = plan_steps(pipeline, config, credited, seed=derive_seed(config.seed, "plan", 0), packed=mode.packed)
    if not plan.steps:
        raise ConfigError(f"recipe {config.recipe!r} plans no optimizer step for these rollouts; there is no update to look at")
    add_adapters(policy.model, config.lora, seed=config.seed)
    optimizer = make_optimizer(config, policy.model)
    by_group = dict(zip(stored.rollouts.group.tolist(), stored.prompts, strict=True))
    problems = [Problem(prompt=by_group[group] or "", answer="") for group in range(len(by_group))]
    score, count = credited.scored.score, len(credited.scored.score)
    collected = CollectedBatch(problems, credited.rollouts, score, TokenScores(credited.old_logp, credited.entropy, None), count, count)
    batch = StepState(number=0, observe=True, collected=collected, credited=credited, plan=plan, method_state=MethodState())
    update_policy(policy, optimizer, batch, pipeline.objective, config, mode=mode)
    return batch


def stored_labels(policy: Policy, stored: StoredRollouts) -> TokenLabels:
    text = stored_texts(policy, stored)
    classes = ["token"] * len(text) if stored.token_class is None else [name for names in stored.token_class for name in names]
    return TokenLabels(text, classes, [None] * len(text))

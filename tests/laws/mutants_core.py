"""Wrong versions of advantages, objectives and plans, each a mistake somebody has made, and how a law meets them."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tokencredit.advantage import group_advantage
from tokencredit.batching import make_plan, step_denominator
from tokencredit.masked import group_statistics
from tokencredit.objective import clipped_surrogate, kl_estimate, token_weight

Law = Callable[..., None]


def for_all(*strategies: st.SearchStrategy) -> Callable[[Callable[..., None]], Law]:
    """Make `statement(implementation, *example)` a law: `law(implementation)` searches for an example that breaks it."""

    def decorate(statement: Callable[..., None]) -> Law:
        @wraps(statement)
        def law(implementation: Any, *, shrink: bool = True) -> None:
            # A mutant is searched for longer: examples vary with what else is imported, and one rare example must still be met.
            patience = {} if shrink else {"max_examples": 400}

            @settings(phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate], report_multiple_bugs=False, **patience)
            @given(st.tuples(*strategies))
            def search(example: tuple) -> None:
                statement(implementation, *example)

            search()

        return law

    return decorate


# --- advantage: (reward, group, *, kind, preset)


def population_std(reward, group, **choice):
    graded = group_statistics(reward, group).graded
    wider = (graded / (graded - 1).clamp(min=1)).sqrt() if choice["kind"] == "grpo" else 1.0
    return group_advantage(reward, group, **choice) * wider


def bare_std(reward, group, **choice):
    _, mean, std = group_statistics(reward, group)
    return (reward - mean) / std


def ungraded_counts_as_zero(reward, group, **choice):
    return group_advantage(reward.nan_to_num(), group, **choice) * ~reward.isnan()


def ungraded_left_out(reward, group, *, kind, preset):
    return group_advantage(reward, group, kind=kind, preset="tokencredit")


def lone_response_keeps_reward(reward, group, **choice):
    return torch.where(group_statistics(reward, group).graded == 1, reward.nan_to_num(), group_advantage(reward, group, **choice))


def global_mean(reward, group, **choice):
    return group_advantage(reward, torch.zeros_like(group), **choice)


def contiguous_groups_only(reward, group, **choice):
    return group_advantage(reward, (group.diff(prepend=group[:1]) != 0).cumsum(0), **choice)


def group_id_as_index(reward, group, **choice):
    return group_advantage(reward, group % len(group), **choice)


def uncentred(reward, group, **choice):
    return group_advantage(reward, group, **choice) + group_statistics(reward, group).mean * ~reward.isnan()


def clipped_reward(reward, group, **choice):
    return group_advantage(reward.clamp(-1, 1), group, **choice)


def only_the_better_half(reward, group, **choice):
    return group_advantage(reward, group, **choice).clamp(min=0)


def baseline_with_own_reward(reward, group, *, kind, preset):
    return group_advantage(reward, group, kind="dr-grpo" if kind == "rloo" else kind, preset=preset)


# --- clipped surrogate: (logp, old_logp, credit, *, clip_low, clip_high, dual_clip)


def _pessimistic(ratio: Tensor, credit: Tensor, low: float, high: float) -> Tensor:
    return torch.minimum(ratio * credit, ratio.clamp(low, high) * credit)


def unclipped(logp, old_logp, credit, **widths):
    return (logp - old_logp).exp() * credit


def maximum_for_minimum(logp, old_logp, credit, *, clip_low, clip_high, dual_clip=None):
    ratio = (logp - old_logp).exp()
    return torch.maximum(ratio * credit, ratio.clamp(1 - clip_low, 1 + clip_high) * credit)


def wrong_sign_of_width(logp, old_logp, credit, *, clip_low, clip_high, dual_clip=None):
    return _pessimistic((logp - old_logp).exp(), credit, 1 + clip_low, 1 + clip_low + clip_high)


def swapped_widths(logp, old_logp, credit, *, clip_low, clip_high, dual_clip=None):
    return clipped_surrogate(logp, old_logp, credit, clip_low=clip_high, clip_high=clip_low, dual_clip=dual_clip)


def lower_side_in_log_space(logp, old_logp, credit, *, clip_low, clip_high, dual_clip=None):
    return _pessimistic((logp - old_logp).exp(), credit, 1 / (1 + clip_low), 1 + clip_high)


def inverted_ratio(logp, old_logp, credit, *, clip_low, clip_high, dual_clip=None):
    return _pessimistic((old_logp - logp).exp(), credit, 1 - clip_low, 1 + clip_high)


def half_clipped(logp, old_logp, credit, **widths):
    return (clipped_surrogate(logp, old_logp, credit, **widths) + unclipped(logp, old_logp, credit)) / 2


def mean_ratio_over_the_width(logp, old_logp, credit, **widths):
    return clipped_surrogate((logp - old_logp).mean(-1, keepdim=True).expand_as(logp), torch.zeros_like(logp), credit, **widths)


def whitened_credit(logp, old_logp, credit, **widths):
    return clipped_surrogate(logp, old_logp, credit / (credit.abs().max() + 1e-6), **widths)


def dual_clip_ignored(logp, old_logp, credit, *, clip_low, clip_high, dual_clip=None):
    return clipped_surrogate(logp, old_logp, credit, clip_low=clip_low, clip_high=clip_high)


def dual_clip_on_positive_credit(logp, old_logp, credit, *, clip_low, clip_high, dual_clip=None):
    surrogate = clipped_surrogate(logp, old_logp, credit, clip_low=clip_low, clip_high=clip_high)
    return surrogate if dual_clip is None else torch.maximum(surrogate, dual_clip * credit)


# --- KL: (logp, reference_logp, *, kind)


def reversed_kl(logp, reference_logp, *, kind):
    return kl_estimate(reference_logp, logp, kind=kind)


def k2_without_half(logp, reference_logp, *, kind):
    return kl_estimate(logp, reference_logp, kind=kind) * (2 if kind == "k2" else 1)


def k3_without_log_ratio(logp, reference_logp, *, kind):
    return (reference_logp - logp).exp() - 1 if kind == "k3" else kl_estimate(logp, reference_logp, kind=kind)


# --- aggregation: (token_loss, mask, *, aggregation, constant_length) -> the loss of one optimizer step


def aggregate(token_loss, mask, *, aggregation, constant_length, weight=token_weight, denominator=step_denominator):
    """The real one: weights and denominator put together as every engine does."""
    length = mask.sum(-1)
    weights = weight(mask, length.to(token_loss.dtype), aggregation=aggregation)
    return (weights * token_loss).sum() / denominator(length.tolist(), aggregation=aggregation, constant_length=constant_length)


def padded_width_for_length(token_loss, mask, **choice):
    return aggregate(
        token_loss, mask, **choice, weight=lambda mask, _, **kind: token_weight(mask, mask.sum(-1) * 0.0 + mask.shape[1], **kind)
    )


def padding_weighs(token_loss, mask, **choice):
    return aggregate(token_loss, mask, **choice, weight=lambda mask, *rest, **kind: token_weight(torch.ones_like(mask), *rest, **kind))


def every_row_as_long_as_the_longest(token_loss, mask, **choice):
    return aggregate(
        token_loss, mask, **choice, denominator=lambda lengths, **kind: step_denominator([max(lengths)] * len(lengths), **kind)
    )


def constant_not_per_response(token_loss, mask, **choice):
    return aggregate(token_loss, mask, **choice, denominator=lambda lengths, **kind: step_denominator([sum(lengths)], **kind))


# --- plan: (lengths, group, *, kind, optimizer_steps, max_tokens, seed, aggregation, constant_length, cost)


def _with_steps(plan, change):
    return replace(plan, steps=tuple(change(step) for step in plan.steps))


def drops_the_last_micro_batch(lengths, group, **choice):
    return _with_steps(make_plan(lengths, group, **choice), lambda step: replace(step, micro_batches=step.micro_batches[:-1]))


def splits_a_group(lengths, group, **choice):
    return make_plan(lengths, group, **{**choice, "kind": "shuffled"})


def one_row_over_budget(lengths, group, *, cost, max_tokens, **choice):
    return make_plan(lengths, group, cost=cost, max_tokens=max_tokens + max(cost), **choice)


def budget_without_prompt(lengths, group, *, cost, **choice):
    return make_plan(lengths, group, cost=lengths, **choice)


def shortest_first(lengths, group, **choice):
    return _with_steps(make_plan(lengths, group, **choice), lambda step: replace(step, micro_batches=step.micro_batches[::-1]))


def deals_prompts_for_rows(lengths, group, **choice):
    steps = min(choice["optimizer_steps"], len(set(group)))
    return make_plan(lengths, group, **{**choice, "kind": "query-preserved", "optimizer_steps": steps})


def ignores_the_seed(lengths, group, *, seed, **choice):
    return make_plan(lengths, group, seed=0, **choice)


def global_generator(lengths, group, *, seed, **choice):
    return make_plan(lengths, group, seed=random.randrange(1000), **choice)


def seeds_the_global_generator(lengths, group, *, seed, **choice):
    random.seed(seed)
    return make_plan(lengths, group, seed=seed, **choice)


def denominator_per_micro_batch(lengths, group, **choice):
    plan = make_plan(lengths, group, **choice)
    return _with_steps(plan, lambda step: replace(step, denominator=step.denominator / len(step.micro_batches)))


def denominator_counts_prompts(lengths, group, *, cost, **choice):
    return make_plan(cost, group, cost=cost, **choice)

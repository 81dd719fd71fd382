"""Wrong versions of `make_plan`: (lengths, group, *, kind, optimizer_steps, max_tokens, seed, aggregation, constant_length, cost)."""

import random
from dataclasses import replace

from tokencredit.batching import make_plan


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

"""What must hold for every plan: who meets whom, what fits, what it is divided by; and the wrong versions each law rejects."""

import random

import torch
from hypothesis import strategies as st

from laws import mutants_make_plan as mutants
from laws.harness import Law, for_all, functions_of, law_tests_from_functions
from laws.plan_cases import CONSTANT_LENGTH, batches, dealt
from tokencredit.advantage import group_advantage
from tokencredit.batching import make_plan


@for_all(batches(methods=("assign",)))
def every_row_is_planned_exactly_once(planner, batch):
    plan = planner(**batch)
    assert sorted(row for step in plan.steps for row in step.rows) == list(range(len(batch["lengths"])))
    assert len(plan.steps) == batch["optimizer_steps"]


@for_all(batches(kinds=("query-preserved",)))
def a_prompt_is_whole_in_exactly_one_step(planner, batch):
    plan = planner(**batch)
    for name in set(batch["group"]):
        rows = {row for row, other in enumerate(batch["group"]) if other == name}
        assert sum(rows <= step for step in dealt(plan)) == 1
        assert sum(bool(rows & step) for step in dealt(plan)) == 1


@for_all(batches(kinds=("query-preserved",)), st.integers(0, 99))
def centred_advantages_cancel_in_every_query_preserved_step(planner, batch, reward_seed):
    reward = torch.tensor([random.Random(f"{reward_seed} {row}").randrange(-8, 9) / 4 for row in range(len(batch["lengths"]))]).double()
    advantage = group_advantage(reward, torch.tensor(batch["group"]), kind="dr-grpo")
    for step in planner(**batch).steps:
        assert abs(float(advantage[list(step.rows)].sum())) < 1e-12


@for_all(batches())
def micro_batches_fit_the_budget_when_padded_to_their_longest_row(planner, batch):
    for step in planner(**batch).steps:
        for rows in step.micro_batches:
            assert len(rows) * max(batch["cost"][row] for row in rows) <= batch["max_tokens"]


@for_all(batches())
def the_longest_rows_come_first(planner, batch):
    for step in planner(**batch).steps:
        costs = [batch["cost"][row] for row in step.rows]
        assert costs == sorted(costs, reverse=True)


@for_all(batches(kinds=("shuffled",)))
def shuffled_steps_are_as_equal_as_can_be(planner, batch):
    sizes = [len(step.rows) for step in planner(**batch).steps]
    assert max(sizes) - min(sizes) <= 1


@for_all(batches())
def the_same_seed_gives_the_same_plan(planner, batch):
    first, second = planner(**batch), planner(**batch)
    assert first == second
    assert first.digest == second.digest


@for_all(batches(methods=("assign", "reweight"), min_prompts=4))
def other_seeds_deal_otherwise(planner, batch):
    plans = [planner(**{**batch, "optimizer_steps": 2, "seed": seed}) for seed in range(12)]
    assert len({frozenset(dealt(plan)[0]) for plan in plans}) > 1
    assert len({plan.digest for plan in plans}) == len(plans)


@for_all(batches(min_prompts=4), st.integers(0, 99))
def global_generators_are_neither_read_nor_moved(planner, batch, state):
    plan = planner(**batch)
    random.seed(state)
    torch.manual_seed(state)
    python_state, torch_state = random.getstate(), torch.get_rng_state()
    assert planner(**batch) == plan
    assert random.getstate() == python_state
    assert torch.equal(torch.get_rng_state(), torch_state)


@for_all(batches())
def a_denominator_is_that_of_the_aggregation_over_the_whole_step(planner, batch):
    for step in planner(**batch).steps:
        tokens = sum(batch["lengths"][row] for row in step.rows)
        divisor = {"token-mean": tokens, "sequence-mean": len(step.rows), "constant": CONSTANT_LENGTH * len(step.rows)}
        assert step.denominator == max(1, divisor[batch["aggregation"]])
        assert step.tokens == tokens
        assert step.prompts == len({batch["group"][row] for row in step.rows})


@for_all(batches(), st.integers(0, 60))
def the_token_budget_changes_the_cut_and_nothing_else(planner, batch, more):
    narrow, wide = planner(**batch), planner(**{**batch, "max_tokens": batch["max_tokens"] + more})
    assert dealt(narrow) == dealt(wide)
    assert [step.denominator for step in narrow.steps] == [step.denominator for step in wide.steps]


@for_all(batches(), st.integers(0, 20))
def the_cost_of_a_row_changes_no_denominator(planner, batch, longer_prompt):
    cost = [row_cost + longer_prompt for row_cost in batch["cost"]]
    costly = planner(**{**batch, "cost": cost, "max_tokens": batch["max_tokens"] + longer_prompt})
    assert [step.denominator for step in costly.steps] == [step.denominator for step in planner(**batch).steps]


LAWS: dict[Law, tuple] = {
    every_row_is_planned_exactly_once: (mutants.drops_the_last_micro_batch,),
    a_prompt_is_whole_in_exactly_one_step: (mutants.splits_a_group, mutants.drops_the_last_micro_batch),
    centred_advantages_cancel_in_every_query_preserved_step: (mutants.splits_a_group, mutants.drops_the_last_micro_batch),
    micro_batches_fit_the_budget_when_padded_to_their_longest_row: (mutants.one_row_over_budget, mutants.budget_without_prompt),
    the_longest_rows_come_first: (mutants.shortest_first, mutants.budget_without_prompt),
    shuffled_steps_are_as_equal_as_can_be: (mutants.deals_prompts_for_rows,),
    the_same_seed_gives_the_same_plan: (mutants.global_generator,),
    other_seeds_deal_otherwise: (mutants.ignores_the_seed,),
    global_generators_are_neither_read_nor_moved: (mutants.global_generator, mutants.seeds_the_global_generator),
    a_denominator_is_that_of_the_aggregation_over_the_whole_step: (mutants.denominator_per_micro_batch, mutants.denominator_counts_prompts),
    the_token_budget_changes_the_cut_and_nothing_else: (mutants.denominator_per_micro_batch,),
    the_cost_of_a_row_changes_no_denominator: (mutants.denominator_counts_prompts,),
}

test_the_code_obeys, test_the_law_rejects, test_the_table_is_complete = law_tests_from_functions(
    LAWS, lambda law: make_plan, functions_of(mutants)
)

"""Stratified: every optimizer step sees a few responses of every prompt."""

from random import Random

from tokencredit.batching.deal import rows_to_deal
from tokencredit.batching.query_preserved import by_query
from tokencredit.batching.stage import DealtStep, PlanInputs


def plan_stratified(inputs: PlanInputs) -> list[DealtStep]:
    """Prompts in random order; the shuffled rows of each go to the steps in turn, from where the prompt before it stopped.

    A prompt's rows per step differ by at most one, and so do all rows per step. A prompt with fewer rows than there are
    steps is missing in some.
    """
    rows_of = by_query(rows_to_deal(inputs), inputs)
    draw = Random(inputs.seed)
    queries = list(rows_of)
    draw.shuffle(queries)
    turns = [row for query in queries for row in draw.sample(rows_of[query], len(rows_of[query]))]
    return [DealtStep(turns[step :: inputs.optimizer_steps]) for step in range(inputs.optimizer_steps)]

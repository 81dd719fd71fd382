"""Wrong planners: the real source with one line changed."""

from collections.abc import Callable

from laws.harness import Edit, loaded_with
from tokencredit.types import StepPlan

MODULES = (
    "batching.deal",
    "batching.reward_balanced",
    "batching",
)
"""In the order in which they import one another."""


def make_plan_with(edit: Edit | None = None) -> Callable[..., StepPlan]:
    return loaded_with(MODULES, edit).make_plan


DEALING: dict[str, Edit] = {
    "queries are never kept": Edit(
        "batching.reward_balanced", "assign_queries(inputs, side) if keep_queries", "assign_queries(inputs, side) if False"
    ),
    "responses are dealt under reweight": Edit(
        "batching.reward_balanced", "plan_by_query(inputs) if keep_queries", "plan_by_query(inputs) if False"
    ),
    "a step takes any number of prompts": Edit("batching.reward_balanced", "< full + (larger_left > 0)", "< len(queries)"),
    "larger steps are not counted": Edit("batching.reward_balanced", "larger_left -= len(hands[chosen]) == full", "larger_left -= 0"),
    "the larger step loses its last prompt": Edit(
        "batching.reward_balanced",
        "for hand in hands]\n\n\ndef assign_rows",
        "for hand in [hands[0][:1], *hands[1:]]]\n\n\ndef assign_rows",
    ),
    "like goes to like": Edit(
        "batching.reward_balanced", "imbalance[hand] * excess[query], load", "-imbalance[hand] * excess[query], load"
    ),
    "imbalance is not looked at": Edit("batching.reward_balanced", "imbalance[hand] * excess[query], load", "load"),
    "a step forgets how it leans": Edit(
        "batching.reward_balanced", "imbalance[chosen] += excess[query]", "imbalance[chosen] = excess[query]"
    ),
    "positive prompts first": Edit("batching.reward_balanced", "(-abs(excess[query]), turn[query])", "(-excess[query], turn[query])"),
    "sides take no turns": Edit("batching.reward_balanced", "(-abs(excess[query]), turn[query])", "-abs(excess[query])"),
    "prompts ordered by tokens alone": Edit("batching.reward_balanced", "(-abs(excess[query]), turn[query])", "-tokens[query]"),
    "tokens of prompts are not looked at": Edit(
        "batching.reward_balanced", "excess[query], load[hand], hand)", "excess[query], len(hands[hand]), hand)"
    ),
    "tokens of rows are not looked at": Edit("batching.reward_balanced", "key=lambda hand: (load[hand], hand)", "key=lambda hand: hand"),
    "prompts in order of appearance": Edit("batching.deal", "dict(sorted(rows_of.items()))", "rows_of"),
    "hands keep their order": Edit(
        "batching.reward_balanced", "    draw.shuffle(hands)\n    return [DealtStep([row", "    return [DealtStep([row"
    ),
    "spare rows of the sides apart": Edit("batching.reward_balanced", "shared = min(left[1], left[-1])", "shared = 0"),
    "a step may stay empty": Edit("batching.reward_balanced", "if max(count.values()) < steps:", "if False:"),
    "spare sideless rows join the spare positive ones": Edit("batching.reward_balanced", "0: left[1] + left[-1] - shared}", "0: 0}"),
    "sideless rows are positive": Edit("batching.reward_balanced", "[(advantage > 0) - ", "[(advantage >= 0) - "),
    "magnitudes are counted": Edit("batching.reward_balanced", "query: sum(side[row] for row", "query: sum(inputs.advantage[row] for row"),
    "stratified in runs": Edit(
        "batching.deal",
        "turns[step :: inputs.optimizer_steps]",
        "turns[step * len(turns) // inputs.optimizer_steps : (step + 1) * len(turns) // inputs.optimizer_steps]",
    ),
    "every prompt starts at the first step": Edit(
        "batching.deal",
        "turns[step :: inputs.optimizer_steps]",
        "[row for query in queries for row in rows_of[query][step :: inputs.optimizer_steps]]",
    ),
    "stratified rows keep their order": Edit("batching.deal", "draw.sample(rows_of[query], len(rows_of[query]))", "rows_of[query]"),
    "shuffled for stratified": Edit("batching", '"stratified": plan_stratified', '"stratified": plan_shuffled'),
}
"""Who meets whom."""

SUBSAMPLING: dict[str, Edit] = {
    "pairs are sought over the whole step": Edit("batching.reward_balanced", ".values() if within_queries else", ".values() if False else"),
    "pairs are sought within prompts always": Edit(
        "batching.reward_balanced", ".values() if within_queries else", ".values() if True else"
    ),
    "one pair at most": Edit("batching.reward_balanced", "fewer = min(map(len, sides))", "fewer = min(1, *map(len, sides))"),
    "only positives are thinned": Edit(
        "batching.reward_balanced",
        "draw.sample(one_side, fewer)}",
        "(draw.sample(one_side, fewer) if one_side and side[one_side[0]] > 0 else one_side)}",
    ),
    "the first rows stay": Edit("batching.reward_balanced", "draw.sample(one_side, fewer)}", "one_side[:fewer]}"),
    "sideless rows go": Edit("batching.reward_balanced", "if side[row] == 0 or row in staying", "if row in staying"),
    "empty steps stay": Edit("batching.reward_balanced", "return [step for step in steps if step.rows]", "return steps"),
    "the denominator counts every row of the batch": Edit(
        "batching", "step_denominator([lengths[row] for row in rows]", "step_denominator(lengths"
    ),
}
"""Who stays."""

REWEIGHTING: dict[str, Edit] = {
    "scales in the order of dealing": Edit(
        "batching", "tuple(scale_of[row] for micro in micro_batches for row in micro)", "tuple(scale or ())"
    ),
    "the other side's mass": Edit("batching.reward_balanced", "/ 2 / mass[sign]", "/ 2 / mass[-sign]"),
    "each side gets the whole mass": Edit("batching.reward_balanced", "sum(mass.values()) / 2 / mass", "sum(mass.values()) / mass"),
    "the smaller side is raised to the larger": Edit(
        "batching.reward_balanced", "sum(mass.values()) / 2 / mass", "max(mass.values()) / mass"
    ),
    "scales carry the sign": Edit(
        "batching.reward_balanced", "{sign: sum(mass.values()) / 2 / mass[sign]", "{sign: sign * sum(mass.values()) / 2 / mass[sign]"
    ),
    "sideless rows are scaled": Edit("batching.reward_balanced", "{0: 1.0}", "{0: 0.5}"),
    "masses of the whole batch": Edit(
        "batching.reward_balanced", "fsum(weight[row] for row in rows if", "fsum(weight[row] for row in range(len(side)) if"
    ),
    "tokens never count": Edit("batching.reward_balanced", 'if mass == "tokens":', "if False:"),
    "tokens always count": Edit("batching.reward_balanced", 'if mass == "tokens":', "if True:"),
    "masses count rows": Edit("batching.reward_balanced", "weight = [abs(advantage) for", "weight = [1.0 for"),
    "a lone side is halved": Edit(
        "batching.reward_balanced",
        "or mass[1] == mass[-1]:\n        return None",
        "or mass[1] == mass[-1]:\n        return [0.5 for _ in rows]",
    ),
    "masses summed in the order of rows": Edit(
        "batching.reward_balanced",
        "from math import fsum\n",
        "from functools import reduce\nfsum = lambda terms: reduce(float.__add__, terms, 0.0)\n",
    ),
}
"""By how much."""

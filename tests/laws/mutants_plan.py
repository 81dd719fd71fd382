"""Wrong planners: the real source with one line changed, loaded beside the real modules. A line that has gone is an error, not a pass."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from unittest import mock

from tokencredit.types import StepPlan

MODULES = ("shuffled", "query_preserved", "stratified", "reward_balanced", "__init__")
"""In the order in which they import one another."""


class Edit(NamedTuple):
    module: str
    right: str
    wrong: str


def make_plan_with(edit: Edit) -> Callable[..., StepPlan]:
    with mock.patch.dict(sys.modules):
        for module in MODULES:
            qualified = "tokencredit.batching" if module == "__init__" else f"tokencredit.batching.{module}"
            path = Path(str(importlib.import_module(qualified).__file__))
            source = path.read_text()
            if edit.module == module:
                if source.count(edit.right) != 1:
                    raise ValueError(f"{module}.py holds {edit.right!r} {source.count(edit.right)} times; a mutant needs it once")
                source = source.replace(edit.right, edit.wrong)
            fresh = ModuleType(qualified)
            exec(compile(source, path, "exec"), vars(fresh))
            sys.modules[qualified] = fresh
    return vars(fresh)["make_plan"]


DEALING: dict[str, Edit] = {
    "queries are never kept": Edit(
        "reward_balanced", "assign_queries(inputs, side) if keep_queries", "assign_queries(inputs, side) if False"
    ),
    "responses are dealt under reweight": Edit(
        "reward_balanced", "plan_by_query(inputs) if keep_queries", "plan_by_query(inputs) if False"
    ),
    "a step takes any number of prompts": Edit("reward_balanced", "< full + (larger_left > 0)", "< len(queries)"),
    "larger steps are not counted": Edit("reward_balanced", "larger_left -= len(hands[chosen]) == full", "larger_left -= 0"),
    "the larger step loses its last prompt": Edit(
        "reward_balanced", "for hand in hands]\n\n\ndef assign_rows", "for hand in [hands[0][:1], *hands[1:]]]\n\n\ndef assign_rows"
    ),
    "like goes to like": Edit("reward_balanced", "leaning[hand] * excess[query], load", "-leaning[hand] * excess[query], load"),
    "imbalance is not looked at": Edit("reward_balanced", "leaning[hand] * excess[query], load", "load"),
    "a step forgets how it leans": Edit("reward_balanced", "leaning[chosen] += excess[query]", "leaning[chosen] = excess[query]"),
    "positive prompts first": Edit("reward_balanced", "(-abs(excess[query]), -tokens[query])", "(-excess[query], -tokens[query])"),
    "prompts ordered by tokens alone": Edit("reward_balanced", "(-abs(excess[query]), -tokens[query])", "-tokens[query]"),
    "tokens of prompts are not looked at": Edit(
        "reward_balanced", "excess[query], load[hand], hand)", "excess[query], len(hands[hand]), hand)"
    ),
    "tokens of rows are not looked at": Edit("reward_balanced", "key=lambda hand: (load[hand], hand)", "key=lambda hand: hand"),
    "prompts in order of appearance": Edit("query_preserved", "dict(sorted(rows_of.items()))", "rows_of"),
    "hands keep their order": Edit("reward_balanced", "    draw.shuffle(hands)\n    return [DealtStep([row", "    return [DealtStep([row"),
    "spare rows of the sides apart": Edit("reward_balanced", "shared = min(left[1], left[-1])", "shared = 0"),
    "a step may stay empty": Edit("reward_balanced", "if max(count.values()) < steps:", "if False:"),
    "spare sideless rows join the spare positive ones": Edit("reward_balanced", "0: left[1] + left[-1] - shared}", "0: 0}"),
    "sideless rows are positive": Edit("reward_balanced", "[(advantage > 0) - ", "[(advantage >= 0) - "),
    "magnitudes are counted": Edit("reward_balanced", "query: sum(side[row] for row", "query: sum(inputs.advantage[row] for row"),
    "stratified in runs": Edit(
        "stratified",
        "turns[step :: inputs.optimizer_steps]",
        "turns[step * len(turns) // inputs.optimizer_steps : (step + 1) * len(turns) // inputs.optimizer_steps]",
    ),
    "every prompt starts at the first step": Edit(
        "stratified",
        "turns[step :: inputs.optimizer_steps]",
        "[row for query in queries for row in rows_of[query][step :: inputs.optimizer_steps]]",
    ),
    "stratified rows keep their order": Edit("stratified", "draw.sample(rows_of[query], len(rows_of[query]))", "rows_of[query]"),
    "shuffled for stratified": Edit("__init__", '"stratified": plan_stratified', '"stratified": plan_shuffled'),
}
"""Who meets whom."""

SUBSAMPLING: dict[str, Edit] = {
    "pairs are sought over the whole step": Edit("reward_balanced", ".values() if within_queries else", ".values() if False else"),
    "pairs are sought within prompts always": Edit("reward_balanced", ".values() if within_queries else", ".values() if True else"),
    "one pair at most": Edit("reward_balanced", "fewer = min(map(len, sides))", "fewer = min(1, *map(len, sides))"),
    "only positives are thinned": Edit(
        "reward_balanced",
        "draw.sample(one_side, fewer)}",
        "(draw.sample(one_side, fewer) if one_side and side[one_side[0]] > 0 else one_side)}",
    ),
    "the first rows stay": Edit("reward_balanced", "draw.sample(one_side, fewer)}", "one_side[:fewer]}"),
    "sideless rows go": Edit("reward_balanced", "if side[row] == 0 or row in staying", "if row in staying"),
    "sideless rows are positive": DEALING["sideless rows are positive"],
    "empty steps stay": Edit("reward_balanced", "return [step for step in steps if step.rows]", "return steps"),
    "the denominator counts every row of the batch": Edit(
        "__init__", "step_denominator([lengths[row] for row in rows]", "step_denominator(lengths"
    ),
}
"""Who stays."""

REWEIGHTING: dict[str, Edit] = {
    "scales in the order of dealing": Edit(
        "__init__", "tuple(scale_of[row] for micro in micro_batches for row in micro)", "tuple(scale or ())"
    ),
    "the other side's mass": Edit("reward_balanced", "/ 2 / mass[sign]", "/ 2 / mass[-sign]"),
    "each side gets the whole mass": Edit("reward_balanced", "sum(mass.values()) / 2 / mass", "sum(mass.values()) / mass"),
    "the smaller side is raised to the larger": Edit("reward_balanced", "sum(mass.values()) / 2 / mass", "max(mass.values()) / mass"),
    "scales carry the sign": Edit(
        "reward_balanced", "{sign: sum(mass.values()) / 2 / mass[sign]", "{sign: sign * sum(mass.values()) / 2 / mass[sign]"
    ),
    "sideless rows are scaled": Edit("reward_balanced", "{0: 1.0}", "{0: 0.5}"),
    "masses of the whole batch": Edit(
        "reward_balanced", "fsum(weight[row] for row in rows if", "fsum(weight[row] for row in range(len(side)) if"
    ),
    "tokens never count": Edit("reward_balanced", 'if mass == "tokens":', "if False:"),
    "tokens always count": Edit("reward_balanced", 'if mass == "tokens":', "if True:"),
    "masses count rows": Edit("reward_balanced", "weight = [abs(advantage) for", "weight = [1.0 for"),
    "a lone side is halved": Edit(
        "reward_balanced", "or mass[1] == mass[-1]:\n        return None", "or mass[1] == mass[-1]:\n        return [0.5 for _ in rows]"
    ),
    "masses summed in the order of rows": Edit(
        "reward_balanced",
        "from math import fsum\n",
        "from functools import reduce\nfsum = lambda terms: reduce(float.__add__, terms, 0.0)\n",
    ),
}
"""By how much."""

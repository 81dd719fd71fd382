"""Batches to plan: uneven groups, rows without tokens, rows and whole prompts on one side or on none."""

from typing import Any

from hypothesis import strategies as st

from tokencredit.types import StepPlan

Batch = dict[str, Any]
"""Keyword arguments of `make_plan`."""

CONSTANT_LENGTH = 7
KINDS = ("shuffled", "query-preserved", "reward-balanced", "stratified")
METHODS = ("assign", "subsample", "reweight")


@st.composite
def batches(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = KINDS,
    methods: tuple[str, ...] = METHODS,
    keep_queries: tuple[bool, ...] = (True, False),
    min_prompts: int = 1,
) -> Batch:
    others = draw(st.lists(st.integers(0, 4), max_size=10))
    group = draw(st.permutations([*range(min_prompts), *others]))
    lengths = draw(st.lists(st.integers(0, 9), min_size=len(group), max_size=len(group)))
    cost = [length + draw(st.integers(1, 5)) for length in lengths]
    advantage = draw(st.lists(st.sampled_from([-1.5, -1.0, -0.25, 0.0, 0.5, 1.0]), min_size=len(group), max_size=len(group)))
    kind, whole = draw(st.sampled_from(kinds)), draw(st.sampled_from(keep_queries))
    units = len(set(group)) if kind == "query-preserved" or (kind == "reward-balanced" and whole) else len(group)
    return {
        "lengths": lengths,
        "group": list(group),
        "kind": kind,
        "optimizer_steps": draw(st.integers(1, min(4, units))),
        "max_tokens": max(cost) + draw(st.integers(0, 40)),
        "seed": draw(st.integers(0, 99)),
        "aggregation": draw(st.sampled_from(["token-mean", "sequence-mean", "constant"])),
        "constant_length": CONSTANT_LENGTH,
        "cost": cost,
        "advantage": advantage,
        "method": draw(st.sampled_from(methods)),
        "keep_queries": whole,
        "mass": draw(st.sampled_from(["tokens", "responses"])),
    }


@st.composite
def few_rows(draw: st.DrawFn) -> Batch:
    """Prompts of one row each, and not many more of them than steps."""
    advantage = draw(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=7))
    return {
        "lengths": draw(st.lists(st.integers(0, 3), min_size=len(advantage), max_size=len(advantage))),
        "group": list(range(len(advantage))),
        "kind": "reward-balanced",
        "optimizer_steps": draw(st.integers(max(1, len(advantage) - 3), len(advantage))),
        "max_tokens": 9,
        "seed": draw(st.integers(0, 99)),
        "advantage": advantage,
        "keep_queries": draw(st.booleans()),
    }


def dealt(plan: StepPlan) -> list[set[int]]:
    """The rows of each optimizer step, however it is cut."""
    return [set(step.rows) for step in plan.steps]

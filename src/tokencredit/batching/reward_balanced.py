"""Reward-balanced: positive and negative responses in balance in every optimizer step (2605.08666, our three readings)."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import count as counting
from math import fsum
from random import Random
from typing import Literal

from tokencredit.batching.deal import DealtStep, PlanInputs, by_query, plan_by_query, plan_shuffled, queries_to_deal, rows_to_deal

BalanceMethod = Literal["assign", "subsample", "reweight"]
BalanceMass = Literal["tokens", "responses"]


def plan_reward_balanced(
    inputs: PlanInputs, *, method: BalanceMethod = "assign", keep_queries: bool = True, mass: BalanceMass = "tokens"
) -> list[DealtStep]:
    """Balance by choosing who meets (assign), by leaving rows out (subsample), or by scaling credit (reweight).

    The sign of the advantage is a row's side; an advantage of 0 is on neither. With `keep_queries` a prompt is whole in
    one step. `mass` belongs to reweight.
    """
    if inputs.advantage is None:
        raise ValueError("advantage is None; reward-balanced batching needs one number per response")
    if mass not in ("tokens", "responses"):
        raise ValueError(f"mass is {mass!r}; it must be tokens or responses")
    side = [(advantage > 0) - (advantage < 0) for advantage in inputs.advantage]
    if method == "assign":
        return assign_queries(inputs, side) if keep_queries else assign_rows(inputs, side)
    dealt = plan_by_query(inputs) if keep_queries else plan_shuffled(inputs)
    if method == "subsample":
        return subsample(inputs, side, dealt, within_queries=keep_queries)
    if method == "reweight":
        weight = [abs(advantage) for advantage in inputs.advantage]
        if mass == "tokens":
            weight = [each * length for each, length in zip(weight, inputs.lengths, strict=True)]
        return [DealtStep(step.rows, equal_mass_scale(step.rows, side, weight)) for step in dealt]
    raise ValueError(f"method is {method!r}; it must be assign, subsample or reweight")


def assign_queries(inputs: PlanInputs, side: Sequence[int]) -> list[DealtStep]:
    """Deal whole prompts so that #positive - #negative stays near 0 in every step; prompts per step differ by at most one.

    Greedy: prompts by falling |#positive - #negative| (sides in turn, then tokens, then at random), each into the step
    that leans most the other way, which is the one that keeps the sum of squared imbalances smallest; of equals, the one
    with fewest tokens. Close to the best dealing on average, not always the best.
    """
    rows_of = queries_to_deal(inputs)
    excess = {query: sum(side[row] for row in rows) for query, rows in rows_of.items()}
    tokens = {query: sum(inputs.lengths[row] for row in rows) for query, rows in rows_of.items()}
    draw = Random(inputs.seed)
    queries = list(rows_of)
    draw.shuffle(queries)
    queries.sort(key=lambda query: -tokens[query])
    taken: dict[int, counting[int]] = defaultdict(counting)
    # Prompts that lean equally far take turns by side, so that each meets its opposite before steps fill up.
    turn = {query: next(taken[excess[query]]) for query in queries}
    queries.sort(key=lambda query: (-abs(excess[query]), turn[query]))
    full, larger_left = divmod(len(queries), inputs.optimizer_steps)
    hands: list[list[int]] = [[] for _ in range(inputs.optimizer_steps)]
    leaning, load = [0] * len(hands), [0] * len(hands)
    for query in queries:
        open_hands = [hand for hand in range(len(hands)) if len(hands[hand]) < full + (larger_left > 0)]
        chosen = min(open_hands, key=lambda hand: (leaning[hand] * excess[query], load[hand], hand))
        larger_left -= len(hands[chosen]) == full
        hands[chosen].append(query)
        leaning[chosen] += excess[query]
        load[chosen] += tokens[query]
    # Filled in order, the first hand would always open with the most one-sided prompt.
    draw.shuffle(hands)
    return [DealtStep([row for query in hand for row in rows_of[query]]) for hand in hands]


def assign_rows(inputs: PlanInputs, side: Sequence[int]) -> list[DealtStep]:
    """Deal each side evenly over the steps: per side the counts differ by at most one, in total by at most two.

    Steps that get one positive more get one negative more where there is one, so every #positive - #negative is the mean
    rounded up or down (unless that would leave a step empty). Rows are placed longest first, where tokens are fewest.
    """
    rows, steps = rows_to_deal(inputs), inputs.optimizer_steps
    draw = Random(inputs.seed)
    room = _even_room({sign: sum(other == sign for other in side) for sign in (1, -1, 0)}, steps)
    hands: list[list[int]] = [[] for _ in range(steps)]
    load = [0] * steps
    draw.shuffle(rows)
    for row in sorted(rows, key=lambda row: -inputs.lengths[row]):
        free = room[side[row]]
        chosen = min((hand for hand in range(steps) if free[hand]), key=lambda hand: (load[hand], hand))
        free[chosen] -= 1
        hands[chosen].append(row)
        load[chosen] += inputs.lengths[row]
    draw.shuffle(hands)
    return [DealtStep(hand) for hand in hands]


def _even_room(count: dict[int, int], steps: int) -> dict[int, list[int]]:
    """How many rows of each side a step may hold: what does not divide evenly goes to runs of neighbouring steps."""
    left = {sign: count[sign] % steps for sign in count}
    shared = min(left[1], left[-1])
    if max(count.values()) < steps:  # Then every row is a spare one, and too many pairs would leave a step empty.
        shared = min(shared, sum(left.values()) - steps)
    starts = {1: 0, -1: left[1] - shared, 0: left[1] + left[-1] - shared}
    return {sign: [count[sign] // steps + ((step - starts[sign]) % steps < left[sign]) for step in range(steps)] for sign in count}


def subsample(inputs: PlanInputs, side: Sequence[int], dealt: Sequence[DealtStep], *, within_queries: bool) -> list[DealtStep]:
    """Keep min(#positive, #negative) of each side, drawn at random, within each prompt or else each step; rows on no side stay.

    A step left without rows is dropped; there may be none left.
    """
    draw = Random(f"subsample {inputs.seed}")

    def kept(rows: Sequence[int]) -> set[int]:
        sides = [[row for row in rows if side[row] == sign] for sign in (1, -1)]
        fewer = min(map(len, sides))
        return {row for one_side in sides for row in draw.sample(one_side, fewer)}

    steps = []
    for step in dealt:
        pools = by_query(step.rows, inputs).values() if within_queries else [step.rows]
        staying = {row for pool in pools for row in kept(pool)}
        steps.append(DealtStep([row for row in step.rows if side[row] == 0 or row in staying]))
    return [step for step in steps if step.rows]


def equal_mass_scale(rows: Sequence[int], side: Sequence[int], weight: Sequence[float]) -> list[float] | None:
    """(M / 2) / M_side for each row, with M_side the side's summed weight and M that of both; 1 for rows on no side.

    None (all 1) where a side has no mass, and where both have the same.
    """
    mass = {sign: fsum(weight[row] for row in rows if side[row] == sign) for sign in (1, -1)}
    if not all(mass.values()) or mass[1] == mass[-1]:
        return None
    scale = {sign: sum(mass.values()) / 2 / mass[sign] for sign in mass} | {0: 1.0}
    return [scale[side[row]] for row in rows]

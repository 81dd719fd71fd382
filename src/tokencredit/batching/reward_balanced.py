"""Reward-balanced planning (2605.08666, our three readings): balance positive and negative responses in every optimizer step."""

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
    """Balance the sides by assigning rows to steps (assign), dropping rows (subsample), or scaling credit (reweight).

    The sign of the advantage is a row's side; an advantage of 0 is on neither. With `keep_queries` all rows of a prompt are in one
    step. Only reweight reads `mass`.
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
    """Assign prompts so that #positive - #negative stays near 0 in every step; prompts per step differ by at most one.

    Greedy: prompts by falling |#positive - #negative| (sides in turn, then by tokens, then at random), each into the step with the
    largest opposite imbalance, which keeps the sum of squared imbalances smallest; among equal steps the one with the fewest
    tokens. On average close to the optimum, not always optimal.
    """
    rows_of = queries_to_deal(inputs)
    excess = {query: sum(side[row] for row in rows) for query, rows in rows_of.items()}
    tokens = {query: sum(inputs.lengths[row] for row in rows) for query, rows in rows_of.items()}
    draw = Random(inputs.seed)
    queries = list(rows_of)
    draw.shuffle(queries)
    queries.sort(key=lambda query: -tokens[query])
    taken: dict[int, counting[int]] = defaultdict(counting)
    # Prompts of equal imbalance alternate in side, so that each meets its opposite before the steps are full.
    turn = {query: next(taken[excess[query]]) for query in queries}
    queries.sort(key=lambda query: (-abs(excess[query]), turn[query]))
    full, larger_left = divmod(len(queries), inputs.optimizer_steps)
    hands: list[list[int]] = [[] for _ in range(inputs.optimizer_steps)]
    imbalance, load = [0] * len(hands), [0] * len(hands)
    for query in queries:
        open_steps = [hand for hand in range(len(hands)) if len(hands[hand]) < full + (larger_left > 0)]
        chosen = min(open_steps, key=lambda hand: (imbalance[hand] * excess[query], load[hand], hand))
        larger_left -= len(hands[chosen]) == full
        hands[chosen].append(query)
        imbalance[chosen] += excess[query]
        load[chosen] += tokens[query]
    # Without the shuffle the first step would always contain the most one-sided prompt.
    draw.shuffle(hands)
    return [DealtStep([row for query in hand for row in rows_of[query]]) for hand in hands]


def assign_rows(inputs: PlanInputs, side: Sequence[int]) -> list[DealtStep]:
    """Assign each side evenly to the steps: rows per step differ by at most one on each side, by at most two in total.

    A step with an extra positive row also gets an extra negative one while there are any, so every #positive - #negative is the
    mean rounded up or down (unless that would leave a step empty). Rows go longest first into the step with the fewest tokens.
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
    """Rows of each side that a step may hold; the remainder of the division goes to runs of neighbouring steps."""
    left = {sign: count[sign] % steps for sign in count}
    shared = min(left[1], left[-1])
    if max(count.values()) < steps:  # Then all rows are remainder, and too many pairs would leave a step empty.
        shared = min(shared, sum(left.values()) - steps)
    starts = {1: 0, -1: left[1] - shared, 0: left[1] + left[-1] - shared}
    return {sign: [count[sign] // steps + ((step - starts[sign]) % steps < left[sign]) for step in range(steps)] for sign in count}


def subsample(inputs: PlanInputs, side: Sequence[int], dealt: Sequence[DealtStep], *, within_queries: bool) -> list[DealtStep]:
    """Keep min(#positive, #negative) rows of each side, drawn at random, within each prompt or else each step; rows on no side stay.

    A step without rows is dropped; none may remain.
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
    """(M / 2) / M_side for each row, M_side the sum of weights on its side and M that of both sides; 1 for rows on no side.

    None (all 1) if a side has no mass, or if both have the same.
    """
    mass = {sign: fsum(weight[row] for row in rows if side[row] == sign) for sign in (1, -1)}
    if not all(mass.values()) or mass[1] == mass[-1]:
        return None
    scale = {sign: sum(mass.values()) / 2 / mass[sign] for sign in mass} | {0: 1.0}
    return [scale[side[row]] for row in rows]

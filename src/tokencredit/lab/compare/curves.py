"""What a learning curve says: points (rollouts used, held-out accuracy), the first at 0 rollouts. Straight lines between points."""

from collections.abc import Sequence
from itertools import pairwise

Curve = Sequence[tuple[float, float]]


def accuracy_at(curve: Curve, rollouts: float) -> float:
    """On the line between the two evaluations around it."""
    if not curve[0][0] <= rollouts <= curve[-1][0]:
        raise ValueError(f"rollouts is {rollouts}, but the curve goes from {curve[0][0]} to {curve[-1][0]}")
    for (left, low), (right, high) in pairwise(curve):
        if rollouts <= right:
            return low + (high - low) * (rollouts - left) / (right - left) if right > left else high
    return curve[-1][1]


def area(curve: Curve, horizon: float) -> float:
    """Mean accuracy over the first `horizon` rollouts: the area under the curve, divided by its width."""
    if horizon <= 0:
        raise ValueError(f"horizon is {horizon}; it must be above 0")
    kept = [point for point in curve if point[0] < horizon]
    kept.append((horizon, accuracy_at(curve, horizon)))
    return sum((right - left) * (low + high) / 2 for (left, low), (right, high) in pairwise(kept)) / horizon


def rollouts_to(curve: Curve, level: float) -> float | None:
    """Where the curve first reaches `level`; 0 if the base is there already, None if no evaluation is."""
    reached = next((place for place, (_, accuracy) in enumerate(curve) if accuracy >= level), None)
    if reached is None or reached == 0:
        return None if reached is None else float(curve[0][0])
    (left, low), (right, high) = curve[reached - 1], curve[reached]
    return left + (right - left) * (level - low) / (high - low)


def common_horizon(curves: Sequence[Curve]) -> float:
    """The rollouts that every curve covers: a recipe that samples more per step is not given credit for the surplus."""
    return min(curve[-1][0] for curve in curves)


def on_grid(curves: Sequence[Curve], *, places: int = 41) -> tuple[list[float], list[list[float]]]:
    """Evenly spaced rollouts up to the common horizon, and each curve's accuracy there."""
    horizon = common_horizon(curves)
    grid = [horizon * place / (places - 1) for place in range(places)]
    return grid, [[accuracy_at(curve, rollouts) for rollouts in grid] for curve in curves]

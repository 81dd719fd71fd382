"""When two engines did the same.

Advantages, coefficients, credit and weights to 1e-5, plans to the letter. Losses and every entry of every gradient to 1e-5 too,
relative to the loss or to the gradient's norm where that is above 1: float32 rounds a sum by its largest terms.
"""

from torch import Tensor

from conformance.outcome import Outcome

BOUND = 1e-5
LARGEST: dict[str, float] = {}
"""Comparison -> largest difference so far; the run prints it when it ends."""


def _difference(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape, f"{tuple(one.shape)} against {tuple(other.shape)}"
    assert one.isfinite().all()
    assert other.isfinite().all()
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0


def gradient_difference(one: Tensor, other: Tensor) -> float:
    return _difference(one, other) / max(1.0, float(other.norm()))


def differences(one: Outcome, other: Outcome) -> dict[str, float]:
    """Everything that is a number; what must be equal to the letter is asserted here."""
    assert len(one.batches) == len(other.batches)
    found: dict[str, float] = {"advantage": 0.0, "coefficient": 0.0, "credit": 0.0}
    for ours, theirs in zip(one.batches, other.batches, strict=True):
        assert ours.rows_of_steps == theirs.rows_of_steps
        assert ours.plan_digest == theirs.plan_digest
        assert (ours.coefficient is None) == (theirs.coefficient is None)
        found["advantage"] = max(found["advantage"], _difference(ours.advantage, theirs.advantage))
        found["credit"] = max(found["credit"], _difference(ours.credit, theirs.credit))
        if ours.coefficient is not None and theirs.coefficient is not None:
            found["coefficient"] = max(found["coefficient"], _difference(ours.coefficient, theirs.coefficient))
    assert len(one.loss) == len(other.loss)
    found["loss"] = max(abs(ours - theirs) / max(1.0, abs(theirs)) for ours, theirs in zip(one.loss, other.loss, strict=True))
    found["gradient"] = max(gradient_difference(*pair) for pair in zip(one.gradient, other.gradient, strict=True))
    found["weights"] = _difference(one.weights, other.weights)
    return found


def assert_same(name: str, one: Outcome, other: Outcome, *, bound: float = BOUND) -> None:
    found = differences(one, other)
    apart = {what: f"{difference:.1e}" for what, difference in found.items() if difference > bound}
    assert not apart, f"{name}: apart by {apart}"
    for what, difference in found.items():
        LARGEST[what] = max(difference, LARGEST.get(what, 0.0))

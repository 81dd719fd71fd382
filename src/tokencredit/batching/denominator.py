"""What an optimizer step divides by, fixed when the step is planned."""

from collections.abc import Sequence

from tokencredit.types import Aggregation


def step_denominator(lengths: Sequence[int], *, aggregation: Aggregation, constant_length: int | None = None) -> float:
    """Its tokens (token-mean), its responses (sequence-mean), or its responses x a constant length (constant, Dr.GRPO)."""
    if aggregation == "token-mean":
        return float(max(1, sum(lengths)))
    if aggregation == "sequence-mean":
        return float(max(1, len(lengths)))
    if aggregation == "constant":
        if constant_length is None or constant_length < 1:
            raise ValueError(f"constant_length is {constant_length}; aggregation 'constant' needs a whole number of at least 1")
        return float(max(1, len(lengths)) * constant_length)
    raise ValueError(f"aggregation is {aggregation!r}; it must be token-mean, sequence-mean or constant")

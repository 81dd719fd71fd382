"""What is added to the verifier's score before responses are compared."""

from tokencredit.shape.kl_penalty import kl_penalty
from tokencredit.shape.overlong import overlong_penalty

__all__ = ["kl_penalty", "overlong_penalty"]

"""DelTA (2605.21467): a token weighs more when its gradient vector is nearer to its own side's centroid than to the other side's.

`method.py` is the entry. The algorithm has three forms with the same numbers: `algorithm.py` (plain, one scope at a time),
`batched.py` (all scopes, features swept where they are stored) and `triton.py` (the same in few kernel launches).
"""

from tokencredit.credit.delta.method import delta_coefficients, delta_credit, discriminate

__all__ = ["delta_coefficients", "delta_credit", "discriminate"]

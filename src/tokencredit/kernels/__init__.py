"""Dense tensor work shared by scoring, credit and the update."""

from tokencredit.kernels.logits import TokenStatistics, at_least_float32, entropy_of, token_logp, token_statistics

__all__ = ["TokenStatistics", "at_least_float32", "entropy_of", "token_logp", "token_statistics"]

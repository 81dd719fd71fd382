"""Scoring, loss and credit from hidden states and the head's weight, without logits."""

from tokencredit.kernels.lm_head.passes import Backend, head_hidden_gradient, head_projection, head_statistics, head_weight_sum
from tokencredit.kernels.lm_head.rule import BUFFER_BYTES, HeadRule, HeadStatistics

__all__ = [
    "BUFFER_BYTES",
    "Backend",
    "HeadRule",
    "HeadStatistics",
    "head_hidden_gradient",
    "head_projection",
    "head_statistics",
    "head_weight_sum",
]

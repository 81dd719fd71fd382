"""The LM head from hidden states and weight, without materialised logits: log-probs, entropies, gradients, DelTA's vectors."""

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

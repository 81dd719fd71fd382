"""Fast sampling for Llama-like models: one prompt read once, steps captured in graphs, tokens drawn on the device."""

from tokencredit.rollout.cuda_graph.sampler import FastSampler, why_not

__all__ = ["FastSampler", "why_not"]

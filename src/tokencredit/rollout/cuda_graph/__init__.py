"""Fast sampling for Llama-like models: shared prompt prefill, decode steps captured in CUDA graphs, sampling on the device."""

from tokencredit.rollout.cuda_graph.sampler import FastSampler, unsupported_reason

__all__ = ["FastSampler", "unsupported_reason"]

"""Judgement: evidence of what an update did to tokens in, a `Finding` in words, numbers and tables out. Torch only, no model."""

FINDINGS = ("flips", "effect", "cancellation", "coupling", "tax", "drift", "entropy", "masses", "value")

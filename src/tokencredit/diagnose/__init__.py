"""Diagnoses: evidence of an update's effect on tokens in, a `Finding` (note, numbers, tables) out. Torch only, no model."""

FINDINGS = ("flips", "effect", "cancellation", "coupling", "tax", "drift", "entropy", "masses", "value")

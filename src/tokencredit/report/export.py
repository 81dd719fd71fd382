"""A run's model as a folder to hand on: weights, tokenizer, and a card that says what was done. Reads the run folder only."""

from tokencredit.report.card_export import export_model

__all__ = ["export_model"]

"""Judgement: evidence of what an update did to tokens in, a `Finding` in words, numbers and tables out. Torch only, no model."""

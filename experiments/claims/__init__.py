"""The papers' claims as data, the runs they need, and the rule that judges them. Driven by `paper_claims.py`."""

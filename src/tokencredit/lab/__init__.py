"""Recipes against each other: which runs, run in processes of their own, what their differences are worth. `tokencredit compare`."""

"""Grading under limits: child processes with deadlines, math-verify, and a sandbox for model-written code."""

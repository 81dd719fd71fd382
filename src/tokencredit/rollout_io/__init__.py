"""Rollouts on disk: our own columns, and what TRL and verl log. Reads and writes files; knows no recipe and no engine."""

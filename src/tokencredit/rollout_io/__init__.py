"""Rollout files: read and write our own columns, and convert the logs of TRL and verl. Depends on no recipe and no engine."""

"""A recipe inside verl: `plugin` is loaded by verl itself; see docs/engines.md."""

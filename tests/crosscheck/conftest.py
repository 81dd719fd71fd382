"""Ends the run with the largest difference that was seen in each comparison."""

from importlib.metadata import distributions

import torch

from crosscheck.agreement import LARGEST

torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter) -> None:
    engine = next(f"{found.name} {found.version}" for found in distributions() if found.name in ("trl", "verl"))
    terminalreporter.section(f"largest difference from {engine}")
    for name, difference in sorted(LARGEST.items()):
        terminalreporter.write_line(f"{difference:9.1e}  {name}")

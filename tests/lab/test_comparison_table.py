"""The tables of `tokencredit compare` in a terminal."""

import re

import pytest

from made_up.comparison import make_comparison
from tokencredit.lab.compare.table import print_comparison


def test_numbers_stand_under_their_headings(capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison(make_comparison())
    lines = capsys.readouterr().out.splitlines()
    heads = re.split(r"  +", lines[1].strip())
    row = next(line for line in lines if line.startswith("dapo "))
    cells = dict(zip(heads, re.split(r"  +", row.strip()), strict=True))
    assert (cells["greedy"], cells["pass@8"], cells["tokens"], cells["rollouts"]) == ("99.0 ± 0.0", "97.0 ± 0.0", "20.0 ± 0.0", "8,000")

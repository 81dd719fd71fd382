"""The credit of every token in TRL's table of completions: all of it in a file, its range where it is printed."""

from pathlib import Path

import pandas

from tokencredit.integrations.trl.trainer import TokenColumn


def test_a_cell_is_printed_short_and_written_whole(tmp_path: Path) -> None:
    cells = [TokenColumn([0.5, -1.25, 0.0]), TokenColumn()]
    assert [str(cell) for cell in cells] == ["-1.25 to +0.50", "no token"]
    pandas.DataFrame({"token_credit": cells}).to_parquet(tmp_path / "table.parquet")
    read = pandas.read_parquet(tmp_path / "table.parquet")["token_credit"]
    assert [list(cell) for cell in read] == [[0.5, -1.25, 0.0], []]

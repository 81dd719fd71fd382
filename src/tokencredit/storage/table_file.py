"""Write a table of columns as one atomic file: Parquet or JSON lines, by the file's suffix."""

import json
import math
from collections.abc import Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import Any


def best_suffix() -> str:
    """Parquet, or JSON lines where pyarrow is not installed."""
    return ".parquet" if util.find_spec("pyarrow") is not None else ".jsonl"


def write_table(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """NaN is written as null in both formats: JSON has no NaN, and Parquet's readers distinguish NaN from null."""
    filled = {name: [null_for_nan(value) for value in values] for name, values in columns.items()}
    partial = path.with_name(f"{path.name}.partial")
    try:
        if path.suffix == ".parquet":
            import pyarrow
            from pyarrow import parquet

            parquet.write_table(pyarrow.table(filled), partial, compression="zstd", write_page_checksum=True)
        else:
            with partial.open("w", encoding="utf-8") as file:
                for values in zip(*filled.values(), strict=True):
                    file.write(json.dumps(dict(zip(filled, values, strict=True)), ensure_ascii=False) + "\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def null_for_nan(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value

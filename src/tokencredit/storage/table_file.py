"""A table of columns as a file, Parquet or JSON lines by its name; whole or not at all."""

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
    """NaN is written as null: JSON has no word for it, and Parquet's readers tell the two apart."""
    filled = {name: [_told(value) for value in values] for name, values in columns.items()}
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


def _told(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value

"""Tables of `tokencredit bench speed --json FILE.json` as Markdown, part by part, with the machine that they were measured on.

python experiments/speed_tables.py FILE.json
python experiments/speed_tables.py FILE.json --parts update,delta
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokencredit.lab.speed.run import tables
from tokencredit.lab.speed.workload import Shown


def cells(row: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def table(shown: Shown) -> Iterator[str]:
    yield f"### {shown.title}\n"
    yield cells(shown.columns)
    yield "| --- |" + " ---: |" * (len(shown.columns) - 1)
    yield from map(cells, shown.rows)
    yield ""
    if shown.notes:
        yield from (f"* {note}" for note in shown.notes)
        yield ""


def measured_on(result: dict[str, Any]) -> Iterator[str]:
    """Machine, versions, commit and limits."""
    machine, environment = result["machine"], result["environment"]
    versions = {name: environment["packages"].get(name) for name in ("torch", "transformers")} | machine["beside"]
    told = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    commit = str(environment.get("commit") or "unknown")[:10] + (" with changes" if environment.get("diff") else "")
    yield f"{machine.get('name', machine['device'])}, {result['date'][:10]}, {told}; commit {commit}; {result['repeats']} repeats."
    if limits := result["ceilings"]:
        yield (
            f"Measured at best in the same run: {limits['flops_per_second'] / 1e12:,.0f} TFLOP/s of {limits['dtype']} matrix products, "
            f"{limits['bytes_per_second'] / 1e9:,.0f} GB/s of copying."
        )
    yield ""


def markdown(result: dict[str, Any], parts: Sequence[str] | None = None) -> str:
    lines = list(measured_on(result))
    for part, found in result["parts"].items():
        if parts is None or part in parts:
            lines += [line for shown in tables(part, found) for line in table(shown)]
    lines += [f"Part {part} failed: {why.splitlines()[0]}\n" for part, why in result["failed"].items() if parts is None or part in parts]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--parts", help="which, with commas between them; default: all that were measured")
    asked = parser.parse_args()
    print(markdown(json.loads(asked.file.read_text()), asked.parts and [part.strip() for part in asked.parts.split(",")]))


if __name__ == "__main__":
    main()

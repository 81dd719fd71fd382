"""The worst example of every recipe for a terminal: the same response twice, on the colours of A* and of the credit."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from tokencredit.report.terminal import credit_legend, credit_line


def worst_examples(record: Mapping[str, Any]) -> Iterator[Text]:
    """A token whose A* is not known is drawn as one that decided nothing."""
    shown = [row for row in record["anatomy"]["rows"] if row["examples"]]
    for row in shown:
        worst = row["examples"][0]
        response = record["anatomy"]["responses"][worst["response"]]
        verdict = "right" if response["right"] else "wrong"
        yield Text(f"{row['method']}: disagrees most, 1 - cos = {worst['disagreement']:.2f}, a {verdict} response", style="bold")
        for what, values in (("A*", response["truth"]), ("credit", worst["credit"])):
            yield credit_line(response["prompt"], response["text"], [value or 0.0 for value in values], f"{what:<8}")
    if shown:
        yield credit_legend()

"""The token view in a terminal: sign by colour, strength by rank inside the response, text kept as it is."""

import pytest
from rich.color import Color

from tokencredit.report.terminal import credit_line


def backgrounds(credit: list[float]) -> dict[str, tuple[int, int, int] | None]:
    pieces = [chr(ord("a") + index) for index in range(len(credit))]
    line = credit_line("1+1=", pieces, credit, "right")
    found: dict[str, tuple[int, int, int] | None] = dict.fromkeys(pieces)
    for span in line.spans:
        text = line.plain[span.start : span.end]
        if text in found and " on " in str(span.style):
            found[text] = tuple(Color.parse(str(span.style).split(" on ")[1]).triplet or ())  # pyright: ignore[reportArgumentType]
    return found


def test_positive_is_bluer_negative_is_more_orange_and_zero_has_no_colour() -> None:
    seen = backgrounds([1.0, -1.0, 0.0])
    assert seen["a"] is not None
    assert seen["b"] is not None
    assert seen["a"][2] > seen["a"][0]
    assert seen["b"][0] > seen["b"][2]
    assert seen["c"] is None


def test_more_credit_is_a_stronger_colour_on_either_side() -> None:
    for sign in (1, -1):
        seen = [backgrounds([sign * 0.8, sign * 1.0, sign * 1.2])[name] for name in "abc"]
        distance = [sum(255 - channel for channel in colour) for colour in seen if colour is not None]
        assert distance == sorted(distance)
        assert len(set(distance)) == 3


@pytest.mark.parametrize("pieces", [["[red]", "x\n"], ["[/]", "é"]])
def test_markup_in_a_response_stays_text(pieces: list[str]) -> None:
    line = credit_line("[bold]1=", pieces, [0.5, 0.6], "wrong")
    assert line.plain.startswith("  wrong [bold]1= " + pieces[0])
    assert "\n" not in line.plain
    assert "from +0.50 to +0.60" in line.plain

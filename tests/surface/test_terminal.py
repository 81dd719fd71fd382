"""The token view in a terminal: sign by colour, strength by rank inside the response, text kept as it is."""

import io
import re
from pathlib import Path

import pytest
from rich.color import Color
from rich.console import Console
from rich.errors import MarkupError
from rich.text import Text

from tokencredit.analysis.showcase import ShownResponse
from tokencredit.commands import progress
from tokencredit.config.resolve import resolve
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


HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b31m\r\x08\u202e\x00[/b]"
SHOWN = "␛[2J␛]0;title␇⟨U+009B⟩31m␍␈⟨U+202E⟩␀[/b]"


def printed(text: object, *, terminal: bool = True) -> str:
    """What reaches a terminal, less the colours that the terminal library itself sets."""
    console = Console(file=io.StringIO(), force_terminal=terminal, color_system="truecolor", width=2000)
    console.print(text)
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())


def test_no_control_of_a_model_reaches_the_terminal() -> None:
    line = credit_line(HOSTILE, [HOSTILE, "é"], [0.5, -0.6], "wrong")
    assert "\x1b" not in line.plain
    assert printed(line) == f"  wrong {SHOWN} {SHOWN}é   from -0.60 to +0.50\n"


def test_the_watch_sees_text_that_was_not_made_visible() -> None:
    """Wrong twin: the library passes escapes on, and takes square brackets of plain strings for its own marks."""
    assert "\x1b[2J" in printed(Text(HOSTILE))
    with pytest.raises(MarkupError):
        printed(HOSTILE)


def summary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    output = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda: Console(file=output, width=2000))
    accuracy = {"greedy": 0.5, "sampled": 0.5, "pass_at_k": 0.5, "k": 2, "length": 3.0, "problems": 4}
    result = {"before": accuracy, "after": accuracy, "seconds": {"sample": 1.0}, "rollouts_used": 8}
    shown = ShownResponse(prompt=HOSTILE, pieces=[HOSTILE], credit=[1.0], score=1.0)
    progress.print_summary(result, folder, [shown])
    return output.getvalue()


def test_the_summary_shows_folder_and_responses_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    said = summary(Path(f"runs/{HOSTILE}"), monkeypatch)
    assert f"Run folder: runs/{SHOWN}\n" in said
    assert f"right {SHOWN} {SHOWN}" in said
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", said)


def test_the_first_lines_of_a_run_show_model_and_folder_as_text() -> None:
    console = Console(file=io.StringIO(), width=2000)
    config = resolve([{"model": f"models/{HOSTILE.replace(chr(0), '')}"}])
    progress.RunProgress(config, Path(f"runs/{HOSTILE}"), console, None)
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert f"model models/{SHOWN.replace('␀', '')}, " in said
    assert said.endswith(f"run folder runs/{SHOWN}\n")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", said)

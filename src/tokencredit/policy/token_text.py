"""The text of each token such that the texts join to the text of all.

Stop strings: a response ends once its text holds one of them, wherever the tokens cut it.
"""

from collections.abc import Sequence
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

LONGEST_WAIT = 16
"""Tokens after which bytes that make no character will never make one; a character has four at most."""
HALF = "\ufffd"
"""What a decoder writes for bytes that are no whole character."""


@lru_cache(maxsize=1 << 16)
def text_alone(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """Kept, because a batch holds the same few tokens thousands of times and reading one takes as long as a small matrix product."""
    return str(tokenizer.decode([token]))


def joining_pieces(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> list[str]:
    """Each token read alone where that joins, else read on from a few tokens back, never from the beginning.

    Bytes of a character that is not whole yet belong to the token that completes it. Long noise of bytes may not join exactly.
    """
    alone = [text_alone(tokenizer, token) for token in tokens]
    if "".join(alone) == tokenizer.decode(tokens):
        return alone
    pieces: list[str] = []
    told, read, before = 0, 0, ""
    for count in range(1, len(tokens) + 1):
        text = str(tokenizer.decode(tokens[told:count]))
        whole = count in (len(tokens), read + LONGEST_WAIT) or (len(text) > len(before) and not text.endswith(HALF))
        pieces.append(text[len(before) :] if whole else "")
        if whole:
            told, read = read, count
            before = str(tokenizer.decode(tokens[told:read]))
    return pieces


class StopWatcher:
    """Keeps the last few tokens of every response; a token is read in context only where it could complete a stop string."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str], rows: int) -> None:
        self.tokenizer, self.stops = tokenizer, tuple(stops)
        self._last_characters = {stop[-1] for stop in stops}
        # Some tokenizers drop a space when a token is read alone.
        self._reads_all = any(character.isspace() for character in self._last_characters - {"\n"})
        # A token holds at least one byte, and a character four at most; one more token keeps the first one's text in context.
        self._window = 4 * max((len(stop) for stop in stops), default=0) + 1
        self._tails: list[list[int]] = [[] for _ in range(rows)]

    def __bool__(self) -> bool:
        return bool(self.stops)

    def ended(self, rows: Sequence[int], drawn: Sequence[int]) -> list[bool]:
        """Whether each of `rows` holds a stop string now that `drawn` was appended to it."""
        return [self._ended(row, token) for row, token in zip(rows, drawn, strict=True)]

    def _ended(self, row: int, token: int) -> bool:
        tail = self._tails[row] = [*self._tails[row], token][-self._window :]
        alone = text_alone(self.tokenizer, token)
        if not self._reads_all and self._last_characters.isdisjoint(alone) and "\ufffd" not in alone:
            return False
        text = str(self.tokenizer.decode(tail, skip_special_tokens=False))
        return any(stop in text for stop in self.stops)


def tokens_up_to_stop(tokenizer: PreTrainedTokenizerBase, stops: Sequence[str], tokens: Sequence[int]) -> int | None:
    """How many of the tokens make up a response that ends with the first stop string; None where it holds none."""
    watcher = StopWatcher(tokenizer, stops, 1)
    return next((count for count, token in enumerate(tokens, 1) if stops and watcher.ended([0], [token])[0]), None)

"""The text of each token, such that the pieces join to the full text, and stop strings that may span several tokens."""

from collections.abc import Sequence
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

LONGEST_WAIT = 16
"""After this many tokens, bytes that are not a character will not become one; a character has at most four."""
HALF = "\ufffd"
"""The decoder's output for bytes of an incomplete character."""


@lru_cache(maxsize=1 << 16)
def text_alone(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """Decode one token; cached, because a batch repeats the same few tokens thousands of times and decoding is slow."""
    return str(tokenizer.decode([token]))


def joining_pieces(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> list[str]:
    """Decode each token alone if the pieces join; else decode from a few tokens back, never from the beginning.

    Bytes of an incomplete character belong to the token that completes it. Long random bytes may not join exactly.
    """
    alone = [text_alone(tokenizer, token) for token in tokens]
    if "".join(alone) == tokenizer.decode(tokens):
        return alone
    pieces: list[str] = []
    start, read, before = 0, 0, ""
    for count in range(1, len(tokens) + 1):
        text = str(tokenizer.decode(tokens[start:count]))
        complete = count in (len(tokens), read + LONGEST_WAIT) or (len(text) > len(before) and not text.endswith(HALF))
        pieces.append(text[len(before) :] if complete else "")
        if complete:
            start, read = read, count
            before = str(tokenizer.decode(tokens[start:read]))
    return pieces


class StopWatcher:
    """Finds stop strings from the last few tokens of each response; decodes in context only where a token could complete one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str], rows: int) -> None:
        self.tokenizer, self.stops = tokenizer, tuple(stops)
        self._last_characters = {stop[-1] for stop in stops}
        # Some tokenizers drop a space when a token is decoded alone.
        self._reads_all = any(character.isspace() for character in self._last_characters - {"\n"})
        # A token holds at least one byte, and a character four at most; one more token keeps the first one's text in context.
        self._window = 4 * max((len(stop) for stop in stops), default=0) + 1
        self._tails: list[list[int]] = [[] for _ in range(rows)]

    def __bool__(self) -> bool:
        return bool(self.stops)

    def ended(self, rows: Sequence[int], drawn: Sequence[int]) -> list[bool]:
        """Append `drawn` to `rows`; returns whether each row now contains a stop string."""
        return [self._ended(row, token) for row, token in zip(rows, drawn, strict=True)]

    def _ended(self, row: int, token: int) -> bool:
        tail = self._tails[row] = [*self._tails[row], token][-self._window :]
        alone = text_alone(self.tokenizer, token)
        if not self._reads_all and self._last_characters.isdisjoint(alone) and "\ufffd" not in alone:
            return False
        text = str(self.tokenizer.decode(tail, skip_special_tokens=False))
        return any(stop in text for stop in self.stops)


def tokens_up_to_stop(tokenizer: PreTrainedTokenizerBase, stops: Sequence[str], tokens: Sequence[int]) -> int | None:
    """Number of tokens up to and including the first stop string; None without one."""
    watcher = StopWatcher(tokenizer, stops, 1)
    return next((count for count, token in enumerate(tokens, 1) if stops and watcher.ended([0], [token])[0]), None)

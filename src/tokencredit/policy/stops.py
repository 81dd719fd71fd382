"""Stop strings: a response ends once its text holds one of them, wherever the tokens cut it."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from tokencredit.policy.token_text import text_alone


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

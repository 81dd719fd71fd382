"""The text of each token such that the texts join to the text of all."""

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

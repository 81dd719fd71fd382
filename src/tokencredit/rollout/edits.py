"""What a revision changed: Levenshtein's distance and the tokens of the original that its alignment touches."""

from collections.abc import Sequence


def edit_distance(before: Sequence[int], after: Sequence[int]) -> int:
    """Fewest insertions, deletions and replacements of one token that turn `before` into `after`."""
    from rapidfuzz.distance import Levenshtein

    return Levenshtein.distance(before, after)


def edited_tokens(before: Sequence[int], after: Sequence[int]) -> list[bool]:
    """True for tokens of `before` that a shortest alignment with `after` replaces or deletes, or inserts something in front of.

    What is inserted at the end marks the last token (our reading). Among several shortest alignments one is taken; equal
    sequences mark nothing, and an empty `before` has nothing to mark.
    """
    from rapidfuzz.distance import Levenshtein

    marked = [False] * len(before)
    for edit in Levenshtein.editops(before, after) if marked else ():
        marked[min(edit.src_pos, len(before) - 1)] = True
    return marked

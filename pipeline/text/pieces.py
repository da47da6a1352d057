"""Long texts cut into pieces, so that no document, however long, keeps a tokenizer busy without an end."""

import unicodedata
from collections.abc import Callable, Iterator
from itertools import islice

LARGEST_PIECE = 1 << 16
"""Characters. Most documents are one piece."""
_MAX_TRIALS = 16
_AROUND = 128
"""Characters on each side of a place that decide whether a text can be cut there."""


def cut(text: str, is_seam: Callable[[str, str], bool], largest: int = LARGEST_PIECE) -> Iterator[str]:
    """The pieces of `text`, at most `largest` characters each: joined, they are the text.

    Cut before a blank or a sign that follows a letter, as "two words" into "two" and " words", where
    `is_seam` agrees. Where half a piece has no such place, which no ordinary text does, cut anywhere.

    Args:
        text: of any length.
        is_seam: whether two adjacent texts may be taken apart: told those near the place only.
        largest: characters of a piece.
    """
    start = 0
    while len(text) - start > largest:
        places = islice(_places(text, start + largest // 2, start + largest), _MAX_TRIALS)
        end = next((place for place in places if _is_seam_at(text, place, is_seam)), start + largest)
        yield text[start:end]
        start = end
    yield text[start:]


def _places(text: str, first: int, last: int) -> Iterator[int]:
    """From the last to the first: where a blank, a sign or a line's end follows a letter or a digit."""
    for place in range(last, first - 1, -1):
        if text[place - 1].isalnum() and unicodedata.category(text[place])[0] in "ZPSC":
            yield place


def _is_seam_at(text: str, place: int, is_seam: Callable[[str, str], bool]) -> bool:
    return is_seam(text[max(0, place - _AROUND) : place], text[place : place + _AROUND])

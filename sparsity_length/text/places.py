"""Where words and units stand in a text, and which of its tokens hold them.

Shapes: N tokens.
"""

import re

import numpy as np

from sparsity_length.cli import InputError
from sparsity_length.results.table import printable
from sparsity_length.text.tokenizer import DocumentTokenizer, TokenizedText

_IDEOGRAPH = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_BEGINS = {
    "word": re.compile(rf"()(?:[{_IDEOGRAPH}]|[^\W{_IDEOGRAPH}]+(?:['’][^\W{_IDEOGRAPH}]+)*|[^\w\s]+)"),
    "sentence": re.compile(r"(?:[.!?…]+[\"'”’)\]]*\s+|[。！？]|\n+\s*)()"),
    "paragraph": re.compile(r"\n\s*\n\s*()"),
    "line": re.compile(r"\n+()"),
}
"""Group 1 stands where a unit begins."""


def unit_starts(text: TokenizedText, unit: str) -> np.ndarray:
    """Starts of the units of a text, as places of its tokens, ascending, 0 first."""
    if unit == "token":
        return np.arange(len(text.token_ids_N))
    if unit == "paragraph" and not _BEGINS[unit].search(text.text):
        unit = "line"
    begins = [match.start(1) for match in _BEGINS[unit].finditer(text.text)]
    # A token belongs to the unit of its first character that is no blank.
    pieces = [(end, text.text[start:end]) for start, end in text.characters_N2.tolist()]
    # A token of blanks alone counts by its first one.
    first_N = [end - len(piece.lstrip() or piece) for end, piece in pieces]
    # A unit starts where the number of units begun rises; prepend=-1 makes token 0 a start.
    return np.flatnonzero(np.diff(np.searchsorted(begins, first_N, side="right"), prepend=-1))


def token_at(text: TokenizedText, character: int) -> int:
    """The token that holds a character: the first that ends behind it."""
    return int(np.searchsorted(text.characters_N2[:, 1], character, side="right"))


def start_of(word: str, text: TokenizedText) -> int:
    """The character at which the only occurrence of a word begins."""
    # Not \b, which would be wrong for a word that begins or ends with punctuation.
    starts = [found.start() for found in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text.text)]
    if not starts:
        raise InputError(f"--at '{printable(word)}' does not occur in the text")
    if len(starts) > 1:
        named = [
            f"{token_at(text, start)} (“{printable(text.text[max(0, start - 20) : start + len(word)])}”)"
            for start in starts[:8]
        ]
        raise InputError(
            f"--at '{printable(word)}' occurs {len(starts)} times; say which by --position:"
            f" {', '.join(named)}{' …' if len(starts) > 8 else ''}"
        )
    return starts[0]


def words_of(
    text: TokenizedText,
    place: int,
    at: str | None,
    begin: int | None,
    instead: str,
    tokenizer: DocumentTokenizer,
) -> tuple[int, str, str]:
    """Where two continuations begin, a character of the text, and both: its own, and what stands instead.

    Its own is what `at` names, at `begin`; without, from token `place` to the next blank or control token.
    """
    if at is None or begin is None:
        begin, stop = text.characters_N2[place].tolist()
        begin = stop - len(text.text[begin:stop].lstrip())
        at = re.split(r"\s", text.text[begin:], maxsplit=1)[0]
        if text.has_special_tokens:
            at = tokenizer.control_tokens.split(at, maxsplit=1)[0]
    begin += len(at) - len(at.lstrip())
    own = at.strip()
    other = instead.strip()
    if not own or not other or own == other:
        raise InputError(
            f"--instead compares two words, not “{printable(own)}” with “{printable(other)}”; name another"
        )
    return begin, own, other

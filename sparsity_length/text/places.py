"""Where words and units stand in a text, and which of its tokens hold them.

Shapes: N tokens.
"""

import re
from typing import NamedTuple

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
_ROLES = ("system", "developer", "user", "assistant", "model", "tool")
"""Who speaks in a chat, as templates write it right behind a control token."""


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


class Occurrence(NamedTuple):
    """Words in a text."""

    words: str
    begin: int
    """Their first character."""
    number: int
    """Which occurrence this is, from 1."""
    total: int
    """Occurrences."""


def occurrence_of(asked: str, text: TokenizedText) -> Occurrence:
    """The last occurrence of words in a text; of "WORDS:2", if not that is there, the second of WORDS."""
    words, _, number = asked.rpartition(":")
    starts = _starts_of(asked, text)
    if starts or not (words and number.isdecimal()):
        words, number = asked, str(len(starts))
    else:
        starts = _starts_of(words, text)
    if not starts:
        raise InputError(f"--at '{printable(words)}' does not occur in the text")
    if not 1 <= int(number) <= len(starts):
        raise InputError(f"--at '{printable(asked)}': “{printable(words)}” occurs {len(starts)} times")
    return Occurrence(words, starts[int(number) - 1], int(number), len(starts))


def _starts_of(words: str, text: TokenizedText) -> list[int]:
    """The characters at which words begin, wherever they occur."""
    # Not \b, which would be wrong for a word that begins or ends with punctuation.
    return [found.start() for found in re.finditer(rf"(?<!\w){re.escape(words)}(?!\w)", text.text)]


def words_of(
    text: TokenizedText,
    place: int,
    of_words: tuple[int, int] | None,
    instead: str,
    tokenizer: DocumentTokenizer,
) -> tuple[int, str, str]:
    """Where two continuations begin, a character of the text, and both: its own, and what stands instead.

    Its own is the characters `of_words`; if None, from token `place` to the next blank or control token.
    """
    if of_words is not None:
        begin, stop = of_words
        at = text.text[begin:stop]
    else:
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


def labels_of(text: TokenizedText, tokenizer: DocumentTokenizer) -> list[tuple[int, int, str]]:
    """The tokens [start, end) that a chat's template wrote around messages, and the role they name, or ""."""
    if not text.has_special_tokens:
        return []
    pattern = rf"(?:{tokenizer.control_tokens.pattern})(?:({'|'.join(_ROLES)})\b)?\s*"
    starts_N, ends_N = text.characters_N2.T
    labels = []
    for found in re.finditer(pattern, text.text):
        start = int(np.searchsorted(starts_N, found.start()))
        end = int(np.searchsorted(ends_N, found.end(), side="right"))
        if start < end:
            labels.append((start, end, found[1] or ""))
    return labels

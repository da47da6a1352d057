"""Where words and units stand in a text, and which of its tokens hold them.

What a reader takes for one character is one here, a letter with its marks (a grapheme cluster of Unicode):
no word or unit begins or ends within it. Shapes: N tokens.
"""

from itertools import accumulate
from typing import NamedTuple
from unicodedata import normalize

import numpy as np
import regex

from sparsity_length.cli import InputError
from sparsity_length.results.table import printable
from sparsity_length.text.tokenizer import DocumentTokenizer, TokenizedText

_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Line_Break=SA}\p{Tibetan}ー〆"
"""Characters of scripts without blanks between words; SA is Thai, Lao, Khmer, Burmese and their like."""
_LETTER = rf"[[\w\p{{N}}]--[{_UNSPACED}]]"
"""The others that words are made of, marks and digits included."""
_BORDER = rf"(?:(?<!{_LETTER})|(?!{_LETTER}))"
"""Where a word may begin or end: not between two letters."""
_WORD = rf"(?:(?={_LETTER})\X)+"
_CLOSING = r"""["'\p{Pe}\p{Pf}]*"""
_BEGINS = {
    unit: regex.compile(pattern, regex.V1)
    for unit, pattern in {
        "word": rf"()(?:(?=[{_UNSPACED}])\X|{_WORD}(?:['’]{_WORD})*|(?:(?=[^\w\p{{N}}\s])\X)+)",
        # A full stop, which may stand for less, ends a sentence before a blank; a danda or 。 does by itself.
        "sentence": rf"(?:[.!?…]+{_CLOSING}\s+|[\p{{Sentence_Terminal}}--[.!?]]+{_CLOSING}\s*|\n+\s*)()",
        "paragraph": r"\n\s*\n\s*()",
        "line": r"\n+()",
    }.items()
}
"""Group 1 stands where a unit begins."""
_WORD_END = regex.compile(rf"\s|(?!\p{{M}})(?:(?<=[{_UNSPACED}])|(?=[{_UNSPACED}]))|\Z", regex.V1)
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


def tokens_between(text: TokenizedText, start: int, stop: int) -> tuple[int, int]:
    """The tokens [first, end) that hold some of the characters [start, stop)."""
    return token_at(text, start), int(np.searchsorted(text.characters_N2[:, 0], stop))


class Occurrence(NamedTuple):
    """Words in a text."""

    words: str
    begin: int
    end: int
    """The characters [begin, end)."""
    number: int
    """Which occurrence this is, from 1."""
    total: int
    """Occurrences."""


def occurrence_of(asked: str, text: TokenizedText) -> Occurrence:
    """The last occurrence of words in a text; of "WORDS:2", if not that is there, the second of WORDS.

    Whichever way accents are encoded. In Korean, whose particles are written behind a word without a blank,
    the word may have one.
    """
    words, _, number = asked.rpartition(":")
    places = _places_of(asked, text.text)
    if places or not (words and number.isdecimal()):
        words = asked
        number = str(len(places))
    else:
        places = _places_of(words, text.text)
    if not places:
        raise InputError(f"--at '{printable(words)}' does not occur in the text as a word")
    if not 1 <= int(number) <= len(places):
        raise InputError(f"--at '{printable(asked)}': “{printable(words)}” occurs {len(places)} times")
    return Occurrence(words, *places[int(number) - 1], int(number), len(places))


def _places_of(words: str, text: str) -> list[tuple[int, int]]:
    """The characters [start, stop) of words wherever they occur; none begins or ends within a character."""
    # Words stand on two lines, too; and an apostrophe is typed straight where the text has it curly.
    escaped = map(regex.escape, normalize("NFC", words).replace("\u2019", "'").split())
    asked = r"\s+".join(escaped).replace("'", "['\u2019]")
    pattern = rf"{_BORDER}{asked}(?:{_BORDER}|(?=\p{{Hangul}}))"
    characters = regex.findall(r"\X", text)
    composed = [normalize("NFC", character) for character in characters]
    # Of "e\u0301t", whose NFC is "ét", place 0 is 0, 1 is 2 and 2 is 3.
    ends_2C = (accumulate(map(len, some), initial=0) for some in (composed, characters))
    original = dict(zip(*ends_2C, strict=True))
    spans = (found.span() for found in regex.finditer(pattern, "".join(composed), regex.V1, overlapped=True))
    return [
        (original[start], original[stop])
        for start, stop in spans
        if start < stop and original.keys() >= {start, stop}
    ]


def words_of(
    text: TokenizedText,
    position: int,
    of_words: tuple[int, int] | None,
    instead: str,
    tokenizer: DocumentTokenizer,
) -> tuple[int, str, str]:
    """Where two continuations begin, a character of the text, and both: its own, and what stands instead.

    Its own is the characters `of_words`; if None, from the token at `position` to the next blank or control
    token, or to the token's end in a script without blanks.
    """
    begin, stop = of_words or text.characters_N2[position].tolist()
    begin = stop - len(text.text[begin:stop].lstrip())
    if of_words is None:
        stop = _WORD_END.search(text.text, max(stop, begin + 1)).start()
    own = text.text[begin:stop].rstrip()
    if of_words is None and text.has_special_tokens:
        own = tokenizer.control_tokens.split(own, maxsplit=1)[0]
    other = instead.strip()
    if not own or not other or normalize("NFC", own) == normalize("NFC", other):
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
    for found in regex.finditer(pattern, text.text):
        start = int(np.searchsorted(starts_N, found.start()))
        end = int(np.searchsorted(ends_N, found.end(), side="right"))
        if start < end:
            labels.append((start, end, found[1] or ""))
    return labels

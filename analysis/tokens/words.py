"""Which word of a text each token belongs to, and what kind of word it is; by rules that are all stated here.

A word is a run of letters and digits with the apostrophes inside of it and, between digits, one of `. , : /`:
`don't`, `naïve`, `3,000`, `1990s`; `well-known` is two. The kinds, the first that fits:

    number            a digit is in it
    function word     it is in `FUNCTION_WORDS`, whole or without its ending `n't 's 'll 've 're 'd 'm`
    capitalized name  it begins with a capital, and not where a sentence, line, title or quotation may begin:
                      at the start, after a line break, an opening quotation mark or one of `. ! ? : …`
    content word      every other

So a name that begins a sentence, or stands behind the full stop of `Mr.`, counts as a content word, and every
capitalized word of a headline but the first as a name.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis.tokens.function_words import FUNCTION_WORDS

NUMBER, FUNCTION_WORD, NAME, CONTENT_WORD = "number", "function word", "capitalized name", "content word"
_RUN = r"(?:[^\W_][\u0300-\u036f]*)+"  # letters and digits, with the accents that are characters of their own
_WORD = re.compile(rf"{_RUN}(?:['’]{_RUN}|(?<=\d)[.,:/](?=\d){_RUN})*")
_ENDING = re.compile(r"(?:n't|'(?:s|ll|ve|re|d|m))$")
_BEFORE_A_START = re.compile(r"(?:^|[\n.!?:…])[^\S\n]*[\"'“”‘’«(\[*#>–—-]*[^\S\n]*$|[\"“‘«]$")
_FURTHEST_START = 20  # characters looked back for the start of a sentence


@dataclass(frozen=True)
class Word:
    """A word of a text: the characters from `start` to before `end`."""

    start: int
    end: int
    kind: str


def words_of(text: str) -> Iterator[Word]:
    """The words of a text, in order."""
    for match in _WORD.finditer(text):
        yield Word(match.start(), match.end(), _kind(match.group(), text, match.start()))


def _kind(word: str, text: str, start: int) -> str:
    lower = word.lower().replace("’", "'")
    if any(character.isdigit() for character in word):
        return NUMBER
    if lower in FUNCTION_WORDS or _ENDING.sub("", lower) in FUNCTION_WORDS:
        return FUNCTION_WORD
    return NAME if word[0].isupper() and not may_start_sentence(text, start) else CONTENT_WORD


def may_start_sentence(text: str, place: int) -> bool:
    """Whether a sentence, line, title or quotation may begin at a place of a text."""
    first = max(0, place - _FURTHEST_START)
    before = text[first:place]
    # The pattern's ^ must mean the text's own start, not that of the characters looked back at.
    return _BEFORE_A_START.search(before if first == 0 else f"x{before}") is not None


def first_characters(pieces: Sequence[str]) -> list[int | None]:
    """Place in the joined text of each token's first character that is no white space; None where none is.

    A token with the piece "" brings only the first bytes of a character; it has the place of that character.

    Args:
        pieces: the text of each token, as `DocumentTokenizer.pieces` gives them.
    """
    place = sum(map(len, pieces))
    first: int | None = None
    places: list[int | None] = []
    for piece in reversed(pieces):
        place -= len(piece)
        if piece:
            visible = piece.lstrip()
            first = place + len(piece) - len(visible) if visible else None
        places.append(first)
    return places[::-1]

"""Tables of text for a terminal."""

from collections.abc import Collection, Sequence
from typing import Any
from unicodedata import category, east_asian_width


def as_table(names: Sequence[str], rows: Sequence[Sequence[Any]], numbers: Collection[str]) -> str:
    """Rows under their names; to the left, but for the columns of `numbers`."""
    columns = []
    for name, *values in zip(names, *rows, strict=True):
        texts = [printable(str(value)) for value in (name, *values)]
        blanks = [" " * (max(map(_width, texts)) - _width(text)) for text in texts]
        columns.append(
            [
                blank + text if name in numbers else text + blank
                for text, blank in zip(texts, blanks, strict=True)
            ]
        )
    table = ""
    for line in zip(*columns, strict=True):
        table += "  ".join(line).rstrip() + "\n"
    return table


def _width(text: str) -> int:
    """Columns of a terminal: two for a character of East Asian width, none for a mark on another one."""
    letters = [char for char in text if category(char) not in ("Mn", "Me", "Cf")]
    return len(letters) + sum(east_asian_width(letter) in "WF" for letter in letters)


def printable(text: str) -> str:
    """`text` on one line and without control characters, which a terminal would obey."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)

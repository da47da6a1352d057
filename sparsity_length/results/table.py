"""Tables of text for a terminal."""

from collections.abc import Collection, Sequence
from typing import Any


def as_table(names: Sequence[str], rows: Sequence[Sequence[Any]], numbers: Collection[str]) -> str:
    """Rows under their names; to the left, but for the columns of `numbers`."""
    columns = []
    for name, *values in zip(names, *rows, strict=True):
        texts = [printable(str(value)) for value in (name, *values)]
        width = max(map(len, texts))
        columns.append([text.rjust(width) if name in numbers else text.ljust(width) for text in texts])
    table = ""
    for line in zip(*columns, strict=True):
        table += "  ".join(line).rstrip() + "\n"
    return table


def printable(text: str) -> str:
    """`text` on one line and without control characters, which a terminal would obey."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)

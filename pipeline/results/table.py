"""Tables of text for a terminal."""

from collections.abc import Sequence
from typing import Any


def as_table(
    names: Sequence[str], rows: Sequence[Sequence[Any]], *, num_left_columns: int | None = None
) -> str:
    """Rows under their names: numbers to the right, all else to the left.

    Behind the first `num_left_columns` texts stand to the right too, as numbers that were rounded before do;
    nowhere if None.
    """
    columns = []
    for index, (name, *values) in enumerate(zip(names, *rows, strict=True)):
        texts = [printable(str(value)) for value in (name, *values)]
        width = max(map(len, texts))
        # Of an empty column nothing is known: its name stays on the left.
        is_right = bool(values) and all(isinstance(value, int | float) for value in values)
        if num_left_columns is not None and index >= num_left_columns:
            is_right = True
        columns.append([text.rjust(width) if is_right else text.ljust(width) for text in texts])
    return "".join("  ".join(line).rstrip() + "\n" for line in zip(*columns, strict=True))


def printable(text: str) -> str:
    """`text` on one line and without control characters, which a terminal would obey."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)

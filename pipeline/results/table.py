"""Rows as text for a terminal: aligned columns, or a block a row where columns do not fit side by side."""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

NULL = "NULL"
_WIDEST_CELL = 60  # characters; a list of token IDs would push everything else off the screen
_NARROWEST_TEXT = 12  # characters; a hash or a model's name is still told from the next
_GAP = "  "


@dataclass
class _Column:
    """Header lines and cells of one column, as text not yet padded."""

    header: list[str]
    cells: list[str]
    is_number: bool
    stands_right: bool

    @property
    def width(self) -> int:
        """Characters that the column takes."""
        return max(map(_width, (*self.header, *self.cells)))

    def padded(self, text: str) -> str:
        """`text` filled up to the width."""
        space = " " * (self.width - _width(text))
        return space + text if self.stands_right else text + space


def as_table(
    names: Sequence[str],
    rows: Sequence[Sequence[Any]],
    max_width: int | None = None,
    widest_cell: int | None = _WIDEST_CELL,
    *,
    num_left_columns: int | None = None,
) -> str:
    """Rows under their names: numbers to the right and rounded, all else to the left, SQL's null as NULL.

    A table wider than `max_width` (characters) breaks its names at underscores, then cuts its texts
    shorter; one that is still too wide becomes a block a row, a line a column.

    Args:
        names: of the columns.
        rows: their values, as a database returns them: numbers, texts, None, lists, times.
        max_width: of the screen; None where nothing limits it.
        widest_cell: longer values are cut short, with "…"; None where none is.
        num_left_columns: texts of the columns behind these stand to the right too, as numbers that were
            rounded before do; None where no text does.
    """
    columns = [_column(name, [row[i] for row in rows], widest_cell) for i, name in enumerate(names)]
    for column in columns[num_left_columns:] if num_left_columns is not None else ():
        column.stands_right = True
    if max_width is not None and _table_width(columns) > max_width:
        _break_headers(columns)
        _cut_texts(columns, max_width)
        if _table_width(columns) > max_width and rows:
            return _blocks(names, rows, max_width)
    num_header_lines = max((len(column.header) for column in columns), default=0)
    for column in columns:  # the last line of each name stands just above the values
        column.header = [""] * (num_header_lines - len(column.header)) + column.header
    lines = zip(*([*column.header, *column.cells] for column in columns), strict=True)
    return "".join(_line(columns, line) for line in lines)


def _line(columns: Sequence[_Column], texts: Sequence[str]) -> str:
    padded = (column.padded(text) for column, text in zip(columns, texts, strict=True))
    return _GAP.join(padded).rstrip() + "\n"


def _column(name: str, values: Sequence[Any], widest_cell: int | None) -> _Column:
    spec = _float_spec([value for value in values if isinstance(value, float)])
    cells = [_cut(_text(value, spec), widest_cell) for value in values]
    told = [value for value in values if value is not None]
    is_number = all(_is_number(value) for value in told) and bool(values)
    return _Column([printable(name)], cells, is_number, stands_right=is_number)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _float_spec(values: Sequence[float]) -> str:
    """One format for a column of floats, by its largest magnitude: decimal points stand below each other."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if largest == 0 or 1e-3 <= largest < 1e3:
        return ".4f"
    return ".1f" if 1e3 <= largest < 1e9 else ".3e"


def _text(value: Any, float_spec: str = ".4g") -> str:
    if value is None:
        return NULL
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return _float_text(value, float_spec)
    if isinstance(value, list | tuple):  # one entry more than can be seen, so that it is cut with "…"
        return f"[{', '.join(_text(entry) for entry in value[: _WIDEST_CELL + 1])}]"
    return printable(str(value))


def _float_text(value: float, spec: str) -> str:
    if math.isnan(value):
        return "NaN"
    text = format(value, spec)
    # What is not zero must not look like zero.
    return format(value, ".1e") if value != 0 and float(text) == 0 else text


def printable(text: str) -> str:
    """`text` on one line and without control characters, which a terminal would obey."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _width(text: str) -> int:
    """Cells of a terminal that `text` takes: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def _cut(text: str, widest: int | None) -> str:
    """`text`, or as much of it as leaves room for "…"."""
    if widest is None or _width(text) <= widest:
        return text
    while _width(text) > widest - 1:
        text = text[: -max(1, (_width(text) - widest) // 2)]
    return text + "…"


def _table_width(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + len(_GAP) * (len(columns) - 1)


def _break_headers(columns: Sequence[_Column]) -> None:
    """Break each name after underscores into lines no longer than its values, if its words allow."""
    for column in columns:
        widest = max((_width(cell) for cell in column.cells), default=0)
        lines = [""]
        for word in column.header[0].replace("_", "_\0").split("\0"):
            if lines[-1] and _width(lines[-1] + word) > widest:
                lines.append("")
            lines[-1] += word
        column.header = lines


def _cut_texts(columns: Sequence[_Column], max_width: int) -> None:
    """Cut the widest texts, a cell of the screen at a time, until the table fits or none can be cut."""
    texts = [column for column in columns if not column.is_number]
    while texts and _table_width(columns) > max_width:
        widest = max(texts, key=lambda column: column.width)
        target = max(
            widest.width - max(1, (_table_width(columns) - max_width) // len(texts)), _NARROWEST_TEXT
        )
        cells = [_cut(cell, target) for cell in widest.cells]
        if cells == widest.cells:
            return
        widest.cells = cells


def _blocks(names: Sequence[str], rows: Sequence[Sequence[Any]], max_width: int) -> str:
    shown = [printable(name) for name in names]
    name_width = max(map(_width, shown))
    room = max(max_width - name_width - 2 * len(_GAP), _NARROWEST_TEXT)
    blocks = []
    for number, row in enumerate(rows, start=1):
        lines = [
            f"{_GAP}{name}{' ' * (name_width - _width(name))}{_GAP}{_cut(_text(value), room)}\n"
            for name, value in zip(shown, row, strict=True)
        ]
        blocks.append(f"row {number}\n{''.join(lines)}")
    return "".join(blocks)

"""Rows as text for a terminal: aligned columns of numbers, texts, None, lists and times."""

import io
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

_WIDEST_CELL = 60  # characters; a list of token IDs would push everything else off the screen


def as_table(
    names: Sequence[str],
    rows: Sequence[Sequence[Any]],
    widest_cell: int | None = _WIDEST_CELL,
    *,
    num_left_columns: int | None = None,
) -> str:
    """Rows under their names: numbers to the right and rounded, all else to the left, SQL's null as NULL.

    Args:
        names: of the columns.
        rows: their values, as a database returns them.
        widest_cell: longer values are cut short, with "…"; None where none is.
        num_left_columns: texts of the columns behind these stand to the right too, as numbers that were
            rounded before do; None where no text does.
    """
    from rich.console import Console  # late, for a --help at once
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    cells = []
    for index, name in enumerate(names):
        column = [row[index] for row in rows]
        is_right = num_left_columns is not None and index >= num_left_columns
        is_right |= bool(column) and all(value is None or _is_number(value) for value in column)
        table.add_column(justify="right" if is_right else "left", no_wrap=True)
        spec = _float_spec([value for value in column if isinstance(value, float)])
        texts = [_text(value, spec) for value in column]
        cut = [
            text if widest_cell is None or len(text) <= widest_cell else f"{text[: widest_cell - 1]}…"
            for text in texts
        ]
        cells.append([printable(name), *cut])
    for line in zip(*cells, strict=True):
        table.add_row(*map(Text, line))
    output = io.StringIO()
    # Without an end of lines, and wide characters are two cells.
    Console(file=output, width=1_000_000, color_system=None, legacy_windows=False).print(table)
    return "".join(f"{line.rstrip()}\n" for line in output.getvalue().splitlines())


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
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        text = "NaN" if math.isnan(value) else format(value, float_spec)
        # What is not zero must not look like zero.
        return format(value, ".1e") if value != 0 and not math.isnan(value) and float(text) == 0 else text
    if isinstance(value, list | tuple):  # one entry more than can be seen, so that it is cut with "…"
        return f"[{', '.join(_text(entry) for entry in value[: _WIDEST_CELL + 1])}]"
    return printable(str(value))


def printable(text: str) -> str:
    """`text` on one line and without control characters, which a terminal would obey."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)

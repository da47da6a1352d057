"""Rows as text for a terminal: aligned columns of numbers, texts, None, lists and times."""

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

    Values longer than `widest_cell` are cut, with "…"; none where None. Behind the first `num_left_columns`
    texts stand to the right too, as numbers that were rounded before do; nowhere where None.
    """
    columns = []
    for index, name in enumerate(names):
        values = [row[index] for row in rows]
        floats = [abs(value) for value in values if isinstance(value, float) and math.isfinite(value)]
        largest = max(floats, default=0.0)  # decides the format: decimal points stand below each other
        spec = ".4f" if largest == 0 or 1e-3 <= largest < 1e3 else ".1f" if 1e3 <= largest < 1e9 else ".3e"
        texts = [_text(value, spec) for value in values]
        if widest_cell is not None:
            texts = [text if len(text) <= widest_cell else f"{text[: widest_cell - 1]}…" for text in texts]
        texts = [printable(name), *texts]
        is_right = num_left_columns is not None and index >= num_left_columns
        is_right |= bool(values) and all(value is None or _is_number(value) for value in values)
        width = max(map(len, texts))
        columns.append([text.rjust(width) if is_right else text.ljust(width) for text in texts])
    return "".join("  ".join(line).rstrip() + "\n" for line in zip(*columns, strict=True))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


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

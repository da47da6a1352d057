"""Rows of results on their way to a file, column by column."""

from collections.abc import Mapping
from typing import Any

Columns = dict[str, list[Any]]
"""Column -> values, one a row."""


def append_columns(tables: dict[str, Columns], rows: Mapping[str, Columns]) -> None:
    """Append the rows of each artefact to its table, in place."""
    for artefact, columns in rows.items():
        table = tables.setdefault(artefact, {name: [] for name in columns})
        for name, values in columns.items():
            table[name].extend(values)

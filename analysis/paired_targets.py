"""Joining two tables on what both measured, and saying how much only one of them did."""

import logging
from collections.abc import Sequence
from typing import Any

import pandas as pd

logger = logging.getLogger("analysis")


def joined_on_common(
    left: pd.DataFrame,
    right: pd.DataFrame,
    on: Sequence[str],
    what: str,
    suffixes: tuple[str, str] = ("", "_"),
) -> pd.DataFrame:
    """The rows of both tables whose keys both have; a warning says how many keys only one has.

    Args:
        left, right: tables with the columns `on`.
        on: what names a target, or whatever is paired.
        what: is paired, for the warning, such as "targets of the generalization gap".
        suffixes: of columns that both have.
    """
    keys = list(on)
    sides: Any = left[keys].drop_duplicates().merge(
        right[keys].drop_duplicates(), on=keys, how="outer", indicator=True
    )["_merge"]  # fmt: skip
    num_alone = int((sides != "both").sum())
    if num_alone:
        logger.warning(
            "%s: %s of %s are not in both tables and left out", what, f"{num_alone:,}", f"{len(sides):,}"
        )
    return left.merge(right, on=keys, suffixes=suffixes)

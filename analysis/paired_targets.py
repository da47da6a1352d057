"""Joining tables on what both measured, and saying how much is left out because a table lacks it."""

import logging
from collections.abc import Sequence
from typing import Any

import pandas as pd

from pipeline.errors import unknown_name

TARGET = ["document_id", "chunk_index", "target_position"]
"""The columns that name a target, in every artefact of targets."""
logger = logging.getLogger("analysis")


def rows_of(frame: pd.DataFrame, model: str) -> pd.DataFrame:
    """The rows of one model.

    Raises:
        InputError: there are none.
    """
    rows = frame[frame["model"] == model]
    if rows.empty:
        raise unknown_name("model", model, frame["model"].unique())
    return rows


def joined_on_common(
    left: pd.DataFrame,
    right: pd.DataFrame,
    on: Sequence[str],
    what: str,
    suffixes: tuple[str, str] = ("", "_"),
    *,
    may_right_have_more: bool = False,
) -> pd.DataFrame:
    """The rows of both tables whose keys both have; a warning says how many keys only one has.

    Args:
        left, right: tables with the columns `on`.
        on: what names a target, or whatever is paired.
        what: is paired, for the warning, such as "targets of the generalization gap".
        suffixes: of columns that both have.
        may_right_have_more: nothing is left out with keys that `right` alone has, as where it tells of all
            targets and `left` asks for some.
    """
    keys = list(on)
    sides: Any = left[keys].drop_duplicates().merge(
        right[keys].drop_duplicates(), on=keys, how="left" if may_right_have_more else "outer", indicator=True
    )["_merge"]  # fmt: skip
    tell_left_out(int((sides != "both").sum()), len(sides), what)
    return left.merge(right, on=keys, suffixes=suffixes)


def of_targets(rows: pd.DataFrame, targets: pd.DataFrame | None) -> pd.DataFrame:
    """The rows of these targets; all where None.

    Args:
        rows: any table whose rows name a target.
        targets: the columns of `TARGET`, a row a target.
    """
    return rows if targets is None else rows.merge(targets[TARGET], on=TARGET)


def of_common_groups(
    left: pd.DataFrame, right: pd.DataFrame, groups: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of each table in the groups that both have: what one did not measure at all is not left out.

    Args:
        left, right: tables with the columns `groups`.
        groups: such as model, rule and k.
    """
    keys = list(groups)
    return (
        left.merge(right[keys].drop_duplicates(), on=keys),
        right.merge(left[keys].drop_duplicates(), on=keys),
    )


def complete_rows(table: pd.DataFrame, what: str) -> pd.DataFrame:
    """The rows without a missing value; a warning says how many others there are."""
    complete = table.dropna()
    tell_left_out(len(table) - len(complete), len(table), what)
    return complete


def tell_left_out(num_left_out: int, num_all: int, what: str) -> None:
    """Warn of what a statistic leaves out, where that is anything."""
    if num_left_out:
        logger.warning(
            "%s: %s of %s are not in both tables and left out", what, f"{num_left_out:,}", f"{num_all:,}"
        )

"""Titles that say no more than the data: what an interval supports, and the line below of n and model.

Each figure's own sentence stands beside its numbers or its drawing; here are the words that all share.
"""

from collections.abc import Sequence

import pandas as pd

OVER_DOCUMENTS = "95 % over documents"
BARS = f"bars: {OVER_DOCUMENTS}"
BANDS = f"bands: {OVER_DOCUMENTS}"
FEWEST_TARGETS = 30
"""Classes of fewer targets are not drawn: their intervals would set a figure's scale."""
SHOWN_K = 4
"""Tokens that a title tells of, where so many were studied."""
_SAMPLED = ("targets", "documents")


def is_above(low: float, bound: float = 0.0) -> bool:
    """Whether an interval lies above `bound`: only then may a title say "more". False where it is NaN."""
    return bool(low > bound)


def is_below(high: float, bound: float = 0.0) -> bool:
    """Whether an interval lies below `bound`. False where it is NaN."""
    return bool(high < bound)


def lie_apart(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether two intervals (low, high) do not touch; False where an end is not known."""
    return bool(first[0] > second[1] or second[0] > first[1])


def percent(share: float) -> str:
    """A share of one as "65 %"."""
    return f"{100 * share:.0f} %"


def counted(number: int, noun: str) -> str:
    """A number and its noun: "1 token", "2,560 targets"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def counted_seeds(cells: pd.DataFrame) -> str:
    """The seeds of every mean, column `num_seeds`, from the fewest to the most: "1 seed", "2 to 3 seeds"."""
    fewest, most = int(cells["num_seeds"].min()), int(cells["num_seeds"].max())
    return ("" if fewest == most else f"{fewest} to ") + counted(most, "seed")


def sample_size(rows: pd.DataFrame) -> str:
    """The n of a subtitle: targets and documents, from the fewest to the most where the rows drawn differ."""
    sizes = [(int(rows[f"num_{kind}"].min()), int(rows[f"num_{kind}"].max())) for kind in _SAMPLED]
    counts = (f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in sizes)
    return "n = " + ", ".join(f"{count} {kind}" for count, kind in zip(counts, _SAMPLED, strict=True))


def carried_share(of_rule: pd.DataFrame, nearest: pd.DataFrame, share: str, beyond: str = "") -> str:
    """What a few chosen tokens carry of what the far context is worth, and as many of the nearest.

    Nothing is said of a share whose interval reaches 0, nor of the nearest where the intervals touch.

    Args:
        of_rule: a row a k of one rule, with the share and its interval.
        nearest: the same of the nearest tokens; may be empty.
        share: the column.
        beyond: said after the share, such as " beyond their null".
    """
    ks = sorted(of_rule["k"].unique())
    k = int(SHOWN_K if SHOWN_K in ks else ks[len(ks) // 2])
    row = of_rule[of_rule["k"] == k].iloc[0]
    tokens, carry = counted(k, "token"), "carries" if k == 1 else "carry"
    low, high = row[f"{share}_low"], row[f"{share}_high"]
    if not is_above(low):
        return f"{tokens} {carry} no clear share of what the far context is worth{beyond}"
    title = f"{tokens} {carry} {percent(row[share])} of what the far context is worth{beyond}"
    for of_nearest in nearest[nearest["k"] == k].to_dict("records"):
        if lie_apart((low, high), (of_nearest[f"{share}_low"], of_nearest[f"{share}_high"])):
            title += f", the nearest {k} {carry} {percent(of_nearest[share])}"
    return title


def subtitle(*parts: str) -> str:
    """n, model and interval as one line; empty parts, which are not known, are left out."""
    return "; ".join(part for part in parts if part)

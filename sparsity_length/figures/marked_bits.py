"""Functions of k marked bits, beyond the trained length.

Plans: analysis/LOG.md, 2026-11-27 (C: parity, OR, majority, the last marked bit, look-up, with k of 9 bits,
trained at 18 tokens) and 2026-11-29 (twelve seeds of parity, trained until 99.5 % are right).
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import ttest_ind

from sparsity_length.figures import drawing
from sparsity_length.figures.read import rows_where
from sparsity_length.results.statistics import Interval, decided, ratio_of_sums

FUNCTIONS = {"parity": "parity", "or": "OR", "majority": "majority", "last": "last bit", "lookup": "look-up"}
"""Name of a function -> that in tables and figures."""
FEW = (1, 2)
MANY = range(5, 9)
"""k of few and of many bits, as planned."""
SMALL = 0.1
"""A fall of accuracy that is none, as planned."""
HOLDS = 0.9
"""Least accuracy of what holds at length, as planned; chance is 0.5."""


def student(values: pd.Series) -> Interval:
    """The mean of values, one per seed, with Student's interval; of one seed its ends are NaN."""
    return ratio_of_sums(values.to_numpy(), np.ones(len(values)))


def by_seed(accuracy: pd.DataFrame, function: str, ks: Iterable[int]) -> pd.Series:
    """Accuracy of each seed at the longest size, mean over k."""
    rows = rows_where(accuracy, task=f"sparse_{function}", size=accuracy["size"].max())
    return rows[rows["sparsity"].isin(ks)].groupby("seed")["exact_match"].mean()


def welch(one: pd.Series, other: pd.Series) -> Interval:
    """The mean of values, one per seed, minus that of others, with Welch's interval."""
    lead = float(one.mean() - other.mean())
    if one.nunique() == other.nunique() == 1:  # without variance the test gives no interval
        return Interval(lead, lead, lead)
    low, high = ttest_ind(one, other, equal_var=False).confidence_interval()
    return Interval(lead, float(low), float(high))


def or_minus_parity(accuracy: pd.DataFrame, ks: Iterable[int]) -> Interval:
    """Accuracy of OR minus that of parity at the longest size, mean over k, with Welch's interval over seeds.

    A seed of one function and the same seed of another share nothing, so they are no pairs.
    """
    return welch(by_seed(accuracy, "or", ks), by_seed(accuracy, "parity", ks))


def verdict(accuracy: pd.DataFrame) -> str:
    """Does parity fail because of the number of bits? Rule of 2026-11-27, with the condition of 2026-11-29.

    Refuted if OR of eight bits holds, supported if it is at 60 % or less. Either only if OR clearly beats
    parity for k of 5 to 8, and if parity of one bit holds: it is the same as OR of one bit, so models that
    lose it fail by something else than the number.
    """
    rows = accuracy[accuracy["is_learnt"]]
    # NaN, if seeds or functions are missing, decides nothing.
    is_clear = by_seed(rows, "parity", [1]).mean() >= HOLDS and or_minus_parity(rows, MANY).low > 0
    of_or = by_seed(rows, "or", [8]).mean()
    return decided(supported=is_clear and of_or <= 0.6, refuted=is_clear and of_or >= HOLDS)


def fall(accuracy: pd.DataFrame) -> Interval:
    """Accuracy of parity of few bits minus that of many, at the longest size, with Student's interval."""
    return student(by_seed(accuracy, "parity", FEW) - by_seed(accuracy, "parity", MANY))


def fall_verdict(accuracy: pd.DataFrame) -> str:
    """Does parity fall with k in models that have learned it? Rule of 2026-11-29.

    All twelve seeds, and those alone that reached 99.5 %, must say the same, and one bit must hold: a model
    that loses a single bit fails by something else than the number.
    """
    one = by_seed(accuracy, "parity", [1])
    holds_one = len(one) >= 12 and one.mean() >= HOLDS
    falls = [fall(accuracy), fall(accuracy[accuracy["is_learnt"]])]
    return decided(
        supported=holds_one and all(found.low > SMALL for found in falls),
        refuted=holds_one and all(found.low > -SMALL and found.high < SMALL for found in falls),
    )


def agreement_with_or(examples: pd.DataFrame) -> pd.Series:
    """Of each seed, the fraction of its answers for two bits or more, at the longest size, that are OR's.

    For one bit OR is parity.
    """
    rows = rows_where(examples, size=examples["size"].max()).query("sparsity > 1")
    is_or = rows["decisive_tokens"].str.contains("1") == (rows["answer"] == "1")
    return is_or.groupby(rows["seed"]).mean()


def or_as_parity(examples: pd.DataFrame) -> pd.Series:
    """Accuracy, by k, of whoever answers OR in these examples of parity at the longest size: `is_right`."""
    rows = rows_where(examples, size=examples["size"].max())
    num_ones = rows["decisive_tokens"].str.count("1")
    is_right = (num_ones > 0) == (num_ones % 2 == 1)
    return is_right.groupby(rows["sparsity"]).mean().rename("is_right")


def _draw_function(ax: Axes, accuracy: pd.DataFrame, function: str, style: drawing.Style) -> None:
    """The mean of those seeds that learned the function, and behind it every seed."""
    rows = rows_where(accuracy, task=f"sparse_{function}", size=accuracy["size"].max())
    if style["color"] in (drawing.VERMILION, drawing.BLUE):  # seeds of all would hide those that decide
        drawing.draw_seeds(ax, rows, "sparsity", "exact_match", style, scale=100)
    means = rows[rows["is_learnt"]].groupby("sparsity")[["exact_match"]].mean()
    drawing.draw_line(ax, means.index, means, "exact_match", style, FUNCTIONS[function], scale=100)


def figure_of(functions: pd.DataFrame, longer_trained: pd.DataFrame, examples: pd.DataFrame) -> Figure:
    """Accuracy by k at ten times the trained length: a line per function, and parity trained to 99.5 %.

    Beside the latter, how often OR would be right in its `examples`.
    """
    figure, (ax, right) = drawing.panels(2, 2.8)
    colors = {"parity": drawing.VERMILION, "or": drawing.BLUE}
    for marker, name in zip("osD^v", FUNCTIONS, strict=True):
        _draw_function(ax, functions, name, drawing.solid(colors.get(name, "#B5B5B5"), marker))
    _draw_function(right, longer_trained, "parity", drawing.solid(drawing.VERMILION))
    of_or = or_as_parity(examples).to_frame()
    drawing.draw_line(
        right, of_or.index, of_or, "is_right", drawing.solid(drawing.BLUE, "s"), "OR's answers", scale=100
    )
    ax.set(title="five functions", ylabel="accuracy (%)", ylim=(35, 103))
    right.set(title="parity, trained to 99.5%")
    for panel in (ax, right):
        drawing.name_level(panel, 50, "chance", below=True)
        panel.set(xlabel="marked bits k", xticks=range(1, 9))
    one, eight = (by_seed(longer_trained, "parity", [k]).mean() for k in (1, 8))
    drawing.put_title(
        figure,
        "At ten times the trained length, parity trained to 99.5% is right about as often as OR's"
        f" answers: {one:.0%} for one bit, {eight:.0%} for 8",
        "thick: means of the seeds that learned the task",
        f"thin: every seed of OR and parity (right: {longer_trained['seed'].nunique()})",
        "180 tokens",
    )
    return figure

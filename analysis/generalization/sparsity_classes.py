"""The classes of targets by k*: each studied k, more than the largest, and no gain to speak of."""

from collections.abc import Iterable, Sequence

import pandas as pd

NO_GAIN = "no gain"


def sparsity_categories(studied_ks: Iterable[int]) -> list[str]:
    """Names of the classes of k*, sparse to dense: each studied k, more than the largest, no gain."""
    ks = sorted(studied_ks)
    return [*map(str, ks), f"more than {ks[-1]}", NO_GAIN]


def sparsity_category(dependency_sparsity: pd.DataFrame, studied_ks: Sequence[int]) -> pd.Series:
    """The class of each target's k*; a censored target helps but needs more than the largest studied k."""
    k_star = dependency_sparsity["dependency_sparsity"]
    reached = k_star.map(lambda k: NO_GAIN if pd.isna(k) else str(int(k)))
    return reached.mask(dependency_sparsity["is_censored"], f"more than {max(studied_ks)}")

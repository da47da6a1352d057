"""What is drawn is the table: places of marks, ends of bars, and nothing where there is no number."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.tokens import long_perplexity, long_perplexity_figures

ALPHAS = [0.25, 0.5, 1.0, 9.0]
TABLE = pd.DataFrame(
    {"model": "m", "short_context": "exact", "alpha": ALPHAS, "num_key_tokens": [9, 4, 2, 0]}
)
PERPLEXITIES = pd.concat([TABLE, TABLE.assign(short_context="windowed")]).assign(
    long_perplexity=pd.array([3.0, 4.0, 5.0, None] * 2, dtype="Float64"),
    long_perplexity_low=pd.array([2.0, 3.0, None, None] * 2, dtype="Float64"),
    long_perplexity_high=pd.array([4.0, 5.0, None, None] * 2, dtype="Float64"),
)


def test_key_tokens_end_where_there_are_none(ax: Axes) -> None:
    long_perplexity_figures.key_tokens_against_alpha(PERPLEXITIES, ax)
    for line in ax.lines:
        assert (list(line.get_xdata()), list(line.get_ydata())) == (ALPHAS[:3], [9, 4, 2])
    assert [line.get_linestyle() for line in ax.lines] == ["-", "--"]
    assert ax.get_legend_handles_labels()[1] == ["m"]


def test_long_perplexity_is_drawn_with_the_intervals_of_exact_windows(ax: Axes) -> None:
    long_perplexity_figures.long_perplexity_against_alpha(PERPLEXITIES, ax)
    assert len(ax.lines) == 2
    for line in ax.lines:
        np.testing.assert_array_equal(line.get_ydata(), [3, 4, 5, np.nan])
    (bars,) = ax.collections
    ends = [segment[:, 1].tolist() for segment in bars.get_segments() if len(segment)]
    assert ends == [[2, 4], [3, 5]]


def test_agreement_is_drawn_as_it_is(loss_differences: pd.DataFrame, ax: Axes) -> None:
    alphas = [-0.5, 0.0, 0.25, 50.0]
    agreement = long_perplexity.key_token_agreement(loss_differences, alphas, [float("-inf")])
    long_perplexity_figures.agreement_against_alpha(agreement, ax)
    assert len(ax.lines) == 4
    for line, (_, rows) in zip(ax.lines, agreement.groupby("model"), strict=True):
        drawn = line.get_ydata()
        np.testing.assert_array_equal(drawn, rows["jaccard"].astype("float64"))
        assert 0.2 < drawn[1] < 1
        assert np.isnan(drawn[3])

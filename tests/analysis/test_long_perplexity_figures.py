"""What is drawn is the table: places of marks, ends of bars, and nothing where there is no number."""

from pathlib import Path

import numpy as np
import pandas as pd
from legible_figures import assert_legible
from matplotlib.axes import Axes
from synthetic_results import write_results

from analysis.drawing import OTHER_MODELS, TRAINED_LONG, model_labels
from analysis.tokens import long_perplexity
from analysis.tokens import long_perplexity as long_perplexity_figures
from pipeline.results.read import read_artefact

ALPHAS = [0.25, 0.5, 1.0, 9.0]
TABLE = pd.DataFrame(
    {"model": "long-seed0", "short_context": "exact", "alpha": ALPHAS, "num_key_tokens": [90, 40, 30, 0]}
)
PERPLEXITIES = pd.concat([TABLE, TABLE.assign(short_context="windowed")]).assign(
    long_perplexity=pd.array([3.0, 4.0, 5.0, None] * 2, dtype="Float64"),
    long_perplexity_low=pd.array([2.0, 3.0, None, None] * 2, dtype="Float64"),
    long_perplexity_high=pd.array([4.0, 5.0, None, None] * 2, dtype="Float64"),
)


def test_key_tokens_end_where_there_are_none(results: Path, ax: Axes) -> None:
    labels = model_labels(results, "loss_differences")
    long_perplexity_figures.key_tokens_against_alpha(PERPLEXITIES, labels, ax)
    for line in ax.lines:
        assert (list(line.get_xdata()), list(line.get_ydata())) == (ALPHAS[:3], [90, 40, 30])
        assert line.get_linestyle() == "-"  # dashed is a null, which shared windows are not
    assert ax.lines[0].get_linewidth() > ax.lines[1].get_linewidth()
    assert {line.get_color() for line in ax.lines} <= {look.color for look in OTHER_MODELS}


def test_long_perplexity_is_drawn_with_the_intervals_of_exact_windows(results: Path, ax: Axes) -> None:
    labels = model_labels(results, "loss_differences")
    ends = long_perplexity_figures.long_perplexity_against_alpha(PERPLEXITIES, labels, ax)
    assert len(ax.lines) == 2
    for line in ax.lines:
        np.testing.assert_array_equal(line.get_ydata(), [3, 4, 5, np.nan])
    (bars,) = ax.collections
    drawn = [segment[:, 1].tolist() for segment in bars.get_segments() if len(segment)]
    assert drawn == [[2, 4], [3, 5]]
    assert [(end.x, end.y) for end in ends] == [(1.0, 5.0)]


def test_the_figure_of_models_of_one_size_can_be_read(tmp_path: Path) -> None:
    write_results(tmp_path, num_documents=6, scale=(460_000, 100))
    losses = read_artefact(tmp_path, "loss_differences", long_perplexity.COLUMNS)
    labels = model_labels(tmp_path, "loss_differences")
    thresholds = [0.0, 0.25], [float("-inf")]
    own = long_perplexity.long_perplexities(losses, None, *thresholds)
    judged = long_perplexity.long_perplexities(losses, "long-seed0", *thresholds)
    figure = long_perplexity_figures.long_perplexity_figure(own, judged, "long-seed0", labels)
    assert TRAINED_LONG.color in {line.get_color() for line in figure.axes[0].lines}
    assert_legible(figure)

"""What the library's frames say in a few numbers, by hand, and the figure of the same numbers."""

import sys
from io import StringIO

import numpy as np
import pandas as pd
import pytest

from sparsity_length import InputError, plot, summary

# Student's t for 95% with one and with two degrees of freedom.
T_1 = 12.7062
T_2 = 4.30265


COLUMNS = [
    *("text", "position", "rank"),
    *("long_context_loss", "baseline_loss", "sparse_context_loss", "null_sparse_context_loss"),
    *("baseline_divergence", "sparse_context_divergence", "null_sparse_context_divergence"),
]
# Text 0 has two targets, text 1 one; the first two ranks of each, and of text 1 no loss with two.
INFLUENTIAL = pd.read_csv(
    StringIO("""
0 30 1  1.0 3.0 2.0 3.0  4.0 2.0 4.0
0 30 2  1.0 3.0 1.0 2.5  4.0 0.0 3.0
0 31 1  2.0 2.0 2.5 2.0  2.0 1.0 2.0
0 31 2  2.0 2.0 2.0 2.0  2.0 1.0 2.0
1 20 1  0.5 2.5 1.0 2.0  2.0 0.0 1.0
1 20 2  0.5 2.5 NaN NaN  2.0 NaN NaN
"""),
    sep=r"\s+",
    names=COLUMNS,
    dtype=dict.fromkeys(COLUMNS[3:], "float32"),
)
BY_LENGTH = pd.read_csv(
    StringIO("""
text context_length loss divergence
0    8              4    1
0    8              2    0.5
1    8              3    0.5
2    8              3    0
0    32             2    1
0    32             2    0.5
1    32             3    0.5
2    32             1    0
"""),
    sep=r"\s+",
)


def test_the_recovered_fraction_is_a_ratio_of_sums_with_an_interval_over_texts() -> None:
    table = summary(INFLUENTIAL).set_index(["criterion", "k"])
    assert table[["num_targets", "num_texts"]].to_numpy().tolist() == [[3, 2], [2, 1], [3, 2], [2, 1]]
    # By KL one token brings 4 to 2, 2 to 1 and 2 to 0: 5 of 8. Without text 0 it is 2/2, without text 1 3/6.
    # The jackknife's errors for two texts; of the excess, which is 1 in text 1 and 3 in text 0, it is none.
    half = T_1 * (2 / 2 - 3 / 6) / 2
    expected = {
        ("divergence", 1): {
            "gain": 8 / 3,
            "recovered_fraction": 5 / 8,
            "recovered_fraction_low": 5 / 8 - half,
            "recovered_fraction_high": 5 / 8 + half,
            "null_recovered_fraction": 1 / 8,
            "excess_fraction": 4 / 8,
            "excess_fraction_high": 4 / 8,
        },
        # By loss the gains are 2, 0 and 2; one token recovers 1, -0.5 and 1.5, the null 0, 0 and 0.5.
        ("loss", 1): {"gain": 4 / 3, "recovered_fraction": 2 / 4, "null_recovered_fraction": 0.5 / 4},
        # Two tokens stand in text 0 alone: 6 - 1 of 6. One text says nothing about others.
        ("divergence", 2): {
            "recovered_fraction": 5 / 6,
            "recovered_fraction_low": np.nan,
            "recovered_fraction_high": np.nan,
        },
    }
    for key, numbers in expected.items():
        assert table.loc[key, [*numbers]].to_dict() == pytest.approx(numbers, rel=1e-5, nan_ok=True), key


def test_without_a_null_baseline_there_is_no_excess() -> None:
    nulls = [name for name in COLUMNS if name.startswith("null")]
    table = summary(INFLUENTIAL.assign(**dict.fromkeys(nulls, np.nan)))
    assert table[["null_recovered_fraction", "excess_fraction"]].isna().all(axis=None)
    pd.testing.assert_series_equal(table["recovered_fraction"], summary(INFLUENTIAL)["recovered_fraction"])


def test_losses_by_context_length_are_means_over_targets_and_drawn_as_such() -> None:
    table = summary(BY_LENGTH).set_index("context_length")
    numbers = table[["loss", "divergence", "num_targets", "num_texts"]]
    assert numbers.T.to_dict("list") == {8: [3, 0.5, 4, 3], 32: [2, 0.5, 4, 3]}
    # Without one text after another the mean at 32 is 4/2, 5/3 and 7/3; three texts.
    half = T_2 * np.sqrt(2 * np.var([4 / 2, 5 / 3, 7 / 3]))
    assert table.loc[32, ["loss_low", "loss_high"]].tolist() == pytest.approx([2 - half, 2 + half], rel=1e-5)
    ax = plot(BY_LENGTH)
    assert plot(BY_LENGTH, ax) is ax  # a second line
    for bars in ax.containers:
        line, _, (intervals,) = bars.lines
        assert line.get_xydata().tolist() == [[8, 3], [32, 2]]
        assert intervals.get_segments()[1][:, 1].tolist() == pytest.approx([2 - half, 2 + half], rel=1e-5)
    assert len(ax.containers) == 2 and ax.get_xscale() == "log"


def test_other_frames_and_a_missing_matplotlib_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (summary, plot):
        with pytest.raises(InputError, match="losses with context_lengths"):
            function(pd.DataFrame({"text": [0], "short_context_loss": [1.0]}))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="pip install matplotlib"):
        plot(BY_LENGTH)

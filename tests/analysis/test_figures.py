"""What is drawn is the data: places of marks, ends of bars, number of panels, labels, bytes."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from synthetic_results import KS, SHORT_MODELS, TRAIN_CONTEXT_LENGTHS

from analysis import figures
from analysis.generalization.gaps import generalization_gap_by_sparsity
from analysis.mean_losses import losses_by_context_length, summarize_models
from analysis.recovered_gain import excess_over_null, recovered_losses, with_recovered_losses
from pipeline.results.folder import read_artefact


@pytest.fixture(scope="module")
def recovered(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    return recovered_losses(sparse_context_losses)


def model_rows(table: pd.DataFrame, model: str = "long-seed0") -> pd.DataFrame:
    return table[table["model"] == model]


def drawn(ax: Axes, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, y and the ends of the bars (points x 2) of the index-th line with bars."""
    line, _, (bars,) = ax.containers[index]
    ends = np.array([segment[:, 1] for segment in bars.get_segments()])
    x, y = (np.asarray(values, dtype=float) for values in (line.get_xdata(), line.get_ydata()))
    return x, y, ends


@pytest.mark.parametrize("value", ["recovered_loss", "recovered_fraction"])
def test_a_rule_and_its_null_are_drawn_in_one_colour_with_their_intervals(
    recovered: pd.DataFrame, ax: Axes, value: str
) -> None:
    rows = model_rows(recovered)
    draw = {
        "recovered_loss": figures.recovered_loss_against_k,
        "recovered_fraction": figures.recovered_fraction_against_k,
    }[value]
    assert draw(rows, ax) is ax
    assert len(ax.containers) == 6  # three rules, each beside its null
    for index, far_context in enumerate(("other_document", "own")):  # leave_one_out comes first
        line = rows[(rows["rule"] == "leave_one_out") & (rows["far_context"] == far_context)].sort_values("k")
        x, y, ends = drawn(ax, index)
        np.testing.assert_allclose(x, KS, rtol=0.05)
        np.testing.assert_allclose(y, line[value])
        np.testing.assert_allclose(ends, line[[f"{value}_low", f"{value}_high"]])
    null, own = (ax.containers[index][0] for index in (0, 1))
    assert null.get_color() == own.get_color()
    assert (null.get_linestyle(), own.get_linestyle()) == ("--", "-")
    assert to_hex(null.get_markerfacecolor()) == "#ffffff"
    assert ax.get_xscale() == "log"
    assert [tick.get_text() for tick in ax.get_xticklabels()] == [str(k) for k in KS]


def test_no_fraction_is_drawn_where_there_is_no_gain(recovered: pd.DataFrame, ax: Axes) -> None:
    figures.recovered_fraction_against_k(model_rows(recovered, "short-contiguous"), ax)
    assert len(ax.containers) == 0
    assert "no clear gain" in ax.texts[0].get_text()


def test_excess_is_one_line_a_rule_with_units(sparse_context_losses: pd.DataFrame, ax: Axes) -> None:
    excess = model_rows(excess_over_null(sparse_context_losses))
    figures.excess_over_null_against_k(excess, ax)
    assert len(ax.containers) == 3
    np.testing.assert_allclose(drawn(ax, 0)[1], excess.loc[excess["rule"] == "leave_one_out", "excess_loss"])
    assert "nats" in ax.get_ylabel()


def test_excess_without_a_null_says_so(ax: Axes) -> None:
    figures.excess_over_null_against_k(pd.DataFrame(columns=["model", "rule", "k"]), ax)
    assert ax.texts[0].get_text() == "the null was not measured"


def test_sparse_loss_curve_goes_from_no_token_to_the_long_context(recovered: pd.DataFrame, ax: Axes) -> None:
    rows = model_rows(recovered)
    rows = rows[rows["rule"] == "leave_one_out"]
    own = rows[rows["far_context"] == "own"].sort_values("k")
    figures.sparse_loss_curve(rows, ax)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", "1", "2", "4", "8", "16", "long"]
    expected = [own["baseline_loss"].iloc[0], *own["sparse_context_loss"]]
    np.testing.assert_allclose(drawn(ax, 1)[1], expected, rtol=1e-6)
    ends = next(line for line in ax.lines if line.get_marker() == "D")
    np.testing.assert_allclose(ends.get_xdata(), [0, 6])
    np.testing.assert_allclose(ends.get_ydata(), own[["baseline_loss", "long_context_loss"]].iloc[0])
    # The bars are those of the recovered loss, hung from the short context's loss.
    expected_low = own["baseline_loss"] - own["recovered_loss_high"]
    np.testing.assert_allclose(drawn(ax, 1)[2][1:, 0], expected_low)


def test_a_panel_a_k_counts_every_target(sparse_context_losses: pd.DataFrame) -> None:
    targets = with_recovered_losses(model_rows(sparse_context_losses))
    targets = targets[(targets["rule"] == "leave_one_out") & (targets["far_context"] == "own")]
    figure = figures.sparse_gain_panels(targets)
    with_density = [ax for ax in figure.axes if ax.get_title().startswith("k = ")]
    assert [ax.get_title().split("  ")[0] for ax in with_density] == [f"k = {k}" for k in KS]
    for ax in with_density:
        assert "n = 384" in ax.get_title()
        assert ax.get_xlim() == ax.get_ylim() == with_density[0].get_xlim()
        (identity,) = ax.lines
        np.testing.assert_array_equal(identity.get_xdata(), identity.get_ydata())
        counted = ax.collections[0].get_array().sum()
        assert 380 <= counted <= 384  # the title counts those that the axes leave out
    plt.close(figure)


def test_loss_against_context_length_marks_training_lengths(results: Path, ax: Axes) -> None:
    losses = losses_by_context_length(read_artefact(results, "length_losses"))
    figures.loss_against_context_length(losses, ax, TRAIN_CONTEXT_LENGTHS)
    assert ax.get_legend_handles_labels()[1] == sorted(TRAIN_CONTEXT_LENGTHS)
    for index, model in enumerate(sorted(TRAIN_CONTEXT_LENGTHS)):
        line = model_rows(losses, model).sort_values("context_length")
        x, y, ends = drawn(ax, index)
        np.testing.assert_allclose(x, line["context_length"], rtol=0.08)
        np.testing.assert_allclose(y, line["loss"])
        np.testing.assert_allclose(ends, line[["loss_low", "loss_high"]])
    marks = {tuple(line.get_xdata()) for line in ax.lines if line.get_linestyle() == ":"}
    assert marks == {(32, 32), (256, 256)}
    assert {text.get_text() for text in ax.texts} == {"train 32", "train 256"}


def test_generalization_gap_names_classes_with_their_n(
    loss_differences: pd.DataFrame, dependency_sparsity: pd.DataFrame, ax: Axes
) -> None:
    gaps = generalization_gap_by_sparsity(
        loss_differences, dependency_sparsity, short_models=SHORT_MODELS,
        sparsity_model="long-seed0", reference_model="long-seed1", studied_ks=KS,
    )  # fmt: skip
    figures.generalization_gap_by_sparsity(gaps, ax)
    assert len(ax.containers) == 2
    for index, model in enumerate(SHORT_MODELS):
        rows = model_rows(gaps, model)
        x, y, ends = drawn(ax, index)
        np.testing.assert_allclose(np.round(x), range(7))
        np.testing.assert_allclose(y, rows["generalization_gap"])
        np.testing.assert_allclose(ends, rows[["generalization_gap_low", "generalization_gap_high"]])
    labels = [tick.get_text() for tick in ax.get_xticklabels()]
    counts = model_rows(gaps, "short-pose")["num_targets"]
    assert labels[0] == f"1\nn={counts.iloc[0]}"
    assert labels[-2:] == [f"> 16\nn={counts.iloc[-2]}", f"no gain\nn={counts.iloc[-1]}"]
    assert ax.get_legend_handles_labels()[1] == SHORT_MODELS


def test_loss_differences_are_drawn_a_row_a_model(loss_differences: pd.DataFrame, ax: Axes) -> None:
    summary = summarize_models(loss_differences)
    figures.loss_differences_by_model(summary, ax)
    labels = [tick.get_text() for tick in ax.get_yticklabels()]
    points = dict(zip(labels, ax.containers[0][0].get_xdata(), strict=True))
    assert points == pytest.approx(summary.set_index("model")["loss_difference"].to_dict())


def test_distribution_is_the_share_of_targets_above(loss_differences: pd.DataFrame, ax: Axes) -> None:
    figures.loss_difference_distribution(loss_differences, ax)
    line = next(line for line in ax.lines if line.get_label() == "short-contiguous")
    gains = model_rows(loss_differences, "short-contiguous")["loss_difference"]
    at_zero = line.get_ydata()[np.searchsorted(line.get_xdata(), 0.0)]
    assert at_zero == pytest.approx((gains >= 0).mean(), abs=1 / len(gains))


def test_saved_figures_are_the_same_bytes_each_time(recovered: pd.DataFrame, tmp_path: Path) -> None:
    written = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        figure, ax = figures.panels()
        figures.recovered_loss_against_k(model_rows(recovered), ax)
        written.append(figures.save(figure, folder, "name"))
        plt.close(figure)
    assert [path.name for path in written[0]] == ["name.png", "name.pdf"]
    for first, second in zip(*written, strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_no_text_is_smaller_than_eight_points(recovered: pd.DataFrame) -> None:
    figure, ax = figures.panels()
    figures.recovered_loss_against_k(model_rows(recovered), ax)
    figures.rules_legend(figure, ax)
    figure.canvas.draw()
    texts = [text for text in figure.findobj(plt.Text) if text.get_text()]
    assert min(text.get_fontsize() for text in texts) >= 8
    plt.close(figure)

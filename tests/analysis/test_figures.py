"""What is drawn is the data: places of marks, ends of bars, looks, scales, bytes."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from synthetic_results import KS, SHORT_MODELS, TRAIN_CONTEXT_LENGTHS

from analysis import drawing as figures
from analysis.drawing import FEWEST_TARGETS, TRAINED_CONTIGUOUS, TRAINED_LONG, TRAINED_POSE, Role, rule_look
from analysis.gap import slopes as gap_figures
from analysis.gap.gaps import generalization_gap_by_sparsity
from analysis.losses import losses as length_figures
from analysis.losses import token_worth as recovered_figures
from analysis.losses import token_worth as token_effect_figures
from analysis.losses.losses import losses_beside_reference, losses_by_context_length
from analysis.losses.token_worth import recovered_losses, token_effects
from pipeline.results.read import read_artefact

LONG = Role("trained at 256", TRAINED_LONG, 2_300_000, 256)
ROLES = {
    "long-seed0": LONG, "long-seed1": LONG,
    "short-contiguous": Role("trained at 32", TRAINED_CONTIGUOUS, 2_300_000, 32),
    "short-pose": Role("trained at 32, PoSE", TRAINED_POSE, 2_300_000, 32),
}  # fmt: skip


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


def test_a_rule_and_its_null_are_drawn_in_one_look_with_their_intervals(recovered: pd.DataFrame) -> None:
    rows = model_rows(recovered)
    figure = recovered_figures.recovered_figure(rows, LONG)
    blind_ax, seeing_ax = figure.axes
    assert blind_ax.get_ylim() == seeing_ax.get_ylim()
    assert len(blind_ax.containers) == 4  # nearest and random, each beside its null
    for index, far_context in enumerate(("other_document", "own")):
        line = rows[(rows["rule"] == "leave_one_out") & (rows["far_context"] == far_context)].sort_values("k")
        x, y, ends = drawn(seeing_ax, index)
        np.testing.assert_allclose(x, KS, rtol=0.05)
        np.testing.assert_allclose(y, line["recovered_fraction"])
        np.testing.assert_allclose(ends, line[["recovered_fraction_low", "recovered_fraction_high"]])
    null, own = (seeing_ax.containers[index][0] for index in (0, 1))
    assert null.get_color() == own.get_color() == rule_look("leave_one_out").color
    assert (null.get_linestyle(), own.get_linestyle()) == ("--", "-")
    assert to_hex(null.get_markerfacecolor()) == "#ffffff"
    assert [tick.get_text() for tick in seeing_ax.get_xticklabels()] == [str(k) for k in KS]
    plt.close(figure)


def test_a_choice_that_recovers_many_gains_does_not_flatten_the_others(recovered: pd.DataFrame) -> None:
    columns = ["recovered_fraction", "recovered_fraction_low", "recovered_fraction_high"]
    rows = model_rows(recovered).copy()
    rows.loc[rows["rule"] == "leave_one_out", columns] *= 20
    figure = recovered_figures.recovered_figure(rows, LONG)
    assert figure.axes[0].get_ylim()[1] == figure.axes[1].get_ylim()[1] == 3
    own = rows[(rows["rule"] == "leave_one_out") & (rows["far_context"] == "own") & (rows["k"] == 16)]
    said = f"leave one out: {own['recovered_fraction'].iloc[0]:.2g}"
    assert said in [text.get_text() for text in figure.axes[1].texts]
    plt.close(figure)


def test_nats_are_drawn_where_there_is_no_gain(recovered: pd.DataFrame) -> None:
    rows = model_rows(recovered, "short-contiguous")
    figure = recovered_figures.recovered_figure(rows, ROLES["short-contiguous"])
    assert figure.axes[0].get_ylabel() == "recovered (nats)"
    nearest = rows[(rows["rule"] == "nearest") & (rows["far_context"] == "own")].sort_values("k")
    np.testing.assert_allclose(drawn(figure.axes[0], 1)[1], nearest["recovered_loss"])
    plt.close(figure)


def test_effects_are_drawn_as_they_are(sparse_context_losses: pd.DataFrame, ax: Axes) -> None:
    effects = model_rows(token_effects(sparse_context_losses))
    token_effect_figures.effects_against_k(effects, ax)
    for index, (_, line) in enumerate(effects.groupby("rule", sort=False)):
        x, y, ends = drawn(ax, index)
        np.testing.assert_allclose(x, line["k"])
        np.testing.assert_allclose(y, line["effect"])
        np.testing.assert_allclose(ends, line[["effect_low", "effect_high"]])
        assert ax.containers[index][0].get_linestyle() == "-"  # dashes are for nulls


def test_losses_are_drawn_beside_the_reference_with_the_intervals_of_the_difference(results: Path) -> None:
    losses = read_artefact(results, "length_losses")
    differences = losses_beside_reference(losses, "long-seed0", 32)
    figure = length_figures.lengths_figure(
        differences, losses_by_context_length(losses), ROLES, TRAIN_CONTEXT_LENGTHS.values()
    )
    (ax,) = figure.axes
    for index, model in enumerate(sorted(TRAIN_CONTEXT_LENGTHS)):
        line = model_rows(differences, model).sort_values("context_length")
        x, y, ends = drawn(ax, index)
        np.testing.assert_allclose(x, [32, 64, 128, 256], rtol=0.08)  # from the short context on
        np.testing.assert_allclose(y, line["difference"])
        np.testing.assert_allclose(ends, line[["difference_low", "difference_high"]])
        assert ax.containers[index][0].get_color() == ROLES[model].look.color
    marks = {tuple(line.get_xdata()) for line in ax.lines if line.get_linestyle() == ":"}
    assert marks == {(32, 32), (256, 256)}
    names = {text.get_text() for text in ax.texts}
    assert names == {"trained at 32", "trained at 256", "trained at 32, PoSE"}
    plt.close(figure)


def test_the_difference_to_a_reference_is_of_chunks_by_hand() -> None:
    losses = pd.DataFrame(
        {
            "model": ["a", "a", "b", "b"], "document_id": ["1", "2"] * 2, "chunk_index": 0,
            "context_length": 16, "num_targets": [1, 3] * 2, "mean_loss": [2.0, 5.0, 2.5, 5.25],
        }
    )  # fmt: skip
    rows = losses_beside_reference(losses, "a", 16).set_index("model")
    assert rows.loc["b", "difference"] == pytest.approx((1 * 0.5 + 3 * 0.25) / 4)
    assert rows.loc["a", ["difference", "difference_low", "difference_high"]].tolist() == [0, 0, 0]
    # The documents differ by 3 nats, the differences by 0.25: that is what the interval is of.
    plain = losses_by_context_length(losses).set_index("model")
    widths = [
        table.loc["b", f"{name}_high"] - table.loc["b", f"{name}_low"]
        for table, name in ((rows, "difference"), (plain, "loss"))
    ]
    assert 0 < widths[0] < 0.2 * widths[1]


@pytest.fixture(scope="module")
def gaps(loss_differences: pd.DataFrame, dependency_sparsity: pd.DataFrame) -> pd.DataFrame:
    return generalization_gap_by_sparsity(
        loss_differences, dependency_sparsity[dependency_sparsity["model"] == "long-seed0"],
        short_models=SHORT_MODELS, reference_model="long-seed1", studied_ks=KS,
    )  # fmt: skip


def test_generalization_gap_names_classes_with_their_n(gaps: pd.DataFrame, ax: Axes) -> None:
    gap_figures.gaps_by_class(gaps, ax, ROLES)
    for index, model in enumerate(SHORT_MODELS):
        rows = model_rows(gaps, model)
        x, y, ends = drawn(ax, index)
        np.testing.assert_allclose(np.round(x), range(7))
        np.testing.assert_allclose(y, rows["generalization_gap"])
        np.testing.assert_allclose(ends, rows[["generalization_gap_low", "generalization_gap_high"]])
    labels = [tick.get_text() for tick in ax.get_xticklabels()]
    counts = model_rows(gaps, "short-pose")["num_targets"]
    assert labels[0] == f"1\n{counts.iloc[0]}"
    assert labels[-2:] == [f">16\n{counts.iloc[-2]}", f"none\n{counts.iloc[-1]}"]


def test_a_class_of_few_targets_does_not_stretch_the_scale(gaps: pd.DataFrame) -> None:
    slopes = pd.DataFrame(
        [
            {"model": model, "measure": "leave_one_out", "coding": gap_figures.AMONG_REACHED,
             "adjustment": adjustment, "num_targets": 300, "num_documents": 24, "slope": 0.1,
             "slope_low": 0.0, "slope_high": 0.2}
            for model in SHORT_MODELS
            for adjustment in (gap_figures.NO_CONTROLS, gap_figures.ALL_CONTROLS, gap_figures.WITH_GAIN)
        ]
    )  # fmt: skip
    few = gaps["category"] == "more than 16"
    gaps = gaps.assign(
        num_targets=gaps["num_targets"].mask(few, FEWEST_TARGETS - 1),
        generalization_gap_high=gaps["generalization_gap_high"].mask(few, 9.0),
    )
    figure = gap_figures.gap_figure(gaps, slopes, ROLES, "position")
    assert figure.axes[0].get_ylim()[1] < 9
    assert not any(">16" in tick.get_text() for tick in figure.axes[0].get_xticklabels())
    assert "classes of fewer than 30 left out" in " ".join(figure.texts[1].get_text().split())
    plt.close(figure)
    none = gap_figures.gap_figure(gaps.assign(num_targets=1), slopes, ROLES, "position")
    assert none.axes[0].get_xticklabels() == []
    plt.close(none)


def test_saved_figures_are_the_same_bytes_each_time(recovered: pd.DataFrame, tmp_path: Path) -> None:
    written = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        figure = recovered_figures.recovered_figure(model_rows(recovered), LONG)
        written.append(figures.save(figure, folder, "name"))
        plt.close(figure)
    assert [path.name for path in written[0]] == ["name.png", "name.pdf"]
    for first, second in zip(*written, strict=True):
        assert first.read_bytes() == second.read_bytes()

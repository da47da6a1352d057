"""Figures: each can be read, and what is drawn is the data; the checker of figures finds what it is for."""

from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from legible_figures import assert_legible
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from scipy.optimize import minimize
from synthetic_results import KS

from analysis import drawing
from analysis.drawing import ModelLabel, Style, model_labels
from analysis.figures import recovered_loss
from analysis.read import read_sparse_losses
from pipeline.measuring.rules import RULES

LONG = "long-seed0"


@pytest.fixture(scope="module")
def small(scales: tuple[Path, Any, Any]) -> Path:
    return scales[0] / "small"


@pytest.fixture(scope="module")
def labels(small: Path) -> dict[str, ModelLabel]:
    return model_labels(small, "loss_differences")


@pytest.fixture(scope="module")
def sparse(small: Path) -> pd.DataFrame:
    return read_sparse_losses(small)


@pytest.fixture(scope="module")
def effects(small: Path) -> pd.DataFrame:
    return recovered_loss.token_effects(read_sparse_losses(small, every_judge=True))


def of(table: pd.DataFrame, **wanted: object) -> pd.DataFrame:
    for name, value in wanted.items():
        table = table[table[name] == value]
    return table


def assert_drawn(ax: Axes, index: int, rows: pd.DataFrame, value: str) -> Line2D:
    """The index-th line with bars is this column of the rows, with its interval."""
    line, _, (bars,) = ax.containers[index]
    ends = np.array([segment[:, 1] for segment in bars.get_segments()])
    np.testing.assert_allclose(np.asarray(line.get_ydata(), dtype=float), rows[value].astype(float))
    np.testing.assert_allclose(ends, rows[[f"{value}_low", f"{value}_high"]])
    return line


def test_the_paper_figure_is_its_table(sparse: pd.DataFrame, labels: dict[str, ModelLabel]) -> None:
    curves = recovered_loss.loss_curves(of(sparse, model=LONG))
    figure = recovered_loss.loss_figure(curves, labels[LONG], "another model")
    (ax,) = figure.axes
    groups = list(curves.groupby(["rule", "far_context"]))
    lines = {key: assert_drawn(ax, index, rows, "loss") for index, (key, rows) in enumerate(groups)}
    null, own = (lines["leave_one_out", far_context] for far_context in ("other_document", "own"))
    np.testing.assert_allclose(own.get_xdata(), [-1, *np.log2(KS)], atol=0.2)
    assert null.get_color() == own.get_color() == drawing.rule_style("leave_one_out").color
    assert (null.get_linestyle(), own.get_linestyle()) == ("--", "-")
    assert to_hex(null.get_markerfacecolor()) == "#ffffff"
    assert_drawn(ax, len(groups), curves[:1], "long_loss")  # all far tokens
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", *map(str, KS), "…", "all"]
    of_model = of(sparse, model=LONG, rule="nearest", far_context="own", k=1)
    short, long = of_model[["short_context_loss", "long_context_loss"]].astype("float64").mean()
    levels = [line.get_ydata()[0] for line in ax.lines if len(set(line.get_ydata())) == 1][-2:]
    assert levels == pytest.approx([short, long])
    share = of(curves, rule="leave_one_out", far_context="own", k=16)["recovered_share"]
    expected = {f"chosen by the answer: {share.iloc[0]:.2f}", f"long context, loss {long:.2f}"}
    assert expected <= {text.get_text() for text in ax.texts}
    assert_legible(figure)


def test_effects_are_drawn_as_they_are(effects: pd.DataFrame, labels: dict[str, ModelLabel]) -> None:
    rows = of(effects, model=LONG, judge=LONG)
    figure = recovered_loss.effects_figure(rows, labels[LONG])
    for index, (_, line) in enumerate(rows.groupby("rule", sort=False)):
        drawn = assert_drawn(figure.axes[0], index, line, "effect")
        np.testing.assert_allclose(drawn.get_xdata(), line["k"])
        assert drawn.get_linestyle() == "-"  # dashes are for nulls
    assert_legible(figure)
    judged = of(effects, model=LONG, judge="another-model")
    assert_legible(recovered_loss.effects_figure(judged, labels[LONG], "another model"))


def test_the_title_says_what_is_drawn(sparse: pd.DataFrame, labels: dict[str, ModelLabel]) -> None:
    curves = recovered_loss.loss_curves(of(sparse, model=LONG))
    share = of(curves, rule="leave_one_out", far_context="own", k=16)["recovered_share"].iloc[0]
    title = " ".join(recovered_loss.loss_figure(curves, labels[LONG]).get_suptitle().split())
    assert (
        title == f"16 far tokens, chosen by the answer, bring back {share:.2f} of what the long context gains"
    )
    without = curves.assign(recovered_share=np.nan)
    assert "is not shown to gain" in recovered_loss.loss_figure(without, labels[LONG]).get_suptitle()
    plt.close("all")


def test_names_move_apart_as_little_as_may_be() -> None:
    for seed in range(5):
        generator = np.random.default_rng(seed)
        places = np.sort(generator.uniform(2, 8, 6))
        heights = generator.uniform(0.5, 1.5, 6)
        distances = (heights[1:] + heights[:-1]) / 2
        apart = {"type": "ineq", "fun": lambda tried, least=distances: np.diff(tried) - least}
        best = minimize(
            lambda tried, y=places: ((tried - y) ** 2).sum(), places, constraints=apart, tol=1e-12
        )
        moved = drawing.moved_apart(places, heights.tolist(), -20, 30)
        np.testing.assert_allclose(moved, best.x, atol=1e-4, err_msg=str(seed))


def test_no_two_styles_are_alike_and_each_can_be_hollow() -> None:
    of_models = [drawing.TRAINED_LONG, drawing.TRAINED_POSE, drawing.TRAINED_CONTIGUOUS]
    of_schemes = [drawing.POSITION_STYLES[name] for name in ("coupled", "predicted", "randomized")]
    of_all_rules = list(drawing.RULE_STYLES.values())
    styles: list[Style] = [*of_all_rules, *of_models, *drawing.OTHER_MODELS, *of_schemes]
    assert [pair for pair in combinations(styles, 2) if pair[0] == pair[1]] == []
    assert {style.marker for style in styles} <= set(Line2D.filled_markers)
    assert not {style.color for style in of_models} & {style.color for style in of_all_rules}
    assert set(drawing.RULE_STYLES) >= set(RULES)
    for color in (drawing.SKY, drawing.ORANGE):
        assert drawing.contrast_with_white(np.array(drawing.to_rgb(drawing.darker(color)))) >= 4.5
    assert drawing.darker(drawing.BLUE) == drawing.BLUE.lower()


def test_labels_come_from_what_results_say(labels: dict[str, ModelLabel], results: Path) -> None:
    assert {model: (label.text, label.style) for model, label in labels.items()} == {
        "long-seed0": ("trained at 256, seed 0", drawing.TRAINED_LONG),
        "long-seed1": ("trained at 256, seed 1", drawing.TRAINED_LONG),
        "short-contiguous": ("trained at 32", drawing.TRAINED_CONTIGUOUS),
        "short-pose": ("trained at 32, PoSE", drawing.TRAINED_POSE),
    }
    assert drawing.common_size(labels.values()) == "1 M parameters"
    unknown = model_labels(results, "loss_differences")
    assert {label.style for label in unknown.values()} == set(drawing.OTHER_MODELS)
    assert (unknown["short-pose"].text, unknown["long-seed0"].text) == ("short pose", "long, seed 0")
    assert drawing.rule_text("leave_one_out_divergence") == "leave one out, by divergence"
    assert drawing.rule_text("nearest") == "nearest tokens"
    rows = pd.DataFrame({"num_targets": [30, 1234], "num_documents": [3, 3]})
    assert drawing.sample_size(rows) == "n = 30 to 1,234 targets, 3 documents"

"""The paper's figure shows its table."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from synthetic_results import KS

from sparsity_length.figures import drawing, recovered_loss
from sparsity_length.figures.drawing import ModelLabel, model_labels
from sparsity_length.figures.read import read_sparse_losses

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


def test_any_name_is_drawn_as_it_is(tmp_path: Path) -> None:
    figure, (ax,) = drawing.panels(1, 2)
    name = "a$x_{1$b"
    drawing.draw_line(ax, [1, 2], pd.DataFrame({"loss": [1.0, 2.0]}), "loss", drawing.solid("red"), name)
    ax.set_title(name)
    drawing.put_title(figure, name, name)
    drawing.save(figure, tmp_path, "figure")
    assert {text.get_text() for text in ax.texts} == {name} and (tmp_path / "figure.pdf").exists()


def test_the_paper_figure_is_its_table(sparse: pd.DataFrame, labels: dict[str, ModelLabel]) -> None:
    curves = recovered_loss.loss_curves(of(sparse, model=LONG))
    figure = recovered_loss.loss_figure(curves, labels[LONG], "another model")
    (ax,) = figure.axes
    own, *_ = (
        assert_drawn(ax, index, of(curves, rule=rule, distant_context="own"), "loss")
        for index, rule in enumerate(("leave_one_out", "recency", "random"))
    )
    null = assert_drawn(ax, 3, of(curves, rule="leave_one_out", distant_context="other_document"), "loss")
    assert null.get_color() == own.get_color() == drawing.rule_style("leave_one_out")["color"]
    assert (null.get_linestyle(), own.get_linestyle()) == ("--", "-")
    assert_drawn(ax, 4, curves[:1], "long_loss")  # all distant tokens
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", *map(str, KS), "all"]
    of_model = of(sparse, model=LONG, rule="recency", distant_context="own", k=1)
    short, long = of_model[["short_context_loss", "long_context_loss"]].astype("float64").mean()
    share = of(curves, rule="leave_one_out", distant_context="own", k=16)["recovered_share"]
    expected = {f"selected, target-aware: {share.iloc[0]:.0%}", f"full context, {long:.2f}"}
    assert {*expected, f"short context, {short:.2f}"} <= {text.get_text() for text in ax.texts}

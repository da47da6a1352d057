"""The drawing of the theory's numerical check: tables of `analysis.synthetic.bound_scaling` in, Axes out.

A colour is a law of the planted tokens and their position IDs, a marker and dash how far the keys reach.
Lines are medians, bands the range over seeds. No number is computed here.
"""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import TEXT_WIDTH, panels
from analysis.palette import BLACK, BLUE, GREEN, GREY, ORANGE, VERMILION

COLORS = {"local": BLUE, "uniform": ORANGE, "halves": VERMILION, "halves_coupled": GREEN}
KEY_STYLES: dict[str, dict[str, Any]] = {
    "": {"marker": "o", "linestyle": "-"},
    "_trained_keys": {"marker": "s", "linestyle": "--"},
    "_all_keys": {"marker": "^", "linestyle": ":"},
}
OF_THE_THEOREMS = ("local", "halves_coupled")


def bound_scaling_figure(by_length: pd.DataFrame, fits: pd.DataFrame) -> Figure:
    """Three panels: squared error and wrong answers against length, and the error against delta.

    Args:
        by_length: `bound_scaling.errors_by_length`, one k.
        fits: `bound_scaling.with_bounds`, the same k.
    """
    figure, (error_ax, rate_ax, delta_ax) = panels(1, 3, TEXT_WIDTH, 3.4)
    against_length(by_length, "squared_error", error_ax)
    bounds_against_length(by_length, error_ax)
    error_ax.set(yscale="log", ylabel="squared error", title="beyond the training length")
    against_length(by_length, "error_rate", rate_ax)
    rate_ax.set(ylim=(-0.02, 0.6), ylabel="wrong answers, fraction", title="wrong answers")
    longest = fits[fits["test_length"] == fits["test_length"].max()]
    against_delta(longest, delta_ax)
    of_line = {
        label: handle
        for ax in (error_ax, delta_ax)
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(of_line.values(), of_line.keys(), loc="outside lower center", ncols=3)
    return figure


def against_length(by_length: pd.DataFrame, value: str, ax: Axes) -> Axes:
    """A line a condition from the shortest training length to the longest test length.

    Args:
        by_length: `bound_scaling.errors_by_length`, one k.
        value: a column that has a range.
        ax: to draw on.
    """
    for model, line in by_length.groupby("model", sort=False):
        style = _style(str(model))
        ax.plot(line["test_length"], line[value], label=_condition(str(model)), **style)
        low, high = line[f"{value}_low"], line[f"{value}_high"]
        ax.fill_between(line["test_length"], low, high, color=style["color"], alpha=0.15, linewidth=0)
    train = by_length.loc[by_length["length_ratio"] == 1, "test_length"].iloc[0]
    ax.axvspan(by_length["test_length"].min(), train, color=GREY, alpha=0.12, linewidth=0)
    ticks = [train // 2, *sorted(set(by_length.loc[by_length["length_ratio"] >= 1, "test_length"]))]
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.tick_params(axis="x", which="minor", bottom=False)
    ax.set_xlabel("test length (grey: training)")
    return ax


def bounds_against_length(by_length: pd.DataFrame, ax: Axes) -> Axes:
    """Both bounds, from the condition of Theorem 4.3, with all constants 1.

    Args:
        by_length: `bound_scaling.errors_by_length`, one k.
        ax: to draw on.
    """
    is_local = by_length["model"].map(_condition) == "local"
    line = by_length[is_local & (by_length["length_ratio"] >= 1)]
    for bound, label, width in (
        ("improved_bound", "(L̄/L)² δ of local, constant 1", 1.2),
        ("published_bound", "L L̄² δ of local, constants and η 1", 2.2),
    ):
        if len(line):
            ax.plot(line["test_length"], line[bound], color=BLACK, linewidth=width, label=label, zorder=1)
    return ax


def against_delta(longest: pd.DataFrame, ax: Axes) -> Axes:
    """Each fit of the theorems' conditions at the longest test length, one dot a measured training step.

    Args:
        longest: rows of `bound_scaling.with_bounds` at that length, one k.
        ax: to draw on.
    """
    for model, dots in longest.groupby("model", sort=False):
        if _condition(str(model)) in OF_THE_THEOREMS:
            dots = dots.sort_values("in_distribution_error")
            style = _style(str(model)) | {"linestyle": ""}
            ax.plot(dots["in_distribution_error"], dots["squared_error"], alpha=0.6, **style)
            ax.plot(dots["in_distribution_error"], dots["improved_bound"], color=BLACK, linewidth=1.2)
            ax.plot(dots["in_distribution_error"], dots["published_bound"], color=BLACK, linewidth=2.2)
    ax.set(
        xscale="log", yscale="log", xlabel="δ, error in distribution",
        ylabel=f"squared error at {longest['test_length'].max()} tokens", title="as training goes on",
    )  # fmt: skip
    return ax


def _condition(model: str) -> str:
    return model.rpartition("-k")[0]


def _style(model: str) -> dict[str, Any]:
    condition = _condition(model)
    keys = next((keys for keys in ("_trained_keys", "_all_keys") if condition.endswith(keys)), "")
    color = COLORS.get(condition.removesuffix(keys), BLACK)
    return {"color": color, "markersize": 3, **KEY_STYLES[keys]}

"""The drawing: small DataFrames of the modules beside it in, Axes out. No number is computed here.

A line or point is a mean, its band or bar the 95 % interval over documents. Solid and filled is the
document's own far context, dashed and hollow the null (the same selection in another document's).
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis.palette import BLACK, GREY, MODEL_COLORS, MODEL_MARKERS, RULE_COLORS, RULE_MARKERS, VERMILION
from analysis.titles import sample_size as sample_size
from pipeline.results.names import OTHER_DOCUMENT, OWN
from pipeline.results.partial import partial_note

BESIDE = 1.04  # factor on a logarithmic axis between marks drawn beside each other
_DOTS_AN_INCH = 200
COLUMN_WIDTH, TEXT_WIDTH = 3.4, 7.0  # inches, of a two-column page
STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "figure.titlesize": 9,
    "figure.labelsize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "errorbar.capsize": 2,
    "figure.dpi": _DOTS_AN_INCH,  # of screens as of files: text is not as wide at every resolution
    "pdf.fonttype": 42,  # text stays text in the PDF
}


def panels(
    num_rows: int = 1, num_columns: int = 1, width: float = COLUMN_WIDTH, height: float = 2.6
) -> tuple[Figure, Any]:
    """A figure of `num_rows` x `num_columns` panels, in the style of all figures here.

    Args:
        num_rows, num_columns: of panels.
        width, height: of the whole figure, inches.

    Returns:
        The figure and its Axes, one or an array of them, as `matplotlib.pyplot.subplots` does.
    """
    plt.style.use(STYLE)
    return plt.subplots(num_rows, num_columns, figsize=(width, height), layout="constrained")


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `<folder>/<name>.png` (200 dots an inch) and `.pdf`; the same figure gives the same bytes.

    A figure of results that were read in part (`pipeline.results.partial`) says so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it tells of every glyph of a PDF
    undated: dict[str, dict[str, Any]] = {"png": {"Software": None}, "pdf": {"CreationDate": None}}
    paths = [folder / f"{name}.{suffix}" for suffix in undated]
    note = partial_note()
    if note:  # below the figure, which grows by it
        figure.text(0.01, -0.02, note, color="red", va="top")
    for path, metadata in zip(paths, undated.values(), strict=True):
        figure.savefig(path, dpi=_DOTS_AN_INCH, metadata=metadata, bbox_inches="tight" if note else None)
    return paths


def _errors(rows: pd.DataFrame, value: str) -> np.ndarray:
    """Distances of the interval's ends from the mean, as errorbar wants them."""
    return np.array([rows[value] - rows[f"{value}_low"], rows[f"{value}_high"] - rows[value]])


def _draw_with_bars(
    ax: Axes, x: Sequence[float] | pd.Series, rows: pd.DataFrame, value: str, **style: Any
) -> ErrorbarContainer:
    return ax.errorbar(x, rows[value], yerr=_errors(rows, value), elinewidth=0.9, **style)


def _far_context_style(far_context: str, color: str, marker: str = "o") -> dict[str, Any]:
    if far_context == OWN:
        return {"color": color, "linestyle": "-", "marker": marker}
    return {"color": color, "linestyle": "--", "marker": marker, "markerfacecolor": "white", "linewidth": 1}


def _against_k(ax: Axes, rows: pd.DataFrame, label: str) -> Axes:
    """The k axis: powers of two evenly spaced, every studied k named."""
    ks = sorted(rows["k"].unique())
    ax.set_xscale("log", base=2)
    ax.set_xticks(ks, [str(k) for k in ks])
    ax.minorticks_off()
    ax.set_xlabel("k influential tokens")
    ax.set_ylabel(label)
    ax.axhline(0, color=BLACK, linewidth=0.6)
    return ax


def _draw_rules(ax: Axes, rows: pd.DataFrame, value: str) -> None:
    """A line a rule, and beside it, in its colour, its null where there is one."""
    for (rule, far_context), line in rows.groupby(["rule", "far_context"]):
        line = line.sort_values("k")
        color, marker = RULE_COLORS.get(str(rule), BLACK), RULE_MARKERS.get(str(rule), "o")
        style = _far_context_style(str(far_context), color, marker)
        # A step aside, or the bars of a null equal to its rule would hide under the rule's.
        x = line["k"] * (BESIDE if far_context == OTHER_DOCUMENT else 1 / BESIDE)
        _draw_with_bars(ax, x, line, value, label=str(rule) if far_context == OWN else "_null", **style)


def _mark_gain(ax: Axes, gain: float) -> None:
    ax.axhline(gain, color=GREY, linewidth=1, linestyle=":", label="the whole gain")


def _say(ax: Axes, sentence: str) -> Axes:
    """A panel that has nothing to draw says why."""
    ax.text(0.5, 0.5, sentence, ha="center", va="center", transform=ax.transAxes, color=GREY)
    ax.set_xticks([])
    ax.set_yticks([])
    return ax


def rules_legend(figure: Figure, ax: Axes) -> None:
    """One legend below `figure` for panels of rules, with the labels of `ax` and the null's dashes."""
    handles, labels = ax.get_legend_handles_labels()
    null = Line2D([], [], **_far_context_style(OTHER_DOCUMENT, BLACK))
    num_entries = len(labels) + 1
    num_columns = num_entries if num_entries <= 5 else -(-num_entries // 2)  # at most two even rows
    figure.legend([*handles, null], [*labels, "its null"], loc="outside lower center", ncols=num_columns)


def recovered_loss_against_k(recovered: pd.DataFrame, ax: Axes) -> Axes:
    """Nats recovered by k tokens, a line a rule beside its null; the grey line is the whole gain.

    Args:
        recovered: `recovered_gain.recovered_losses`, one model.
        ax: to draw on.
    """
    _draw_rules(ax, recovered, "recovered_loss")
    _mark_gain(ax, recovered["loss_difference"].iloc[0])
    return _against_k(ax, recovered, "recovered loss (nats)")


def recovered_fraction_against_k(recovered: pd.DataFrame, ax: Axes) -> Axes:
    """Fraction of the whole gain recovered by k tokens, a line a rule beside its null.

    Says so in the panel where the long context does not help clearly, for then no fraction exists.

    Args:
        recovered: `recovered_gain.recovered_losses`, one model.
        ax: to draw on.
    """
    _against_k(ax, recovered, "recovered fraction")
    if not recovered["is_gain_clear"].any():
        return _say(ax, "no clear gain from the long\ncontext: no fraction of it")
    _draw_rules(ax, recovered, "recovered_fraction")
    _mark_gain(ax, 1)
    return ax


def excess_over_null_against_k(excess: pd.DataFrame, ax: Axes) -> Axes:
    """Nats recovered beyond the null, a line a rule: the effect itself.

    Args:
        excess: `recovered_gain.excess_over_null`, one model.
        ax: to draw on.
    """
    if excess.empty:
        return _say(_against_k(ax, excess, "recovered beyond the null (nats)"), "the null was not measured")
    _draw_rules(ax, excess.assign(far_context=OWN), "excess_loss")
    _mark_gain(ax, excess["loss_difference"].iloc[0])
    return _against_k(ax, excess, "recovered beyond the null (nats)")


def sparse_loss_curve(recovered: pd.DataFrame, ax: Axes) -> Axes:
    """Mean loss from no far token, by way of k tokens, to the long context; own beside null.

    The bars are the intervals of the difference from the loss at k = 0, which is what the curve
    is read for; the loss itself varies far more between documents.

    Args:
        recovered: `recovered_gain.recovered_losses`, one model and one rule.
        ax: to draw on.
    """
    own = recovered[recovered["far_context"] == OWN].sort_values("k")
    without, long_loss = own["baseline_loss"].iloc[0], own["long_context_loss"].iloc[0]
    color = RULE_COLORS.get(str(own["rule"].iloc[0]), BLACK)
    for far_context, line in recovered.groupby("far_context"):
        line = line.sort_values("k")
        losses = [without, *(without - line["recovered_loss"])]
        errors = np.pad(_errors(line, "recovered_loss")[::-1], ((0, 0), (1, 0)))
        x = np.arange(len(losses)) + (0.08 if far_context == OTHER_DOCUMENT else -0.08)
        label = str(own["rule"].iloc[0]) if far_context == OWN else "its null"
        style = _far_context_style(str(far_context), color)
        ax.errorbar(x, losses, yerr=errors, elinewidth=0.9, label=label, **style)
    ends = [0, len(own) + 1]
    ax.plot(ends, [without, long_loss], "D", color=BLACK, zorder=3)
    ax.axhline(long_loss, color=GREY, linewidth=1, linestyle=":")
    ax.set_xticks(range(len(own) + 2), ["0", *map(str, own["k"]), "long"])
    ax.set_xlabel("influential tokens added")
    ax.set_ylabel("mean loss (nats)")
    return ax


def sparse_gain_against_long_gain(targets: pd.DataFrame, ax: Axes, limits: tuple[float, float]) -> Axes:
    """Density of targets: what k tokens gain over the short context against what the long context gains.

    Args:
        targets: `recovered_gain.with_recovered_losses`, a row a target: one model, rule, far context and k.
        ax: to draw on.
        limits: of both axes, nats; targets outside are counted in the title.
    """
    low, high = limits
    gains, recovered = targets["loss_difference"], targets["recovered_loss"]
    num_outside = int((~(gains.between(low, high) & recovered.between(low, high))).sum())
    ax.hexbin(gains, recovered, gridsize=28, bins="log", mincnt=1, cmap="cividis_r", linewidths=0.1,
              extent=(low, high, low, high))  # fmt: skip
    ax.plot([low, high], [low, high], color=VERMILION, linewidth=1)
    ax.set(xlim=limits, ylim=limits, aspect="equal")
    outside = f", {num_outside} outside" if num_outside else ""
    ax.set_title(f"k = {targets['k'].iloc[0]}  (n = {len(targets):,}{outside})", fontsize=8)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    return ax


def sparse_gain_panels(targets: pd.DataFrame, num_columns: int = 3) -> Figure:
    """`sparse_gain_against_long_gain`, a panel a k, on one scale of axes and of colour.

    Args:
        targets: `recovered_gain.with_recovered_losses`, one model, rule and far context, every k.
        num_columns: panels beside each other.
    """
    ks = sorted(targets["k"].unique())
    num_rows = -(-len(ks) // num_columns)
    figure, grid = panels(num_rows, num_columns, TEXT_WIDTH, 2.25 * num_rows)
    axes = np.ravel(grid)
    # A handful of extreme targets would shrink the rest to a corner.
    low, high = np.quantile(targets[["loss_difference", "recovered_loss"]], [0.002, 0.998])
    for k, ax in zip(ks, axes, strict=False):
        sparse_gain_against_long_gain(targets[targets["k"] == k], ax, (float(low), float(high)))
    drawn = [ax.collections[0] for ax in axes[: len(ks)]]
    most = max(float(np.max(density.get_array())) for density in drawn)
    for density in drawn:
        density.set_clim(1, max(most, 2))
    for ax in axes[len(ks) :]:
        ax.remove()
    figure.colorbar(drawn[0], ax=list(axes[: len(ks)]), label="targets", shrink=0.7)
    figure.supxlabel("gain of the long context: short - long loss (nats)", fontsize=9)
    figure.supylabel("gain of k tokens: short - sparse loss (nats)", fontsize=9)
    return figure


def loss_differences_by_model(summary: pd.DataFrame, ax: Axes) -> Axes:
    """How much the long context helps each model, a row a model.

    Args:
        summary: `mean_losses.summarize_models`.
        ax: to draw on.
    """
    rows = summary.iloc[::-1]
    ax.errorbar(
        rows["loss_difference"], range(len(rows)), xerr=_errors(rows, "loss_difference"), fmt="o", color=BLACK
    )
    ax.axvline(0, color=BLACK, linewidth=0.6)
    ax.set_yticks(range(len(rows)), rows["model"])
    ax.set_ylim(-0.5, len(rows) - 0.5)
    ax.set_xlabel("mean loss difference, short - long (nats)")
    return ax


def loss_difference_distribution(loss_differences: pd.DataFrame, ax: Axes) -> Axes:
    """Share of targets whose long context gains more than so many nats, a line a model.

    Args:
        loss_differences: the artefact, any number of models.
        ax: to draw on.
    """
    for index, (model, targets) in enumerate(loss_differences.groupby("model")):
        gains = np.sort(targets["loss_difference"])
        shares = 1 - np.arange(len(gains)) / len(gains)
        ax.step(gains, shares, where="post", color=MODEL_COLORS[index % len(MODEL_COLORS)], label=str(model))
    ax.axvline(0, color=BLACK, linewidth=0.6)
    ax.set_xlim(*np.quantile(loss_differences["loss_difference"], [0.005, 0.995]))
    ax.set_ylim(0, 1)
    ax.set_xlabel("loss difference of a target (nats)")
    ax.set_ylabel("share of targets above")
    ax.legend(loc="lower left")  # where no curve of shares above runs
    return ax


def loss_against_context_length(
    losses: pd.DataFrame,
    ax: Axes,
    train_context_lengths: Mapping[str, int] | None = None,
    value: str = "loss",
    label: str = "mean loss (nats)",
) -> Axes:
    """Mean loss of each model against the tokens of context given; vertical lines mark training lengths.

    Args:
        losses: `mean_losses.losses_by_context_length`.
        ax: to draw on.
        train_context_lengths: model -> tokens of context it was trained at, where known.
        value: the column drawn: "loss", or "loss_change" since the shortest context.
        label: of the vertical axis.
    """
    models = list(losses["model"].unique())
    for index, model in enumerate(models):
        line = losses[losses["model"] == model].sort_values("context_length")
        x = line["context_length"] * BESIDE ** (index - (len(models) - 1) / 2)
        color, marker = (palette[index % len(palette)] for palette in (MODEL_COLORS, MODEL_MARKERS))
        _draw_with_bars(ax, x, line, value, color=color, marker=marker, label=model)
    for train_context_length in sorted(set((train_context_lengths or {}).values())):
        ax.axvline(train_context_length, color=GREY, linewidth=1, linestyle=":")
        ax.annotate(
            f"train {train_context_length}",
            (train_context_length, 1),
            (0, 1),
            ha="center",
            va="bottom",
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            fontsize=8,
            color=GREY,
        )
    ax.set_xscale("log", base=2)
    ticks = _legible_ticks(losses["context_length"].unique())
    ax.set_xticks(ticks, [str(length) for length in ticks])
    ax.minorticks_off()
    ax.set_xlabel("context (tokens)")
    ax.set_ylabel(label)
    return ax


def _legible_ticks(lengths: Iterable[int]) -> list[int]:
    """The lengths to label, the longest first among them: none so near the next that their labels touch."""
    ticks: list[int] = []
    for length in sorted(lengths, reverse=True):
        if not ticks or ticks[-1] >= 1.45 * length:
            ticks.append(length)
    return ticks[::-1]


def generalization_gap_by_sparsity(gaps: pd.DataFrame, ax: Axes) -> Axes:
    """Mean generalization gap of each class of k*, short-trained models side by side, n below each class.

    Args:
        gaps: `gaps.generalization_gap_by_sparsity`.
        ax: to draw on.
    """
    categories = list(dict.fromkeys(gaps["category"]))
    models = list(dict.fromkeys(gaps["model"]))
    for index, model in enumerate(models):
        rows = gaps[gaps["model"] == model].set_index("category").loc[categories]
        x = np.arange(len(categories)) + 0.2 * (index - (len(models) - 1) / 2)
        style = {
            "color": MODEL_COLORS[index],
            "marker": MODEL_MARKERS[index],
            "linestyle": "none",
            "label": model,
        }
        _draw_with_bars(ax, list(x), rows, "generalization_gap", **style)
    counts = (
        gaps.groupby("category")["num_targets"].unique().map(lambda of_models: "/".join(map(str, of_models)))
    )
    ax.set_xticks(
        range(len(categories)), [f"{name.replace('more than', '>')}\nn={counts[name]}" for name in categories]
    )
    ax.axhline(0, color=BLACK, linewidth=0.6)
    ax.set_xlabel("k*, tokens needed for 0.9 of the gain (n: targets)")
    ax.set_ylabel("generalization gap (nats)")
    ax.legend(loc="best")
    return ax

"""The drawing of needles in haystacks: tables of `analysis.tokens.needles` in, Axes out."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import TEXT_WIDTH, panels
from analysis.palette import BLACK, GREY, RULE_COLORS
from pipeline.results.names import OWN


def retrieval_heat_map(retrieval: pd.DataFrame, value: str, label: str, ax: Axes) -> Axes:
    """Depth against context length, the value as colour and, with its interval, as a number.

    Args:
        retrieval: `needles.retrieval_losses`, one model.
        value: a column with an interval.
        label: of the panel, with the unit.
        ax: to draw on.
    """
    means = retrieval.pivot(index="depth", columns="context_length", values=value)
    low, high = (
        retrieval.pivot(index="depth", columns="context_length", values=f"{value}_{end}")
        for end in ("low", "high")
    )
    image = ax.imshow(means.to_numpy(), cmap="cividis", aspect="auto")
    middle = float(np.nanmean([image.get_clim()[0], image.get_clim()[1]]))
    for row, depth in enumerate(means.index):
        for column, length in enumerate(means.columns):
            mean = means.loc[depth, length]
            text = f"{mean:.2f}\n[{low.loc[depth, length]:.2f}, {high.loc[depth, length]:.2f}]"
            color = "white" if mean < middle else "black"
            ax.text(column, row, text, ha="center", va="center", fontsize=6, color=color)
    ax.set_xticks(range(means.shape[1]), [str(length) for length in means.columns])
    ax.set_yticks(range(means.shape[0]), [f"{depth:g}" for depth in means.index])
    ax.set_xlabel("context (tokens)")
    ax.set_ylabel("depth of the needle")
    ax.set_title(label, fontsize=8)
    return ax


def retrieval_figure(retrieval: pd.DataFrame) -> Figure:
    """Two heat maps: the answer's loss, and how much less it costs than without the needle.

    Args:
        retrieval: `needles.retrieval_losses`, one model.
    """
    figure, (loss_ax, gain_ax) = panels(1, 2, TEXT_WIDTH, 1.2 + 0.42 * retrieval["depth"].nunique())
    retrieval_heat_map(retrieval, "loss", "loss of the answer (nats a token)", loss_ax)
    retrieval_heat_map(retrieval, "retrieval_gain", "gain from the needle (nats a token)", gain_ax)
    return figure


def found_against_k(found: pd.DataFrame, measure: str, ax: Axes) -> Axes:
    """Precision, recall or hits of S_k against k, a line a rule; its null dashed, chance dotted.

    Args:
        found: `needles.found_needles`, one model and length.
        measure: one of `needles.MEASURES`.
        ax: to draw on.
    """
    for (rule, far_context), line in found.groupby(["rule", "far_context"]):
        line = line.sort_values("k")
        color = RULE_COLORS.get(str(rule), BLACK)
        errors = np.array([line[measure] - line[f"{measure}_low"], line[f"{measure}_high"] - line[measure]])
        is_own = far_context == OWN
        ax.errorbar(
            line["k"], line[measure], yerr=errors, color=color, linestyle="-" if is_own else "--", marker="o",
            markerfacecolor=color if is_own else "white", elinewidth=0.9,
            label=f"{rule}" if is_own else f"{rule}, its null",
        )  # fmt: skip
    chance = found.groupby("k")[f"chance_{measure}"].mean()
    ax.plot(chance.index, chance, color=GREY, linestyle=":", label="chance")
    ks = sorted(found["k"].unique())
    ax.set_xscale("log", base=2)
    ax.set_xticks(ks, [str(k) for k in ks])
    ax.minorticks_off()
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlabel("k influential tokens")
    ax.set_ylabel(measure.replace("_", " "))
    return ax


def found_figure(found: pd.DataFrame) -> Figure:
    """Precision, recall and hits beside each other.

    Args:
        found: `needles.found_needles`, one model and length.
    """
    figure, axes = panels(1, 3, TEXT_WIDTH, 2.6)
    for measure, ax in zip(("precision", "recall", "hit_share"), axes, strict=True):
        found_against_k(found, measure, ax)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure

"""Key tokens and LongPPL against alpha; tables of `analysis.tokens.long_perplexity` in, Axes out.

A colour is a model; solid and filled are exact windows, dashed and hollow LongPPL's shared ones.
"""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatter

from analysis.palette import BLACK, MODEL_COLORS, MODEL_MARKERS

EXACT_STYLE: dict[str, Any] = {"linestyle": "-"}
WINDOWED_STYLE: dict[str, Any] = {"linestyle": "--", "markerfacecolor": "white", "linewidth": 1}
STYLES = {"exact": EXACT_STYLE, "windowed": WINDOWED_STYLE}


def key_tokens_against_alpha(perplexities: pd.DataFrame, ax: Axes) -> Axes:
    """How many targets are key tokens, a line a model and kind of window.

    Args:
        perplexities: `long_perplexity.long_perplexities` at one beta, each model its own evaluator.
        ax: to draw on.
    """
    for index, (model, rows) in enumerate(perplexities.groupby("model")):
        for kind, line in rows.groupby("short_context"):
            # Zero has no place on a logarithmic axis: there the line ends.
            seen = line[line["num_key_tokens"] > 0]
            ax.plot(seen["alpha"], seen["num_key_tokens"], **_style(str(model), str(kind), index))
    ax.set_yscale("log")
    ax.set_xlabel("alpha (nats)")
    ax.set_ylabel("key tokens")
    return ax


def agreement_against_alpha(agreement: pd.DataFrame, ax: Axes) -> Axes:
    """Jaccard index of the key tokens from exact and from shared windows, a line a model.

    Args:
        agreement: `long_perplexity.key_token_agreement` at one beta.
        ax: to draw on.
    """
    for index, (model, line) in enumerate(agreement.groupby("model")):
        ax.plot(line["alpha"], _floats(line["jaccard"]), **_style(str(model), "exact", index))
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("alpha (nats)")
    ax.set_ylabel("Jaccard index of key tokens")
    return ax


def long_perplexity_against_alpha(perplexities: pd.DataFrame, ax: Axes) -> Axes:
    """LongPPL, a line a model and kind of window; the bars of exact windows are intervals over documents.

    Args:
        perplexities: `long_perplexity.long_perplexities` at one beta and of one evaluator.
        ax: to draw on.
    """
    for index, (model, rows) in enumerate(perplexities.groupby("model")):
        for kind, line in rows.groupby("short_context"):
            style = _style(str(model), str(kind), index)
            ax.plot(line["alpha"], _floats(line["long_perplexity"]), **style)
            if kind == "exact":
                low, high = (_floats(line[f"long_perplexity_{end}"]) for end in ("low", "high"))
                ax.vlines(line["alpha"], low, high, color=style["color"], linewidth=0.9)
    ax.set_yscale("log")
    for set_formatter in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
        set_formatter(LogFormatter())  # 4, not 4 x 10^0
    ax.set_xlabel("alpha (nats)")
    ax.set_ylabel("LongPPL")
    return ax


def windows_legend(figure: Figure, ax: Axes) -> None:
    """One legend below `figure`: the models drawn on `ax`, and what dashes mean."""
    handles, labels = ax.get_legend_handles_labels()
    shared = Line2D([], [], color=BLACK, marker="o", **WINDOWED_STYLE)
    figure.legend([*handles, shared], [*labels, "shared windows"], loc="outside lower center", ncols=5)


def _style(model: str, kind: str, index: int) -> dict[str, Any]:
    """Of one line; only exact windows are named in a legend."""
    color, marker = (palette[index % len(palette)] for palette in (MODEL_COLORS, MODEL_MARKERS))
    label = model if kind == "exact" else f"_{model}"
    return {"color": color, "marker": marker, "label": label, **STYLES[kind]}


def _floats(column: pd.Series) -> pd.Series:
    return column.astype("float64")  # null becomes NaN, which is not drawn

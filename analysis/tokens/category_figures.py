"""The gain by kind of token: tables of `analysis.tokens.category_statistics` in, a Figure out.

A row is a kind, a point its mean gain and its bar the 95 % interval over documents. Two aspects are shown,
ten kinds; parts of words and parts of speech stand in the notebook's tables.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_texts import name_place, put_title
from analysis.figures import TEXT_WIDTH, panels
from analysis.palette import BLACK, GREY
from analysis.roles import Role, size_words
from analysis.titles import BARS, FEWEST_TARGETS, is_above, lie_apart, percent, sample_size, subtitle
from analysis.tokens.token_categories import (
    NEW,
    PUNCTUATION,
    REPEATED,
    REPEATED_BIGRAM,
    REPEATED_TRIGRAM,
    SHORT_ONLY,
)
from analysis.tokens.words import CONTENT_WORD, FUNCTION_WORD, NAME, NUMBER

KINDS = {
    ("repetition", REPEATED_TRIGRAM): "ends of repeated trigrams",
    ("repetition", REPEATED_BIGRAM): "ends of repeated bigrams",
    ("repetition", REPEATED): "repeated tokens",
    ("repetition", SHORT_ONLY): "seen in the short context only",
    ("repetition", NEW): "new tokens",
    ("word_kind", NAME): "capitalized names",
    ("word_kind", NUMBER): "numbers",
    ("word_kind", CONTENT_WORD): "content words",
    ("word_kind", FUNCTION_WORD): "function words",
    ("word_kind", PUNCTUATION): "punctuation",
}
"""(aspect, category) -> what a row is called, from the top."""
_ROW_HEIGHT, _FRAME_HEIGHT, _BETWEEN_ASPECTS = 0.25, 0.75, 0.7  # inches; rows left empty


def kinds_of(differences: pd.DataFrame) -> pd.DataFrame:
    """The rows that the figure draws: of `KINDS`, in their order, with `words`; none of too few targets.

    Args:
        differences: `loss_differences_by_category`, one model.
    """
    pairs = zip(differences["aspect"], differences["category"], strict=True)
    rows = differences.assign(words=[KINDS.get(pair, "") for pair in pairs])
    rows = rows[(rows["words"] != "") & (rows["num_targets"] >= FEWEST_TARGETS)]
    order = {words: place for place, words in enumerate(KINDS.values())}
    return rows.sort_values("words", key=lambda words: words.map(order), ignore_index=True)


def kinds_title(kinds: pd.DataFrame, overall: "pd.Series[float]") -> str:
    """Which kind holds how much of the gain; what is shown, where no kind's interval lies above that of all.

    Args:
        kinds: `kinds_of`, with `share_of_gain` and `share_of_targets`.
        overall: the row of `summarize_models` of the same model.
    """
    shown = "What the far context is worth, by kind of token"
    if kinds.empty or not is_above(overall["loss_difference_low"]):
        return shown
    most = kinds.sort_values("loss_difference").iloc[-1]
    ends = [(row["loss_difference_low"], row["loss_difference_high"]) for row in (most, overall)]
    if not lie_apart(*ends):
        return shown
    return (
        f"{percent(most['share_of_gain'])} of the gain falls to {percent(most['share_of_targets'])} of the"
        f" tokens: {most['words']}"
    )


def kinds_figure(kinds: pd.DataFrame, overall: "pd.Series[float]", role: Role) -> Figure:
    """A row a kind of token: the gain of the long context, and the share of all gain that falls to it.

    Args:
        kinds, overall: as `kinds_title` takes them.
        role: of the model.
    """
    heights = _heights(kinds)
    figure, ax = panels(1, 1, TEXT_WIDTH, _FRAME_HEIGHT + _ROW_HEIGHT * (1 - min(heights, default=0)))
    gains = kinds["loss_difference"]
    ends = np.array([gains - kinds["loss_difference_low"], kinds["loss_difference_high"] - gains])
    ax.errorbar(gains, heights, xerr=ends, fmt=role.look.marker, color=role.look.color, elinewidth=1.2)
    ax.axvline(0, color=BLACK, linewidth=0.6)
    name_place(ax, overall["loss_difference"], f"all tokens: {overall['loss_difference']:.2f}")
    sizes = [f"{row['words']} ({row['num_targets']:,})" for row in kinds.to_dict("records")]
    ax.set_yticks(heights, sizes)
    ax.set_ylim(min(heights, default=0) - 0.6, 0.6)
    ax.set_xlabel("gain of the long context (nats a token)")
    if is_above(overall["loss_difference_low"]):
        _write_shares(kinds, heights, ax)
    n = f"{sample_size(overall.to_frame().T)} (targets of a kind in brackets)"
    put_title(
        figure, kinds_title(kinds, overall), subtitle(n, role.words, size_words(role.num_parameters), BARS)
    )
    return figure


def _heights(kinds: pd.DataFrame) -> list[float]:
    """Of each row in the panel, from 0 downwards, with a gap between aspects."""
    is_next = (kinds["aspect"] != kinds["aspect"].shift()).cumsum() - 1
    return [-place - _BETWEEN_ASPECTS * gap for place, gap in enumerate(is_next)]


def _write_shares(kinds: pd.DataFrame, heights: list[float], ax: Axes) -> None:
    """At the right of each row the share of the gain of all targets; it sums to 1 over an aspect's kinds."""
    ax.annotate(
        "share of all gain", (1, 1), (2, 2), xycoords="axes fraction", textcoords="offset points",
        ha="center", va="bottom", color=GREY, annotation_clip=False,
    )  # fmt: skip
    for share, height in zip(kinds["share_of_gain"], heights, strict=True):
        ax.annotate(
            percent(share), (1.02, height), xycoords=("axes fraction", "data"), va="center", color=GREY,
            annotation_clip=False,
        )  # fmt: skip

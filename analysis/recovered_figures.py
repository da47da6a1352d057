"""The drawing of what k tokens recover of the gain, beside the null: tables of `recovered_gain` in."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_texts import LineEnd, label_line_ends, name_level, put_title
from analysis.figures import TEXT_WIDTH, draw_with_bars, panels, share_scale, tokens_axis
from analysis.own_measurements import needs_null, shown_rule
from analysis.palette import BLACK, GREY, rule_look
from analysis.roles import Role, rule_words, size_words
from analysis.titles import BARS, carried_share, sample_size, subtitle
from pipeline.results.names import OTHER_DOCUMENT, OWN

NEAREST = "nearest"
_LARGEST_SHARE = 3
"""Of the gain; where a choice that sees the answer "recovers" more, it leaves the scale, told in words."""
_BESIDE = 1.04  # factor on a logarithmic axis between a rule's bars and its null's, which may be equal


def recovered_figure(recovered: pd.DataFrame, role: Role) -> Figure:
    """A panel of rules that do not see the answer, one of those that do, on one scale; each beside its null.

    As a share of the gain; in nats where the long context brings no clear gain.

    Args:
        recovered: `recovered_gain.recovered_losses`, one model.
        role: of the model.
    """
    is_fitted = recovered["rule"].map(needs_null).astype(bool)
    of_panel = {
        "chosen blind to the answer": recovered[~is_fitted],
        "chosen by the answer, or to fit the prediction": recovered[is_fitted],
    }
    of_panel = {name: rows for name, rows in of_panel.items() if len(rows)}
    value, label, whole = "recovered_fraction", "recovered share of the gain", 1.0
    if not recovered["is_gain_clear"].any():
        value, label = "recovered_loss", "recovered (nats)"
        whole = recovered["loss_difference"].iloc[0]
    figure, grid = panels(1, len(of_panel), TEXT_WIDTH, 3.4)
    axes = np.ravel(grid)
    for ax, (name, rows) in zip(axes, of_panel.items(), strict=True):
        _draw_rules(ax, rows, value)
        tokens_axis(ax, rows["k"].unique())
        ax.set_title(name, loc="left")
    share_scale(axes, _LARGEST_SHARE * whole)
    for ax, rows in zip(axes, of_panel.values(), strict=True):
        name_level(ax, whole, "the whole gain" if ax is axes[0] else "", "left")
        _name_rules(ax, rows, value)
    axes[0].set_ylabel(label)
    put_title(figure, recovered_title(recovered), recovered_subtitle(recovered, role))
    return figure


def _draw_rules(ax: Axes, rows: pd.DataFrame, value: str) -> None:
    for (rule, far_context), line in rows.groupby(["rule", "far_context"], sort=False):
        line, look = line.sort_values("k"), rule_look(str(rule))
        is_null = far_context == OTHER_DOCUMENT
        style = look.null if is_null else look.measured
        draw_with_bars(ax, line["k"] * (_BESIDE if is_null else 1 / _BESIDE), line, value, **style)
    ax.axhline(0, color=BLACK, linewidth=0.6)


def _name_rules(ax: Axes, rows: pd.DataFrame, value: str) -> None:
    """The rules at their ends; their nulls together, or one by one where few rules stand here."""
    last, top = rows[rows["k"] == rows["k"].max()], ax.get_ylim()[1]

    def end(row: dict, words: str, color: str) -> LineEnd:
        beyond = f": {row[value]:.2g}" if row[value] > top else ""
        return LineEnd(row["k"], min(row[value], top), words + beyond, color)

    ends = []
    for row in last[last["far_context"] == OWN].to_dict("records"):
        ends.append(end(row, rule_words(row["rule"]).replace(", ", ",\n"), rule_look(row["rule"]).color))
    null = last[last["far_context"] == OTHER_DOCUMENT].sort_values(value).to_dict("records")
    if len(null) == 1:
        words = "its null: the same\nin another document"
        ends.append(end(null[0], words, rule_look(null[0]["rule"]).color))
    elif null:
        ends.append(LineEnd(null[0]["k"], min(null[0][value], top), "dashed: their nulls", GREY))
    label_line_ends(ax, ends)


def recovered_title(recovered: pd.DataFrame) -> str:
    """What few tokens of the rule that is trusted most carry, and as many of the nearest where that differs.

    Args:
        recovered: `recovered_gain.recovered_losses`, one model.
    """
    if not recovered["is_gain_clear"].any():
        return "The long context brings no clear gain, so there is none for few tokens to carry"
    own = recovered[recovered["far_context"] == OWN]
    rule = shown_rule(own["rule"])
    of_rule, nearest = own[own["rule"] == rule], own[own["rule"] == NEAREST]
    if needs_null(rule):
        return (
            f"What k tokens recover that {rule_words(rule)} chooses, and what it recovers in another document"
        )
    return carried_share(of_rule, nearest if rule != NEAREST else nearest.iloc[:0], "recovered_fraction")


def recovered_subtitle(recovered: pd.DataFrame, role: Role) -> str:
    """n, model, bars.

    Args:
        recovered: `recovered_gain.recovered_losses`, one model.
        role: of the model.
    """
    return subtitle(sample_size(recovered), size_words(role.num_parameters), role.words, BARS)

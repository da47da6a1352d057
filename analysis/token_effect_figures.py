"""The drawing of what k tokens are worth: tables of `analysis.token_effects` in, Figures out."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_texts import LineEnd, label_line_ends, name_level, put_title
from analysis.figures import TEXT_WIDTH, draw_with_bars, panels, share_scale, tokens_axis
from analysis.own_measurements import needs_null, shown_rule
from analysis.palette import BLACK, rule_look
from analysis.roles import Role, rule_words, size_words
from analysis.titles import BARS, carried_share, sample_size, subtitle
from analysis.token_effects import CRITERIA, NEAREST
from pipeline.results.names import DIVERGENCE, LOSS

_PANELS = {LOSS: "by the loss of the token that came", DIVERGENCE: "by the whole prediction (divergence)"}


def effects_figure(effects: pd.DataFrame, role: Role, judge: str = "") -> Figure:
    """A panel a criterion, on one scale: what k tokens are worth; a line a rule, the nearest up to all.

    Args:
        effects: `token_effects.token_effects`, one model and judge.
        role: of the model.
        judge: in words, where another model judged.
    """
    present = [criterion for criterion in CRITERIA if criterion in set(effects["criterion"])]
    figure, grid = panels(1, len(present), TEXT_WIDTH, 3.2)
    axes = np.ravel(grid)
    of_panel = [effects[effects["criterion"] == criterion] for criterion in present]
    for criterion, rows, ax in zip(present, of_panel, axes, strict=True):
        effects_against_k(rows, ax)
        ax.set_title(_PANELS[criterion], loc="left")
    share_scale(axes)
    for rows, ax in zip(of_panel, axes, strict=True):
        name_level(ax, rows["gain"].iloc[0], "the whole gain" if ax is axes[0] else "", "left")
        if ax is axes[-1]:
            _name_rules(ax, rows)
    axes[0].set_ylabel("worth of k tokens (nats)")
    told = [
        sample_size(effects),
        size_words(role.num_parameters),
        role.words,
        f"judged by another model, {judge}" if judge else "",
        "shares by the whole prediction" if DIVERGENCE in present else "",
        BARS,
    ]
    put_title(figure, effects_title(effects), subtitle(*told))
    return figure


def effects_against_k(effects: pd.DataFrame, ax: Axes) -> Axes:
    """Nats against k, a line and the bars of its interval a rule.

    Args:
        effects: `token_effects.token_effects`, one model, judge and criterion.
        ax: to draw on.
    """
    for rule, line in effects.groupby("rule", sort=False):
        draw_with_bars(ax, line["k"], line, "effect", **rule_look(str(rule)).measured)
    ax.axhline(0, color=BLACK, linewidth=0.6)
    tokens_axis(ax, effects["k"].unique())
    return ax


def _name_rules(ax: Axes, effects: pd.DataFrame) -> None:
    last = effects.sort_values("k").groupby("rule").tail(1)
    label_line_ends(
        ax,
        [
            LineEnd(row["k"], row["effect"], _words(row["rule"]), rule_look(row["rule"]).color)
            for row in last.to_dict("records")
        ],
    )


def _words(rule: str) -> str:
    """In lines that fit beside a panel."""
    words = rule_words(rule).replace(", ", ",\n")
    return f"{words},\nbeyond its null" if needs_null(rule) else words


def effects_title(effects: pd.DataFrame) -> str:
    """What few tokens of the most trusted rule are worth, by the divergence where it was measured.

    Args:
        effects: `token_effects.token_effects`, one model and judge.
    """
    criterion = DIVERGENCE if DIVERGENCE in set(effects["criterion"]) else LOSS
    rows = effects[effects["criterion"] == criterion]
    rule = shown_rule(rows["rule"])
    beyond = " beyond their null" if needs_null(rule) else ""
    of_rule, nearest = rows[rows["rule"] == rule], rows[rows["rule"] == NEAREST]
    return carried_share(of_rule, nearest if rule != NEAREST else nearest.iloc[:0], "share", beyond)

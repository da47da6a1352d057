"""The drawing of the report on selection rules: tables of `analysis.rules.selection_rules` in, Axes out.

A line is a rule, its band the 95 % interval over documents. No number is computed here.
"""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import TEXT_WIDTH, panels
from analysis.own_measurements import needs_null
from analysis.palette import BLACK, GREY, RULE_COLORS, RULE_MARKERS


def rules_figure(table: pd.DataFrame) -> Figure:
    """Three panels: rules that need their null beyond it, the others by themselves, and the costs.

    Args:
        table: `selection_rules.rules_table`, one model.
    """
    figure, (seeing_ax, blind_ax, cost_ax) = panels(1, 3, TEXT_WIDTH, 2.9)
    has_null = table["rule"].map(needs_null).astype(bool)
    with_bands(table[has_null], "excess_loss", seeing_ax)
    seeing_ax.set(title="fit the answer or the prediction", ylabel="recovered beyond the null (nats)")
    with_bands(table[~has_null], "recovered_loss", blind_ax)
    blind_ax.set(title="fit neither", ylabel="recovered (nats)")
    limits = [*seeing_ax.get_ylim(), *blind_ax.get_ylim()]
    for ax in (seeing_ax, blind_ax):
        ax.axhline(table["loss_difference"].iloc[0], color=GREY, linewidth=1, linestyle=":")
        ax.set_ylim(min(limits), max(*limits, 1.1 * table["loss_difference"].iloc[0]))
        ax.annotate(
            "gain of the long context", (1, table["loss_difference"].iloc[0]), (0, 2),
            textcoords="offset points", fontsize="x-small", color=GREY,
        )  # fmt: skip
    costs_against_k(table, cost_ax)
    of_rule = {
        label: handle
        for ax in (seeing_ax, blind_ax)
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(of_rule.values(), of_rule.keys(), loc="outside lower center", ncols=4)
    return figure


def with_bands(table: pd.DataFrame, value: str, ax: Axes) -> Axes:
    """A line a rule against k, with the band of its interval.

    Args:
        table: `selection_rules.rules_table`, one model.
        value: a column that has an interval.
        ax: to draw on.
    """
    for rule, line in table.groupby("rule", sort=False):
        line = line.sort_values("k")
        ax.plot(line["k"], line[value], label=str(rule), **_style(str(rule)))
        low, high = line[f"{value}_low"], line[f"{value}_high"]
        ax.fill_between(line["k"], low, high, color=_style(str(rule))["color"], alpha=0.12, linewidth=0)
    ax.axhline(0, color=BLACK, linewidth=0.6)
    return _k_axis(ax, table)


def costs_against_k(table: pd.DataFrame, ax: Axes) -> Axes:
    """Token-forwards a target against k, on logarithmic axes; rules that cost nothing are not drawn.

    Args:
        table: `selection_rules.rules_table`, one model.
        ax: to draw on.
    """
    for rule, line in table[table["token_forwards_per_target"] > 0].groupby("rule", sort=False):
        line = line.sort_values("k")
        ax.plot(line["k"], line["token_forwards_per_target"], **_style(str(rule)))
    ax.set_yscale("log")
    ax.set(title="cost of the choice", ylabel="token-forwards a target")
    return _k_axis(ax, table)


def _style(rule: str) -> dict[str, Any]:
    return {"color": RULE_COLORS.get(rule, BLACK), "marker": RULE_MARKERS.get(rule, "o")}


def _k_axis(ax: Axes, table: pd.DataFrame) -> Axes:
    ks = sorted(table["k"].unique())
    ax.set_xscale("log", base=2)
    ax.set_xticks(ks, [str(k) for k in ks])
    ax.tick_params(axis="x", which="minor", bottom=False)
    ax.set_xlabel("k influential tokens")
    return ax

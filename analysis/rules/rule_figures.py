"""The drawing of the report on selection rules: tables of `analysis.rules.selection_rules` in."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_texts import put_title
from analysis.figures import TEXT_WIDTH, panels
from analysis.own_measurements import needs_null
from analysis.palette import BLACK, GREY, rule_look
from analysis.roles import Role, rule_words, size_words
from analysis.titles import BARS, counted, is_above, percent, sample_size, subtitle

_ROW_HEIGHT = 0.32  # inches
_ASIDE = 0.14  # of a row, between a rule and its null


def rules_figure(table: pd.DataFrame, role: Role) -> Figure:
    """A row a rule, at the largest k: what it recovers beside its null, and what that says of this document.

    The second panel holds what is left beyond the null; of rules that fit neither answer nor prediction their
    own recovery, for another document's tokens hurt and would flatter them.

    Args:
        table: `selection_rules.rules_table`, one model.
        role: of the model.
    """
    rows = table[table["k"] == table["k"].max()].iloc[::-1].reset_index(drop=True)
    rows = pd.concat([rows, effects(rows)], axis="columns")
    figure, (recovered_ax, effect_ax) = panels(1, 2, TEXT_WIDTH, 1.1 + _ROW_HEIGHT * len(rows))
    for place, row in enumerate(rows.to_dict("records")):
        look = rule_look(row["rule"])
        _point(recovered_ax, row, "null_recovered_loss", place - _ASIDE, look.null)
        _point(recovered_ax, row, "recovered_loss", place + _ASIDE, look.measured)
        _point(effect_ax, row, "effect", place, look.measured)
    costs = [_cost_words(cost) for cost in rows["token_forwards_per_target"]]
    names = [f"{rule_words(rule)}{cost}" for rule, cost in zip(rows["rule"], costs, strict=True)]
    recovered_ax.set_yticks(range(len(rows)), names)
    effect_ax.set_yticks(range(len(rows)), [""] * len(rows))
    k = int(rows["k"].iloc[0])
    recovered_ax.set_title(f"recovered by {counted(k, 'token')}; hollow: null", loc="left")
    effect_ax.set_title("beyond the null, or of a blind rule", loc="left")
    for ax in (recovered_ax, effect_ax):
        ax.set_ylim(-0.6, len(rows) - 0.4)
        ax.axvline(0, color=BLACK, linewidth=0.6)
        ax.axvline(rows["loss_difference"].iloc[0], color=GREY, linewidth=1, linestyle=":")
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel("nats (dotted: the whole gain)")
    told = subtitle(
        sample_size(rows),
        size_words(role.num_parameters),
        role.words,
        "brackets: cost in token-forwards",
        BARS,
    )
    put_title(figure, rules_title(rows), told)
    return figure


def effects(rows: pd.DataFrame) -> pd.DataFrame:
    """What the choice of each rule is worth, with its interval: its excess, or its own recovery.

    Args:
        rows: of `selection_rules.rules_table`.
    """
    has_null = rows["rule"].map(needs_null).astype(bool)
    return pd.DataFrame(
        {
            f"effect{end}": rows[f"excess_loss{end}"].where(has_null, rows[f"recovered_loss{end}"])
            for end in ("", "_low", "_high")
        }
    )


def _point(ax: Axes, row: dict, value: str, y: float, style: dict) -> None:
    ends = np.array([[row[value] - row[f"{value}_low"]], [row[f"{value}_high"] - row[value]]])
    ax.errorbar([row[value]], [y], xerr=ends, elinewidth=0.9, **style)


def _cost_words(cost: float) -> str:
    return f" ({cost:,.0f})" if cost > 0 else ""


def rules_title(rows: pd.DataFrame) -> str:
    """How much of the recovery that sees the answer is its null, and how many rules find something at all.

    Args:
        rows: of `selection_rules.rules_table` and `effects`, one model and k.
    """
    num_clear = sum(is_above(low) for low in rows["effect_low"])
    clear = f"{num_clear or 'none'} of {counted(len(rows), 'rule')} find something of this document"
    fitted = rows[rows["rule"].map(needs_null).astype(bool) & (rows["recovered_loss_low"] > 0)]
    if fitted.empty:
        return clear
    shares = (fitted["null_recovered_loss"] / fitted["recovered_loss"]).sort_values()
    least, most = percent(shares.iloc[0]), percent(shares.iloc[-1])
    among = most if least == most else f"{least.removesuffix(' %')} to {most}"
    if shares.iloc[0] >= 1:
        among = "all"
    looks_at = "see the answer" if fitted["sees_answer"].all() else "fit the answer or the prediction"
    return f"Of what rules that {looks_at} recover, {among} is their null; {clear}"

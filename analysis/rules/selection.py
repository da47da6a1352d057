"""Selection rules side by side: what each recovers beside its null.

All differences between rules are paired target by target, so that what a target costs under any rule cancels.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import drawing
from analysis.losses.token_worth import effects_of_targets, token_effects
from analysis.read import (
    TARGET,
    joined_on_common,
    mean_columns,
    needs_null,
    of_common_groups,
    sees_answer,
    summarized,
)
from pipeline.measuring.rules import RULES
from pipeline.results.schemas import LOSS

REFERENCE_RULE = "leave_one_out"
"""Our reading of the paper's Eq. 20, which the others are compared with."""


def compared_rules(sparse_context_losses: pd.DataFrame) -> list[str]:
    """Rules in the order of the tables: those that see the answer, that fit the prediction, others."""
    order = {rule: place for place, rule in enumerate(RULES)}

    def place(rule: str) -> tuple[bool, bool, int, str]:
        return not sees_answer(rule), not needs_null(rule), order.get(rule, len(order)), rule

    return sorted(set(sparse_context_losses["rule"]), key=place)


def rules_table(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """A row a model, rule and k: recovered loss, its null's, and the excess, in nats."""
    effects = token_effects(sparse_context_losses)
    names = {
        "gain": "loss_difference",
        "recovered": "recovered_loss",
        "excess": "excess_loss",
        "null_recovered": "null_recovered_loss",
    }
    renamed = {f"{name}{end}": f"{new}{end}" for name, new in names.items() for end in ("", "_low", "_high")}
    table = effects[effects["criterion"] == LOSS].rename(columns=renamed)
    table["sees_answer"] = table["rule"].map(sees_answer)
    order = {rule: place for place, rule in enumerate(compared_rules(sparse_context_losses))}
    by = ["model", "rule", "k"]
    return table.sort_values(by, key=lambda column: column.replace(order), ignore_index=True)


def differences_between_rules(
    sparse_context_losses: pd.DataFrame, reference: str = REFERENCE_RULE
) -> pd.DataFrame:
    """How much more each rule recovers than `reference` at one k, and how much more beyond the null.

    Returns:
        model, rule (all but the reference), k, num_targets, num_documents, then with intervals
        recovered_difference and excess_difference, nats. Targets that lack any of the four are left out.
    """
    keys = ["model", "k", *TARGET]
    effects = effects_of_targets(sparse_context_losses, LOSS)[[*keys, "rule", "recovered", "excess"]]
    of_reference = effects[effects["rule"] == reference].drop(columns="rule")
    tables = []
    for rule, of_rule in effects[effects["rule"] != reference].groupby("rule"):
        both = of_common_groups(of_rule, of_reference, ["model", "k"])
        what = f"targets at one k, by {rule} and {reference}"
        tables.append(joined_on_common(*both, keys, what, ("", "_of_reference")))
    if not tables:
        return pd.DataFrame(columns=["model", "rule", "k"])
    paired = pd.concat(tables, ignore_index=True)
    for name in ("recovered", "excess"):
        paired[f"{name}_difference"] = paired[name] - paired[f"{name}_of_reference"]
    names = "recovered_difference", "excess_difference"
    return summarized(paired, ["model", "rule", "k"], lambda targets: mean_columns(targets, *names))


_ROW_HEIGHT = 0.32  # inches
_ASIDE = 0.14  # of a row, between a rule and its null


def rules_figure(table: pd.DataFrame, label: drawing.ModelLabel) -> Figure:
    """A row a rule, at the largest k: what it recovers beside its null, and what that says of this document.

    The second panel holds what is left beyond the null; of rules that fit neither answer nor prediction their
    own recovery, for another document's tokens hurt and would flatter them.
    """
    rows = table[table["k"] == table["k"].max()].iloc[::-1].reset_index(drop=True)
    has_null = rows["rule"].map(needs_null).astype(bool)
    effects = {
        f"effect{end}": rows[f"excess_loss{end}"].where(has_null, rows[f"recovered_loss{end}"])
        for end in ("", "_low", "_high")
    }
    rows = rows.assign(**effects)
    figure, (recovered_ax, effect_ax) = drawing.panels(2, 1.1 + _ROW_HEIGHT * len(rows))
    places = np.arange(len(rows))
    styles = [drawing.rule_style(rule) for rule in rows["rule"]]
    nulls = [style.null for style in styles]
    measured = [style.measured for style in styles]
    drawing.draw_points(recovered_ax, places - _ASIDE, rows, "null_recovered_loss", nulls)
    drawing.draw_points(recovered_ax, places + _ASIDE, rows, "recovered_loss", measured)
    drawing.draw_points(effect_ax, places, rows, "effect", measured)
    recovered_ax.set_yticks(places, [drawing.rule_text(rule) for rule in rows["rule"]])
    effect_ax.set_yticks(places, [""] * len(rows))
    k = drawing.counted(int(rows["k"].iloc[0]), "token")
    recovered_ax.set_title(f"recovered by {k}; hollow: null", loc="left")
    effect_ax.set_title("beyond the null, or of a rule\nblind to the answer", loc="left")
    for ax in (recovered_ax, effect_ax):
        ax.set_ylim(-0.6, len(rows) - 0.4)
        ax.axvline(0, color=drawing.BLACK, linewidth=0.6)
        ax.axvline(rows["loss_difference"].iloc[0], color=drawing.GREY, linewidth=1, linestyle=":")
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel("nats (dotted: the whole gain)")
    parts = label.size, label.text, drawing.BARS
    title = f"What do the {k} that each rule chooses recover, beyond its null?"
    drawing.put_title(figure, title, drawing.sample_size(rows), *parts)
    return figure

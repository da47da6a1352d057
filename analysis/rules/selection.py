"""Selection rules side by side: what each recovers beside its null, its cost, what leave-one-out misses.

DataFrames of results in, small DataFrames out; intervals as in `analysis.read`. All differences
between rules are paired target by target, so that what a target costs under any rule cancels.

The report on selection rules in words: what its tables answer, as sentences and as a table for a page.

Every number is one of `analysis.rules.selection`; nothing is said that an interval does not carry.

The drawing of the report on selection rules: tables of `analysis.rules.selection` in.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.drawing import (
    BARS,
    BLACK,
    GREY,
    ModelLabel,
    counted,
    is_above,
    panels,
    percent,
    put_title,
    rule_style,
    rule_text,
    sample_size,
)
from analysis.losses.token_worth import excess_over_null, recovered_losses, with_recovered_losses
from analysis.read import (
    TARGET,
    complete_rows,
    interval_columns,
    interval_over_documents,
    joined_on_common,
    needs_null,
    of_common_groups,
    sample_counts,
    sees_answer,
    write_derived_table,
)
from pipeline.measuring.rules import REMOVE, RULES, RuleCosts
from pipeline.results.schemas import OTHER_DOCUMENT, OWN
from pipeline.results.statistics import Interval

READINGS_OF_EQ_20 = ("leave_one_out", "add_one_in", "greedy", "gradient", "banzhaf")
"""Rules that look at the target's own loss, as a reading of the paper's Eq. 20 may."""
REFERENCE_RULE = "leave_one_out"
"""Our reading, which the others are compared with."""

REDUNDANT_INFLUENCE_NATS = 0.05
"""Leaving a token out costs less than this: what it says must stand elsewhere in the long context, or matter
little beside the rest of it."""
MISSED_NATS = 0.1
"""A choice is worse where it recovers this much less; the least gain that the stage gives a k* to."""

_FAR_CONTEXT = ["model", "far_context", *TARGET]
"""The columns that name a target with one of its far contexts."""


def compared_rules(sparse_context_losses: pd.DataFrame) -> list[str]:
    """Rules in the order of the tables: those that see the answer, that fit the prediction, others."""
    order = list(RULES)
    return sorted(
        set(sparse_context_losses["rule"]),
        key=lambda rule: (
            not sees_answer(rule),
            not needs_null(rule),
            order.index(rule) if rule in order else len(order),
            rule,
        ),
    )


def rules_table(
    sparse_context_losses: pd.DataFrame, settings_of_model: Mapping[str, Mapping[str, Any]]
) -> pd.DataFrame:
    """A row a model, rule and k: recovered loss, its null's, the excess, and the cost of the choice.

    Args:
        sparse_context_losses: the artefact, any number of models, own far context and null.
        settings_of_model: what the stage was run with, for the costs.

    Returns:
        The columns of the schema `selection_rules`; losses in nats, costs in tokens a target. Costs are of
        the choice for the own far context, by the formulas of `RuleCosts`. The null doubles them, nearly.
    """
    keys = ["model", "rule", "k"]
    recovered = recovered_losses(sparse_context_losses)
    of_null = recovered[recovered["far_context"] == OTHER_DOCUMENT]
    amounts = ["recovered_loss", "recovered_loss_low", "recovered_loss_high"]
    null = of_null[[*keys, *amounts]].rename(columns={name: f"null_{name}" for name in amounts})
    excess = excess_over_null(sparse_context_losses)
    beyond = [*keys, *(column for column in excess if str(column).startswith("excess_"))]
    own = recovered[recovered["far_context"] == OWN]
    table = joined_on_common(own, null, keys, "rules at one k, with their null")
    table = joined_on_common(table, excess[beyond], keys, "rules at one k, with what is beyond their null")
    table["sees_answer"] = table["rule"].map(sees_answer)
    lengths = ("short_context_length", "long_context_length", "targets_per_chunk")
    costs = {
        model: RuleCosts(
            **{length: settings[length] for length in lengths},
            intervention=settings.get("intervention") or REMOVE,
            num_backgrounds=settings.get("num_backgrounds") or 1,
            num_subsets=settings.get("num_subsets") or 0,
        )
        for model, settings in settings_of_model.items()
    }
    table["token_forwards_per_target"] = [
        costs[model].token_forwards_per_target(rule, k)
        for model, rule, k in zip(table["model"], table["rule"], table["k"], strict=True)
    ]
    table["backward_tokens_per_target"] = [
        costs[model].backward_tokens_per_target(rule)
        for model, rule in zip(table["model"], table["rule"], strict=True)
    ]
    order = {rule: place for place, rule in enumerate(compared_rules(sparse_context_losses))}
    return table.sort_values(keys, key=lambda column: column.replace(order), ignore_index=True)


def write_rules_table(table: pd.DataFrame, folder: Path) -> Path:
    """Write `rules_table` as `<folder>/selection_rules.parquet`, in its schema."""
    return write_derived_table(table, "selection_rules", folder)


def differences_between_rules(
    sparse_context_losses: pd.DataFrame, reference: str = REFERENCE_RULE
) -> pd.DataFrame:
    """How much more each rule recovers than `reference` with the same k, and how much more beyond the null.

    Args:
        sparse_context_losses: the artefact, any number of models.
        reference: the rule compared with.

    Returns:
        model, rule (all but the reference), k, num_targets, num_documents, then with intervals
        recovered_difference and excess_difference, nats. Targets that lack any of the four are left out.
    """
    keys = ["model", "k", *TARGET]
    recovered = _own_and_null(sparse_context_losses)
    compared_with = recovered[recovered["rule"] == reference].drop(columns="rule")
    pairs = []
    for rule, of_rule in recovered[recovered["rule"] != reference].groupby("rule"):
        both = of_common_groups(of_rule, compared_with, ["model", "k"])
        what = f"targets at one k, by {rule} and {reference}"
        pairs.append(joined_on_common(*both, keys, what, ("", "_of_reference")))
    if not pairs:
        return pd.DataFrame(columns=["model", "rule", "k"])
    paired = pd.concat(pairs, ignore_index=True)
    own = paired[OWN] - paired[f"{OWN}_of_reference"]
    null = paired[OTHER_DOCUMENT] - paired[f"{OTHER_DOCUMENT}_of_reference"]
    paired = paired.assign(recovered_difference=own, excess_difference=own - null)
    rows = [
        {
            "model": model, "rule": rule, "k": k,
            **sample_counts(targets),
            **_means(targets, ["recovered_difference", "excess_difference"]),
        }
        for (model, rule, k), targets in paired.groupby(["model", "rule", "k"])
    ]  # fmt: skip
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["model", "rule", "k"])


def missed_redundancy(
    sparse_context_losses: pd.DataFrame,
    influential_tokens: pd.DataFrame,
    *,
    influence_below: float = REDUNDANT_INFLUENCE_NATS,
    recovers_more: float = MISSED_NATS,
) -> pd.DataFrame:
    """How often leave-one-out misses redundant evidence that greedy finds.

    A target counts at k where both hold:

    1. greedy's first token, which alone beside the short context helps most of all, has an influence (loss
       without it minus loss of the long context) below `influence_below`: with the rest of the long context
       in sight it can be spared;
    2. greedy's S_k recovers at least `recovers_more` nats more than leave-one-out's S_k of the same size: the
       choice by influence pays for passing over such tokens.

    Greedy looks at the answer harder than leave-one-out, so 2. holds by selection alone for many targets.
    Both are therefore counted in the null too, where the far context is another document's and holds no
    evidence: the excess of the shares is the effect.

    Args:
        sparse_context_losses, influential_tokens: the artefacts, with rules `greedy` and `leave_one_out`.
        influence_below, recovers_more: nats.

    Returns:
        model, k, num_targets, num_documents, then with intervals the shares of targets missed_share,
        null_missed_share, excess_share (missed - null). Targets that lack any of it are left out; no rows
        where one of the rules was not run.
    """
    first = influential_tokens.query("rule == 'greedy' and rank == 1").dropna(subset="influence")
    is_spared = first[_FAR_CONTEXT].assign(is_spared=first["influence"] < influence_below)
    targets = _by_greedy_and_leave_one_out(with_recovered_losses(sparse_context_losses))
    if targets is None:
        return pd.DataFrame(columns=["model", "k"])
    targets = joined_on_common(
        targets, is_spared, _FAR_CONTEXT, "targets with greedy's first token", may_right_have_more=True
    )
    is_better = targets["greedy"] - targets["leave_one_out"] >= recovers_more
    targets["is_missed"] = (is_better & targets["is_spared"]).astype("float64")
    shares = complete_rows(
        targets.pivot(index=["model", "k", *TARGET], columns="far_context", values="is_missed"),
        "targets at one k with redundancy in their own and the null's far context",
    )
    shares = shares.rename(columns={OWN: "missed_share", OTHER_DOCUMENT: "null_missed_share"}).reset_index()
    shares["excess_share"] = shares["missed_share"] - shares["null_missed_share"]
    rows = [
        {
            "model": model, "k": k,
            **sample_counts(group),
            **_means(group, ["missed_share", "null_missed_share", "excess_share"]),
        }
        for (model, k), group in shares.groupby(["model", "k"])
    ]  # fmt: skip
    return pd.DataFrame(rows)


def _by_greedy_and_leave_one_out(losses: pd.DataFrame) -> pd.DataFrame | None:
    """What either rule recovers of each target at each k, a column a rule; None where one was not run."""
    of_rule = losses[losses["rule"].isin(("greedy", "leave_one_out"))].pivot(
        index=[*_FAR_CONTEXT, "k"], columns="rule", values="recovered_loss"
    )
    if of_rule.shape[1] < 2:
        return None
    own_or_null = of_rule.groupby(level=["model", "far_context", "k"])
    of_rule = of_rule[own_or_null.transform("count").gt(0).all(axis="columns")]
    return complete_rows(of_rule, "targets at one k, by greedy and leave_one_out").reset_index()


def _own_and_null(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """A row a model, rule, k and target: nats recovered with the own far context and with the null's."""
    losses = with_recovered_losses(sparse_context_losses)
    own, null = (losses[losses["far_context"] == far_context] for far_context in (OWN, OTHER_DOCUMENT))
    keys = ["model", "rule", "k", *TARGET]
    wide = (
        pd.concat(of_common_groups(own, null, keys[:3]))
        .pivot(index=keys, columns="far_context", values="recovered_loss")
        .reindex(columns=[OWN, OTHER_DOCUMENT])
    )
    return complete_rows(wide, "choices of own and null tokens by a rule").reset_index()


def _means(targets: pd.DataFrame, names: list[str]) -> dict[Hashable, float]:
    columns: dict[Hashable, float] = {}
    for name in names:
        columns |= interval_columns(name, interval_over_documents(targets["document_id"], targets[name]))
    return columns


Row = Mapping[Hashable, Any]


def verdict_on_eq_20(table: pd.DataFrame, differences: pd.DataFrame) -> Iterator[str]:
    """Whether the conclusion depends on the reading of Eq. 20: three sentences a k, and one on all.

    Args:
        table: `rules_table`, one model.
        differences: `differences_between_rules`, the same model, against `leave_one_out`.
    """
    compared = differences[differences["rule"].isin(READINGS_OF_EQ_20)]
    if compared.empty:
        yield f"No other rule that sees the answer was run beside {REFERENCE_RULE}."
        return
    for k, rows in table[table["rule"].isin(READINGS_OF_EQ_20)].groupby("k"):
        yield f"k = {k}: {_sizes(rows)}"
        yield _beyond(rows)
        yield _against_reference(compared[compared["k"] == k])
    num_apart = {
        name: sum(_is_clear(_interval(row, name)) for row in compared.to_dict("records"))
        for name in ("recovered_difference", "excess_difference")
    }
    yield (
        f"So of {len(compared)} comparisons with {REFERENCE_RULE} (a reading and a k each; by chance one in"
        f" twenty would seem clear) {num_apart['recovered_difference']} differ clearly in the recovery"
        f" and {num_apart['excess_difference']} in what is left beyond the null."
    )


def _sizes(rows: pd.DataFrame) -> str:
    in_order = rows.sort_values("recovered_loss").to_dict("records")
    least, most = in_order[0], in_order[-1]
    return (
        f"the nats recovered depend on the reading, from {least['recovered_loss']:.3f} ({least['rule']}) to"
        f" {most['recovered_loss']:.3f} ({most['rule']}), where the whole long context gains"
        f" {least['loss_difference']:.3f};"
    )


def _beyond(rows: pd.DataFrame) -> str:
    excess = _of_rules(rows, "excess_loss")
    clear = [rule for rule, interval in excess.items() if interval.low > 0]
    how_many = _named(clear, len(excess))
    return f"  beyond the null remain {_listed(excess)}: clearly more than nothing for {how_many};"


def _against_reference(readings: pd.DataFrame) -> str:
    differences = _of_rules(readings, "excess_difference")
    apart = [rule for rule, difference in differences.items() if _is_clear(difference)]
    how_many = _named(apart, len(differences))
    return (
        f"  that is, beside {REFERENCE_RULE}: {_listed(differences)}: clearly another number for {how_many}."
    )


def _of_rules(rows: pd.DataFrame, name: str) -> dict[str, Interval]:
    """The interval of each rule, of rows that differ in the rule only."""
    return {row["rule"]: _interval(row, name) for row in rows.to_dict("records")}


def _interval(row: Row, name: str) -> Interval:
    return Interval(row[name], row[f"{name}_low"], row[f"{name}_high"])


def _listed(intervals: Mapping[str, Interval]) -> str:
    return ", ".join(f"{rule} {interval}" for rule, interval in intervals.items())


def _is_clear(difference: Interval) -> bool:
    return difference.low > 0 or difference.high < 0


def _named(rules: Sequence[str], num_rules: int) -> str:
    if not rules:
        return f"none of {num_rules}"
    if len(rules) == num_rules:
        return f"all {num_rules}"
    return f"{len(rules)} of {num_rules} ({', '.join(rules)})"


def missed_sentences(missed: pd.DataFrame) -> Iterator[str]:
    """What `missed_redundancy` says, a sentence a model and k."""
    for row in missed.to_dict("records"):
        own, null, excess = (_interval(row, f"{part}_share") for part in ("missed", "null_missed", "excess"))
        yield (
            f"{row['model']}, k = {row['k']}: leave_one_out misses redundant evidence that greedy finds for"
            f" {own} of {row['num_targets']:,} targets, in the null for {null}: beyond the null {excess}."
        )


def markdown_table(table: pd.DataFrame) -> str:
    """The table for a page: a row a rule, recovered nats (the null's) at each k, what it means, and the cost.

    The column before the cost is at the largest k: the excess over the null of rules that fit the answer or
    the prediction, and the own recovery of others, since another document's tokens hurt and would flatter
    them.

    Args:
        table: `rules_table`, one model.
    """
    ks = sorted(table["k"].unique())
    header = ["rule", *(f"k = {k}" for k in ks), f"k = {ks[-1]}, beyond the null", "token-forwards a target"]
    lines = [header]
    for rule, rows in table.groupby("rule", sort=False):
        of_k = {row["k"]: row for row in rows.to_dict("records")}
        sizes = [f"{of_k[k]['recovered_loss']:.3f} ({of_k[k]['null_recovered_loss']:.3f})" for k in ks]
        last = of_k[ks[-1]]
        sees = last["sees_answer"]
        effect = f"own: {_interval(last, 'recovered_loss')}"
        if needs_null(str(rule)):
            effect = str(_interval(last, "excess_loss"))
        cost = f"{last['token_forwards_per_target']:,.0f}"
        if last["backward_tokens_per_target"]:
            cost += f", and {last['backward_tokens_per_target']:,.0f} backward"
        lines.append([f"`{rule}`" + ("" if sees else " (blind)"), *sizes, effect, cost])
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([head, "|---" * len(header) + "|", *body])


_ROW_HEIGHT = 0.32  # inches
_ASIDE = 0.14  # of a row, between a rule and its null


def rules_figure(table: pd.DataFrame, label: ModelLabel) -> Figure:
    """A row a rule, at the largest k: what it recovers beside its null, and what that says of this document.

    The second panel holds what is left beyond the null; of rules that fit neither answer nor prediction their
    own recovery, for another document's tokens hurt and would flatter them.

    Args:
        table: `selection_rules.rules_table`, one model.
        label: of the model.
    """
    rows = table[table["k"] == table["k"].max()].iloc[::-1].reset_index(drop=True)
    rows = pd.concat([rows, effects(rows)], axis="columns")
    figure, (recovered_ax, effect_ax) = panels(2, 1.1 + _ROW_HEIGHT * len(rows))
    for place, row in enumerate(rows.to_dict("records")):
        look = rule_style(row["rule"])
        _point(recovered_ax, row, "null_recovered_loss", place - _ASIDE, look.null)
        _point(recovered_ax, row, "recovered_loss", place + _ASIDE, look.measured)
        _point(effect_ax, row, "effect", place, look.measured)
    costs = [_cost_words(cost) for cost in rows["token_forwards_per_target"]]
    names = [f"{rule_text(rule)}{cost}" for rule, cost in zip(rows["rule"], costs, strict=True)]
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
    told = (
        sample_size(rows),
        label.size,
        label.text,
        "brackets: cost in token-forwards",
        BARS,
    )
    put_title(figure, rules_title(rows), *told)
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

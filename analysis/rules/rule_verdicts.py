"""The report on selection rules in words: what its tables answer, as sentences and as a table for a page.

Every number is one of `analysis.rules.selection_rules`; nothing is said that an interval does not carry.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.own_measurements import needs_null
from analysis.rules.selection_rules import READINGS_OF_EQ_20, REFERENCE_RULE
from pipeline.results.bootstrap import Interval

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

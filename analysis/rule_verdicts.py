"""The report on selection rules in words: what its tables answer, as sentences and as a table for a page.

Every number is one of `analysis.selection_rules`; nothing is said that an interval does not carry.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.selection_rules import READINGS_OF_EQ_20, REFERENCE_RULE
from pipeline.results.bootstrap import Interval


def _interval(row: Any, name: str) -> Interval:
    return Interval(*(float(getattr(row, f"{name}{end}")) for end in ("", "_low", "_high")))


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
        name: sum(_is_clear(_interval(row, name)) for row in compared.itertuples())
        for name in ("recovered_difference", "excess_difference")
    }
    yield (
        f"So of {len(compared)} comparisons with {REFERENCE_RULE} (a reading and a k each; by chance one in"
        f" twenty would seem clear) {num_apart['recovered_difference']} differ clearly in the recovery"
        f" and {num_apart['excess_difference']} in what is left beyond the null."
    )


def _sizes(rows: pd.DataFrame) -> str:
    least, most = (
        rows.loc[place] for place in (rows["recovered_loss"].idxmin(), rows["recovered_loss"].idxmax())
    )
    return (
        f"the nats recovered depend on the reading, from {least['recovered_loss']:.3f} ({least['rule']}) to"
        f" {most['recovered_loss']:.3f} ({most['rule']}), where the whole long context gains"
        f" {least['loss_difference']:.3f};"
    )


def _beyond(rows: pd.DataFrame) -> str:
    clear = [row.rule for row in rows.itertuples() if row.excess_loss_low > 0]
    shown = ", ".join(f"{row.rule} {_interval(row, 'excess_loss')}" for row in rows.itertuples())
    return f"  beyond the null remain {shown}: clearly more than nothing for {_named(clear, len(rows))};"


def _against_reference(readings: pd.DataFrame) -> str:
    of_rule = {row.rule: _interval(row, "excess_difference") for row in readings.itertuples()}
    apart = [rule for rule, difference in of_rule.items() if _is_clear(difference)]
    shown = ", ".join(f"{rule} {difference}" for rule, difference in of_rule.items())
    how_many = _named(apart, len(of_rule))
    return f"  that is, beside {REFERENCE_RULE}: {shown}: clearly another number for {how_many}."


def _is_clear(difference: Interval) -> bool:
    return difference.low > 0 or difference.high < 0


def _named(rules: Sequence[str], num_rules: int) -> str:
    if not rules:
        return f"none of {num_rules}"
    return (
        f"all {num_rules}" if len(rules) == num_rules else f"{len(rules)} of {num_rules} ({', '.join(rules)})"
    )


def missed_sentence(row: Any) -> str:
    """What one row of `missed_redundancy` says."""
    own, null, excess = (_interval(row, f"{part}_share") for part in ("missed", "null_missed", "excess"))
    return (
        f"{row.model}, k = {row.k}: leave_one_out misses redundant evidence that greedy finds for {own} of"
        f" targets, in the null for {null}: beyond the null {excess} ({row.num_targets:,} targets)."
    )


def markdown_table(table: pd.DataFrame) -> str:
    """The table for a page: a row a rule, recovered nats (the null's) at each k, what it means, and the cost.

    The column before the cost is at the largest k: the excess over the null of rules that see the answer, and
    the own recovery of blind ones, since another document's tokens hurt and would flatter them.

    Args:
        table: `rules_table`, one model.
    """
    ks = sorted(table["k"].unique())
    header = ["rule", *(f"k = {k}" for k in ks), f"k = {ks[-1]}, beyond the null", "token-forwards a target"]
    lines = [header, ["---"] * len(header)]
    for rule, rows in table.groupby("rule", sort=False):
        rows = rows.set_index("k")
        last: Any = next(rows.loc[[ks[-1]]].itertuples())
        sizes = [
            f"{rows.loc[k, 'recovered_loss']:.3f} ({rows.loc[k, 'null_recovered_loss']:.3f})" for k in ks
        ]
        effect = (
            str(_interval(last, "excess_loss"))
            if last.sees_answer
            else f"own: {_interval(last, 'recovered_loss')}"
        )
        cost = f"{last.token_forwards_per_target:,.0f}"
        if last.backward_tokens_per_target:
            cost += f", and {last.backward_tokens_per_target:,.0f} backward"
        lines.append([f"`{rule}`" + ("" if last.sees_answer else " (blind)"), *sizes, effect, cost])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

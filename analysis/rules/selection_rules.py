"""Selection rules side by side: what each recovers beside its null, its cost, what leave-one-out misses.

DataFrames of results in, small DataFrames out; intervals as in `analysis.document_intervals`. All differences
between rules are paired target by target, so that what a target costs under any rule cancels.
"""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.derived_tables import write_derived_table
from analysis.document_intervals import interval_columns, interval_over_documents, sample_counts
from analysis.own_measurements import needs_null, sees_answer
from analysis.paired_targets import TARGET, complete_rows, joined_on_common, of_common_groups
from analysis.recovered_gain import excess_over_null, recovered_losses, with_recovered_losses
from pipeline.influence.rules import REMOVE, RULES
from pipeline.results.names import OTHER_DOCUMENT, OWN
from pipeline.studies.rule_costs import RuleCosts

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
            search_budget=settings.get("search_budget"),
            intervention=settings.get("intervention") or REMOVE,
            num_backgrounds=settings.get("num_backgrounds") or 1,
            num_subsets=settings.get("num_subsets") or 0,
            num_candidates=settings.get("num_candidates"),
        )
        for model, settings in settings_of_model.items()
    }
    table["token_forwards_per_target"] = [
        costs[model].token_forwards_per_target(rule, k)
        for model, rule, k in zip(table["model"], table["rule"], table["k"], strict=True)
    ]
    table["backward_tokens_per_target"] = [
        costs[model].backward_tokens_per_target(rule, k)
        for model, rule, k in zip(table["model"], table["rule"], table["k"], strict=True)
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

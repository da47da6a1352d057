"""Rows of results as analyses need them: one model, one evaluator, joined tables, means with their intervals.

Every mean is over targets, every interval is a 95 % interval over documents. A column `x` with an interval is
followed by `x_low` and `x_high`, in the unit of `x`.

Results hold more than what a model's selected tokens are worth to that model: the same tokens evaluated by
other models (`evaluate_tokens`), k* by two criteria, and the baselines `random` and `recency` at more k than
were requested. Callers that mean one of these say so.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sparsity_length.cli import InputError, logger, unknown_name
from sparsity_length.measuring.rules import CONTROLS, RULES
from sparsity_length.results.read import Results
from sparsity_length.results.schemas import LOSS
from sparsity_length.results.statistics import Interval, ratio_of_sums
from sparsity_length.text.folder import TokenizedData

TARGET = ["document_id", "chunk_index", "target_position"]
"""The columns that name a target, in every artefact of targets."""
NO_INTERVAL = Interval(np.nan, np.nan, np.nan)
Row = Mapping[Hashable, Any]
"""A row of a table, as `to_dict("records")` gives it."""


def models_by_training(
    results: Path, long_models: Sequence[str] = (), short_models: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """The measured models trained at the long context, and those trained at a shorter one; of those given.

    If none is given, a model is trained short that saw fewer tokens at once than the long context and than
    another model; those that chose tokens come first. InputError if no given long model was measured.
    """
    facts = Results(results).facts("loss_differences")
    if long_models or short_models:
        longs, shorts = ([name for name in names if name in facts] for names in (long_models, short_models))
        if not longs:
            raise unknown_name("model", [*long_models, *short_models][0], facts)
        return longs, shorts
    settings = Results(results).settings("loss_differences")
    chose = Results(results).settings("influential_tokens")
    # A model of unknown training counts as having seen any length: it is never called short.
    seen = {model: known.get("train_context_length") or np.inf for model, known in facts.items()}
    longest = max(seen.values(), default=np.inf)
    measured = {model: settings[model].get("long_context_length", np.inf) for model in facts}
    # If all were trained alike, none is short, even if measured beyond its training length.
    is_short = {model: seen[model] < min(longest, measured[model]) for model in facts}
    in_order = sorted(facts, key=lambda model: model not in chose)
    return [name for name in in_order if not is_short[name]], [name for name in in_order if is_short[name]]


def joined_on_common(
    left: pd.DataFrame,
    right: pd.DataFrame,
    on: Sequence[str],
    what: str,
    suffixes: tuple[str, str] = ("", "_"),
) -> pd.DataFrame:
    """The rows of `left` whose keys `on` both have, joined; a warning counts the `what` left out."""
    # Counted by key: one key may have many rows, such as one per rank.
    keys = left[list(on)].drop_duplicates()
    num_left_out = len(keys) - len(keys.merge(right[list(on)].drop_duplicates()))
    if num_left_out:
        logger.warning("%s: %s of %s are not in both tables and left out", what, num_left_out, len(keys))
    return left.merge(right, on=list(on), suffixes=suffixes)


def rows_where(table: pd.DataFrame, **values: object) -> pd.DataFrame:
    """The rows with these values, one per column."""
    return table[np.logical_and.reduce([table[name] == value for name, value in values.items()])]


def rows_by(table: pd.DataFrame, *keys: str) -> dict[Any, Row]:
    """The rows of a table by the values of these columns, which name one row each."""
    rows = table.to_dict("records")
    return {tuple(row[key] for key in keys) if keys[1:] else row[keys[0]]: row for row in rows}


def interval_over_documents(
    document_ids: pd.Series, numerators: pd.Series, denominators: pd.Series | None = None
) -> Interval:
    """sum(numerators) / sum(denominators) over targets, or the mean of `numerators`; interval over documents.

    All have one value per target and the same index. The ends are NaN for fewer than two documents, which say
    nothing about other documents.
    """
    if not len(numerators):
        return NO_INTERVAL
    # A mean is the ratio with denominators of 1, so a document weighs as much as it has targets. A missing
    # numerator would be summed as 0 while its denominator counts: callers drop such rows first.
    counted = 1.0 if denominators is None else denominators
    # Results are float32; thousands of them are summed.
    values = pd.DataFrame({"numerator": numerators, "denominator": counted}).astype("float64")
    # By an index: a series is first tried as the name of a column, which takes long.
    sums_D2 = values.groupby(pd.Index(document_ids)).sum().to_numpy()
    return ratio_of_sums(*sums_D2.T)


def interval_columns(name: str, interval: Interval) -> dict[Hashable, float]:
    """`name`, `name`_low and `name`_high of a row."""
    return {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}


def interval_of(row: Row | pd.Series, name: str) -> Interval:
    """The interval that a row's columns `name`, `name`_low and `name`_high hold."""
    return Interval(row[name], row[f"{name}_low"], row[f"{name}_high"])


def interval_cell(row: Row, name: str) -> str:
    """Cell of a printed table with this interval; "-" if there is none."""
    return "-" if pd.isna(row[name]) else str(interval_of(row, name))


def mean_columns(targets: pd.DataFrame, *names: str) -> dict[Hashable, float]:
    """The mean of each of these columns over targets, with its interval."""
    columns: dict[Hashable, float] = {}
    for name in names:
        columns |= interval_columns(name, interval_over_documents(targets["document_id"], targets[name]))
    return columns


def sample_counts(rows: pd.DataFrame) -> dict[Hashable, int]:
    """num_targets and num_documents of a row; `rows` are targets."""
    return {"num_targets": len(rows), "num_documents": rows["document_id"].nunique()}


def summarized(
    rows: pd.DataFrame, by: Sequence[str], numbers: Callable[[pd.DataFrame], Row], *, sort: bool = True
) -> pd.DataFrame:
    """One row per group of targets: the columns `by`, num_targets, num_documents, and its `numbers`."""
    table = [
        {**dict(zip(by, key, strict=True)), **sample_counts(group), **numbers(group)}
        # Without `observed`, pandas 2 makes a group of every category, of unused ones too.
        for key, group in rows.groupby(list(by), sort=sort, observed=True)
    ]
    return pd.DataFrame(table) if table else pd.DataFrame(columns=[*by, "num_targets", "num_documents"])


def multiple_comparison_note(table: pd.DataFrame, value: str) -> str:
    """The sentence that goes with every table or figure of several intervals."""
    # A row without an interval is no comparison.
    num_intervals = int(table[f"{value}_low"].notna().sum())
    return (
        f"{num_intervals} intervals of 95% each: expect {0.05 * num_intervals:.1f} of them to miss the truth;"
        f" for 95% together (Bonferroni) each would be one of {100 - 5 / max(num_intervals, 1):.2f}%."
    )


PREFERRED_RULES = (
    "leave_one_out_divergence",
    "add_one_in_divergence",
    "greedy_divergence",
    "gradient_divergence",
    "attention",
)
"""Target-agnostic rules; first the one that came first in the trial of the measures (LOG, 2026-11-22)."""


def read_sparse_losses(
    results: Path,
    columns: Sequence[str] | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
    *,
    every_evaluator: bool = False,
    every_k: bool = False,
) -> pd.DataFrame:
    """Rows of sparse_context_losses: evaluated by the model that chose, at the k that were requested.

    With `every_evaluator` those of other evaluators too; with `every_k` the further k of the baselines, to
    all distant tokens.
    """
    rows = Results(results).frame("sparse_context_losses", _with(columns, "evaluator", "k"), only)
    if not every_evaluator:
        rows = rows[is_own(rows)]
    # Model by model: two models of one folder may have been asked for different k.
    for model, settings in Results(results).settings("influential_tokens").items():
        if not every_k and settings.get("k"):
            rows = rows[(rows["model"] != model) | rows["k"].isin(settings["k"])]
    return rows.reset_index(drop=True)


def read_sparsity(
    results: Path,
    criterion: str = LOSS,
    columns: Sequence[str] | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
) -> pd.DataFrame:
    """Rows of dependency_sparsity: k* of each target by one criterion, for the model that chose."""
    rows = Results(results).frame("dependency_sparsity", _with(columns, "evaluator", "criterion"), only)
    return rows[is_own(rows) & (rows["criterion"] == criterion)].reset_index(drop=True)


def _with(columns: Sequence[str] | None, *further: str) -> list[str] | None:
    return None if columns is None else list(dict.fromkeys([*columns, *further]))


def is_own(rows: pd.DataFrame) -> pd.Series:
    """Mark the rows of the model that chose, or of the first that tried, if the former did not."""
    is_selector = rows["evaluator"] == rows["model"]
    first = rows.groupby("model")["evaluator"].transform("first")
    return is_selector | (~is_selector.groupby(rows["model"]).transform("any") & (rows["evaluator"] == first))


def is_target_aware(rule: str) -> bool:
    """Tell whether a rule looks at the target's loss; so does one that is not known."""
    return rule not in RULES or RULES[rule].sees == "answer"


def needs_null(rule: str) -> bool:
    """Tell whether what a rule recovers says nothing without its null; so it is of one that is not known."""
    return rule not in RULES or RULES[rule].needs_null


def shown_rule(rules: Iterable[str]) -> str:
    """The rule that a page of one rule shows: the least fooled, or the first other that is no control."""
    present = list(dict.fromkeys(rules))
    chosen = [rule for rule in (*PREFERRED_RULES, *RULES, *present) if rule in present]
    return next((rule for rule in chosen if rule not in CONTROLS), chosen[0])


def data_of(results: Path, data: Path | None, *stages: str) -> TokenizedData:
    """The tokenized data that stages measured: that in `data`, or the folder `data` beside the results.

    InputError if there is none, or a stage measured other documents.
    """
    beside = results.parent / "data"
    if data is None and not beside.is_dir():
        raise InputError(f"there is no {beside}: give the folder of tokenize_c4 that was measured as --data")
    opened = TokenizedData.open(data or beside)
    for stage in stages:
        for model, made in Results(results).made_by(stage).items():
            if made["inputs"].get("evaluation_documents") != opened.evaluation_sha256:
                raise InputError(
                    f"{stage} of model '{model}' in {results} was not measured on the evaluation documents of"
                    f" {opened.folder}: their SHA-256 differs; give the folder that was measured as --data"
                )
    return opened

"""Dependency sparsity and generalization gap by model size and training step, over several results folders.

The files of a stage tell each model's size, training step and training length (`model_facts`). Models of one
folder, size and step are compared with each other: k* is read from the first long-trained one that has
influential tokens, the gap from the last long-trained one, best another seed, to each short-trained one.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from analysis.document_intervals import interval_columns, interval_over_documents, sample_counts
from analysis.generalization.gain_bins import shares_of_gaining_targets
from analysis.generalization.gap_regression import cluster_robust_slope
from analysis.generalization.gaps import generalization_gaps
from analysis.generalization.sparsity_measures import read_sparsity_measures, shown_measure
from analysis.own_measurements import needs_null, read_sparse_losses
from analysis.paired_targets import TARGET, joined_on_common, of_targets
from analysis.token_effects import token_effects
from pipeline.errors import InputError
from pipeline.results.bootstrap import Interval
from pipeline.results.folder import (
    artefacts_in,
    read_artefact,
    read_model_facts,
    read_settings,
    read_settings_of,
)
from pipeline.results.names import DIVERGENCE, LOSS

SIZE, STEP = "num_parameters", "train_step"
NEEDED_FACTS = (SIZE, STEP, "train_context_length")


@dataclass(frozen=True)
class ComparedModels:
    """Models of one folder, size and training step."""

    results: Path
    num_parameters: int
    train_step: int
    long_models: tuple[str, ...]
    """Trained at the long context or a longer one, by seed."""
    short_models: tuple[str, ...]
    kinds: tuple[str, ...]
    """How each of `short_models` was trained, such as "64 tokens, pose"."""

    @property
    def labels(self) -> dict[Hashable, Any]:
        """The columns that tell these models in a table."""
        return {"num_parameters": self.num_parameters, "train_step": self.train_step}


def compared_models(folders: Sequence[Path]) -> list[ComparedModels]:
    """Every size and step of several results folders, small to large and early to late.

    Raises:
        InputError: a folder has no loss differences, or its files do not tell size, step or training length.
    """
    facts = pd.DataFrame([row for folder in folders for row in _facts(folder)])
    compared = []
    for key, models in facts.groupby(["results", "num_parameters", "train_step"]):
        results, num_parameters, train_step = cast(tuple[str, int, int], key)
        models = models.sort_values(["seed", "model"])
        longs, shorts = models[models["is_long"]], models[~models["is_long"]]
        of_kind = tuple(longs["model"]), tuple(shorts["model"]), tuple(shorts["kind"])
        compared.append(ComparedModels(Path(results), int(num_parameters), int(train_step), *of_kind))
    return sorted(compared, key=lambda group: (group.num_parameters, group.train_step))


def _facts(results: Path) -> Iterator[dict[str, Any]]:
    all_facts = read_model_facts(results, "loss_differences")
    if not all_facts:
        raise InputError(f"{results} holds no 'loss_differences' results; name folders that do")
    for model, facts in all_facts.items():
        if any(facts.get(name) is None for name in NEEDED_FACTS):
            raise InputError(
                f"{results} does not tell {', '.join(NEEDED_FACTS)} of {model}: it is no OLMo checkpoint of"
                " pretrain.py, or was measured before results told them; measure it again"
            )
        settings = read_settings_of(results, "loss_differences", model)
        is_long = facts["train_context_length"] >= settings["long_context_length"]
        kind = f"{facts['train_context_length']} tokens, {facts.get('position_scheme') or 'contiguous'}"
        yield {**facts, "results": str(results), "model": model, "is_long": is_long, "kind": kind}


def sparsity_by_scale(compared: Sequence[ComparedModels]) -> pd.DataFrame:
    """What the long context gains, and how few far tokens carry it, at every size and step.

    Args:
        compared: of `compared_models`; those without influential tokens of a long-trained model are left out.

    Returns:
        num_parameters, train_step, model, measure (see `sparsity_measures`), k (the middle one of
        those studied), num_targets, num_documents, then with intervals share (of the targets whose long
        context helps, those with k* <= k) and loss_difference (mean of all targets, nats). No rows of
        sizes and steps at which no target gains enough.
    """
    rows: list[dict[Hashable, Any]] = []
    intervals = [f"{name}{end}" for name in ("share", "loss_difference") for end in ("", "_low", "_high")]
    columns = [SIZE, STEP, "model", "measure", "k", "num_targets", "num_documents", *intervals]
    for group in compared:
        found = measured_sparsity(group)
        if found is None:
            continue
        model, measured, studied_ks = found
        gains = read_artefact(
            group.results, "loss_differences", [*TARGET, "loss_difference"], {"model": [model]}
        )
        gain = interval_over_documents(gains["document_id"], gains["loss_difference"])
        shares = shares_of_gaining_targets(measured, studied_ks)
        for row in shares[shares["k"] == _middle(studied_ks)].to_dict("records"):
            labels = {**group.labels, "model": model}
            rows.append({**labels, **row, **interval_columns("loss_difference", gain)})
    return pd.DataFrame(rows, columns=columns)


def gains_by_scale(compared: Sequence[ComparedModels]) -> pd.DataFrame:
    """What the long context gains the first long-trained model of every size and step.

    Args:
        compared: of `compared_models`; those without a long-trained model are left out.

    Returns:
        num_parameters, train_step, model, num_targets, num_documents, loss_difference (nats) with its
        interval.
    """
    rows: list[dict[Hashable, Any]] = []
    for group in compared:
        for model in group.long_models[:1]:
            columns = [*TARGET, "loss_difference"]
            targets = read_artefact(group.results, "loss_differences", columns, {"model": [model]})
            gain = interval_over_documents(targets["document_id"], targets["loss_difference"])
            labels = {**group.labels, "model": model, **sample_counts(targets)}
            rows.append(labels | interval_columns("loss_difference", gain))
    return pd.DataFrame(rows)


def carried_by_scale(
    compared: Sequence[ComparedModels], k: int | None = None, targets: pd.DataFrame | None = None
) -> pd.DataFrame:
    """The share of the far context's worth that k tokens carry.

    Where another model judged, it says so, by the divergence; else the model that chose, by its loss, and
    only of rules that need no null.

    Args:
        compared: of `compared_models`; those without influential tokens of a long-trained model are left out.
        k: None is the largest that was studied.
        targets: those that are meant, by the columns of `TARGET`; None is all.

    Returns:
        num_parameters, train_step and the columns of `token_effects.token_effects`: a row a size, step and
        rule; `share` is NaN where the gain is not clear.
    """
    tables = []
    for group in compared:
        found = measured_sparsity(group)
        if found is not None:
            model, _, studied_ks = found
            losses = read_sparse_losses(group.results, only={"model": [model]}, every_judge=True)
            losses = of_targets(losses[losses["k"] == (k or studied_ks[-1])], targets)
            shown = as_another_judges(token_effects(losses))
            labels = {str(name): value for name, value in group.labels.items()}
            tables.append(shown.assign(**labels))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def as_another_judges(effects: pd.DataFrame) -> pd.DataFrame:
    """The rows of one judge and criterion: of the first other judge, by the divergence.

    Where no other judged, the model that chose, by its loss, and only rules that need no null.

    Args:
        effects: rows of one model with judge, criterion and rule.
    """
    others = effects[(effects["judge"] != effects["model"]) & (effects["criterion"] == DIVERGENCE)]
    if len(others):
        return others[others["judge"] == others["judge"].iloc[0]]
    needs_none = ~effects["rule"].map(needs_null).astype(bool)
    return effects[(effects["judge"] == effects["model"]) & (effects["criterion"] == LOSS) & needs_none]


def gaps_by_scale(compared: Sequence[ComparedModels], measure: str | None = None) -> pd.DataFrame:
    """The generalization gap at every size and step, and how much larger it is where k* is large.

    Args:
        compared: of `compared_models`; those without both long- and short-trained models are left out.
        measure: whose k* divides targets into sparse (k* at most the middle studied k) and dense (more, or
            censored); those without a gain are neither. None: `sparsity_measures.shown_measure`.

    Returns:
        num_parameters, train_step, model, kind, num_targets, num_documents, then with intervals
        generalization_gap and dense_minus_sparse (of mean gaps, nats; NaN where k* was not measured);
        is_one_seed: k* and gap are from one model and share its noise.
    """
    rows: list[dict[Hashable, Any]] = []
    for group in compared:
        if not (group.long_models and group.short_models):
            continue
        reference = group.long_models[-1]
        losses = read_artefact(group.results, "loss_differences", [*TARGET, "long_context_loss"])
        gaps = generalization_gaps(losses, short_models=group.short_models, reference_model=reference)
        found = measured_sparsity(group)
        for model, kind in zip(group.short_models, group.kinds, strict=True):
            targets = gaps[gaps["model"] == model]
            gap = interval_over_documents(targets["document_id"], targets["generalization_gap"])
            rows.append(
                {
                    **group.labels, "model": model, "kind": kind, **sample_counts(targets),
                    **interval_columns("generalization_gap", gap),
                    **_dense_minus_sparse(targets, found, measure),
                    "is_one_seed": found is not None and found[0] == reference,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def _dense_minus_sparse(
    targets: pd.DataFrame, found: tuple[str, pd.DataFrame, list[int]] | None, measure: str | None
) -> dict[Hashable, float]:
    """The difference of two means: the slope on a variable of 0 and 1, whose interval knows documents."""
    if found is None:
        return interval_columns("dense_minus_sparse", Interval(np.nan, np.nan, np.nan))
    _, measured, studied_ks = found
    of_measure = measured[measured["measure"] == (measure or shown_measure(measured["measure"]))]
    is_dense = ~(of_measure["dependency_sparsity"] <= _middle(studied_ks))
    of_measure = of_measure.assign(is_dense=is_dense.astype("float64"))
    names = [*TARGET, "dependency_sparsity", "is_censored", "is_dense"]
    chosen = joined_on_common(targets, of_measure[names], TARGET, "targets of the gap and of k*")
    chosen = chosen[chosen["dependency_sparsity"].notna() | chosen["is_censored"]]
    gaps, dense, documents = (
        chosen[name].to_numpy() for name in ("generalization_gap", "is_dense", "document_id")
    )
    slope = cluster_robust_slope(gaps, dense, np.empty((len(chosen), 0)), documents)
    return interval_columns("dense_minus_sparse", slope)


def measured_sparsity(group: ComparedModels) -> tuple[str, pd.DataFrame, list[int]] | None:
    """The first long-trained model with influential tokens, its measures of k*, and the studied k."""
    settings = read_settings(group.results, "influential_tokens")
    model = next((model for model in group.long_models if model in settings), None)
    if model is None or "dependency_sparsity" not in artefacts_in(group.results):
        return None
    measured, sparse = read_sparsity_measures(group.results, model)
    return model, measured, sorted(sparse["k"].unique())


def middle_k(compared: Sequence[ComparedModels]) -> int | None:
    """The middle of the numbers of tokens that the first of them studied; None: none did."""
    found = next((found for group in compared if (found := measured_sparsity(group))), None)
    return None if found is None else _middle(found[2])


def _middle(studied_ks: Sequence[int]) -> int:
    return studied_ks[len(studied_ks) // 2]


def trend_sentences(table: pd.DataFrame, by: str, line: str, value: str, what: str) -> list[str]:
    """From the smallest or earliest to the largest or latest: a sentence a line of a figure.

    Args:
        table: of `sparsity_by_scale` or `gaps_by_scale`.
        by: num_parameters or train_step.
        line: the column that tells lines apart.
        value: the column with the intervals.
        what: what it is, in words.
    """
    sentences = []
    for name, rows in table.dropna(subset=f"{value}_low").groupby(line, sort=False):
        rows = rows.sort_values(by)
        first, last = rows.iloc[0], rows.iloc[-1]
        if first[by] == last[by]:
            continue
        overlap = (
            first[f"{value}_low"] <= last[f"{value}_high"] and last[f"{value}_low"] <= first[f"{value}_high"]
        )
        ends = (Interval(row[value], row[f"{value}_low"], row[f"{value}_high"]) for row in (first, last))
        agreement = "overlap" if overlap else "do not overlap"
        sentences.append(
            f"{name}: {what} is {' and '.join(map(str, ends))} at {first[by]:,} and {last[by]:,}"
            f" {by.replace('num_', '').replace('_', ' ')}; the intervals {agreement}."
        )
    return sentences

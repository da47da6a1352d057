"""What a larger model has beyond a smaller one, on the targets that both measured.

Intervals of two sizes that overlap say little: both hold what a document does to either model. Here the
targets are the same ones and documents are resampled for both at once, so what they share cancels.
"""

from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd

from analysis.document_intervals import interval_columns, paired_difference, sample_counts
from analysis.generalization.model_scale import (
    ComparedModels,
    as_another_judges,
    measured_sparsity,
)
from analysis.own_measurements import read_sparse_losses
from analysis.paired_targets import TARGET, joined_on_common, of_targets
from analysis.token_effects import CRITERIA, effects_of_targets
from pipeline.results.folder import read_artefact

LONG_LOSS, GAIN, SHARE = "long_context_loss", "loss_difference", "share"
_LARGER = "_of_larger"


def changes_with_scale(
    compared: Sequence[ComparedModels], targets: pd.DataFrame | None = None
) -> pd.DataFrame:
    """From each size to the next, both at their last step: the difference, paired by target.

    Args:
        compared: of `model_scale.compared_models`; those without a long-trained model are left out.
        targets: those that are meant, by the columns of `TARGET`; None is all that two sizes both measured.

    Returns:
        smaller, larger (numbers of parameters), what (`long_context_loss`, `loss_difference`: means of the
        first long-trained model, nats; `share`: of the far context's worth, as in `carried_by_scale`), rule
        and k of a share (else None), num_targets, num_documents, of_smaller, of_larger (both on these
        targets), then with intervals difference: larger less smaller.
    """
    last: dict[int, ComparedModels] = {}
    for group in compared:
        if group.long_models:
            last[group.num_parameters] = group  # they come from early to late
    rows = []
    for smaller, larger in pairwise(last.values()):
        labels: dict[Hashable, Any] = {"smaller": smaller.num_parameters, "larger": larger.num_parameters}
        changes = (*_changed_losses(smaller, larger, targets), *_changed_shares(smaller, larger, targets))
        rows += [labels | row for row in changes]
    return pd.DataFrame(rows).astype({"k": "Int64"}) if rows else pd.DataFrame()


def _changed_losses(
    smaller: ComparedModels, larger: ComparedModels, targets: pd.DataFrame | None
) -> Iterator[dict[Hashable, Any]]:
    columns = [*TARGET, LONG_LOSS, GAIN]
    first, second = (
        read_artefact(group.results, "loss_differences", columns, {"model": [group.long_models[0]]})
        for group in (smaller, larger)
    )
    both = joined_on_common(first, second, TARGET, "targets of two sizes", ("", _LARGER))
    paired = of_targets(both, targets)
    for what in (LONG_LOSS, GAIN):
        yield _row(paired, {"what": what, "rule": None, "k": None}, what, None)


def _changed_shares(
    smaller: ComparedModels, larger: ComparedModels, targets: pd.DataFrame | None
) -> Iterator[dict[Hashable, Any]]:
    first, second = _effects(smaller), _effects(larger)
    if first is None or second is None:
        return
    both = joined_on_common(first, second, ["rule", "k", *TARGET], "choices of two sizes", ("", _LARGER))
    for (rule, k), choices in of_targets(both, targets).groupby(["rule", "k"], sort=False):
        yield _row(choices, {"what": SHARE, "rule": rule, "k": k}, "effect", "gain")


def _effects(group: ComparedModels) -> pd.DataFrame | None:
    """rule, k, the columns of `TARGET`, effect and gain, as `carried_by_scale` judges."""
    found = measured_sparsity(group)
    if found is None:
        return None
    losses = read_sparse_losses(group.results, only={"model": [found[0]]}, every_judge=True)
    effects = [effects_of_targets(losses, of).assign(criterion=of) for of in CRITERIA]
    return as_another_judges(pd.concat(effects))[["rule", "k", *TARGET, "effect", "gain"]]


def _row(
    paired: pd.DataFrame, labels: dict[Hashable, Any], numerator: str, denominator: str | None
) -> dict[Hashable, Any]:
    first, second = (
        (paired[f"{numerator}{end}"], None if denominator is None else paired[f"{denominator}{end}"])
        for end in ("", _LARGER)
    )
    means: dict[Hashable, Any] = {"of_smaller": _mean_or_ratio(*first), "of_larger": _mean_or_ratio(*second)}
    difference = paired_difference(paired["document_id"], first, second)
    return labels | sample_counts(paired) | means | interval_columns("difference", difference)


def _mean_or_ratio(numerators: pd.Series, denominators: pd.Series | None) -> float:
    return float(numerators.sum() / (len(numerators) if denominators is None else denominators.sum()))

"""Whether the generalization gap rises with dependency sparsity, other things being equal.

A row of most tables here is a slope: nats of generalization gap a doubling of k*. Sparse targets may simply
be easy ones, so each slope stands beside those with controls: how frequent the target's token is, where in
the chunk it stands, and its loss under the short context; and, as who gains much from the long context has
much to lose, what it gains.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.document_intervals import interval_columns, sample_counts
from analysis.generalization.gap_regression import cluster_robust_slope, random_effects_slope
from analysis.generalization.gaps import generalization_gaps
from analysis.generalization.permutation import permutation_p_value
from analysis.generalization.sparsity_measures import CODINGS, coded_sparsity, measures_in_order
from analysis.paired_targets import TARGET, joined_on_common, rows_of
from pipeline.errors import InputError
from pipeline.results.bootstrap import Interval

FREQUENCY, POSITION, DIFFICULTY = "log_token_count", "num_long_context_tokens", "short_context_loss"
NO_CONTROLS, SURFACE, ALL_CONTROLS = "no controls", "frequency, position", "frequency, position, short loss"
WITH_GAIN = "the same, gain"
RANDOM_EFFECTS = "the same without gain, document effects"
GAIN = "loss_difference"
ADJUSTMENTS = {
    NO_CONTROLS: (),
    SURFACE: (FREQUENCY, POSITION),
    ALL_CONTROLS: (FREQUENCY, POSITION, DIFFICULTY),
    WITH_GAIN: (FREQUENCY, POSITION, DIFFICULTY, GAIN),
}
"""Name -> the columns held constant. `RANDOM_EFFECTS`: as `ALL_CONTROLS`, and an intercept a document."""
NUM_DIFFICULTY_STRATA = 3
"""Equal parts by L_short within which, and within a document, k* is permuted."""


def gap_targets(
    loss_differences: pd.DataFrame,
    *,
    short_models: Sequence[str],
    reference_model: str,
    difficulty_model: str,
    gain_model: str,
    token_counts_V: np.ndarray | None,
) -> pd.DataFrame:
    """The generalization gap of every target beside what it is to be controlled for.

    Args:
        loss_differences: the artefact.
        short_models: models trained at a short context.
        reference_model: the long-trained model that the gap is measured from.
        difficulty_model: whose L_short says how hard a target is; not the model that k* is read from.
        gain_model: whose L_short - L_long says what a target gains; the model that k* is read from, as the
            gain of the reference model shares its long-context loss with the gap.
        token_counts_V: how often each token ID occurs in the training text; None where that is not known, and
            then the column is missing and no regression controls for it.

    Returns:
        model, document_id, chunk_index, target_position, generalization_gap (nats), log_token_count (of the
        target's token: natural log of count + 1), num_long_context_tokens, short_context_loss and
        loss_difference (nats).

    Raises:
        InputError: no results of one of the models, or token IDs beyond the counts.
    """
    gaps = generalization_gaps(loss_differences, short_models=short_models, reference_model=reference_model)
    columns = [*TARGET, "target_token_id", POSITION, DIFFICULTY]
    of_difficulty = rows_of(loss_differences, difficulty_model)[columns]
    of_gain = rows_of(loss_differences, gain_model)[[*TARGET, GAIN]]
    what = "targets with a gap and with the losses of {}"
    targets = joined_on_common(gaps, of_difficulty, TARGET, what.format(difficulty_model))
    targets = joined_on_common(targets, of_gain, TARGET, what.format(gain_model))
    token_ids = targets.pop("target_token_id")
    if token_counts_V is None:
        return targets
    if len(targets) and token_ids.max() >= len(token_counts_V):
        raise InputError(
            f"the results have token ID {token_ids.max()}, and the tokens counted are {len(token_counts_V)};"
            " count those of the data that was measured"
        )
    return targets.assign(**{FREQUENCY: np.log(token_counts_V[token_ids] + 1.0)})


def of_expected_gap(targets: pd.DataFrame, expected: pd.DataFrame) -> pd.DataFrame:
    """The same targets with the expected gap in the place of the sampled one; those without one are left out.

    Args:
        targets: of `gap_targets`.
        expected: of `expected_gaps.expected_gaps`.
    """
    gaps = expected[["model", *TARGET, "expected_gap"]].rename(columns={"expected_gap": "generalization_gap"})
    return targets.drop(columns="generalization_gap").merge(gaps, on=["model", *TARGET])


def gap_slopes(targets: pd.DataFrame, measured: pd.DataFrame, largest_k: int) -> pd.DataFrame:
    """Slope of the gap on k*: a row a short model, measure, coding and adjustment.

    Args:
        targets: of `gap_targets`.
        measured: of `sparsity_measures.sparsity_measures`, from another long-trained model than the gap.
        largest_k: the largest studied k.

    Returns:
        model, measure, coding, adjustment (of `ADJUSTMENTS`, cluster-robust; then `RANDOM_EFFECTS`),
        num_targets, num_documents, slope with its interval (nats a doubling; NaN where it cannot be
        estimated), document_variance (nats squared, of `RANDOM_EFFECTS` only).
    """
    rows = []
    for labels, chosen in _regressions(targets, measured, largest_k):
        gaps, sparsity, documents = (
            chosen[name].to_numpy() for name in ("generalization_gap", "sparsity", "document_id")
        )
        labels |= sample_counts(chosen)
        for adjustment, names in ADJUSTMENTS.items():
            controls = _controls(chosen, names)
            slope = cluster_robust_slope(gaps, sparsity, controls, documents)
            rows.append({**labels, "adjustment": adjustment, **interval_columns("slope", slope)})
        controls = _controls(chosen, ADJUSTMENTS[ALL_CONTROLS])
        found = random_effects_slope(gaps, sparsity, controls, documents)
        columns = {**interval_columns("slope", found.slope), "document_variance": found.document_variance}
        rows.append({**labels, "adjustment": RANDOM_EFFECTS, **columns})
    return pd.DataFrame(rows)


def permutation_tests(
    targets: pd.DataFrame, measured: pd.DataFrame, largest_k: int, seed: int = 0
) -> pd.DataFrame:
    """Whether gap and k* go together within documents and among targets about as hard.

    k* is permuted among the targets of a document that lie in the same third by L_short.

    Args:
        targets, measured, largest_k: as `gap_slopes` takes them.
        seed: of the permutations.

    Returns:
        model, measure, coding, num_targets, num_documents, p_value (two-sided; NaN where nothing can be
        permuted).
    """
    rows = []
    for labels, chosen in _regressions(targets, measured, largest_k):
        ranks = chosen[DIFFICULTY].rank(method="first")
        # of a single target no quantiles differ
        thirds = pd.qcut(ranks, NUM_DIFFICULTY_STRATA, labels=False) if len(chosen) > 1 else ranks
        strata = chosen.groupby(["document_id", thirds.to_numpy()]).ngroup().to_numpy()
        gaps, sparsity = chosen["generalization_gap"].to_numpy(), chosen["sparsity"].to_numpy()
        p_value = permutation_p_value(gaps, sparsity, strata, seed=seed)
        rows.append({**labels, **sample_counts(chosen), "p_value": p_value})
    return pd.DataFrame(rows)


def slope_with_gain(targets: pd.DataFrame, measured: pd.DataFrame, largest_k: int) -> Interval:
    """The slope of `gap_slopes` with all controls and the gain, of one model, measure and the first coding.

    Args:
        targets: of `gap_targets`, one model.
        measured: of `sparsity_measures.sparsity_measures`, one measure.
        largest_k: the largest studied k.
    """
    sparsity = measured[TARGET].assign(sparsity=coded_sparsity(measured, CODINGS[0], largest_k))
    chosen = targets.merge(sparsity.dropna(), on=TARGET)
    return cluster_robust_slope(
        chosen["generalization_gap"].to_numpy(),
        chosen["sparsity"].to_numpy(),
        _controls(chosen, ADJUSTMENTS[WITH_GAIN]),
        chosen["document_id"].to_numpy(),
    )


def _regressions(
    targets: pd.DataFrame, measured: pd.DataFrame, largest_k: int
) -> Iterator[tuple[dict[Hashable, Any], pd.DataFrame]]:
    """What each regression is of, and its targets with the column `sparsity`."""
    if joined_on_common(
        targets, measured[TARGET].drop_duplicates(), TARGET, "targets of the gap and of k*"
    ).empty:
        raise InputError(
            "no target is common to the gaps and the dependency sparsity; measure them on the same documents"
        )
    for model, of_model in targets.groupby("model", sort=False):
        for measure in measures_in_order(measured):
            of_measure = measured[measured["measure"] == measure]
            for coding in CODINGS:
                sparsity = of_measure[TARGET].assign(sparsity=coded_sparsity(of_measure, coding, largest_k))
                chosen = of_model.merge(sparsity.dropna(), on=TARGET)
                yield {"model": str(model), "measure": measure, "coding": coding}, chosen


def _controls(chosen: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    present = [name for name in names if name in chosen]
    return chosen[present].to_numpy(dtype="float64").reshape(len(chosen), len(present))

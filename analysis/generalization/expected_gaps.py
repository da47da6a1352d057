"""The generalization gap that is expected, beside the one that was drawn.

The gap of a token is the loss of one draw, the token that came next. If it were drawn from the prediction of
a long-trained model, the reference, the gap of a short-trained model to another long-trained seed would be

    KL(p_ref || p_short) - KL(p_ref || p_seed)

all under the long context. Two seeds of one training differ too: the second term, the seed-to-seed floor,
takes that off. It is far less noisy than the drawn gap, and is true as far as the reference's prediction is.
"""

from collections.abc import Sequence

import pandas as pd

from analysis.document_intervals import interval_columns, interval_over_documents, sample_counts
from analysis.generalization.gaps import generalization_gaps
from analysis.paired_targets import TARGET, joined_on_common, rows_of

DIVERGENCE = "reference_divergence"


def floor_models(loss_differences: pd.DataFrame, long_models: Sequence[str]) -> list[str]:
    """The long-trained models that can be the floor: compared with the reference, and not it.

    Args:
        loss_differences: the artefact.
        long_models: models trained at the long context.
    """
    if DIVERGENCE not in loss_differences:
        return []
    of_model = loss_differences.groupby("model")[DIVERGENCE]
    is_other = of_model.count().gt(0) & of_model.max().gt(0)
    return [model for model in long_models if is_other.get(model, False)]


def expected_gaps(
    loss_differences: pd.DataFrame, *, short_models: Sequence[str], floor_model: str
) -> pd.DataFrame:
    """Both gaps of every target, to the same long-trained seed.

    Args:
        loss_differences: the artefact, measured with --reference-model.
        short_models: models trained at a short context; those that were not compared are left out.
        floor_model: a long-trained seed that is not the reference.

    Returns:
        model, document_id, chunk_index, target_position, generalization_gap (of the drawn token, to
        `floor_model`), expected_gap, reference_divergence and floor_divergence, nats.

    Raises:
        InputError: no results of one of the models.
    """
    drawn = generalization_gaps(loss_differences, short_models=short_models, reference_model=floor_model)
    compared = loss_differences.dropna(subset=[DIVERGENCE])
    floor = rows_of(compared, floor_model)[[*TARGET, DIVERGENCE]]
    shorts = compared.loc[compared["model"].isin(short_models), ["model", *TARGET, DIVERGENCE]]
    both = joined_on_common(
        shorts, floor.rename(columns={DIVERGENCE: "floor_divergence"}), TARGET,
        f"targets compared with the reference, and those of {floor_model}",
    )  # fmt: skip
    both["expected_gap"] = both[DIVERGENCE] - both["floor_divergence"]
    drawn = drawn[drawn["model"].isin(set(both["model"]))]
    return joined_on_common(drawn, both, ["model", *TARGET], "targets with a drawn and an expected gap")


def mean_gaps(gaps: pd.DataFrame) -> pd.DataFrame:
    """A row a model: its drawn and its expected gap.

    Args:
        gaps: of `expected_gaps`.

    Returns:
        model, num_targets, num_documents, then with intervals generalization_gap, expected_gap and
        floor_divergence, nats.
    """
    rows = []
    for model, targets in gaps.groupby("model", sort=False):
        row = {"model": model, **sample_counts(targets)}
        for name in ("generalization_gap", "expected_gap", "floor_divergence"):
            row |= interval_columns(name, interval_over_documents(targets["document_id"], targets[name]))
        rows.append(row)
    return pd.DataFrame(rows)


def gap_sentences(means: pd.DataFrame, floor_model: str) -> list[str]:
    """A sentence a model.

    Args:
        means: of `mean_gaps`.
        floor_model: what the gaps are measured from.
    """
    return [
        f"{row.model} (n = {row.num_targets:,}): the gap to {floor_model} is expected to be"
        f" {row.expected_gap:.3f} nats [{row.expected_gap_low:.3f}, {row.expected_gap_high:.3f}], with the"
        f" seed-to-seed {row.floor_divergence:.3f} taken off; of the tokens that came it is"
        f" {row.generalization_gap:.3f}"
        f" [{row.generalization_gap_low:.3f}, {row.generalization_gap_high:.3f}]."
        for row in means.itertuples()
    ]

"""Numbers against planted truth and against sums done by hand."""

import pandas as pd
import pytest
from synthetic_results import LONG_MODELS, SHORT_MODELS, Truth

from analysis.losses.losses import losses_by_context_length, summarize_models


def test_summary_states_sign_and_sample(loss_differences: pd.DataFrame, truth: Truth) -> None:
    summary = summarize_models(loss_differences).set_index("model")
    assert sorted(summary.index) == sorted([*SHORT_MODELS, *LONG_MODELS])
    row = summary.loc["long-seed0"]
    assert row["loss_difference"] == pytest.approx(truth.targets["gain"].mean(), abs=1e-5)
    assert row["short_context_loss"] - row["long_context_loss"] == pytest.approx(
        row["loss_difference"], abs=1e-5
    )
    assert (row["num_targets"], row["num_documents"]) == (384, 24)
    assert row["loss_difference_low"] < row["loss_difference"] < row["loss_difference_high"]


def test_length_losses_weigh_documents_by_their_targets() -> None:
    losses = pd.DataFrame(
        {
            "model": "m",
            "document_id": ["a", "b", "b", "a", "b", "b"],
            "chunk_index": [0, 0, 1, 0, 0, 1],  # several chunks of a document are not several documents
            "context_length": [16, 16, 16, 32, 32, 32],
            "num_targets": [1, 1, 2, 1, 1, 2],
            "mean_loss": [4.0, 3.0, 1.5, 3.0, 1.0, 2.5],
        }
    )
    table = losses_by_context_length(losses).set_index("context_length")
    assert table["loss"].to_dict() == {16: 2.5, 32: 2.25}
    assert table["loss_change"].to_dict() == {16: 0.0, 32: -0.25}
    assert (table["num_targets"].to_list(), table["num_documents"].to_list()) == ([4, 4], [2, 2])
    interval = table.loc[32, "loss_change_low"], table.loc[32, "loss_change_high"]  # of -1 and 0, weighed
    assert interval == pytest.approx((-0.25 - 12.7062 / 2, -0.25 + 12.7062 / 2))

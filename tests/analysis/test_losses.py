"""Mean losses by context length, and the windows that keep a share of what the longest is worth, by hand."""

import numpy as np
import pandas as pd
import pytest

from sparsity_length.figures.drawing import BLACK, ModelLabel, solid
from sparsity_length.figures.losses import (
    lengths_figure,
    losses_beside_reference,
    losses_by_context_length,
    windows_keeping,
)


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
    assert (table["num_targets"].to_list(), table["num_documents"].to_list()) == ([4, 4], [2, 2])
    # A single model has no other to be compared with: its loss itself is drawn.
    label = ModelLabel("m", solid(BLACK), "", None)
    figure = lengths_figure(table.reset_index(), {"m": label}, [], "m")
    assert figure.axes[0].lines[0].get_ydata().tolist() == [2.5, 2.25]


def test_the_difference_to_a_reference_is_of_chunks_by_hand() -> None:
    losses = pd.DataFrame(
        {
            "model": ["a", "a", "b", "b"],
            "document_id": ["1", "2"] * 2,
            "chunk_index": 0,
            "context_length": 16,
            "num_targets": [1, 3] * 2,
            "mean_loss": [2.0, 5.0, 2.5, 5.25],
        }
    )
    rows = losses_beside_reference(losses, "a", 16).set_index("model")
    assert rows.loc["b", "difference"] == pytest.approx((1 * 0.5 + 3 * 0.25) / 4)
    assert rows.loc["a", ["difference", "difference_low", "difference_high"]].tolist() == [0, 0, 0]
    # The documents differ by 3 nats, the differences by 0.25: that is what the interval is of.
    plain = losses_by_context_length(losses).set_index("model")
    widths = [
        table.loc["b", f"{name}_high"] - table.loc["b", f"{name}_low"]
        for table, name in ((rows, "difference"), (plain, "loss"))
    ]
    assert 0 < widths[0] < 0.2 * widths[1]


def test_windows_by_hand() -> None:
    # Of 1 nat 16 tokens keep 0.5 and 32 keep 0.9: 0.7 lies halfway in log2 w.
    lengths_J = np.array([8, 16, 32, 64])
    values_XJ = np.array([[5.0, 4.5, 4.1, 4.0], [4.0, 3.9, 4.3, 4.0], [5.0, 3.9, 4.2, 4.0]])
    found = [windows_keeping(values_XJ, lengths_J, percent) for percent in (50, 70, 90, 95)]
    assert [values_X[0] for values_X in found] == pytest.approx([16, 2**4.5, 32, 2**5.5])
    assert all(np.isnan(values_X[1]) for values_X in found)  # 64 tokens are worth no more than 8
    assert [values_X[2] for values_X in found] == pytest.approx(  # more context harms: the first w counts
        [8 * 2 ** (share / 1.1) for share in (0.5, 0.7, 0.9, 0.95)]
    )

"""The stage loss_differences: its rows counted by hand, its losses against stock OLMo's own forward pass."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from measured_documents import (
    LENGTH_LOSSES,
    LONG,
    TARGETS,
    chunk_of,
    measure,
    write_checkpoint,
    write_data,
)
from naive_predictions import behind, naive_divergences, naive_losses, stock_olmo
from olmo.model import OLMo
from sparsity_length.programs import loss_differences

from sparsity_length.measuring.settings import ByLength
from sparsity_length.results.read import Results


@pytest.mark.parametrize("bos_token_ids", [(), (7, 3)])
def test_every_mean_computed_naively(
    bos_token_ids: tuple[int, ...], tmp_path: Path, make_olmo: Callable[..., OLMo]
) -> None:
    default = ByLength(long_context_length=101, targets_per_chunk=1).context_lengths
    assert default == (8, 12, 16, 24, 32, 48, 64, 96, 100)
    write_data(tmp_path / "data", bos_token_ids=bos_token_ids)
    write_checkpoint(tmp_path / "run", make_olmo(seed=1))
    rows = Results(measure(loss_differences, tmp_path, *LENGTH_LOSSES)).frame("length_losses")
    stock = behind(stock_olmo(make_olmo(seed=1)), bos_token_ids)
    assert len(rows) == 4 * 2 and set(rows["num_targets"]) == {3}
    for row in rows.itertuples():
        chunk_L = chunk_of(row.document_id, row.chunk_index)
        losses = []
        divergences = []
        for target in range(LONG - TARGETS, LONG):
            window = [(chunk_L, range(target - row.context_length, target))]
            losses += naive_losses(stock, target, window)
            divergences += naive_divergences(stock, target, (chunk_L, range(target)), window)
        assert row.mean_loss == pytest.approx(np.mean(losses), abs=2e-5)
        assert row.mean_divergence == pytest.approx(np.mean(divergences), abs=2e-5)
        assert row.losses.tolist() == pytest.approx(losses, abs=2e-5)
        assert row.divergences.tolist() == pytest.approx(divergences, abs=2e-5)

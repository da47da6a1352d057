"""Each step's batch: every sequence once an epoch, whatever the size."""

from pathlib import Path

import numpy as np
import pytest
from measured_documents import write_data

from sparsity_length.cli import InputError
from sparsity_length.text.folder import TokenizedData
from sparsity_length.training.config import PretrainConfig
from sparsity_length.training.data import TrainingBatches


@pytest.fixture
def five(tmp_path: Path) -> TokenizedData:
    """Tokens 0 … 6 in one file and 10 … 14 in another: five sequences of two."""
    return TokenizedData.open(write_data(tmp_path, [range(7), range(10, 15)]))


def batches_of(data: TokenizedData, batch_size: int) -> TrainingBatches:
    return TrainingBatches(
        PretrainConfig(train_context_length=2, global_train_batch_size=batch_size, seed=0), data
    )


def test_sequences_never_cross_files_and_leave_out_their_last_tokens(five: TokenizedData) -> None:
    token_ids_BS, position_ids_BS = batches_of(five, 5).batch(1)
    assert sorted(token_ids_BS.tolist()) == [[0, 1], [2, 3], [4, 5], [10, 11], [12, 13]]
    assert position_ids_BS.tolist() == [[0, 1]] * 5
    assert (token_ids_BS.dtype, position_ids_BS.dtype) == (np.int64, np.int64)
    with pytest.raises(InputError, match="holds 5 sequences of 2 tokens, but one step takes 6"):
        batches_of(five, 6)


def test_each_epoch_takes_every_sequence_once_in_another_order(five: TokenizedData) -> None:
    batches = batches_of(five, 1)
    assert batches.steps_per_epoch == 5
    epochs = [
        [int(batches.sequence_indices(5 * epoch + step)[0]) for step in range(1, 6)] for epoch in range(8)
    ]
    assert all(sorted(epoch) == [0, 1, 2, 3, 4] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert epochs[3] == np.random.default_rng([0, 0, 3]).permutation(5).tolist()
    of_two = batches_of(five, 2)  # an incomplete batch is left out
    assert of_two.steps_per_epoch == 2
    assert len({*of_two.sequence_indices(1).tolist(), *of_two.sequence_indices(2).tolist()}) == 4

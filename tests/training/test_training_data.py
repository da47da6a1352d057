"""Each step's batch: every sequence once an epoch, whatever the size."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.cli import InputError
from pipeline.training.data import TrainingBatches
from pipeline.training.positions import contiguous_position_ids


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Tokens 0 … 6 in one file and 10 … 14 in another."""
    found = []
    for index, tokens in enumerate((range(7), range(10, 15))):
        found.append(tmp_path / f"part-{index:05d}.npy")
        np.array(tokens, dtype=np.uint16).tofile(found[-1])
    return found


def batches_of(paths: list[Path], batch_size: int = 2, **options: Any) -> TrainingBatches:
    given = {"train_context_length": 2, "scheme": contiguous_position_ids, "seed": 0} | options
    return TrainingBatches(paths, np.dtype(np.uint16), batch_size=batch_size, **given)


def test_sequences_never_cross_files_and_leave_out_their_last_tokens(paths: list[Path]) -> None:
    token_ids_BS, position_ids_BS = batches_of(paths, 5).batch(1)
    assert sorted(token_ids_BS.tolist()) == [[0, 1], [2, 3], [4, 5], [10, 11], [12, 13]]
    assert position_ids_BS.tolist() == [[0, 1]] * 5
    assert (token_ids_BS.dtype, position_ids_BS.dtype) == (np.int64, np.int64)
    with pytest.raises(InputError, match="holds 5 sequences of 2 tokens, but one step takes 6"):
        batches_of(paths, 6)


def test_each_epoch_takes_every_sequence_once_in_another_order(paths: list[Path]) -> None:
    batches = batches_of(paths, 1)
    assert batches.steps_per_epoch == 5
    epochs = [
        [int(batches.sequence_indices(5 * epoch + step)[0]) for step in range(1, 6)] for epoch in range(8)
    ]
    assert all(sorted(epoch) == [0, 1, 2, 3, 4] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert epochs[3] == np.random.default_rng([0, 0, 3]).permutation(5).tolist()
    of_two = batches_of(paths, 2)  # an incomplete batch is left out
    assert of_two.steps_per_epoch == 2
    assert len({*of_two.sequence_indices(1).tolist(), *of_two.sequence_indices(2).tolist()}) == 4


def test_a_token_beyond_the_vocabulary_is_refused_by_its_file(paths: list[Path]) -> None:
    batches_of(paths, 5, vocabulary_size=14).batch(1)
    with pytest.raises(InputError, match=r"part-00001.npy holds the token 13, .* vocabulary of 13: they"):
        batches_of(paths, 5, vocabulary_size=13).batch(1)

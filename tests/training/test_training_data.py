"""Each step's batch: a function of seed and step, every sequence once an epoch, whatever the size."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from olmo.data.memmap_dataset import MemMapDataset

from pipeline.cli import InputError
from pipeline.text.folder import TokenizedData
from pipeline.training.data import Prefetch, TrainingBatches
from pipeline.training.positions import contiguous_position_ids, position_scheme


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


def test_a_batch_depends_on_seed_and_step_alone(data: TokenizedData) -> None:
    def batch(seed: int, step: int, steps_before: int = 0) -> tuple[list[list[int]], list[list[int]]]:
        batches = batches_of(
            data.train_paths, 8, train_context_length=4, scheme=position_scheme("pose", 64), seed=seed
        )
        for earlier in range(1, steps_before + 1):
            batches.batch(earlier)
        tokens, positions = batches.batch(step)
        return tokens.tolist(), positions.tolist()

    alone = batch(seed=1, step=40)
    assert batch(seed=1, step=40, steps_before=39) == alone
    for other in (batch(seed=2, step=40), batch(seed=1, step=41)):
        assert other[0] != alone[0]
        assert other[1] != alone[1]


def test_sequences_are_those_of_olmos_memmap_dataset(data: TokenizedData) -> None:
    dataset = MemMapDataset(*data.train_paths, chunk_size=16, memmap_dtype=np.uint16)
    batches = batches_of(data.train_paths, len(dataset), train_context_length=16)
    token_ids_BS, _ = batches.batch(1)
    for token_ids_S, index in zip(token_ids_BS, batches.sequence_indices(1), strict=True):
        assert token_ids_S.tolist() == dataset[index]["input_ids"].tolist()


def test_a_token_beyond_the_vocabulary_is_refused_by_its_file(paths: list[Path]) -> None:
    batches_of(paths, 5, vocabulary_size=14).batch(1)
    with pytest.raises(InputError, match=r"part-00001.npy holds the token 13, .* vocabulary of 13: they"):
        batches_of(paths, 5, vocabulary_size=13).batch(1)


def test_each_step_gets_its_own_batch_made_once_and_one_step_ahead() -> None:
    made: list[int] = []

    def make_batch(step: int) -> float:
        made.append(step)
        return 1 / (9 - step)

    prefetch = Prefetch(make_batch)
    assert [prefetch(step) for step in (1, 2, 3)] == [1 / 8, 1 / 7, 1 / 6]
    assert prefetch(7) == 1 / 2  # elsewhere, as after going on from a checkpoint
    assert prefetch(8) == 1
    with pytest.raises(ZeroDivisionError):  # raised where the batch is asked for
        prefetch(9)
    prefetch._thread.shutdown()
    assert made == [1, 2, 3, 4, 7, 8, 9, 10]

import resource
from pathlib import Path

import numpy as np
import pytest
from olmo.data.memmap_dataset import MemMapDataset

from pipeline.cli import InputError
from pipeline.text.folder import TokenizedData
from pipeline.training.data import TrainingBatches
from pipeline.training.positions import contiguous_position_ids, position_scheme


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Tokens 0 … 6 in one file and 10 … 14 in another."""
    found = []
    for index, tokens in enumerate((range(7), range(10, 15))):
        found.append(tmp_path / f"part-{index:05d}.npy")
        np.array(tokens, dtype=np.uint16).tofile(found[-1])
    return found


def batches_of(paths: list[Path], batch_size: int = 2, seed: int = 0) -> TrainingBatches:
    return TrainingBatches(
        paths,
        np.dtype(np.uint16),
        train_context_length=2,
        batch_size=batch_size,
        scheme=contiguous_position_ids,
        seed=seed,
    )


def test_sequences_never_cross_files_and_leave_out_their_last_tokens(paths: list[Path]) -> None:
    batches = batches_of(paths, batch_size=5)
    token_ids_BS, position_ids_BS = batches.batch(1)
    assert sorted(token_ids_BS.tolist()) == [[0, 1], [2, 3], [4, 5], [10, 11], [12, 13]]
    assert position_ids_BS.tolist() == [[0, 1]] * 5
    assert (token_ids_BS.dtype, position_ids_BS.dtype) == (np.int64, np.int64)


def test_each_epoch_takes_every_sequence_once_in_another_order(paths: list[Path]) -> None:
    batches = batches_of(paths, batch_size=1)
    assert batches.steps_per_epoch == 5
    epochs = [
        [int(batches.sequence_indices(5 * epoch + step)[0]) for step in range(1, 6)] for epoch in range(8)
    ]
    assert all(sorted(epoch) == [0, 1, 2, 3, 4] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_an_incomplete_batch_is_left_out(paths: list[Path]) -> None:
    batches = batches_of(paths, batch_size=2)
    assert batches.steps_per_epoch == 2
    first_epoch = np.concatenate([batches.sequence_indices(step) for step in (1, 2)])
    assert len(set(first_epoch.tolist())) == 4


def test_a_batch_depends_on_seed_and_step_alone(data: TokenizedData) -> None:
    def batch(seed: int, step: int, steps_before: int = 0) -> tuple[list[list[int]], list[list[int]]]:
        batches = TrainingBatches(
            data.train_paths, data.token_dtype, train_context_length=4, batch_size=8,
            scheme=position_scheme("pose", 64), seed=seed,
        )  # fmt: skip
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
    batches = TrainingBatches(
        data.train_paths, data.token_dtype, train_context_length=16, batch_size=len(dataset),
        scheme=contiguous_position_ids, seed=0,
    )  # fmt: skip
    token_ids_BS, _ = batches.batch(1)
    for token_ids_S, index in zip(token_ids_BS, batches.sequence_indices(1), strict=True):
        assert token_ids_S.tolist() == dataset[index]["input_ids"].tolist()


def test_too_little_data_for_one_step_is_refused(paths: list[Path]) -> None:
    with pytest.raises(InputError, match="holds 5 sequences of 2 tokens, but one step takes 6"):
        batches_of(paths, batch_size=6)


def test_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    # C4 in 1,024 shards is over two thousand files
    paths = [tmp_path / f"part-{index:05d}.npy" for index in range(300)]
    for index, path in enumerate(paths):
        np.array([index, 65_535 - index], dtype=np.uint16).tofile(path)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    try:
        token_ids_BS, _ = batches_of(paths, batch_size=300).batch(1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert sorted(token_ids_BS.tolist()) == [[index, 65_535 - index] for index in range(300)]


def test_a_token_that_is_none_of_the_vocabulary_is_refused_by_its_file(paths: list[Path]) -> None:
    def take(vocabulary_size: int) -> None:
        TrainingBatches(
            paths, np.dtype(np.uint16), train_context_length=2, batch_size=5, scheme=contiguous_position_ids,
            seed=0, vocabulary_size=vocabulary_size,
        ).batch(1)  # fmt: skip

    take(14)
    with pytest.raises(InputError, match=r"part-00001.npy holds the token 13, .* vocabulary of 13: they"):
        take(13)

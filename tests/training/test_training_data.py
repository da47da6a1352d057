"""Each step's batch: a function of seed and step, every sequence once an epoch, whatever the size."""

import resource
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from olmo.data.memmap_dataset import MemMapDataset

from pipeline.cli import InputError
from pipeline.text.folder import TokenizedData
from pipeline.training.data import LARGEST_SHUFFLE, EpochOrder, Prefetch, TrainingBatches
from pipeline.training.positions import contiguous_position_ids, position_scheme

C4_SEQUENCES = 156_000_000_000 // 64


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


def test_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    # C4 in 1,024 shards is over two thousand files
    paths = [tmp_path / f"part-{index:05d}.npy" for index in range(300)]
    for index, path in enumerate(paths):
        np.array([index, 65_535 - index], dtype=np.uint16).tofile(path)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    try:
        token_ids_BS, _ = batches_of(paths, 300).batch(1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert sorted(token_ids_BS.tolist()) == [[index, 65_535 - index] for index in range(300)]


def test_a_token_beyond_the_vocabulary_is_refused_by_its_file(paths: list[Path]) -> None:
    batches_of(paths, 5, vocabulary_size=14).batch(1)
    with pytest.raises(InputError, match=r"part-00001.npy holds the token 13, .* vocabulary of 13: they"):
        batches_of(paths, 5, vocabulary_size=13).batch(1)


def whole(num_sequences: int, seed: list[int], largest_shuffle: int) -> np.ndarray:
    order = EpochOrder(num_sequences, seed, largest_shuffle=largest_shuffle)
    return order.sequences_at(np.arange(num_sequences))


def test_every_sequence_comes_once_at_every_size() -> None:
    for largest_shuffle in (0, LARGEST_SHUFFLE):
        for num_sequences in (*range(1, 70), 127, 128, 129, 1000, 4095, 4097, 65_537):
            order = whole(num_sequences, [3, 0, 1], largest_shuffle)
            assert sorted(order.tolist()) == list(range(num_sequences)), num_sequences
            assert order.dtype == np.int64
    assert whole(5, [0, 0, 0], 5).tolist() == np.random.default_rng([0, 0, 0]).permutation(5).tolist()


def test_a_place_is_a_function_of_seed_and_epoch_alone() -> None:
    places = np.array([77_777, 3, 12])
    order = EpochOrder(100_003, [1, 0, 0], largest_shuffle=0)
    assert order.sequences_at(places).tolist() == whole(100_003, [1, 0, 0], 0)[places].tolist()
    for other in ([2, 0, 0], [1, 0, 1]):
        assert (whole(100_003, other, 0) == whole(100_003, [1, 0, 0], 0)).sum() < 20


def test_the_order_is_like_a_uniform_shuffle() -> None:
    # Three numbers whose distribution under uniform shuffles is known: fixed points are Poisson with mean 1,
    # neighbours stay neighbours as often, and the rank correlation with the identity has deviation n**-0.5.
    size = 10_007
    seeds = range(40)
    orders = [whole(size, [seed, 0, 0], 0) for seed in seeds]
    assert 15 < sum(int((order == np.arange(size)).sum()) for order in orders) < 70
    assert 15 < sum(b - a == 1 for order in orders for a, b in pairwise(order.tolist())) < 70
    correlations = [np.corrcoef(order, np.arange(size))[0, 1] * size**0.5 for order in orders]
    assert 0.6 < np.std(correlations) < 1.5
    assert abs(np.mean(correlations)) < 0.7
    # and each sequence comes first about as often as any other
    firsts = [
        int(EpochOrder(5, [s, 0, 0], largest_shuffle=0).sequences_at(np.array([0]))[0]) for s in range(2000)
    ]
    assert np.bincount(firsts, minlength=5).min() > 320  # 400 expected, deviation 18


def test_all_of_c4_is_ordered_in_a_few_kilobytes() -> None:
    tracemalloc.start()
    try:
        order = EpochOrder(C4_SEQUENCES, [0, 0, 0])
        sequences = order.sequences_at(np.arange(10**9, 10**9 + 4096))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20
    assert len(set(sequences.tolist())) == 4096
    assert sequences.min() >= 0 and sequences.max() < C4_SEQUENCES


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

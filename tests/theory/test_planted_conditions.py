"""Where the planted tokens stand, and what position IDs they have: checked by hand."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from pipeline.cli import InputError
from pipeline.synthetic.planted_class import (
    CONDITIONS,
    Lengths,
    PlacesAcrossHalves,
    condition_called,
    ids_coupled_by_halves,
)
from pipeline.synthetic.tasks import LocalPlaces, PositionLaw, uniform_places
from pipeline.synthetic.theory import draw_sequences

LENGTHS = Lengths(train_context_length=32, local_length=8, length_multiples=(2, 8))


@pytest.mark.parametrize(
    ("law", "size", "probabilities"),
    [
        # Blocks 012 and 123, a half each; three pairs in each, a third each. 1 2 is in both.
        (LocalPlaces(3), 4, {(0, 1): 1, (0, 2): 1, (1, 2): 2, (1, 3): 1, (2, 3): 1}),
        (uniform_places, 4, {(0, 1): 1, (0, 2): 1, (0, 3): 1, (1, 2): 1, (1, 3): 1, (2, 3): 1}),
        # Halves 012 and 345; blocks of two places begin at 0 or 1; four pairs in each. 1 4 is in both.
        (
            PlacesAcrossHalves(2),
            6,
            {(0, 3): 1, (0, 4): 1, (1, 3): 1, (1, 4): 2, (1, 5): 1, (2, 4): 1, (2, 5): 1},
        ),
    ],
)
def test_the_probability_of_every_pair(
    law: PositionLaw, size: int, probabilities: dict[tuple[int, int], int]
) -> None:
    generator, num_draws = np.random.default_rng(0), 4000
    drawn = Counter(tuple(law(size, 2, generator).tolist()) for _ in range(num_draws))
    assert drawn.keys() == probabilities.keys()
    for pair, parts in probabilities.items():
        expected = parts / sum(probabilities.values())
        deviation = (num_draws * expected * (1 - expected)) ** 0.5
        assert abs(drawn[pair] - num_draws * expected) < 5 * deviation


@pytest.mark.parametrize("sparsity", [1, 2, 3])
@pytest.mark.parametrize("size", [16, 64])
def test_places_across_halves_are_far_apart_but_near_in_coupled_ids(sparsity: int, size: int) -> None:
    generator, ids = np.random.default_rng(0), np.array(ids_coupled_by_halves(size))
    for _ in range(200):
        places = PlacesAcrossHalves(4)(size, sparsity, generator)
        assert places.tolist() == sorted(set(places.tolist())) and len(places) == sparsity
        assert (places < size // 2).sum() == (sparsity + 1) // 2
        assert np.ptp(ids[places]) < 4
        assert sparsity == 1 or np.ptp(places) > size // 2 - 4


def test_coupled_ids_count_both_halves_from_zero() -> None:
    assert ids_coupled_by_halves(6) == (0, 1, 2, 0, 1, 2)


def test_the_label_is_that_of_the_planted_tokens() -> None:
    drawn = draw_sequences(CONDITIONS["local"], LENGTHS, 2, 16, 200, np.random.default_rng(0))
    assert drawn.position_ids_S == tuple(range(16))
    for tokens, label in zip(drawn.token_ids_BS.tolist(), drawn.labels_B.tolist(), strict=True):
        signals = [token for token in tokens if token < 2]  # noise is 2 to 9
        assert len(signals) == 2
        assert label == (1 if signals[0] == signals[1] else -1)


def test_lengths_of_training_and_tests() -> None:
    lengths = Lengths(16, 4, (8, 2))
    assert lengths.of_training == (8, 10, 12, 14, 16)
    assert lengths.of_tests == (8, 10, 12, 14, 16, 32, 128)


@pytest.mark.parametrize(
    ("name", "reach"),
    [
        ("local", 8),
        ("local_all_keys", 256),
        ("uniform_trained_keys", 32),
        ("halves_all_keys", 256),
        ("halves_coupled", 8),
    ],
)
def test_how_far_keys_reach(name: str, reach: int) -> None:
    assert CONDITIONS[name].key_reach(LENGTHS) == reach


@pytest.mark.parametrize(
    ("refused", "sentence"),
    [
        (lambda: Lengths(32, 9, (2,)), r"--local-length 9: .* L_local <= L/4, here 1 to 8 tokens"),
        (lambda: Lengths(30, 4, (2,)), "--train-context-length 30 is not a multiple of 4"),
        (lambda: Lengths(32, 8, (1,)), "--length-multiples: name at least one, each 2 or more"),
        (lambda: ids_coupled_by_halves(7), "7 tokens have no halves"),
        (lambda: PlacesAcrossHalves(1)(8, 3, np.random.default_rng(0)), "k = 3 places across halves need"),
        (lambda: condition_called("locl"), "unknown condition 'locl'; did you mean 'local'"),
        (
            lambda: draw_sequences(
                CONDITIONS["uniform_all_keys"], LENGTHS, 9, 8, 1, np.random.default_rng(0)
            ),
            r"k = 9 of 8 tokens cannot be planted; k is 1 to 8",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(refused: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        refused()

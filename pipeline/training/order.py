"""The order in which an epoch takes its sequences: a permutation that is never held as a whole.

C4's 156 billion tokens are 2.4 billion sequences of 64: their shuffled indices would take 19 GB on every
rank. Beyond a size where that matters, the order is a keyed bijection that is computed for the few indices
of a step: a Feistel network on the smallest power of two that holds them all, walked until it lands inside
(Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains"; as shuffle: Mitchell et al. 2021,
arXiv 2106.06161). Dimension letter: N places of which the sequences are wanted.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

LARGEST_SHUFFLE = 1 << 22
"""Up to so many sequences NumPy's own shuffle is held, 32 MiB."""
_NUM_ROUNDS = 8


class EpochOrder:
    """A permutation of 0 … num_sequences - 1, which `seed` decides."""

    def __init__(
        self, num_sequences: int, seed: Sequence[int], *, largest_shuffle: int = LARGEST_SHUFFLE
    ) -> None:
        self._num_sequences, self._seed = num_sequences, seed
        self._is_held = num_sequences <= largest_shuffle
        num_bits = max(2, (num_sequences - 1).bit_length())
        self._half_widths = (num_bits - num_bits // 2, num_bits // 2)  # of the left and the right half

    def sequences_at(self, places_N: np.ndarray) -> np.ndarray:
        """Indices [N], int64, of the sequences that come at these places of the epoch."""
        if self._is_held:
            return self._shuffled[places_N]
        indices_N = self._permute(places_N.astype(np.uint64))
        while (is_outside_N := indices_N >= self._num_sequences).any():
            indices_N[is_outside_N] = self._permute(indices_N[is_outside_N])
        return indices_N.astype(np.int64)

    @cached_property
    def _shuffled(self) -> np.ndarray:
        return np.random.default_rng(self._seed).permutation(self._num_sequences)

    @cached_property
    def _round_keys(self) -> np.ndarray:
        return np.random.default_rng(self._seed).integers(1 << 64, size=_NUM_ROUNDS, dtype=np.uint64)

    def _permute(self, numbers_N: np.ndarray) -> np.ndarray:
        """One pass of the network, a bijection on the power of two."""
        left_width, right_width = self._half_widths
        left_N, right_N = _split(numbers_N, right_width)
        for key in self._round_keys:
            # The halves, of unequal width where the number of bits is odd, change places every round.
            left_N, right_N = right_N, left_N ^ (_mix(right_N ^ key) & np.uint64((1 << left_width) - 1))
            left_width, right_width = right_width, left_width
        return (left_N << np.uint64(right_width)) | right_N


def _split(numbers_N: np.ndarray, right_width: int) -> tuple[np.ndarray, np.ndarray]:
    return numbers_N >> np.uint64(right_width), numbers_N & np.uint64((1 << right_width) - 1)


def _mix(numbers_N: np.ndarray) -> np.ndarray:
    """Every bit of the result depends on every bit of the number: the finalizer of SplitMix64."""
    numbers_N = (numbers_N ^ (numbers_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers_N = (numbers_N ^ (numbers_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers_N ^ (numbers_N >> np.uint64(31))

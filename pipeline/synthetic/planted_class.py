"""What the theory's fits compare: where the planted tokens stand, their position IDs, how far keys reach.

From the sources: Theorem 4.3 asks that S* be local, within L_local <= L/4 of itself; Theorem 4.4 asks it of
the coupled position IDs only. Our choice:

- local: `local_places`; uniform: any k places; halves: `places_across_halves`, far apart as positions and
  near each other once both halves of the sequence count from 0, as the operands of an addition do.
- The keys of a relation that no training sequence has are never learnt, and nothing keeps them small: a
  bound can hold only for a class whose keys vanish there. So in the conditions of the theorems they reach
  L_local ("local"). Where S* is not local they must reach farther: as far as training sequences do
  ("trained"), or as far as any test sequence does ("all").
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from pipeline.synthetic.tasks import PositionLaw, local_places, uniform_places

PositionIds = tuple[int, ...]
"""The ID of each position of a sequence, in the order of the tokens."""


def places_across_halves(
    size: int, sparsity: int, generator: np.random.Generator, *, local_length: int
) -> np.ndarray:
    """Draw k places, the first ⌈k/2⌉ in the first half of the sequence, the others in its second half.

    Counted from the start of their half, all lie in one block of `local_length` places, which begins
    anywhere it fits: near each other in coupled position IDs, half a sequence apart in contiguous ones.
    `size` is even.
    """
    half = size // 2
    num_places = min(local_length, half)
    num_in_halves = (sparsity + 1) // 2, sparsity // 2
    first = generator.integers(0, half - num_places, endpoint=True)
    places = [uniform_places(num_places, num, generator) for num in num_in_halves]
    return first + np.concatenate([places[0], half + places[1]])


@dataclass(frozen=True)
class Lengths:
    """Of training, of S* and of the tests, in tokens."""

    train_context_length: int
    """L, a multiple of 4: training sequences have L/2 to L tokens."""
    local_length: int
    """L_local, at most L/4."""
    length_multiples: tuple[int, ...] = (2, 4, 8)
    """Tested at these multiples of L, and at every length of training."""

    @property
    def of_training(self) -> tuple[int, ...]:
        """The even lengths of [L/2, L]; even, so that sequences have halves."""
        return tuple(range(self.train_context_length // 2, self.train_context_length + 1, 2))

    @property
    def of_tests(self) -> tuple[int, ...]:
        """Those of training, and beyond."""
        return (*self.of_training, *(times * self.train_context_length for times in self.length_multiples))


@dataclass(frozen=True)
class Condition:
    """One law of S*, one scheme of position IDs, one reach of the keys; the names of each."""

    position_law: str
    position_scheme: str
    keys: str

    def law(self, lengths: Lengths) -> PositionLaw:
        """Where S* stands."""
        if self.position_law == "uniform":
            return uniform_places
        law = local_places if self.position_law == "local" else places_across_halves
        return partial(law, local_length=lengths.local_length)

    def position_ids(self, size: int) -> PositionIds:
        """Of a sequence of this size; coupled, both halves count from 0: of 6 tokens 0 1 2 0 1 2."""
        return 2 * tuple(range(size // 2)) if self.position_scheme == "coupled" else tuple(range(size))

    def key_reach(self, lengths: Lengths) -> int:
        """In position IDs; a key is 0 where those of a subset differ by as much or more."""
        longest = {"trained": lengths.train_context_length, "all": lengths.of_tests[-1]}
        return longest.get(self.keys, lengths.local_length)


CONDITIONS = {
    "local": Condition("local", "contiguous", "local"),
    "local_trained_keys": Condition("local", "contiguous", "trained"),
    "local_all_keys": Condition("local", "contiguous", "all"),
    "uniform_trained_keys": Condition("uniform", "contiguous", "trained"),
    "uniform_all_keys": Condition("uniform", "contiguous", "all"),
    "halves_trained_keys": Condition("halves", "contiguous", "trained"),
    "halves_all_keys": Condition("halves", "contiguous", "all"),
    "halves_coupled": Condition("halves", "coupled", "local"),
}
"""Theorem 4.3 speaks of `local`, Theorem 4.4 of `halves_coupled`, neither of the others."""

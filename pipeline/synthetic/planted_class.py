"""What the theory's fits compare: where the planted tokens stand, their position IDs, how far keys reach.

From the sources: Theorem 4.3 asks that S* be local, within L_local <= L/4 of itself; Theorem 4.4 asks it of
the coupled position IDs only. Our choice:

- local: `LocalPlaces`; uniform: any k places; halves: `PlacesAcrossHalves`, far apart as positions and
  near each other once both halves of the sequence count from 0, as the operands of an addition do.
- The keys of a relation that no training sequence has are never learnt, and nothing keeps them small: a
  bound can hold only for a class whose keys vanish there. So in the conditions of the theorems they reach
  L_local ("local"). Where S* is not local they must reach farther: as far as training sequences do
  ("trained"), or as far as any test sequence does ("all").
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeline.cli import InputError
from pipeline.synthetic.tasks import LocalPlaces, PositionLaw, uniform_places

PositionIds = tuple[int, ...]
"""The ID of each position of a sequence, in the order of the tokens."""
LONGEST_TEST = 1_000_000
"""In tokens. The fits are of a class that attends to every subset in its reach: more is out of reach."""


@dataclass(frozen=True)
class PlacesAcrossHalves:
    """k places, the first ⌈k/2⌉ in the first half of the sequence, the others in its second half.

    Counted from the start of their half, all lie in one block of `local_length` places, which begins
    anywhere it fits: near each other in coupled position IDs, half a sequence apart in contiguous ones.
    """

    local_length: int

    def __call__(self, size: int, sparsity: int, generator: np.random.Generator) -> np.ndarray:
        """Draw the block, then the places in it, of each half apart; `size` is even."""
        half = size // 2
        num_places = min(self.local_length, half)
        num_in_halves = (sparsity + 1) // 2, sparsity // 2
        first = generator.integers(0, half - num_places, endpoint=True)
        places = [uniform_places(num_places, num, generator) for num in num_in_halves]
        return first + np.concatenate([places[0], half + places[1]])


def ids_coupled_by_halves(size: int) -> PositionIds:
    """Both halves count from 0; for 6 tokens 0 1 2 0 1 2."""
    return 2 * tuple(range(size // 2))


@dataclass(frozen=True)
class Lengths:
    """Of training, of S* and of the tests, in tokens."""

    train_context_length: int
    """L: training sequences have L/2 to L tokens."""
    local_length: int
    """L_local, at most L/4."""
    length_multiples: tuple[int, ...]
    """Tested at these multiples of L, and at every length of training."""

    def __post_init__(self) -> None:
        """Refuse lengths that the theorems do not speak of, with an InputError."""
        train, local = self.train_context_length, self.local_length
        if train < 4 or train % 4:
            raise InputError(f"--train-context-length {train} is not a multiple of 4, so that L/2 is even")
        if not 1 <= local <= train // 4:
            raise InputError(
                f"--local-length {local}: the theorems ask for L_local <= L/4, here 1 to {train // 4} tokens"
            )
        if not self.length_multiples or min(self.length_multiples) < 2:
            raise InputError("--length-multiples: name at least one, each 2 or more")
        if (longest := self.of_tests[-1]) > LONGEST_TEST:
            raise InputError(
                f"--length-multiples: tests of {longest} tokens; the longest is {LONGEST_TEST}, which"
                f" --train-context-length {train} times a multiple must not pass"
            )

    @property
    def of_training(self) -> tuple[int, ...]:
        """The even lengths of [L/2, L]; even, so that sequences have halves."""
        return tuple(range(self.train_context_length // 2, self.train_context_length + 1, 2))

    @property
    def of_tests(self) -> tuple[int, ...]:
        """Those of training, and beyond."""
        longer = {multiple * self.train_context_length for multiple in self.length_multiples}
        return (*self.of_training, *sorted(longer))


POSITION_LAWS: dict[str, Callable[[int], PositionLaw]] = {
    "local": LocalPlaces,
    "uniform": lambda local_length: uniform_places,
    "halves": PlacesAcrossHalves,
}
"""Name -> the law, of L_local."""
POSITION_IDS: dict[str, Callable[[int], PositionIds]] = {
    "contiguous": lambda size: tuple(range(size)),
    "coupled": ids_coupled_by_halves,
}
"""Position scheme -> the IDs of a sequence of some size."""


@dataclass(frozen=True)
class Condition:
    """One law of S*, one scheme of position IDs, one reach of the keys; the names of each."""

    position_law: str
    position_scheme: str
    keys: str

    def law(self, lengths: Lengths) -> PositionLaw:
        """Where S* stands."""
        return POSITION_LAWS[self.position_law](lengths.local_length)

    def position_ids(self, size: int) -> PositionIds:
        """Of a sequence of this size."""
        return POSITION_IDS[self.position_scheme](size)

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

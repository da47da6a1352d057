"""The task `planted_correlation`: k tokens, planted anywhere among noise, decide the answer.

From the sources (Definition 3.2, the k-sparse planted correlation): draw a set S* of k positions from a
position law, draw their tokens Z jointly from a vocabulary law, every other token i.i.d. from a background
law mu; the label is g*(Z). The theorems ask that S* be local: within L_local positions of itself.

Our choice, as the definition leaves the laws open: S* is uniform over all k-subsets, or local: uniform over
the k-subsets of a block of L_local positions, itself drawn uniformly. Z is uniform over two signal tokens,
"0" and "1", mu over eight noise tokens, so that what is planted can be told from noise; g* is parity. All
are fields of `PlantedCorrelation`; the registry has the local law with L_local = 16. The answer is asked
for by "=".

    >>> example = lay_out([2, 7, 0, 9, 1, 2], planted=[2, 4])
    >>> example.text(VOCABULARY)
    'a f 0 h 1 a = | 1'
    >>> example.dependencies
    ((2, 4),)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.cli import InputError
from pipeline.synthetic.tasks.example import Example, Vocabulary, refuse_size

VOCABULARY: Vocabulary = ("0", "1", *"abcdefgh", "=")
_NUM_SIGNALS, _NUM_NOISES = 2, 8
DEFAULT_LOCAL_LENGTH = 16
UNIFORM_NOISE = (0.0,) * _NUM_SIGNALS + (1 / _NUM_NOISES,) * _NUM_NOISES

PositionLaw = Callable[[int, int, np.random.Generator], np.ndarray]
"""(size, k, generator) -> k places below size, ascending."""
VocabularyLaw = Callable[[int, np.random.Generator], np.ndarray]
"""(k, generator) -> k token IDs."""
Label = Callable[[Sequence[int]], int]
"""The planted tokens, in the order of their places -> the ID of the answer."""


def parity(planted_ids: Sequence[int]) -> int:
    """The parity of the signal tokens, whose IDs are their values."""
    return sum(planted_ids) % 2


def uniform_signals(sparsity: int, generator: np.random.Generator) -> np.ndarray:
    """Independent signal tokens."""
    return generator.integers(0, _NUM_SIGNALS, sparsity)


def uniform_places(size: int, sparsity: int, generator: np.random.Generator) -> np.ndarray:
    """Any k places, each set as likely."""
    return np.sort(generator.choice(size, sparsity, replace=False))


@dataclass(frozen=True)
class LocalPlaces:
    """k places within a block of `local_length` positions; the block begins anywhere it fits."""

    local_length: int

    def __call__(self, size: int, sparsity: int, generator: np.random.Generator) -> np.ndarray:
        """Draw the block, then the places in it.

        Raises:
            InputError: the block is too short for k places.
        """
        if sparsity > self.local_length:
            raise InputError(
                f"task planted_correlation: k = {sparsity} places do not fit in a block of local_length"
                f" {self.local_length}"
            )
        num_places = min(self.local_length, size)
        first = generator.integers(0, size - num_places, endpoint=True)
        return first + uniform_places(num_places, sparsity, generator)


def lay_out(noise_and_signals: Sequence[int], planted: Sequence[int], label: Label = parity) -> Example:
    """The example of these token IDs, of which those at the places `planted` decide the answer."""
    answer = label([noise_and_signals[place] for place in planted])
    return Example(
        token_ids_S=np.array([*noise_and_signals, VOCABULARY.index("="), answer], dtype=np.int64),
        num_prompt_tokens=len(noise_and_signals) + 1,
        dependencies=(tuple(planted),),
        coupled_ids_S=None,
    )


@dataclass(frozen=True)
class PlantedCorrelation:
    """A planted correlation with its laws."""

    position_law: PositionLaw = LocalPlaces(DEFAULT_LOCAL_LENGTH)
    vocabulary_law: VocabularyLaw = uniform_signals
    background: tuple[float, ...] = UNIFORM_NOISE
    """mu: the probability of each token but the last, "="."""
    label: Label = parity

    def draw(self, size: int, sparsity: int, generator: np.random.Generator) -> Example:
        """An example with `size` tokens before "=", `sparsity` = k of them planted.

        Raises:
            InputError: k is not 1 to `size`, or the position law has no room for it.
        """
        refuse_size("planted_correlation", size, 1, "tokens")
        if not 1 <= sparsity <= size:
            raise InputError(
                f"task planted_correlation: k = {sparsity} of {size} tokens cannot be planted; k is 1 to"
                f" {size}"
            )
        tokens = generator.choice(len(self.background), size, p=self.background)
        planted = self.position_law(size, sparsity, generator)
        tokens[planted] = self.vocabulary_law(sparsity, generator)
        return lay_out(tokens.tolist(), planted.tolist(), self.label)

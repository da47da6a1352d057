"""Fitting sparse functional attention on planted correlations of L/2 to L tokens, and its error beyond.

The objective is Theorem 4.3's: the mean loss over the lengths of training. Our choice, as the sources do not
fix it: the loss is the squared error (h(X) - y)^2 of the label y, -1 or 1, by Adam on fresh sequences, each
step on one length drawn uniformly. Saying 0 always costs 1.

Dimension letters: B sequences, S positions.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from pipeline.errors import InputError
from pipeline.synthetic.tasks.planted_correlation import PlantedCorrelation
from pipeline.theory.attention import SparseFunctionalAttention
from pipeline.theory.conditions import Condition, Lengths
from pipeline.theory.subsets import PositionIds

VOCABULARY_SIZE = len(PlantedCorrelation().background)
"""Signals and noise; the "=" that asks is left out."""
NUM_MEASURED_STEPS = 5
_SEQUENCES_AT_ONCE = 50  # of a test: what bounds its memory


@dataclass(frozen=True)
class FitSettings:
    """How one fit is trained and tested."""

    num_steps: int
    """Of Adam. The error is measured here and at a half, a quarter, an eighth and a sixteenth of it."""
    batch_size: int
    """Sequences a step."""
    learning_rate: float
    num_test_sequences: int
    """At each test length; the same at every measured step."""
    free_values: bool = False
    """Values may leave the range of the labels."""

    @property
    def measured_steps(self) -> tuple[int, ...]:
        """The steps after which the error is measured, ascending."""
        halvings = range(NUM_MEASURED_STEPS)
        return tuple(sorted({self.num_steps >> halving for halving in halvings} - {0}))


@dataclass(frozen=True)
class Sequences:
    """Planted correlations of one length."""

    token_ids_BS: torch.Tensor
    """int64, the prompt without the "=" that asks."""
    labels_B: torch.Tensor
    """float32: 1 where the answer is "0", -1 where it is "1"."""
    position_ids_S: PositionIds


@dataclass(frozen=True)
class Measurement:
    """The error of one fit after one step at one length."""

    training_step: int
    test_length: int
    squared_error: float
    """Mean of (h(X) - y)^2."""
    error_rate: float
    """How often h(X) has not the label's sign."""


def draw_sequences(
    condition: Condition,
    lengths: Lengths,
    sparsity: int,
    size: int,
    num_sequences: int,
    generator: np.random.Generator,
) -> Sequences:
    """`num_sequences` of `size` tokens, k of them planted where the condition's law says.

    Raises:
        InputError: k tokens do not fit there.
    """
    task = PlantedCorrelation(position_law=condition.law(lengths))
    examples = [task.draw(size, sparsity, generator) for _ in range(num_sequences)]
    tokens_and_answers = np.stack([example.token_ids_S for example in examples])
    return Sequences(
        token_ids_BS=torch.from_numpy(tokens_and_answers[:, :size]),
        labels_B=torch.from_numpy(1.0 - 2.0 * tokens_and_answers[:, -1]).float(),
        position_ids_S=condition.position_ids(size),
    )


def fit(
    condition: Condition, sparsity: int, lengths: Lengths, settings: FitSettings, seed: int
) -> Iterator[Measurement]:
    """Fit on lengths L/2 to L, and yield the error at every test length after every measured step.

    Raises:
        InputError: k tokens do not fit, too many keys, or the fit runs off to what is no number.
    """
    attention = SparseFunctionalAttention(
        sparsity,
        VOCABULARY_SIZE,
        condition.key_reach(lengths),
        torch.Generator().manual_seed(seed),
        free_values=settings.free_values,
    )
    generator, test_generator = (np.random.default_rng([seed, stream]) for stream in (0, 1))
    tests = [
        draw_sequences(condition, lengths, sparsity, size, settings.num_test_sequences, test_generator)
        for size in lengths.of_tests
    ]
    optimizer = torch.optim.Adam(attention.parameters(), lr=settings.learning_rate)
    for step in range(1, settings.num_steps + 1):
        size = int(generator.choice(lengths.of_training))
        batch = draw_sequences(condition, lengths, sparsity, size, settings.batch_size, generator)
        optimizer.zero_grad()
        (attention(batch.token_ids_BS, batch.position_ids_S) - batch.labels_B).square().mean().backward()
        optimizer.step()
        if step in settings.measured_steps:
            yield from (measure(attention, test, step) for test in tests)


@torch.no_grad()
def measure(attention: SparseFunctionalAttention, test: Sequences, training_step: int) -> Measurement:
    """The error on the sequences of one test.

    Raises:
        InputError: it is no number.
    """
    blocks = test.token_ids_BS.split(_SEQUENCES_AT_ONCE)
    outputs_B = torch.cat([attention(block_BS, test.position_ids_S) for block_BS in blocks])
    squared_error = float((outputs_B - test.labels_B).double().square().mean())
    if not math.isfinite(squared_error):
        raise InputError(
            f"the squared error after step {training_step} is {squared_error}; choose a smaller"
            " --learning-rate"
        )
    return Measurement(
        training_step=training_step,
        test_length=len(test.position_ids_S),
        squared_error=squared_error,
        error_rate=float((outputs_B * test.labels_B <= 0).double().mean()),
    )

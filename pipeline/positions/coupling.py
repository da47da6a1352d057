"""Position IDs of synthetic examples: those of a scheme, or the task's coupled IDs from a random start.

Dimension letters: B examples of equal size, S tokens of an example, prompt and response.
"""

import numpy as np

from pipeline.errors import InputError, unknown_name
from pipeline.positions.schemes import POSITION_SCHEMES, position_scheme

COUPLED_SCHEMES = ("coupled", "predicted")
"""Schemes that take the task's coupled IDs. In training the two are given the same IDs; in testing `coupled`
is given those of the response too, as an oracle, and `predicted` (PPC) must predict them."""
EXAMPLE_SCHEMES = (*POSITION_SCHEMES, *COUPLED_SCHEMES)


def from_random_starts(
    coupled_ids_BS: np.ndarray, num_position_ids: int, generator: np.random.Generator
) -> np.ndarray:
    """Coupled IDs, each example's raised by a start of its own: position_ids_BS, int64.

    As in position coupling (Cho et al. 2024, arXiv 2405.20671, section 4): examples shorter than the table
    would leave the rows of large IDs untrained, so the start is uniform over all that fit. With IDs 1 2 0 1 2
    and 5 position IDs the start is 0, 1 or 2; from 2 they are 3 4 2 3 4.

    Raises:
        InputError: an ID does not fit in the table.
    """
    largest_id = int(coupled_ids_BS.max())
    refuse_beyond_table(largest_id + 1, num_position_ids)
    num_starts = num_position_ids - largest_id
    return coupled_ids_BS + generator.integers(0, num_starts, size=(len(coupled_ids_BS), 1))


def refuse_beyond_table(num_needed: int, num_position_ids: int) -> None:
    """Refuse examples that need more position IDs than there are.

    Raises:
        InputError: says how many they need.
    """
    if num_needed > num_position_ids:
        raise InputError(
            f"examples of this size need {num_needed} position IDs, but num_position_ids is"
            f" {num_position_ids}; choose a smaller size, or train with more position IDs"
        )


def example_position_ids(
    scheme: str,
    shape: tuple[int, ...],
    coupled_ids_BS: np.ndarray | None,
    num_position_ids: int,
    generator: np.random.Generator,
) -> np.ndarray:
    """The position IDs of examples: position_ids_BS, int64, all below `num_position_ids`.

    Args:
        scheme: one of `EXAMPLE_SCHEMES`; PoSE and randomized positions draw from all position IDs.
        shape: (B, S).
        coupled_ids_BS: the task's, from 0; None where it has none.
        num_position_ids: IDs are below it.
        generator: the source of what the scheme draws.

    Raises:
        InputError: no scheme has that name, or an example needs more position IDs than there are.
    """
    if scheme not in EXAMPLE_SCHEMES:
        raise unknown_name("positions", scheme, EXAMPLE_SCHEMES)
    if scheme in COUPLED_SCHEMES:
        assert coupled_ids_BS is not None, "the task was asked for its coupled IDs before"
        return from_random_starts(coupled_ids_BS, num_position_ids, generator)
    num_examples, num_tokens = shape
    refuse_beyond_table(num_tokens, num_position_ids)
    target_length = None if scheme == "contiguous" else num_position_ids
    return position_scheme(scheme, target_length)(num_examples, num_tokens, generator)


def scheme_in_testing(scheme: str) -> str:
    """The scheme of test examples: contiguous where training was with PoSE, elsewhere as in training.

    Randomized positions are random here too (Ruoss et al. 2023), and coupled IDs start at random: a fixed
    start would test a part of the table only.
    """
    return "contiguous" if scheme == "pose" else scheme

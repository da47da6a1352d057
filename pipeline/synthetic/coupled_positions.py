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
    coupled_ids_BS: np.ndarray,
    num_position_ids: int,
    generator: np.random.Generator,
    spread: str = "contiguous",
) -> np.ndarray:
    """Coupled IDs, spread over the table and each example's raised by a start of its own: int64 [B, S].

    As in position coupling (Cho et al. 2024, arXiv 2405.20671, section 4): examples shorter than the table
    would leave the rows of large IDs untrained, so the start is uniform over all that fit. With IDs 1 2 0 1 2
    and 5 position IDs the start is 0, 1 or 2; from 2 they are 3 4 2 3 4.

    A start alone leaves every difference of IDs beyond a short example's span untrained. With `spread` pose
    coupled ID c becomes the c-th position ID that PoSE draws, so that one skip parts them, of tokens that
    belong together alike. (The paper combines its synthetic experiments with PoSE; how in those with coupled
    IDs our sources do not say.)

    Args:
        spread: one of `POSITION_SCHEMES`; contiguous leaves the IDs as they are.

    Raises:
        InputError: no scheme has that name, or an ID does not fit in the table.
    """
    num_needed = int(coupled_ids_BS.max()) + 1
    refuse_beyond_table(num_needed, num_position_ids)
    if spread != "contiguous" and num_needed > 1:
        drawn_BI = position_scheme(spread, num_position_ids)(len(coupled_ids_BS), num_needed, generator)
        coupled_ids_BS = np.take_along_axis(drawn_BI, coupled_ids_BS, axis=1)
    num_starts_B1 = num_position_ids - coupled_ids_BS.max(axis=1, keepdims=True)
    return coupled_ids_BS + generator.integers(0, num_starts_B1)


def refuse_beyond_table(num_needed: int, num_position_ids: int) -> None:
    """Refuse examples that need more position IDs than there are.

    Raises:
        InputError: says how many they need.
    """
    if num_needed > num_position_ids:
        raise InputError(
            f"examples of this size need {num_needed} or more position IDs, but num_position_ids is"
            f" {num_position_ids}; choose a smaller size, or train with more position IDs"
        )


def example_position_ids(
    scheme: str,
    shape: tuple[int, ...],
    coupled_ids_BS: np.ndarray | None,
    num_position_ids: int,
    generator: np.random.Generator,
    spread_of_coupled_ids: str = "contiguous",
) -> np.ndarray:
    """The position IDs of examples: position_ids_BS, int64, all below `num_position_ids`.

    Args:
        scheme: one of `EXAMPLE_SCHEMES`; PoSE and randomized positions draw from all position IDs.
        shape: (B, S).
        coupled_ids_BS: the task's, from 0; None where it has none.
        num_position_ids: IDs are below it.
        generator: the source of what the scheme draws.
        spread_of_coupled_ids: see `from_random_starts`; other schemes have no use for it.

    Raises:
        InputError: no scheme has that name, or an example needs more position IDs than there are.
    """
    if scheme not in EXAMPLE_SCHEMES:
        raise unknown_name("positions", scheme, EXAMPLE_SCHEMES)
    if scheme in COUPLED_SCHEMES:
        assert coupled_ids_BS is not None, "the task was asked for its coupled IDs before"
        return from_random_starts(coupled_ids_BS, num_position_ids, generator, spread_of_coupled_ids)
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

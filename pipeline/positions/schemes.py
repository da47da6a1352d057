"""The position IDs a training sequence is given: contiguous, or with PoSE's skip.

Dimension letters: B sequences, S = `train_context_length` tokens of one sequence.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from pipeline.errors import InputError, unknown_name

PositionScheme = Callable[[int, int, np.random.Generator], np.ndarray]
"""(num_sequences B, train_context_length S, generator) -> position_ids_BS, int64."""


def contiguous_position_ids(
    num_sequences: int, train_context_length: int, generator: np.random.Generator
) -> np.ndarray:
    """0, 1, 2, … for every sequence: position_ids_BS, int64. Draws nothing from `generator`."""
    return np.tile(np.arange(train_context_length, dtype=np.int64), (num_sequences, 1))


def pose_position_ids(
    num_sequences: int, train_context_length: int, generator: np.random.Generator, *, target_length: int
) -> np.ndarray:
    """Positional Skip-wise training (PoSE) with two chunks (Zhu et al. 2023, arXiv 2309.10400, section 3.2).

    Each sequence is cut in two chunks, neither of them empty, at a place drawn uniformly; a skip drawn
    uniformly from 0 … target_length - S is added to the IDs of the second. The tokens stay adjacent;
    only their IDs part. Over many draws every distance below `target_length` occurs, so a model sees
    all of them while attending to S tokens only. With S = 4, cut 1 and skip 3: 0 4 5 6.

    Args:
        num_sequences: B.
        train_context_length: S, at least 2.
        generator: the source of cuts and skips; B of each are drawn, in that order.
        target_length: position IDs stay below this number; at least S.

    Returns:
        position_ids_BS, int64, strictly increasing along S, starting at 0.
    """
    assert 2 <= train_context_length <= target_length
    cuts_B1 = generator.integers(1, train_context_length, size=(num_sequences, 1))
    skips_B1 = generator.integers(
        0, target_length - train_context_length, size=(num_sequences, 1), endpoint=True
    )
    places_S = np.arange(train_context_length, dtype=np.int64)
    return places_S + skips_B1 * (places_S >= cuts_B1)


POSITION_SCHEMES = ("contiguous", "pose")


def position_scheme(name: str, pose_target_length: int | None = None) -> PositionScheme:
    """The scheme called `name`.

    Args:
        name: one of `POSITION_SCHEMES`.
        pose_target_length: PoSE's target length in tokens; None for every other scheme.

    Raises:
        InputError: no scheme has that name, or the target length is missing or would be ignored.
    """
    if name not in POSITION_SCHEMES:
        raise unknown_name("position_scheme", name, POSITION_SCHEMES)
    if name == "contiguous":
        if pose_target_length is not None:
            raise InputError(
                "pose_target_length is given, but position_scheme is 'contiguous' and would ignore it"
            )
        return contiguous_position_ids
    if pose_target_length is None:
        raise InputError(
            "position_scheme 'pose' needs pose_target_length, the length to generalize to in tokens"
        )
    return partial(pose_position_ids, target_length=pose_target_length)

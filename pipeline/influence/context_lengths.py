"""Which tokens of a chunk are predicted, and how many each of them sees.

Shapes: T targets.
"""

from dataclasses import dataclass

import numpy as np

from pipeline.errors import InputError

TARGETS_PER_CHUNK = 16
"""Where nothing else is asked for."""


@dataclass(frozen=True)
class ContextLengths:
    """Which tokens are predicted, and what they see.

    Raises:
        InputError: the far context of the first target would be empty.
    """

    short_context_length: int
    """s: the short context of target t is exactly the s tokens [t - s, t)."""
    long_context_length: int
    """ℓ: documents are cut into chunks of ℓ tokens."""
    targets_per_chunk: int
    """m: the last m positions of a chunk are targets, and see everything before them in the chunk."""

    def __post_init__(self) -> None:
        if self.short_context_length >= self.first_target:
            raise InputError(
                f"the short context ({self.short_context_length} tokens) leaves no far context: it must be"
                f" shorter than the long context before the first target, {self.long_context_length}"
                f" - {self.targets_per_chunk} = {self.first_target} tokens"
            )

    @property
    def first_target(self) -> int:
        """The first target's place in its chunk."""
        return self.long_context_length - self.targets_per_chunk

    @property
    def targets_T(self) -> np.ndarray:
        """The targets' places in their chunk: int64 [T]."""
        return np.arange(self.first_target, self.long_context_length)

    @property
    def num_far_tokens_T(self) -> np.ndarray:
        """Far-context tokens of each target: the far context of t is [0, t - s)."""
        return self.targets_T - self.short_context_length

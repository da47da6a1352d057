"""The unigram distribution of a corpus: the background that stands in for a token taken away.

Shapes: V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from pipeline.errors import InputError
from pipeline.text.token_counts import training_token_counts
from pipeline.text.tokenized_data import TokenizedData


@dataclass(frozen=True, eq=False)
class UnigramDistribution:
    """Tokens, each as likely as it is frequent."""

    counts_V: np.ndarray
    """int64; how often each token occurs."""

    @classmethod
    def of_training_tokens(cls, data: TokenizedData) -> "UnigramDistribution":
        """Over all training tokens but EOS, as tokenize_c4 counted them; in older folders counted here.

        Raises:
            InputError: there are no training tokens, or one that is none of the vocabulary.
        """
        counts_V = training_token_counts(data)
        if not counts_V.any():
            raise InputError(
                f"{data.folder} has no training tokens to draw substitutes from; tokenize a training text"
                " too, or say --intervention remove"
            )
        return cls(counts_V)

    @property
    def sha256(self) -> str:
        """Fingerprint of the counts."""
        return sha256(self.counts_V.astype("<i8").tobytes()).hexdigest()

    def draw(self, num_tokens: int, seed: Sequence[int]) -> np.ndarray:
        """`num_tokens` token IDs, independent, the same for the same seed: int64.

        Counts 2, 0, 1 put the numbers 0 and 1 on token 0 and the number 2 on token 2.
        """
        cumulative_V = self.counts_V.cumsum()
        numbers = np.random.default_rng(seed).integers(cumulative_V[-1], size=num_tokens)
        return cumulative_V.searchsorted(numbers, side="right")

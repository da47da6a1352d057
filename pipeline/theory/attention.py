"""Sparse functional attention (Definition 3.3), with a table for its keys and one for its values.

    h(X) = Σ_S g_key(S, X_S) g_val(X_S) / Σ_S g_key(S, X_S)      over the k-subsets S of the positions

X_S are the tokens at S, in the order of their positions. With k = 1 this is a bag of words.

From the sources: that form, and relativity (Assumption 3.2): shifting S by a constant leaves the key as it
is. Our choice, as the class leaves the two functions free:

- the key is exp of a free number for every (relation of S, X_S), and 0 beyond the reach (`subsets`);
- labels are -1 and 1, and a value is a free number between them. `free_values` lifts that bound; the log
  of the analysis has what it does.

Dimension letters: B sequences, S positions, N subsets within reach, K = k positions of a subset.
"""

import torch
from torch import nn

from pipeline.errors import InputError
from pipeline.theory.subsets import PositionIds, num_relations, relations_of, subsets_within_reach

MOST_KEYS = 1 << 24
"""Larger tables are refused: 64 MiB, and as much again for each of Adam's two moments."""


def num_keys(sparsity: int, vocabulary_size: int, key_reach: int) -> int:
    """Entries of the table of keys: one for every relation within reach and every X_S.

    Raises:
        InputError: more than a table may hold.
    """
    keys = num_relations(sparsity, key_reach) * vocabulary_size**sparsity
    if keys > MOST_KEYS:
        raise InputError(
            f"sparse functional attention: k = {sparsity} with keys that reach {key_reach} positions has"
            f" {keys:,} keys, at most {MOST_KEYS:,} fit; choose a smaller k or reach"
        )
    return keys


class SparseFunctionalAttention(nn.Module):
    """h, with its keys and values as tables to be learnt."""

    def __init__(
        self,
        sparsity: int,
        vocabulary_size: int,
        key_reach: int,
        generator: torch.Generator,
        *,
        free_values: bool = False,
    ) -> None:
        """All keys 1, all values near 0.

        Args:
            sparsity: k.
            vocabulary_size: token IDs are below this.
            key_reach: keys are 0 where position IDs of a subset differ by this or more.
            generator: of the values' initial noise, without which none would be told from another.
            free_values: values may be any number, rather than between the labels.

        Raises:
            InputError: more keys than a table may hold.
        """
        super().__init__()
        self.sparsity, self.vocabulary_size, self.key_reach = sparsity, vocabulary_size, key_reach
        self._free_values = free_values
        num_contents = vocabulary_size**sparsity
        self.log_keys = nn.Parameter(torch.zeros(num_keys(sparsity, vocabulary_size, key_reach)))
        self.raw_values = nn.Parameter(0.1 * torch.randn(num_contents, generator=generator))

    def forward(self, token_ids_BS: torch.Tensor, position_ids_S: PositionIds) -> torch.Tensor:
        """The class evaluated: h of each sequence, float32 [B].

        Raises:
            InputError: fewer than k tokens.
        """
        subsets_NK = subsets_within_reach(position_ids_S, self.sparsity, self.key_reach)
        relations_N = torch.from_numpy(relations_of(position_ids_S, subsets_NK, self.key_reach))
        contents_BN = self.contents(token_ids_BS[:, torch.tensor(subsets_NK)])
        log_keys_BN = self.log_keys[relations_N * len(self.raw_values) + contents_BN]
        return (log_keys_BN.softmax(dim=1) * self.values()[contents_BN]).sum(dim=1)

    def contents(self, token_ids_K: torch.Tensor) -> torch.Tensor:
        """The number of each X_S, whose K tokens lie along the last axis: its digits, base vocabulary."""
        contents = torch.zeros_like(token_ids_K[..., 0])
        for token_ids in token_ids_K.unbind(dim=-1):
            contents = contents * self.vocabulary_size + token_ids
        return contents

    def values(self) -> torch.Tensor:
        """g_val of every X_S: float32, one for each number of `contents`."""
        return self.raw_values if self._free_values else self.raw_values.tanh()

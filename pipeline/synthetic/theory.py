"""Sparse functional attention (Definition 3.3), fitted on planted correlations, and its error beyond.

    h(X) = Σ_S g_key(S, X_S) g_val(X_S) / Σ_S g_key(S, X_S)      over the k-subsets S of the positions

X_S are the tokens at S, in the order of their positions. With k = 1 this is a bag of words.

From the sources: that form, and relativity (Assumption 3.2): shifting S by a constant leaves the key as it
is; the objective is Theorem 4.3's, the mean loss over the lengths of training, L/2 to L. Our choice:

- the key is exp of a free number for every (relation of S, X_S), and 0 beyond the reach: a key sees a subset
  only where the largest minus the smallest of its position IDs is below r. The relation is what relativity
  leaves of the IDs: their differences from the first one's. For k = 2 and r = 3 these are -2 … 2, numbered
  0 … 4 (contiguous IDs make only 1 and 2, coupled ones all five);
- labels are -1 and 1, and a value is a free number between them;
- the loss is the squared error of the label, by Adam on fresh sequences, each step on one length drawn
  uniformly. Saying 0 always costs 1.

Dimension letters: B sequences, S positions, N subsets within reach, K = k positions of a subset.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from torch import nn

from pipeline.cli import InputError
from pipeline.synthetic.planted_class import Condition, Lengths, PositionIds
from pipeline.synthetic.tasks import PLANTED_VOCABULARY, draw_planted


@lru_cache(maxsize=64)
def subsets_within_reach(position_ids_S: PositionIds, sparsity: int, key_reach: int) -> np.ndarray:
    """Every set of k positions whose IDs lie within reach: subsets_NK, int64, each set ascending.

    Grown position by position, so that the cost follows the number of subsets within reach and not all
    of them.
    """
    ids_S, places_S = np.array(position_ids_S), np.arange(len(position_ids_S))
    subsets_NK = places_S[:, None]
    for _ in range(sparsity - 1):
        distances_NKS = np.abs(ids_S[subsets_NK][:, :, None] - ids_S)
        is_next_NS = (distances_NKS < key_reach).all(axis=1) & (places_S > subsets_NK[:, -1:])
        chosen_N, added_N = np.nonzero(is_next_NS)
        subsets_NK = np.column_stack([subsets_NK[chosen_N], added_N])
    subsets_NK.setflags(write=False)  # shared by all who ask again
    return subsets_NK


def num_relations(sparsity: int, key_reach: int) -> int:
    """How many relations k position IDs within reach may have."""
    return int((2 * key_reach - 1) ** (sparsity - 1))


def relations_of(position_ids_S: PositionIds, subsets_NK: np.ndarray, key_reach: int) -> np.ndarray:
    """The number of each subset's relation, below `num_relations`: relations_N, int64."""
    ids_NK = np.array(position_ids_S)[subsets_NK]
    differences = ids_NK[:, 1:] - ids_NK[:, :1]
    relations_N = np.zeros(len(subsets_NK), dtype=np.int64)
    for differences_N in differences.T:
        relations_N = relations_N * (2 * key_reach - 1) + differences_N + key_reach - 1
    return relations_N


MOST_KEYS = 1 << 24
"""Larger tables are refused: 64 MiB, and as much again for each of Adam's two moments."""


def num_keys(sparsity: int, vocabulary_size: int, key_reach: int) -> int:
    """Entries of the table of keys, for every relation within reach and every X_S; InputError of too many."""
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
        self, sparsity: int, vocabulary_size: int, key_reach: int, generator: torch.Generator
    ) -> None:
        """All keys 1, all values near 0; without the noise of `generator` none would be told from another.

        Keys are 0 where position IDs of a subset differ by `key_reach` or more.
        """
        super().__init__()
        self.sparsity, self.vocabulary_size, self.key_reach = sparsity, vocabulary_size, key_reach
        num_contents = vocabulary_size**sparsity
        self.log_keys = nn.Parameter(torch.zeros(num_keys(sparsity, vocabulary_size, key_reach)))
        self.raw_values = nn.Parameter(0.1 * torch.randn(num_contents, generator=generator))

    def forward(self, token_ids_BS: torch.Tensor, position_ids_S: PositionIds) -> torch.Tensor:
        """The class evaluated: h of each sequence, float32 [B]."""
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
        return self.raw_values.tanh()


VOCABULARY_SIZE = len(PLANTED_VOCABULARY) - 1
"""Signals and noise; the "=" that asks is left out."""
BATCH_SIZE, LEARNING_RATE = 32, 0.1
"""Of Adam: sequences a step, and its rate."""
_NUM_MEASURED_STEPS = 5
_SEQUENCES_AT_ONCE = 50  # of a test: what bounds its memory


Sequences = tuple[torch.Tensor, PositionIds, torch.Tensor]
"""token_ids_BS, int64, without the "=" that asks; position IDs; labels_B, float32: 1 for "0", -1 for "1"."""


def draw_sequences(
    condition: Condition, lengths: Lengths, sparsity: int, size: int, num_sequences: int,
    generator: np.random.Generator,
) -> Sequences:  # fmt: skip
    """`num_sequences` of `size` tokens, k of them planted where the condition's law says."""
    law = condition.law(lengths)
    examples = [draw_planted(size, sparsity, generator, position_law=law) for _ in range(num_sequences)]
    tokens_and_answers = np.stack([example.token_ids_S for example in examples])
    labels_B = torch.from_numpy(1.0 - 2.0 * tokens_and_answers[:, -1]).float()
    return torch.from_numpy(tokens_and_answers[:, :size]), condition.position_ids(size), labels_B


def fit(
    condition: Condition, sparsity: int, lengths: Lengths, num_steps: int, num_test_sequences: int, seed: int
) -> Iterator[dict[str, float]]:
    """Fit on lengths L/2 to L; yield the error at every test length after every measured step.

    These are the last step and a half, a quarter, an eighth and a sixteenth of it. The test sequences,
    `num_test_sequences` of each length, are the same at all.
    """
    attention = SparseFunctionalAttention(
        sparsity, VOCABULARY_SIZE, condition.key_reach(lengths), torch.Generator().manual_seed(seed)
    )
    generator, test_generator = (np.random.default_rng([seed, stream]) for stream in (0, 1))
    tests = [
        draw_sequences(condition, lengths, sparsity, size, num_test_sequences, test_generator)
        for size in lengths.of_tests
    ]
    optimizer = torch.optim.Adam(attention.parameters(), lr=LEARNING_RATE)
    measured_steps = {num_steps >> halving for halving in range(_NUM_MEASURED_STEPS)}
    for step in range(1, num_steps + 1):
        size = int(generator.choice(lengths.of_training))
        *inputs, labels_B = draw_sequences(condition, lengths, sparsity, size, BATCH_SIZE, generator)
        optimizer.zero_grad()
        (attention(*inputs) - labels_B).square().mean().backward()
        optimizer.step()
        if step in measured_steps:
            yield from ({"training_step": step} | errors(attention, test) for test in tests)


@torch.no_grad()
def errors(attention: SparseFunctionalAttention, test: Sequences) -> dict[str, float]:
    """The mean of (h(X) - y)^2 on the sequences of one test, and how often h(X) has not the label's sign."""
    token_ids_BS, position_ids_S, labels_B = test
    blocks = token_ids_BS.split(_SEQUENCES_AT_ONCE)
    outputs_B = torch.cat([attention(block_BS, position_ids_S) for block_BS in blocks])
    return {
        "test_length": len(position_ids_S),
        "squared_error": float((outputs_B - labels_B).double().square().mean()),
        "error_rate": float((outputs_B * labels_B <= 0).double().mean()),
    }

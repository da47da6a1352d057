"""Sparse functional attention is the sum as it is written, and exact where it can be."""

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
import torch

from sparsity_length.figures.theory import (
    CONDITIONS,
    VOCABULARY_SIZE,
    SparseFunctionalAttention,
    draw_sequences,
    errors,
)

NUM_TOKENS = 3
CONTIGUOUS = tuple(range(8))
COUPLED = CONDITIONS["halves_coupled"].position_ids(8)


def attention_with(sparsity: int, key_reach: int) -> SparseFunctionalAttention:
    """Random keys and values."""
    generator = torch.Generator().manual_seed(0)
    attention = SparseFunctionalAttention(sparsity, NUM_TOKENS, key_reach, generator)
    with torch.no_grad():
        attention.log_keys.copy_(torch.randn(attention.log_keys.shape, generator=generator))
        attention.raw_values.copy_(torch.randn(attention.raw_values.shape, generator=generator))
    return attention


def brute_force(
    attention: SparseFunctionalAttention, token_ids: Sequence[int], position_ids: Sequence[int]
) -> float:
    """Definition 3.3 term by term: every k-subset, its key and its value looked up one by one."""
    k = attention.sparsity
    reach = attention.key_reach
    keys = attention.log_keys.detach().reshape((2 * reach - 1,) * (k - 1) + (NUM_TOKENS,) * k)
    values = attention.raw_values.tanh().detach().reshape((NUM_TOKENS,) * k)
    numerator = denominator = 0.0
    for subset in combinations(range(len(token_ids)), k):
        ids = [position_ids[place] for place in subset]
        tokens = [token_ids[place] for place in subset]
        if max(ids) - min(ids) >= reach:
            continue  # the key is 0
        relation = [later - ids[0] + reach - 1 for later in ids[1:]]
        key = math.exp(keys[(*relation, *tokens)].item())
        numerator += key * values[tuple(tokens)].item()
        denominator += key
    return numerator / denominator


@pytest.mark.parametrize("sparsity", [1, 2, 3])
@pytest.mark.parametrize("position_ids", [CONTIGUOUS, COUPLED, (5, 0, 2, 2, 7, 1)])
def test_equals_the_sum_over_all_subsets(sparsity: int, position_ids: tuple[int, ...]) -> None:
    token_ids_BS = torch.from_numpy(np.random.default_rng(1).integers(0, NUM_TOKENS, (4, len(position_ids))))
    for key_reach in (3, 8):
        attention = attention_with(sparsity, key_reach)
        expected = [brute_force(attention, row, position_ids) for row in token_ids_BS.tolist()]
        assert attention(token_ids_BS, position_ids).tolist() == pytest.approx(expected, abs=1e-6), key_reach
        assert len(set(expected)) == 4


@pytest.mark.parametrize("name", ["local", "halves_coupled"])
def test_keys_on_the_planted_tokens_alone_have_no_error_at_any_length(name: str) -> None:
    condition = CONDITIONS[name]
    reach = condition.key_reach
    # Keys of 0 wherever X_S has a noise token; the value is the label of the planted signals.
    attention = SparseFunctionalAttention(2, VOCABULARY_SIZE, reach, torch.Generator())
    contents = [divmod(number, VOCABULARY_SIZE) for number in range(VOCABULARY_SIZE**2)]
    is_signal = torch.tensor([max(tokens) < 2 for tokens in contents])
    with torch.no_grad():
        attention.log_keys.copy_(torch.where(is_signal, 0.0, -torch.inf).repeat(2 * reach - 1))
        parity = torch.tensor([(first + second) % 2 for first, second in contents])
        attention.raw_values.copy_(50.0 - 100.0 * parity)  # tanh of it is 1 or -1 in float32
    for size in (16, 32, 256):
        drawn = draw_sequences(condition, 2, size, 50, np.random.default_rng(size))
        assert errors(attention, drawn) == {"test_length": size, "squared_error": 0, "error_rate": 0}
        # The same keys with the labels exchanged are always wrong: by 2, squared.
        wrong = (*drawn[:2], -drawn[2])
        assert errors(attention, wrong) == {"test_length": size, "squared_error": 4, "error_rate": 1}

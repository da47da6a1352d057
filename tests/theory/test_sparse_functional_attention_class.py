"""The class: equal to the sum over all subsets as it is written, relative, and exact where it is told."""

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
import torch

from pipeline.cli import InputError
from pipeline.synthetic.planted_class import (
    CONDITIONS,
    Lengths,
    contiguous_ids,
    ids_coupled_by_halves,
    num_relations,
    relations_of,
    subsets_within_reach,
)
from pipeline.synthetic.theory import SparseFunctionalAttention, draw_sequences, measure

NUM_TOKENS = 3
LENGTHS = Lengths(train_context_length=32, local_length=8, length_multiples=(2, 8))


def attention_with(sparsity: int, key_reach: int, seed: int = 0) -> SparseFunctionalAttention:
    """Random keys and values."""
    generator = torch.Generator().manual_seed(seed)
    attention = SparseFunctionalAttention(sparsity, NUM_TOKENS, key_reach, generator)
    with torch.no_grad():
        attention.log_keys.copy_(torch.randn(attention.log_keys.shape, generator=generator))
        attention.raw_values.copy_(torch.randn(attention.raw_values.shape, generator=generator))
    return attention


def brute_force(
    attention: SparseFunctionalAttention, token_ids: Sequence[int], position_ids: Sequence[int]
) -> float:
    """Definition 3.3 term by term: every k-subset, its key and its value looked up one by one."""
    k, reach = attention.sparsity, attention.key_reach
    keys = attention.log_keys.detach().reshape((2 * reach - 1,) * (k - 1) + (NUM_TOKENS,) * k)
    values = attention.values().detach().reshape((NUM_TOKENS,) * k)
    numerator = denominator = 0.0
    for subset in combinations(range(len(token_ids)), k):
        ids, tokens = [position_ids[place] for place in subset], [token_ids[place] for place in subset]
        if max(ids) - min(ids) >= reach:
            continue  # the key is 0
        relation = [later - ids[0] + reach - 1 for later in ids[1:]]
        key = math.exp(keys[(*relation, *tokens)].item())
        numerator += key * values[tuple(tokens)].item()
        denominator += key
    return numerator / denominator


@pytest.mark.parametrize("sparsity", [1, 2, 3])
@pytest.mark.parametrize("key_reach", [3, 5, 8])
@pytest.mark.parametrize("position_ids", [contiguous_ids(8), ids_coupled_by_halves(8), (5, 0, 2, 2, 7, 1)])
def test_equals_the_sum_over_all_subsets(
    sparsity: int, key_reach: int, position_ids: tuple[int, ...]
) -> None:
    attention = attention_with(sparsity, key_reach)
    token_ids_BS = torch.from_numpy(np.random.default_rng(1).integers(0, NUM_TOKENS, (4, len(position_ids))))
    expected = [brute_force(attention, row, position_ids) for row in token_ids_BS.tolist()]
    assert attention(token_ids_BS, position_ids).tolist() == pytest.approx(expected, abs=1e-6)
    assert len(set(expected)) == 4


@pytest.mark.parametrize("position_ids", [contiguous_ids(8), ids_coupled_by_halves(8)])
def test_shifting_all_position_ids_changes_nothing(position_ids: tuple[int, ...]) -> None:
    attention = attention_with(2, 5)
    token_ids_BS = torch.tensor([[0, 2, 1, 1, 0, 2, 2, 0]])
    moved = tuple(position_id + 1000 for position_id in position_ids)
    stretched = tuple(2 * position_id for position_id in position_ids)
    assert torch.equal(attention(token_ids_BS, moved), attention(token_ids_BS, position_ids))
    assert not torch.equal(attention(token_ids_BS, stretched), attention(token_ids_BS, position_ids))


def test_subsets_and_relations_that_a_reader_can_check() -> None:
    subsets = subsets_within_reach((0, 1, 2, 3), 2, 3)
    assert subsets.tolist() == [[0, 1], [0, 2], [1, 2], [1, 3], [2, 3]]  # not 0 and 3, which differ by 3
    # Differences -2 … 2 are numbered 0 … 4.
    assert relations_of((0, 1, 2, 3), subsets, 3).tolist() == [3, 4, 3, 4, 3]
    coupled = subsets_within_reach((0, 1, 2, 0, 1, 2), 2, 2)
    assert coupled.tolist() == [[0, 1], [0, 3], [0, 4], [1, 2], [1, 3], [1, 4], [1, 5], [2, 4], [2, 5], [3, 4], [4, 5]]  # fmt: skip  # noqa: E501
    assert relations_of((0, 1, 2, 0, 1, 2), coupled, 2).tolist() == [2, 1, 2, 2, 0, 1, 2, 0, 1, 2, 2]
    assert [num_relations(k, 3) for k in (1, 2, 3)] == [1, 5, 25]


def test_the_number_of_subsets_grows_with_the_length_where_keys_are_local() -> None:
    # n tokens have n - d pairs at distance d: 7 n - 28 within reach 8, n (n - 1) / 2 without a limit.
    assert len(subsets_within_reach(contiguous_ids(256), 2, 8)) == 7 * 256 - 28
    assert len(subsets_within_reach(contiguous_ids(256), 2, 256)) == 256 * 255 // 2


def perfect(sparsity: int, key_reach: int) -> SparseFunctionalAttention:
    """Keys of 0 wherever X_S has a noise token; the value is the label of the planted signals."""
    attention = SparseFunctionalAttention(sparsity, 10, key_reach, torch.Generator())
    contents = [divmod(number, 10) for number in range(100)]
    is_signal = torch.tensor([max(tokens) < 2 for tokens in contents])
    parity = torch.tensor([(first + second) % 2 for first, second in contents])
    with torch.no_grad():
        attention.log_keys.copy_(
            torch.where(is_signal, 0.0, -torch.inf).repeat(num_relations(sparsity, key_reach))
        )
        attention.raw_values.copy_(50.0 - 100.0 * parity)  # tanh of it is 1 or -1 in float32
    return attention


@pytest.mark.parametrize("name", ["local", "halves_coupled", "uniform_all_keys"])
@pytest.mark.parametrize("size", [16, 32, 64, 256])
def test_keys_on_the_planted_tokens_alone_have_no_error_at_any_length(name: str, size: int) -> None:
    condition = CONDITIONS[name]
    attention = perfect(2, condition.key_reach(LENGTHS))
    drawn = draw_sequences(condition, LENGTHS, 2, size, 50, np.random.default_rng(size))
    measured = measure(attention, drawn, training_step=0)
    assert (measured.squared_error, measured.error_rate) == (0, 0)
    # The same keys with the labels exchanged are always wrong: by 2, squared.
    with torch.no_grad():
        attention.raw_values.neg_()
    measured = measure(attention, drawn, training_step=0)
    assert (measured.squared_error, measured.error_rate) == (4, 1)


def test_more_tokens_than_there_are_is_refused() -> None:
    with pytest.raises(InputError, match=r"k = 3 of 2 tokens .* k is 1 to 2"):
        attention_with(3, 4)(torch.tensor([[0, 1]]), contiguous_ids(2))


def test_more_keys_than_a_table_may_hold_are_refused() -> None:
    with pytest.raises(InputError, match=r"k = 3 with keys that reach 256 .* 261,121,000 keys"):
        SparseFunctionalAttention(3, 10, 256, torch.Generator())

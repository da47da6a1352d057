"""Forward passes: contexts are exact, and batches move last bits only."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hand_made_models import SeenTokens
from losses_under_contexts import any_reference, long_context_losses, window_losses
from olmo.model import OLMo

from sparsity_length.cli import InputError
from sparsity_length.measuring.contexts import (
    Batching,
    Pass,
    Rows,
    hidden_states,
    measured_contexts,
    null_contexts,
)
from sparsity_length.measuring.settings import ContextLengths
from sparsity_length.models.olmo import OLMoCausalLM


def test_targets_and_far_contexts_of_ten_tokens() -> None:
    lengths = ContextLengths(short_context_length=2, long_context_length=10, targets_per_chunk=3)
    assert lengths.targets_T.tolist() == [7, 8, 9]
    assert lengths.num_far_tokens_T.tolist() == [5, 6, 7]  # distant contexts [0, 5), [0, 6), [0, 7)
    with pytest.raises(InputError, match="leaves no distant context"):
        ContextLengths(7, 10, 3)


def test_sequences_that_start_together_share_a_batch() -> None:
    """To row 300: those that begin within a quarter of the first one's rows, and as many as fit."""
    starts_N = np.array([0, 80, 10, 76, 299, 74, 75, 75])
    batches = Batching(1000).by_start(starts_N, 300)
    assert [batch.tolist() for batch in batches] == [[0, 2, 5], [6, 7, 3, 1], [4]]
    assert [batch.tolist() for batch in Batching(10_000).by_start(starts_N, 300)][0] == [0, 2, 5, 6, 7]
    assert Batching(1000).of_many(5, 400) == [slice(0, 2), slice(2, 4), slice(4, 6)]


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [((64, 1024, 16), [16]), ((64, 192, 16), [2] * 8), ((16, 64, 32), [3] * 10 + [2]), ((8, 300, 4), [4])],
)
def test_windows_of_a_null_take_about_the_rows_of_the_other_document(
    lengths: tuple[int, int, int], sizes: list[int]
) -> None:
    chunks = np.zeros((2, lengths[1]), dtype=np.int64)
    packed = [*null_contexts(*chunks, ContextLengths(*lengths))]
    assert [len(one.query_rows_T) for one in packed] == sizes


def test_windows_hold_exactly_the_tokens_before_the_target() -> None:
    seen = SeenTokens()
    chunk = np.array([10, 11, 12, 13, 14, 15, 16, 17])
    window_losses(seen, chunk, np.array([5, 7]), 3, Batching(6))
    assert seen.batches == [([[12, 13, 14], [14, 15, 16]], [[2, 3, 4], [4, 5, 6]])]
    window_losses(seen, chunk, np.array([5, 6, 7]), 3, Batching(8))
    assert [len(tokens) for tokens, _ in seen.batches[1:]] == [2, 1]


def test_the_row_before_the_target_predicts_it() -> None:
    # The model says each token again, so the loss is 0 where the target repeats the token before it.
    chunk = np.array([1, 1, 2, 2, 3, 4])
    losses_T = long_context_losses(SeenTokens(), chunk, np.array([1, 2, 3, 4, 5]))
    assert losses_T.tolist() == [0, 100, 0, 100, 100]
    assert window_losses(SeenTokens(), chunk, np.array([3, 4]), 2, Batching(100)).tolist() == [0, 100]
    rows = Rows(np.array([[1, 2], [2, 1]]), np.array([[0, 4], [0, 4]]), None, np.array([[1], [1]]))
    contexts = Pass(rows, np.array([[2], [2]]), np.array([[0], [0]]))
    measured = measured_contexts(SeenTokens(), Batching(100), any_reference(SeenTokens(), 1), contexts)
    assert measured.losses.tolist() == [[0], [100]]


class LittleMemory(OLMoCausalLM):
    """Has room for so many sequences at once."""

    room = 1200
    ran: list[int]

    def hidden_states(self, token_ids_BS: torch.Tensor, *rest: Any) -> torch.Tensor:
        if len(token_ids_BS) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.ran.append(len(token_ids_BS))
        return super().hidden_states(token_ids_BS, *rest)


def test_a_batch_without_room_runs_in_halves_to_the_same_bits(make_olmo: Callable[..., OLMo]) -> None:
    lm = LittleMemory(make_olmo())
    tokens_BS = np.random.default_rng(0).integers(0, 48, (1200, 5))
    rows = Rows(tokens_BS, np.arange(5)[None], None, np.array([[4]]))
    lm.ran = []
    whole = hidden_states(lm, rows)
    lm.room = 300
    assert torch.equal(hidden_states(lm, rows), whole)
    assert lm.ran == [1200, 300, 300, 300, 300]
    lm.room = 299  # fewer than 256 query rows would have other bits
    with pytest.raises(torch.OutOfMemoryError):
        hidden_states(lm, rows)

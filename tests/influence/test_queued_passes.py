"""Forward passes: contexts are exact, and batches move last bits only."""

import numpy as np
import pytest
from hand_made_models import SeenTokens
from losses_under_contexts import any_reference, long_context_losses, window_losses

from pipeline.cli import InputError
from pipeline.measuring.contexts import Batching, Pass, Rows, measured_contexts
from pipeline.measuring.flags import ContextLengths


def test_targets_and_far_contexts_of_ten_tokens() -> None:
    lengths = ContextLengths(short_context_length=2, long_context_length=10, targets_per_chunk=3)
    assert lengths.targets_T.tolist() == [7, 8, 9]
    assert lengths.num_far_tokens_T.tolist() == [5, 6, 7]  # distant contexts [0, 5), [0, 6), [0, 7)
    with pytest.raises(InputError, match="leaves no distant context"):
        ContextLengths(7, 10, 3)


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

"""Contexts are exact: hand-checked integers, and nothing leaks in from outside a context."""

from collections.abc import Callable

import numpy as np
import pytest
from hand_made_models import SeenTokens
from losses_under_contexts import any_reference, long_context_losses, window_losses
from olmo.model import OLMo

from pipeline.cli import InputError
from pipeline.measuring.contexts import Batching, measured_contexts
from pipeline.measuring.flags import ContextLengths
from pipeline.models.olmo import OLMoCausalLM


def test_targets_and_far_contexts_of_ten_tokens() -> None:
    lengths = ContextLengths(short_context_length=2, long_context_length=10, targets_per_chunk=3)
    assert lengths.targets_T.tolist() == [7, 8, 9]
    assert lengths.num_far_tokens_T.tolist() == [5, 6, 7]  # far contexts [0, 5), [0, 6), [0, 7)


@pytest.mark.parametrize(("short", "long", "targets"), [(7, 10, 3), (16, 16, 1), (4, 8, 8)])
def test_short_context_must_leave_a_far_context(short: int, long: int, targets: int) -> None:
    with pytest.raises(InputError, match="leaves no far context"):
        ContextLengths(short, long, targets)


def test_windows_hold_exactly_the_tokens_before_the_target() -> None:
    seen = SeenTokens()
    chunk = np.array([10, 11, 12, 13, 14, 15, 16, 17])
    window_losses(seen, chunk, np.array([5, 7]), 3, Batching(6))
    assert seen.batches == [([[12, 13, 14], [14, 15, 16]], [[2, 3, 4], [4, 5, 6]])]


def test_batches_hold_no_more_tokens_than_asked() -> None:
    seen = SeenTokens()
    chunk = np.arange(8)
    window_losses(seen, chunk, np.array([5, 6, 7]), 3, Batching(8))
    assert [len(tokens) for tokens, _ in seen.batches] == [2, 1]


def test_the_row_before_the_target_predicts_it() -> None:
    # The model says each token again, so the loss is 0 where the target repeats the token before it.
    chunk = np.array([1, 1, 2, 2, 3, 4])
    assert long_context_losses(SeenTokens(), chunk, np.array([1, 2, 3, 4, 5])).tolist() == [
        0,
        100,
        0,
        100,
        100,
    ]
    assert window_losses(SeenTokens(), chunk, np.array([3, 4]), 2, Batching(100)).tolist() == [0, 100]
    contexts, positions = np.array([[1, 2], [2, 1]]), np.array([[0, 4], [0, 4]])
    measured = measured_contexts(
        SeenTokens(), contexts, positions, np.array([2, 2]), Batching(100),
        any_reference(SeenTokens(), 1), np.array([0, 0]),
    )  # fmt: skip
    assert measured.losses.tolist() == [0, 100]


def test_short_context_is_exact_and_long_is_not_short(make_olmo: Callable[..., OLMo]) -> None:
    lm, generator = OLMoCausalLM(make_olmo(max_sequence_length=64)), np.random.default_rng(0)
    chunk, target = generator.integers(0, 48, 64), np.array([60])
    other_before = np.concatenate([generator.integers(0, 48, 60 - 16), chunk[60 - 16 :]])
    assert (other_before[: 60 - 16] != chunk[: 60 - 16]).any()
    short = [window_losses(lm, tokens, target, 16, Batching(1000)) for tokens in (chunk, other_before)]
    long = [long_context_losses(lm, tokens, target) for tokens in (chunk, other_before)]
    assert short[0] == short[1]
    assert abs(long[0] - long[1]) > 1e-3
    one_inside = chunk.copy()
    one_inside[60 - 16] += 1  # the window's first token counts
    assert abs(window_losses(lm, one_inside, target, 16, Batching(1000)) - short[0]) > 1e-6

"""Forward passes: contexts are exact, and batches move last bits only."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hand_made_models import SeenTokens
from losses_under_contexts import any_reference, long_context_losses, window_losses
from olmo.model import OLMo

from pipeline.cli import InputError
from pipeline.measuring.contexts import (
    Batching,
    measured_contexts,
    own_context,
)
from pipeline.measuring.far_context import leave_each_out
from pipeline.measuring.flags import ContextLengths
from pipeline.models.olmo import OLMoCausalLM

LENGTHS = ContextLengths(short_context_length=8, long_context_length=96, targets_per_chunk=12)
CHUNKS = np.random.default_rng(6).integers(0, 48, (2, 96))


@pytest.fixture(scope="module")
def lm(make_olmo: Callable[..., OLMo]) -> OLMoCausalLM:
    return OLMoCausalLM(make_olmo(seed=5, d_model=64, n_heads=4, max_sequence_length=96))


def test_batches_are_halved_where_memory_runs_out(lm: OLMoCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    own, of_4000 = own_context(CHUNKS[0], LENGTHS), Batching(4000)
    expected = leave_each_out(lm, own, of_4000).influence_TF
    hidden_states, tried = OLMoCausalLM.hidden_states, []

    def with_room_for_300(self: OLMoCausalLM, token_ids: torch.Tensor, *arguments: object) -> torch.Tensor:
        tried.append(token_ids.numel())
        if tried[-1] > 300:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return hidden_states(self, token_ids, *arguments)

    monkeypatch.setattr(OLMoCausalLM, "hidden_states", with_room_for_300)
    found = leave_each_out(lm, own, of_4000).influence_TF
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
    # 23 sequences of 94 tokens are too many, and so are 7 and 4; 2 are not, and more are not tried again.
    assert [rows // 94 for rows in tried[:5]] == [23, 7, 3, 4, 1]
    assert max(tried[4:]) <= 300


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
    contexts, positions = np.array([[1, 2], [2, 1]]), np.array([[0, 4], [0, 4]])
    measured = measured_contexts(
        SeenTokens(), contexts, positions, np.array([2, 2]), Batching(100),
        any_reference(SeenTokens(), 1), np.array([0, 0]),
    )  # fmt: skip
    assert measured.losses.tolist() == [0, 100]

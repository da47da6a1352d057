"""Batches: as large as the budget allows, halved where memory runs out, and without a say in the results."""

import logging
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hand_made_models import CountingLM
from losses_under_contexts import window_losses
from olmo.model import OLMo

from pipeline.cli import InputError
from pipeline.measuring import contexts as batching
from pipeline.measuring.contexts import Batching, Measurement, null_contexts, own_context
from pipeline.measuring.far_context import far_contexts, leave_each_out, selected_positions, sparse_contexts
from pipeline.measuring.flags import ContextLengths
from pipeline.models.olmo import OLMoCausalLM

LENGTHS = ContextLengths(short_context_length=8, long_context_length=96, targets_per_chunk=12)
CHUNKS = np.random.default_rng(6).integers(0, 48, (2, 96))


class _LittleMemory(CountingLM):
    """Runs out of memory above a number of rows, as torch does on an accelerator."""

    def __init__(self, model: OLMoCausalLM, max_rows: int) -> None:
        super().__init__(model)
        self._max_rows, self.rows_of_passes = max_rows, []

    def hidden_states(self, token_ids: torch.Tensor, *arguments: object) -> torch.Tensor:
        self.rows_of_passes.append(token_ids.numel())
        if token_ids.numel() > self._max_rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return super().hidden_states(token_ids, *arguments)


@pytest.fixture(scope="module")
def lm(make_olmo: Callable[..., OLMo]) -> OLMoCausalLM:
    return OLMoCausalLM(make_olmo(seed=5, d_model=64, n_heads=4, max_sequence_length=96))


def test_a_budget_of_three_sequences(lm: OLMoCausalLM) -> None:
    of_one = lm.sequence_bytes(50, 20)
    assert Batching(10_000, 3.5 * of_one).num_sequences(lm, 50, 20) == 3
    assert Batching(100, 3.5 * of_one).num_sequences(lm, 50, 20) == 2
    assert Batching(10, 0.5 * of_one).num_sequences(lm, 50, 20) == 1  # the least there is
    assert lm.sequence_bytes(100, 0) > lm.sequence_bytes(50, 0) > 50 * 64 * 4


def test_sizes_do_not_follow_from_what_is_free(
    lm: OLMoCausalLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batchings = []
    for free_gibibytes in (3, 300):
        monkeypatch.setattr(batching, "free_bytes", lambda _, free=free_gibibytes: free << 30)
        batchings.append(Batching.for_model(lm))
    assert batchings[0] == batchings[1] == Batching(2048, 1 << 30)
    assert not caplog.text
    monkeypatch.setattr(batching, "free_bytes", lambda _: 1 << 30)
    assert Batching.for_model(lm).memory_budget_bytes == 1 << 29
    assert "batches are kept within 0.50 GiB and not 1, which may move the last bits" in caplog.text
    assert Batching.for_model(lm, 7, 5 << 30) == Batching(7, 5 << 30)  # what is asked for is taken


@pytest.mark.parametrize("tokens_per_batch", [1, 97, 500, 5000])
def test_the_size_of_the_batch_moves_last_bits_only(lm: OLMoCausalLM, tokens_per_batch: int) -> None:
    for sequence in (own_context(CHUNKS[0], LENGTHS), *null_contexts(*CHUNKS, LENGTHS)):
        expected = leave_each_out(lm, sequence, Batching(250)).influence_TF
        found = leave_each_out(lm, sequence, Batching(tokens_per_batch)).influence_TF
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
        assert np.nanstd(expected) > 1e-3
    windows = [window_losses(lm, CHUNKS[0], LENGTHS.targets_T, 8, Batching(size)) for size in (250, 1)]
    np.testing.assert_allclose(*windows, rtol=0, atol=2e-5)


def test_batches_are_halved_where_memory_runs_out(lm: OLMoCausalLM, caplog: pytest.LogCaptureFixture) -> None:
    little, of_4000 = _LittleMemory(lm, max_rows=300), Batching(4000)
    with caplog.at_level(logging.WARNING, "pipeline"):
        found = leave_each_out(little, own_context(CHUNKS[0], LENGTHS), of_4000).influence_TF
    expected = leave_each_out(lm, own_context(CHUNKS[0], LENGTHS), Batching(4000)).influence_TF
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
    # 23 sequences of 94 tokens are too many, and so are 11 and 5; 2 are not, and more are not tried again.
    assert [rows // 94 for rows in little.rows_of_passes[:4]] == [23, 11, 5, 2]
    assert max(little.rows_of_passes[3:]) <= 300
    assert "out of memory with 23 sequences of 94 tokens in a batch; going on with half" in caplog.text
    windows = window_losses(_LittleMemory(lm, 20), CHUNKS[0], LENGTHS.targets_T, 8, Batching(4000))
    np.testing.assert_allclose(
        windows, window_losses(lm, CHUNKS[0], LENGTHS.targets_T, 8, Batching(4000)), rtol=0, atol=2e-5
    )


def test_one_sequence_too_large_is_said_in_a_sentence(lm: OLMoCausalLM) -> None:
    with pytest.raises(InputError, match="a single sequence of 94 tokens does not fit the memory"):
        leave_each_out(_LittleMemory(lm, 90), own_context(CHUNKS[0], LENGTHS), Batching(4000))


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    with (
        pytest.raises(RuntimeError, match="mat1 and mat2"),
        Batching(100).halved_where_memory_runs_out(4, 5),
    ):
        torch.ones(2, 3) @ torch.ones(2, 3)


def test_torchs_own_cpu_allocator_is_understood() -> None:
    # A process that may have 3 GiB of addresses asks for 8 GiB at once.
    code = """
import resource, torch
from pipeline.measuring.contexts import Batching
batching = Batching(1000)
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
with batching.halved_where_memory_runs_out(10, 100):
    torch.ones(1 << 31)
print(batching.tokens_per_batch)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "500\n", done.stderr


def test_what_is_known_is_not_computed_again(lm: OLMoCausalLM) -> None:
    model = CountingLM(lm)
    own = far_contexts(Measurement(model, LENGTHS, Batching(500)), *CHUNKS)["own"]
    positions = {rule: selected_positions(own, rule, 3, seed=[0]) for rule in ("add_one_in", "greedy")}
    before = model.token_forwards
    measured = sparse_contexts(own, positions, dict.fromkeys(positions, [1]))
    assert model.token_forwards == before  # any single token was tried by both rules
    sparse_contexts(own, {"greedy": positions["greedy"]}, {"greedy": [2, 3]})
    assert model.token_forwards == before  # and so were the sets that greedy grew
    fresh = far_contexts(Measurement(lm, LENGTHS, Batching(500)), *CHUNKS)["own"]
    for rule, expected in sparse_contexts(fresh, positions, dict.fromkeys(positions, [1])).items():
        np.testing.assert_allclose(measured[rule], expected, rtol=0, atol=2e-5)
    pairs = {"one": np.array([[7, 5]] * 12), "other": np.array([[5, 7]] * 12)}
    sparse_contexts(own, pairs, dict.fromkeys(pairs, [2]))
    assert model.token_forwards == before + 12 * (8 + 2)  # the same sets, once


def test_the_long_loss_comes_with_the_leave_one_out_passes(lm: OLMoCausalLM) -> None:
    model = CountingLM(lm)
    own = far_contexts(Measurement(model, LENGTHS, Batching(500)), *CHUNKS)["own"]
    alone = own.long_losses_T
    assert model.token_forwards == 95
    assert own.influence_TF is not None
    before = model.token_forwards
    assert np.array_equal(own.long_losses_T, alone)
    assert model.token_forwards == before

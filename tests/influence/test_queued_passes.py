"""Forward passes: contexts are exact, batches move last bits only, and no loop waits for the device.

Batches are as large as the budget allows, and halved where memory runs out. Passes are queued while a GPU may
still be computing them; what they tell is looked at in the end.
"""

import logging
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hand_made_models import CountingLM, SeenTokens
from losses_under_contexts import any_reference, long_context_losses, window_losses
from olmo.model import OLMo

from pipeline.cli import InputError
from pipeline.measuring import contexts as batching
from pipeline.measuring.contexts import (
    Batching,
    FullPass,
    Measurement,
    PassQueue,
    Rows,
    full_pass,
    measured_contexts,
    null_contexts,
    own_context,
)
from pipeline.measuring.far_context import far_contexts, leave_each_out, sparse_contexts
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.rules import selected_positions
from pipeline.measuring.stage import failures_in_words
from pipeline.models import attention
from pipeline.models.interface import NotFiniteLossError, Predictions
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


def test_batches_and_their_parts(lm: OLMoCausalLM) -> None:
    assert [Batching(size).num_sequences(50) for size in (10_000, 100, 10)] == [200, 2, 1]
    assert Batching(200).of_many(7, 50) == [slice(0, 4), slice(4, 8)]
    of_one = lm.sequence_bytes(50, 20)
    for num_fitting, rows_at_a_time, num_sequences, sizes in (
        (30, np.inf, 20, [20]), (7.5, np.inf, 20, [6, 7, 7]),
        (0.5, np.inf, 20, [6, 7, 7]), (0.5, np.inf, 12, [12]),  # of 40 rows that predict each, 6 have 240
        (30, 199, 8, [2, 3, 3]), (30, 20, 2, [1, 1]),
    ):  # fmt: skip
        rows_BS = np.zeros((num_sequences, 50), dtype=np.int64)
        rows = Rows(rows_BS, rows_BS, None, rows_BS[:, :40])
        parts = Batching(10, num_fitting * of_one, rows_at_a_time).parts(lm, rows, 20)
        assert [part.stop - part.start for part in parts] == sizes
        assert parts[0].start == 0 and parts[-1].stop == num_sequences
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
    assert "passes are kept within 0.50 GiB and not 1" in caplog.text
    assert Batching.for_model(lm, 5 << 30) == Batching(2048, 5 << 30)  # what is asked for is taken


def test_the_size_of_the_batch_moves_last_bits_only(lm: OLMoCausalLM) -> None:
    for sequence in (own_context(CHUNKS[0], LENGTHS), *null_contexts(*CHUNKS, LENGTHS)):
        expected = leave_each_out(lm, sequence, Batching(250)).influence_TF
        for size in (1, 97, 5000):
            found = leave_each_out(lm, sequence, Batching(size)).influence_TF
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5, err_msg=str(size))
        assert np.nanstd(expected) > 1e-3
    windows = [window_losses(lm, CHUNKS[0], LENGTHS.targets_T, 8, Batching(size)) for size in (250, 1)]
    np.testing.assert_allclose(*windows, rtol=0, atol=2e-5)


@pytest.mark.parametrize("tokens_per_batch", [2048, 8192])
def test_a_memory_budget_moves_no_bit(lm: OLMoCausalLM, tokens_per_batch: int) -> None:
    """Not even the order of the last of 76 far tokens, which differ in their last bits."""
    found = []
    for budget_bytes in (1 << 30, 500_000):
        batching = Batching(tokens_per_batch, budget_bytes)
        own = far_contexts(Measurement(lm, LENGTHS, batching), *CHUNKS)["own"]
        positions = {"leave_one_out_divergence": selected_positions(own, "leave_one_out_divergence", 76, [0])}
        sparse = sparse_contexts(own, positions, dict.fromkeys(positions, [1, 16, 64]))
        found.append([own.influence_TF, *positions.values(), *sparse["leave_one_out_divergence"]])
    for values, expected in zip(*found, strict=True):
        np.testing.assert_array_equal(values, expected)
    rows_BS = np.zeros((tokens_per_batch // 94, 94), dtype=np.int64)
    parts = batching.parts(lm, Rows(rows_BS, rows_BS, None, rows_BS[:, :12]), 0)
    assert len(parts) == (1 if tokens_per_batch == 2048 else 4)


def test_batches_are_halved_where_memory_runs_out(lm: OLMoCausalLM, caplog: pytest.LogCaptureFixture) -> None:
    little, of_4000 = _LittleMemory(lm, max_rows=300), Batching(4000)
    with caplog.at_level(logging.WARNING, "pipeline"):
        found = leave_each_out(little, own_context(CHUNKS[0], LENGTHS), of_4000).influence_TF
    expected = leave_each_out(lm, own_context(CHUNKS[0], LENGTHS), Batching(4000)).influence_TF
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
    # 23 sequences of 94 tokens are too many, and so are 7 and 4; 2 are not, and more are not tried again.
    assert [rows // 94 for rows in little.rows_of_passes[:5]] == [23, 7, 3, 4, 1]
    assert max(little.rows_of_passes[4:]) <= 300
    assert "out of memory with 23 sequences of 94 tokens at a time; going on with half" in caplog.text
    too_large = pytest.raises(InputError, match="memory does not suffice for a chunk of 96 tokens with model")
    with too_large, failures_in_words("run", 96, 0):
        leave_each_out(_LittleMemory(lm, 90), own_context(CHUNKS[0], LENGTHS), Batching(4000))
    windows = window_losses(_LittleMemory(lm, 20), CHUNKS[0], LENGTHS.targets_T, 8, Batching(4000))
    np.testing.assert_allclose(
        windows, window_losses(lm, CHUNKS[0], LENGTHS.targets_T, 8, Batching(4000)), rtol=0, atol=2e-5
    )


def test_a_set_is_measured_once_and_is_the_same_whatever_was_asked_before(lm: OLMoCausalLM) -> None:
    model = CountingLM(lm)
    own = far_contexts(Measurement(model, LENGTHS, Batching(500)), *CHUNKS)["own"]
    pairs = {"one": np.array([[7, 5]] * 12), "other": np.array([[5, 7]] * 12)}
    assert own.long_losses_T is not None
    before = model.token_forwards
    asked_first = sparse_contexts(own, pairs, dict.fromkeys(pairs, [2]))
    assert model.token_forwards == before + 12 * (8 + 2)  # the same sets, once
    later = far_contexts(Measurement(lm, LENGTHS, Batching(500)), *CHUNKS)["own"]
    selected_positions(later, "greedy", 3, seed=[0])
    for rule, measured in sparse_contexts(later, pairs, dict.fromkeys(pairs, [2])).items():
        np.testing.assert_array_equal(measured, asked_first[rule])


def test_the_long_loss_comes_with_the_leave_one_out_passes(lm: OLMoCausalLM) -> None:
    model = CountingLM(lm)
    own = far_contexts(Measurement(model, LENGTHS, Batching(500)), *CHUNKS)["own"]
    alone = own.long_losses_T
    assert model.token_forwards == 95
    assert own.influence_TF is not None
    before = model.token_forwards
    assert np.array_equal(own.long_losses_T, alone)
    assert model.token_forwards == before


def test_targets_and_far_contexts_of_ten_tokens() -> None:
    lengths = ContextLengths(short_context_length=2, long_context_length=10, targets_per_chunk=3)
    assert lengths.targets_T.tolist() == [7, 8, 9]
    assert lengths.num_far_tokens_T.tolist() == [5, 6, 7]  # far contexts [0, 5), [0, 6), [0, 7)
    with pytest.raises(InputError, match="leaves no far context"):
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


SHORT_LENGTHS = ContextLengths(short_context_length=4, long_context_length=24, targets_per_chunk=5)
SHORT_CHUNKS = np.random.default_rng(0).integers(0, 48, (2, 24))


class WaitedError(Exception):
    """Something asked for a number of the device."""


@pytest.fixture(params=[torch.float32, torch.bfloat16])
def far_lm(
    request: pytest.FixtureRequest, make_olmo: Callable[..., OLMo], monkeypatch: pytest.MonkeyPatch
) -> OLMoCausalLM:
    """A model on a device that computes shapes only: whoever asks it for a number gets an error.

    Nor can its tensors meet those of the host. It has CUDA's kernels, as far as shapes go.
    """
    meta = torch.device("meta")
    monkeypatch.setattr(OLMoCausalLM, "device", meta)  # OLMo itself would say where the model could go
    monkeypatch.setattr(attention, "tells_log_sum_exp", lambda *_: True)
    monkeypatch.setattr(attention, "_has_flash", lambda device: True)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # which knows no such device
    monkeypatch.setattr(  # nor does this, with a mask; it is used where no prefix is
        attention, "scaled_dot_product_attention", lambda query, *_, **__: torch.empty_like(query)
    )
    return OLMoCausalLM(make_olmo().to(meta, request.param), num_positions=24)


def _predictions(lm: OLMoCausalLM, num_targets: int) -> Predictions:
    logits_TV = torch.empty(num_targets, lm.vocabulary_size, device=lm.device)
    return Predictions.of(logits_TV)


@pytest.fixture
def reading_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: PassQueue) -> None:
        raise WaitedError(len(self._passes))

    monkeypatch.setattr(PassQueue, "read", read)


@pytest.mark.usefixtures("reading_is_noted")
@pytest.mark.parametrize("replacement_ids_L", [None, np.zeros(24, dtype=np.int64)])
def test_no_removal_waits_for_the_device(far_lm: OLMoCausalLM, replacement_ids_L: np.ndarray | None) -> None:
    for sequence in (
        own_context(SHORT_CHUNKS[0], SHORT_LENGTHS),
        *null_contexts(*SHORT_CHUNKS, SHORT_LENGTHS),
    ):
        with pytest.raises(RuntimeError, match="meta"):  # reading the whole chunk is one wait
            full_pass(far_lm, sequence)
        num_targets = len(sequence.target_ids_T)
        tokens, positions = (torch.zeros(1, len(sequence.token_ids_S), dtype=torch.int64, device="meta"),) * 2
        _, prefix = far_lm.read(tokens, positions, None, None)
        full = FullPass(np.empty(0), _predictions(far_lm, num_targets), prefix)
        with pytest.raises(WaitedError) as waited:
            leave_each_out(far_lm, sequence, Batching(60), full=full, replacement_ids_L=replacement_ids_L)
        assert waited.value.args[0] > 5


@pytest.mark.usefixtures("reading_is_noted")
@pytest.mark.parametrize("order", ["one after another", "mixed"])
def test_no_context_waits_for_the_device(far_lm: OLMoCausalLM, order: str) -> None:
    index_N = np.repeat(np.arange(5), 4) if order == "one after another" else np.arange(20) * 7 % 5
    contexts_NC = np.tile(np.arange(6), (20, 1))
    with pytest.raises(WaitedError, match="4"):  # four batches of five contexts
        measured_contexts(
            far_lm, contexts_NC, contexts_NC, np.zeros(20, dtype=np.int64), Batching(30),
            _predictions(far_lm, 5), index_N,
        )  # fmt: skip


def test_a_number_asked_for_within_a_pass_would_be_seen(far_lm: OLMoCausalLM) -> None:
    without_positions = OLMoCausalLM(far_lm._model)  # has to look for the largest position ID in each pass
    rows = torch.zeros(1, 6, dtype=torch.int64, device="meta")
    far_lm.hidden_states(rows, rows, None, None)
    with pytest.raises(RuntimeError, match="meta"):
        without_positions.hidden_states(rows, rows, None, None)


def test_the_first_number_that_is_not_finite_is_named() -> None:
    queue = PassQueue(None, Batching(1), None)
    positions, queries = np.arange(30, 36)[None], np.array([[2, 5]])
    good, bad = torch.ones(2, 2), torch.tensor([[1.0, 2.0], [3.0, torch.inf]])
    queue._passes = [(positions, queries, values) for values in ((good, good), (good, bad), (bad, good))]
    with pytest.raises(NotFiniteLossError, match="the divergence at position 36 is inf") as error:
        queue.read()
    assert error.value.sequence_index == 1
    queue._passes = [(positions, queries, (2 * good,)), (positions, queries, (good[:1],))]
    assert [[values.tolist() for values in kind] for kind in queue.read()] == [[[[2, 2], [2, 2]], [[1, 1]]]]

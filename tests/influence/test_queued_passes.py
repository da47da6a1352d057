"""Passes that a GPU may still be computing: the loops that queue them ask it for nothing; what they tell is
looked at in the end."""

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from olmo.model import OLMo

from pipeline.measuring.contexts import (
    Batching,
    PassQueue,
    full_pass,
    measured_contexts,
    null_contexts,
    own_context,
)
from pipeline.measuring.far_context import leave_each_out
from pipeline.measuring.flags import ContextLengths
from pipeline.models import attention as log_sum_exp_attention
from pipeline.models import attention as prefix_attention
from pipeline.models.interface import NotFiniteLossError, Predictions
from pipeline.models.olmo import OLMoCausalLM

LENGTHS = ContextLengths(short_context_length=4, long_context_length=24, targets_per_chunk=5)
CHUNKS = np.random.default_rng(0).integers(0, 48, (2, 24))


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
    monkeypatch.setattr(prefix_attention, "tells_log_sum_exp", lambda *_: True)
    monkeypatch.setattr(log_sum_exp_attention, "_has_flash", lambda device: True)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # which knows no such device
    monkeypatch.setattr(  # nor does this, with a mask; it is used where no prefix is
        prefix_attention, "scaled_dot_product_attention", lambda query, *_, **__: torch.empty_like(query)
    )
    return OLMoCausalLM(make_olmo().to(meta, request.param), num_positions=24)


def _predictions(lm: OLMoCausalLM, num_targets: int) -> Predictions:
    logits_TV = torch.empty(num_targets, lm.vocabulary_size, device=lm.device)
    return Predictions.of_logits(logits_TV)


@pytest.fixture
def reading_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: PassQueue) -> None:
        raise WaitedError(len(self._passes))

    monkeypatch.setattr(PassQueue, "read", read)


@pytest.mark.usefixtures("reading_is_noted")
@pytest.mark.parametrize("substitute_ids_L", [None, np.zeros(24, dtype=np.int64)])
def test_no_removal_waits_for_the_device(far_lm: OLMoCausalLM, substitute_ids_L: np.ndarray | None) -> None:
    for sequence in (own_context(CHUNKS[0], LENGTHS), *null_contexts(*CHUNKS, LENGTHS)):
        with pytest.raises(RuntimeError, match="meta"):  # reading the whole chunk is one wait
            full_pass(far_lm, sequence)
        num_targets = len(sequence.target_ids_T)
        tokens, positions = (torch.zeros(1, len(sequence.token_ids_S), dtype=torch.int64, device="meta"),) * 2
        _, prefix = far_lm.read(tokens, positions, None, None)
        everything = _Read(prefix, _predictions(far_lm, num_targets))
        with pytest.raises(WaitedError) as waited:
            leave_each_out(far_lm, sequence, Batching(60), full=everything, substitute_ids_L=substitute_ids_L)
        assert waited.value.args[0] > 5


class _Read:
    def __init__(self, prefix: object, predictions: Predictions) -> None:
        self.prefix, self.predictions = prefix, predictions


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

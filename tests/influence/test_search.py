"""Forward passes: contexts are exact, batches move last bits only, patched spans are the stock model's.

The stock model has a cache of keys and values that is put together by hand.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hand_made_models import SeenTokens
from hugging_face_families import VOCABULARY_SIZE, make_model
from naive_predictions import naive_losses, stock_hugging_face
from olmo.model import OLMo
from transformers import DynamicCache, PreTrainedModel

from sparsity_length.cli import InputError
from sparsity_length.measuring.contexts import (
    Batching,
    Pass,
    Rows,
    full_pass,
    hidden_states,
    measured_contexts,
    measured_windows,
    null_contexts,
    own_context,
    read_prefix,
)
from sparsity_length.measuring.search import NearRows, Search, _groups, _runs, screened
from sparsity_length.measuring.settings import ContextLengths
from sparsity_length.models.huggingface import HuggingFaceCausalLM
from sparsity_length.models.interface import CausalLM, Predictions
from sparsity_length.models.olmo import OLMoCausalLM

LENGTHS = ContextLengths(short_context_length=4, long_context_length=40, targets_per_chunk=6, target_stride=5)
SPANS = np.array([[0, 5], [7, 8], [20, 30]])


def patched(
    stock: PreTrainedModel, own_L: np.ndarray, other_L: np.ndarray, start: int, stop: int, span: list[int]
) -> torch.Tensor:
    """Predictions of the rows [start, stop), behind rows of which a span's are another text's: [S, V]."""
    caches = []
    for ids_L in (own_L, other_L):
        cache = DynamicCache(config=stock.config)
        stock(torch.tensor(ids_L[None, :start]), past_key_values=cache)
        caches.append(cache)
    for own, other in zip(caches[0].layers, caches[1].layers, strict=True):
        own.keys[:, :, slice(*span)] = other.keys[:, :, slice(*span)]
        own.values[:, :, slice(*span)] = other.values[:, :, slice(*span)]
    ids = torch.tensor(own_L[None, start:stop])
    return stock(ids, past_key_values=caches[0]).logits[0].log_softmax(-1)


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "phi"])
def test_patched_rows_are_those_of_the_stock_model(family: str) -> None:
    stock = make_model(family)
    model = HuggingFaceCausalLM(make_model(family))
    own_L, other_L = np.random.default_rng(0).integers(1, VOCABULARY_SIZE, (2, LENGTHS.long_context_length))
    sequence = own_context(own_L, LENGTHS)
    full = full_pass(model, sequence)
    # Both targets' near rows run together, from the first one's on.
    queries_Q = np.array([0, 1])
    other = read_prefix(model, other_L[:36])
    near = NearRows(model, Batching(24), sequence, full, queries_Q, full.prefix, other)
    found = near.without(SPANS)
    assert near.start == LENGTHS.num_far_tokens_T[0] and near.stop == LENGTHS.targets_T[1]
    with torch.inference_mode():
        for row, span in enumerate(SPANS.tolist()):
            log_probs_SV = patched(stock, own_L, other_L, near.start, near.stop, span)
            whole_SV = stock(torch.tensor(own_L[None, : near.stop])).logits[0].log_softmax(-1)
            for query, target in enumerate(LENGTHS.targets_T[:2]):
                of_V = log_probs_SV[target - 1 - near.start]
                full_V = whole_SV[target - 1]
                divergence = float((full_V.exp() * (full_V - of_V)).sum())
                assert found.losses[row, query] == pytest.approx(-float(of_V[own_L[target]]), abs=2e-5)
                assert found.divergences[row, query] == pytest.approx(divergence, abs=2e-5)


def test_groups_are_whole_units_of_at_most_32_tokens_if_these_are_shorter() -> None:
    edges = np.array([0, 30, 40, 64, 70])
    assert _groups(edges).tolist() == [[0, 30], [30, 40], [40, 70]]
    for ends_early in ({"breaks": [64]}, {"ends": [64]}):
        assert _groups(edges, **ends_early).tolist() == [[0, 30], [30, 40], [40, 64], [64, 70]]


def test_groups_alone_are_read_behind_the_swapped_rows_before_them() -> None:
    model = HuggingFaceCausalLM(make_model("llama"))
    own_L, other_L = np.random.default_rng(2).integers(1, VOCABULARY_SIZE, (2, LENGTHS.long_context_length))
    sequence = own_context(own_L, LENGTHS)
    full = full_pass(model, sequence)
    starts = np.array([1, 7, 12, 30])
    none = np.zeros(len(own_L), dtype=bool)
    search = Search(model, Batching(2048), sequence, full, other_L, other_L[None], starts, starts, 1, none)
    groups = [[1, 33], [33, int(LENGTHS.num_far_tokens_T[-1])]]
    search.__dict__["_groups_V2"] = np.array(groups)
    for start, stop in [[0, 1], *groups]:
        expected = read_prefix(model, np.concatenate([other_L[:start], own_L[start:stop]]))
        for of_layer, of_expected in zip(
            search._groups_alone.keys_and_values, expected.keys_and_values, strict=True
        ):
            for found, wanted in zip(of_layer, of_expected, strict=True):
                torch.testing.assert_close(
                    found[:, :, start:stop], wanted[:, :, start:], atol=1e-5, rtol=1e-4
                )


@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral_window"])
@pytest.mark.parametrize("is_exact", [True, False])
def test_restored_spans_are_those_of_the_stock_model(family: str, is_exact: bool) -> None:
    """Exactly, and where the swapped tokens behind a span know nothing of it."""
    stock = make_model(family)
    model = HuggingFaceCausalLM(make_model(family))
    rng = np.random.default_rng(3)
    own_L, *swaps = rng.integers(1, VOCABULARY_SIZE, (4, LENGTHS.long_context_length))
    sequence = own_context(own_L, LENGTHS)
    starts = np.arange(1, 36)
    none = np.zeros(len(own_L), dtype=bool)
    full = full_pass(model, sequence)
    search = Search(
        model, Batching(24), sequence, full, swaps[0], np.stack(swaps[1:]), starts, starts, 1, none
    )
    spans = np.array([[20, 26], [3, 4]])
    target = int(LENGTHS.targets_T[1])
    for swap, other_L in enumerate(swaps):
        is_own_S = np.arange(target) >= target - LENGTHS.short_context_length
        for span in spans:
            is_own_S[slice(*span)] = True
        found = search._with(spans, swap, np.array([1]), is_exact=is_exact).log_probs_TV[0]
        # The swapped text, and behind it what is read in place of a part of it.
        is_read_S = is_own_S if not is_exact and model.sees_all else np.arange(target) >= 3
        (places_R,) = np.nonzero(is_read_S)
        ids = np.append(other_L[:target], np.where(is_own_S, own_L[:target], other_L[:target])[places_R])
        positions = np.append(np.arange(target), places_R)
        sees_SS = positions <= positions[:, None]
        sees_SS[:target, target:] = False
        sees_SS[target:, :target] &= ~is_read_S
        mask = torch.zeros(1, 1, *sees_SS.shape).masked_fill(~torch.tensor(sees_SS), torch.finfo().min)
        width = getattr(stock.config, "sliding_window", None)
        if width:
            is_near = torch.tensor(positions[:, None] - positions < width)
            near = mask.masked_fill(~is_near, torch.finfo().min)
            types = getattr(stock.config, "layer_types", None)
            mask = {"full_attention": mask, "sliding_attention": near} if types else near
        with torch.inference_mode():
            logits = stock(
                torch.tensor(ids[None]), position_ids=torch.tensor(positions[None]), attention_mask=mask
            ).logits[0, -1]
        torch.testing.assert_close(found, logits.log_softmax(-1), atol=2e-5, rtol=1e-4)


def test_nothing_patched_is_the_full_context_and_all_hidden_is_the_short_one() -> None:
    stock = stock_hugging_face(make_model("llama", attention="eager"))
    model = HuggingFaceCausalLM(make_model("llama"))
    own_L = np.random.default_rng(1).integers(1, VOCABULARY_SIZE, LENGTHS.long_context_length)
    sequence = own_context(own_L, LENGTHS)
    full = full_pass(model, sequence)
    near = NearRows(model, Batching(2048), sequence, full, np.array([1]), full.prefix, None)
    all_and_nothing = np.array([np.ones(near.start, bool), np.zeros(near.start, bool)])
    found = near.measured(all_and_nothing)
    target = LENGTHS.targets_T[1]
    cases = [(own_L, range(target)), (own_L, range(target - 4, target))]
    np.testing.assert_allclose(found.losses[:, 0], naive_losses(stock, target, cases), atol=2e-5)
    assert found.divergences[0, 0] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [
        ((4, 40, 6, 5), [1, 1]),  # farther apart than a short context
        ((4, 40, 9, 4), [3]),
        ((4, 200, 100, 1), [64, 36]),
    ],
)
def test_neighbors_share_near_rows(lengths: tuple[int, int, int, int], sizes: list[int]) -> None:
    sequence = own_context(np.zeros(lengths[1], dtype=np.int64), ContextLengths(*lengths))
    runs = _runs(sequence)
    assert [len(run) for run in runs] == sizes
    assert np.concatenate(runs).tolist() == [*range(sum(sizes))]


def test_groups_are_split_down_to_the_units_that_matter() -> None:
    """Of 200 words of two tokens, those at 60 and 310 matter, one target each; effects add up.

    By the last criterion: the first, by which others matter more, decides nothing.
    """
    edges_E = np.arange(0, 402, 2)
    weights_C2F = np.zeros((2, 2, 400))
    weights_C2F[1, 0, 60] = 3.0
    weights_C2F[1, 1, 311] = 3.0
    weights_C2F[0, :, [20, 130, 200, 390]] = 9.0
    asked: list[int] = []

    def effects(spans_V2: np.ndarray) -> np.ndarray:
        asked.append(len(spans_V2))
        return np.stack([weights_C2F[:, :, start:end].sum(-1) for start, end in spans_V2], axis=1)

    spans_V2, effects_CVT = screened(effects, edges_E, 2)
    assert spans_V2[0, 0] == 0 and spans_V2[-1, 1] == 400
    assert (spans_V2[1:, 0] == spans_V2[:-1, 1]).all()
    largest = spans_V2[effects_CVT[1].argmax(axis=0)].tolist()
    assert largest == [[60, 62], [310, 312]] and effects_CVT[1].max(axis=0).tolist() == [3.0, 3.0]
    # 13 groups of 32 tokens, of which two are split in four, two of the parts again, and pairs of words.
    assert asked[:3] == [13, 8, 8] and sum(asked) < 40


def test_targets_and_far_contexts_of_ten_tokens() -> None:
    lengths = ContextLengths(short_context_length=2, long_context_length=10, targets_per_chunk=3)
    assert lengths.targets_T.tolist() == [7, 8, 9]
    assert lengths.num_far_tokens_T.tolist() == [5, 6, 7]  # distant contexts [0, 5), [0, 6), [0, 7)
    for short_context_length in (7, 9):
        with pytest.raises(InputError, match="leaves no distant context"):
            ContextLengths(short_context_length, 10, 3)


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


def any_reference(model: CausalLM, num_targets: int) -> Predictions:
    """Predictions that find all tokens equally likely: how far others are from them is not looked at."""
    return Predictions.of(torch.zeros(num_targets, model.vocabulary_size))


def window_losses(
    model: CausalLM, chunk_L: np.ndarray, targets_T: np.ndarray, context_length: int, batching: Batching
) -> np.ndarray:
    """loss(t | exactly the `context_length` tokens before t): float32 [T], nats."""
    reference = any_reference(model, len(targets_T))
    return measured_windows(model, chunk_L, targets_T, context_length, batching, reference).losses


def long_context_losses(model: CausalLM, chunk_L: np.ndarray, targets_T: np.ndarray) -> np.ndarray:
    """loss(t | everything before t in the chunk), all targets in one pass: float32 [T], nats."""
    tokens_L = torch.as_tensor(chunk_L)
    rows_T = torch.as_tensor(targets_T - 1)
    rows_S = torch.arange(len(chunk_L) - 1)
    hidden_1TD = model.hidden_states(tokens_L[None, :-1], rows_S[None], None, rows_T[None])
    return Predictions.of(model.logits(hidden_1TD[0])).losses(chunk_L[targets_T])

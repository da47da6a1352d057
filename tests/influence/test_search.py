"""Forward passes: contexts are exact, batches move last bits only, patched spans are the stock model's.

The stock model has a cache of keys and values that is put together by hand. What a search finds is planted.
"""

from collections.abc import Callable, Sequence, Set
from typing import Any

import numpy as np
import pytest
import torch
from hand_made_models import EvidenceLM
from hugging_face_families import VOCABULARY_SIZE, WINDOW, make_model
from naive_predictions import swapped
from olmo.model import OLMo
from transformers import DynamicCache, PreTrainedModel

from sparsity_length.measuring.contexts import (
    Batching,
    Rows,
    full_pass,
    hidden_states,
    null_contexts,
    own_context,
    read_prefix,
)
from sparsity_length.measuring.search import (
    Found,
    Search,
    _foremost,
    _groups,
    _runs,
    _shortened,
    is_within,
    joined,
    screened,
    single_tokens,
)
from sparsity_length.measuring.settings import ContextLengths
from sparsity_length.models.huggingface import HuggingFaceCausalLM
from sparsity_length.models.olmo import OLMoCausalLM

LENGTHS = ContextLengths(short_context_length=4, long_context_length=40, targets_per_chunk=6, target_stride=5)
SPANS = np.array([[0, 5], [7, 8], [20, 30]])
TEXTS_4L = np.random.default_rng(0).integers(1, VOCABULARY_SIZE, (4, LENGTHS.long_context_length))
OWN, *SWAPS = TEXTS_4L


def search_in(
    lm: Any, texts_4L: np.ndarray, lengths: ContextLengths, k: int = 1, batch_rows: int = 24
) -> Search:
    """The search in the first text for single tokens; the others are its swaps, the second chooses them."""
    sequence = own_context(texts_4L[0], lengths)
    starts = np.arange(1, texts_4L.shape[1])
    return Search(
        lm,
        Batching(batch_rows),
        sequence,
        full_pass(lm, sequence),
        search_swap_S=texts_4L[1],
        trial_swaps_BS=texts_4L[2:],
        unit_starts=starts,
        sentence_starts=starts[:1],
        k=k,
        is_label_S=np.zeros(texts_4L.shape[1], dtype=bool),
    )


def search_of_family(family: str) -> tuple[PreTrainedModel, Search]:
    """A stock model, and the search in a text by ours of the same weights."""
    return make_model(family), search_in(HuggingFaceCausalLM(make_model(family)), TEXTS_4L, LENGTHS)


def patched(stock: PreTrainedModel, start: int, stop: int, span: list[int]) -> torch.Tensor:
    """Predictions of the rows [start, stop), behind rows of which a span's are another text's: [S, V]."""
    caches = []
    for ids_L in (OWN, SWAPS[0]):
        cache = DynamicCache(config=stock.config)
        stock(torch.tensor(ids_L[None, :start]), past_key_values=cache)
        caches.append(cache)
    for own, other in zip(caches[0].layers, caches[1].layers, strict=True):
        own.keys[:, :, slice(*span)] = other.keys[:, :, slice(*span)]
        own.values[:, :, slice(*span)] = other.values[:, :, slice(*span)]
    return stock(torch.tensor(OWN[None, start:stop]), past_key_values=caches[0]).logits[0].log_softmax(-1)


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "phi"])
def test_patched_rows_are_those_of_the_stock_model(family: str) -> None:
    """Both targets' near rows run together, from the first one's on."""
    stock, search = search_of_family(family)
    near = search._near(np.array([0, 1]), search.full.prefix, search.prefixes[0])
    found = near.without(SPANS)
    assert near.start == LENGTHS.num_far_tokens_T[0] and near.stop == LENGTHS.targets_T[1]
    places_Q = LENGTHS.targets_T[:2]
    with torch.inference_mode():
        full_QV = stock(torch.tensor(OWN[None])).logits[0, places_Q - 1].log_softmax(-1)
        for row, span in enumerate(SPANS.tolist()):
            of_QV = patched(stock, near.start, near.stop, span)[places_Q - 1 - near.start]
            divergences = (full_QV.exp() * (full_QV - of_QV)).sum(-1)
            np.testing.assert_allclose(found.losses[row], -of_QV[[0, 1], OWN[places_Q]], atol=1e-5)
            np.testing.assert_allclose(found.divergences[row], divergences, atol=1e-5)


def test_groups_are_whole_units_of_at_most_32_tokens_if_these_are_shorter() -> None:
    edges = np.array([0, 30, 40, 64, 70])
    assert _groups(edges).tolist() == [[0, 30], [30, 40], [40, 70]]
    for ends_early in ({"breaks": [64]}, {"ends": [64]}):
        assert _groups(edges, **ends_early).tolist() == [[0, 30], [30, 40], [40, 64], [64, 70]]
    # A sentence ends a group from 16 tokens on: after 15 it does not.
    for end, groups in ((16, [[0, 16], [16, 40]]), (15, [[0, 32], [32, 40]])):
        assert _groups(np.arange(41), [end]).tolist() == groups
    assert _groups(np.arange(33, 60), [48, 49]).tolist() == [[33, 49], [49, 59]]


def test_groups_alone_are_read_behind_the_swapped_rows_before_them() -> None:
    _, search = search_of_family("llama")
    groups = [[1, 33], [33, int(LENGTHS.num_far_tokens_T[-1])]]
    search.__dict__["_groups_V2"] = np.array(groups)
    for start, stop in [[0, 1], *groups]:
        expected = read_prefix(search.model, np.append(SWAPS[0][:start], OWN[start:stop]))
        found, wanted = (
            [[values[:, :, start:stop] for values in layer] for layer in prefix.keys_and_values]
            for prefix in (search._groups_alone, expected)
        )
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral_window"])
@pytest.mark.parametrize("is_exact", [True, False])
def test_restored_spans_are_those_of_the_stock_model(family: str, is_exact: bool) -> None:
    """Exactly, and where the swapped tokens behind a span know nothing of it."""
    stock, search = search_of_family(family)
    target = int(LENGTHS.targets_T[1])
    places = np.arange(target)
    near = places >= target - LENGTHS.short_context_length
    is_own_S = near | (places == 3) | ((places >= 20) & (places < 26))
    is_read_S = is_own_S if not is_exact and search.model.sees_all else places >= 3
    # The swapped text, and behind it what is read in place of a part of it.
    positions = np.append(places, places[is_read_S])
    sees_SS = positions <= positions[:, None]
    sees_SS[:target, target:] = False
    sees_SS[target:, :target] &= ~is_read_S
    mask = torch.zeros(1, 1, *sees_SS.shape).masked_fill(~torch.tensor(sees_SS), torch.finfo().min)
    of_window = mask.masked_fill(torch.tensor(positions[:, None] - positions >= WINDOW), torch.finfo().min)
    masks = {
        "llama": mask,
        "gemma3": {"full_attention": mask, "sliding_attention": of_window},
        "mistral_window": of_window,
    }
    for swap, other_L in enumerate(SWAPS):
        spans = np.array([[20, 26], [3, 4]])
        found = search._with(spans, swap, np.array([1]), is_exact=is_exact).log_probs_TV[0]
        ids = np.append(other_L[:target], swapped(other_L, OWN, np.flatnonzero(is_own_S))[:target][is_read_S])
        with torch.inference_mode():
            logits = stock(
                torch.tensor(ids[None]),
                position_ids=torch.tensor(positions[None]),
                attention_mask=masks[family],
            ).logits[0, -1]
        torch.testing.assert_close(found, logits.log_softmax(-1), atol=1e-5, rtol=1e-4)


def planted_search(planted: dict[int, int], logit_of: Callable[[Set[int]], float], k: int) -> Search:
    """The search for what the prediction behind 96 tokens depends on, in a model that knows an answer."""
    texts_4L = np.full((4, 97), 2)
    texts_4L[0] = 1
    texts_4L[0, [*planted]] = [*planted.values()]
    texts_4L[0, -1] = 3
    lengths = ContextLengths(short_context_length=16, long_context_length=97, targets_per_chunk=1)
    return search_in(EvidenceLM(16, 3, logit_of), texts_4L, lengths, k, batch_rows=256)


def found_by(search: Search) -> Found:
    """The sources of the only target, narrowed down to tokens."""
    return search.tried(0, search.narrowed(0, search.passages(0)))


@pytest.mark.parametrize(
    ("planted", "logit_of", "sources"),
    [
        ({63: 5}, lambda seen: 4.0 * (5 in seen), [63]),
        # Neither helps without the other.
        ({11: 5, 63: 7}, lambda seen: 6.0 * ({5, 7} <= seen), [11, 63]),
        ({11: 5, 63: 7}, lambda seen: 3.0 * len(seen & {5, 7}), [11, 63]),
        # Neither is missed while the other is there; one suffices, and the nearer is kept.
        ({11: 5, 63: 7}, lambda seen: 6.0 * bool({5, 7} & seen), [63]),
    ],
    ids=["one", "together", "sum", "redundant"],
)
def test_planted_sources_are_found(
    planted: dict[int, int], logit_of: Callable[[Set[int]], float], sources: list[int]
) -> None:
    search = planted_search(planted, logit_of, k=4)
    found = found_by(search)
    assert sorted(found.spans_K2.tolist()) == [[place, place + 1] for place in sources]
    left, total = (
        [search.effect_of([one], np.array([0])) for one in predictions]
        for predictions in (found.with_sources, found.without)
    )
    assert max(map(abs, left)) < 1e-6 < min(total)
    assert found.remaining_K[-1] == pytest.approx(0, abs=1e-6)
    # What swapping one alone does: all, or a part; of the redundant one nothing.
    low, high = (-1e-6, 1e-6) if len(planted) > len(sources) else (0.1, np.inf)
    assert low < found.effects_K.min() and found.effects_K.max() < high


@pytest.mark.parametrize("num_layers", [1, 2])
def test_passages_are_tried_by_estimates_which_are_exact_if_tokens_tell_each_other_nothing(
    num_layers: int, make_olmo: Callable[..., OLMo]
) -> None:
    """So it is in one layer: what a token tells others reaches no prediction."""
    search = search_in(OLMoCausalLM(make_olmo(n_layers=num_layers)), TEXTS_4L % 48, LENGTHS, k=3)
    passages = joined(search.passages(1))
    estimated, exact = (search.tried(1, passages, is_exact=is_exact) for is_exact in (False, True))
    assert len(passages) > 1 and estimated.short_loss == exact.short_loss
    pairs = [*zip(estimated[:4], exact[:4], strict=True)]
    pairs += [
        [search.effect_of(found.with_sources, np.array([1])) for found in (estimated, exact)],
        [search.effect_of(found.without, np.array([1])) for found in (estimated, exact)],
    ]
    are_equal = [np.allclose(one, other, atol=1e-5) for one, other in pairs]
    assert all(are_equal) == (num_layers == 1)


def test_sources_are_searched_in_a_text_that_does_not_evaluate_them() -> None:
    search = planted_search({63: 5}, lambda seen: 4.0 * (5 in seen), k=4)
    search.trial_swaps_BS[-1, 30] = 5  # there nothing is missed
    assert found_by(search).spans_K2.tolist() == [[63, 64]]


def test_spans_are_cut_to_what_is_needed_and_dropped_if_nothing_is() -> None:
    """Of three spans the second holds all that is needed, at token 25."""

    def remaining(sets: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([1.0 - is_within(spans_N2, 40)[:, 25].any() for spans_N2 in sets])

    spans_32 = np.array([[0, 10], [20, 30], [33, 34]])
    assert _shortened(remaining, spans_32, np.arange(41)).tolist() == [[25, 26]]


def test_a_source_is_what_is_needed_together() -> None:
    """Three tokens in a row that say something together, across two groups, and one elsewhere."""
    planted = {11: 5, 42: 6, 43: 7, 44: 8}
    search = planted_search(planted, lambda seen: 2.0 * (5 in seen) + 3.0 * ({6, 7, 8} <= seen), k=3)
    assert 43 in search._groups_V2[:, 0]
    assert found_by(search).spans_K2.tolist() == [[42, 45], [11, 12]]


@pytest.mark.parametrize(
    ("restored", "foremost", "num_asked"),
    [
        ({9: 5.0, 0: 0.04}, [8, 9], 5),
        ({9: 5.0, 0: 0.06}, [0, 9], 25),  # of 5.06 the last ones restore less than 99%
        ({5: 5.0}, [5, 9], 21),  # all of it by the last eight, none by the last four
    ],
)
def test_far_groups_are_given_up_if_the_nearer_ones_suffice(
    restored: dict[int, float], foremost: list[int], num_asked: int
) -> None:
    asked: list[int] = []

    def remaining(sets: Sequence[np.ndarray]) -> np.ndarray:
        asked.append(len(sets))
        return np.array([6.0 - sum(restored.get(start, 0) for start in of[:, 0]) for of in sets])

    found_V2 = _foremost(remaining, single_tokens(np.arange(10)), 2)
    assert (found_V2[:, 0].tolist(), sum(asked)) == (foremost, num_asked)


def test_behind_labels_alone_there_is_no_source_and_many_may_be_asked_for() -> None:
    """A short chat may have nothing distant but what the template wrote."""
    planted = {place: 4 + place // 8 for place in range(8, 80, 8)}  # nine tokens, each elsewhere
    search = planted_search(planted, lambda seen: 6.0 * ({*planted.values()} <= seen), k=9)
    assert sorted(found_by(search).spans_K2[:, 0].tolist()) == [*planted]
    search.is_label_S[:] = True
    found = found_by(search)
    assert found.spans_K2.shape == (0, 2) and len(found.effects_K) == 0
    left, total = (search.effect_of(of, np.array([0])) for of in (found.with_sources, found.without))
    assert total == pytest.approx(left) and left > 0.1


def test_what_remains_is_a_mean_over_the_trials_alone() -> None:
    """One trial's text holds what the sources say, the other and the search's do not."""
    search = planted_search({11: 5, 63: 7}, lambda seen: 3.0 * len(seen & {5, 7}), k=2)
    search.trial_swaps_BS[-1, 30:32] = [5, 7]
    whole, half = (np.exp(logit) / (np.exp(logit) + 15) for logit in (6, 3))
    divergence_of_one = whole * np.log(whole / half) + (1 - whole) * np.log((1 - whole) / (1 - half))
    assert found_by(search).remaining_K == pytest.approx([divergence_of_one / 2, 0], abs=1e-5)


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [
        ((4, 40, 6, 5), [1, 1]),  # farther apart than a short context
        ((4, 40, 9, 4), [3]),
        ((4, 200, 100, 1), [64, 36]),
    ],
)
def test_neighbors_share_near_rows(lengths: tuple[int, int, int, int], sizes: list[int]) -> None:
    runs = _runs(own_context(np.zeros(lengths[1], dtype=np.int64), ContextLengths(*lengths)))
    assert [len(run) for run in runs] == sizes
    assert np.concatenate(runs).tolist() == [*range(sum(sizes))]


def test_groups_are_split_down_to_the_units_that_matter() -> None:
    """Of 200 words of two tokens, those at 60 and 310 matter, one target each; effects add up.

    By the last criterion: the first, by which others matter more, decides nothing.
    """
    weights_C2F = np.zeros((2, 2, 400))
    weights_C2F[1, [0, 1], [60, 311]] = 3.0
    weights_C2F[0, :, [20, 130, 200, 390]] = 9.0
    asked: list[int] = []

    def effects(spans_V2: np.ndarray) -> np.ndarray:
        asked.append(len(spans_V2))
        return np.stack([weights_C2F[:, :, start:end].sum(-1) for start, end in spans_V2], axis=1)

    spans_V2, effects_CVT = screened(effects, np.arange(0, 402, 2), 2)
    assert [0, *spans_V2[:, 1]] == [*spans_V2[:, 0], 400]
    largest = spans_V2[effects_CVT[1].argmax(axis=0)].tolist()
    assert largest == [[60, 62], [310, 312]] and effects_CVT[1].max(axis=0).tolist() == [3.0, 3.0]
    # 13 groups of 32 tokens, of which two are split in four, two of the parts again, and pairs of words.
    assert asked[:3] == [13, 8, 8] and sum(asked) < 40


def test_sequences_that_start_together_share_a_batch() -> None:
    """To row 300: those that begin within a quarter of the first one's rows, and as many as fit."""
    starts_N = np.array([0, 80, 10, 76, 299, 74, 75, 75])
    few, many = ([*map(list, Batching(size).by_start(starts_N, 300))] for size in (1000, 10_000))
    assert few == [[0, 2, 5], [6, 7, 3, 1], [4]] and many[0] == [0, 2, 5, 6, 7]
    assert Batching(1000).of_many(5, 400) == [slice(0, 2), slice(2, 4), slice(4, 6)]


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [((64, 1024, 16), [16]), ((64, 192, 16), [2] * 8), ((16, 64, 32), [3] * 10 + [2]), ((8, 300, 4), [4])],
)
def test_windows_of_a_null_take_about_the_rows_of_the_other_document(
    lengths: tuple[int, int, int], sizes: list[int]
) -> None:
    packed = [*null_contexts(*np.zeros((2, lengths[1]), dtype=np.int64), ContextLengths(*lengths))]
    assert [len(one.query_rows_T) for one in packed] == sizes


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

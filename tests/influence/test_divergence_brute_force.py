"""Every divergence, and every choice by divergence, computed again naively (naive_predictions.py).

All are from the prediction under the chunk's own long context, those of the null too: its tokens are chosen
to mimic this document's prediction. Only leave-one-out compares a null with itself.
"""

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from naive_predictions import (
    IMPLEMENTATIONS,
    Case,
    Stock,
    divergence,
    log_probs,
    naive_divergences,
    naive_losses,
    witness_and_model,
)
from olmo.model import OLMo

from pipeline.measuring.contexts import (
    Batching,
    Measurement,
    full_pass,
    measured_in_foreign_context,
    measured_in_sequence,
    measured_windows,
    own_context,
)
from pipeline.measuring.far_context import FarContext, far_contexts, selected_positions, sparse_contexts
from pipeline.measuring.flags import ContextLengths
from pipeline.models.interface import CausalLM

S, L, M = 4, 24, 4
LENGTHS = ContextLengths(short_context_length=S, long_context_length=L, targets_per_chunk=M)
TARGETS = range(L - M, L)
TOLERANCE = 2e-5
NAMES = ["own", "other_document"]
Chunks = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def chunks() -> Chunks:
    generator = np.random.default_rng(11)
    return generator.integers(0, 48, L), generator.integers(0, 48, L)


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest, make_olmo: Callable[..., OLMo]) -> tuple[Stock, CausalLM]:
    return witness_and_model(request.param, 4, make_olmo)


@pytest.fixture(scope="module")
def contexts(implementation: tuple[Stock, CausalLM], chunks: Chunks) -> dict[str, FarContext]:
    return far_contexts(Measurement(implementation[1], LENGTHS, Batching(100)), *chunks)


def seen(name: str, chunks: Chunks, target: int) -> np.ndarray:
    """The chunk as the target sees it: its own, or with the other document's tokens before t - s."""
    own, other = chunks
    return own if name == "own" else np.concatenate([other[: target - S], own[target - S :]])


def case(name: str, chunks: Chunks, target: int, far: Iterable[int]) -> Case:
    return seen(name, chunks, target), [*far, *range(target - S, target)]


def test_short_contexts(
    implementation: tuple[Stock, CausalLM], contexts: dict[str, FarContext], chunks: Chunks
) -> None:
    short = contexts["own"].short
    for index, target in enumerate(TARGETS):
        short_case = case("own", chunks, target, ())
        (loss,) = naive_losses(implementation[0], target, [short_case])
        (expected,) = naive_divergences(implementation[0], target, (chunks[0], range(target)), [short_case])
        assert short.losses[index] == pytest.approx(loss, abs=TOLERANCE)
        assert short.divergences[index] == pytest.approx(expected, abs=TOLERANCE)
        assert contexts["other_document"].short.divergences[index] == short.divergences[index]
    assert short.divergences.max() > 100 * TOLERANCE


@pytest.mark.parametrize("context_length", [1, 2, 7, L - M])
def test_windows_of_every_length(
    implementation: tuple[Stock, CausalLM],
    contexts: dict[str, FarContext],
    chunks: Chunks,
    context_length: int,
) -> None:
    stock, lm = implementation
    long, targets_T = contexts["own"].predictions, LENGTHS.targets_T
    windows = measured_windows(lm, chunks[0], targets_T, context_length, Batching(30), long)
    for index, target in enumerate(TARGETS):
        window = [(chunks[0], range(target - context_length, target))]
        (loss,) = naive_losses(stock, target, window)
        (expected,) = naive_divergences(stock, target, (chunks[0], range(target)), window)
        assert windows.losses[index] == pytest.approx(loss, abs=TOLERANCE)
        assert windows.divergences[index] == pytest.approx(expected, abs=TOLERANCE)
    assert windows.divergences[-1] > 100 * TOLERANCE  # the last target has tokens before the widest


@pytest.mark.parametrize("name", NAMES)
def test_every_addition_and_every_choice(
    implementation: tuple[Stock, CausalLM], contexts: dict[str, FarContext], chunks: Chunks, name: str
) -> None:
    added = selected_positions(contexts[name], "add_one_in_divergence", 4, seed=[0])
    greedy = selected_positions(contexts[name], "greedy_divergence", 3, seed=[0])
    for index, target in enumerate(TARGETS):
        reference, chosen = (chunks[0], range(target)), []
        for num_chosen in range(3):
            candidates = [position for position in range(target - S) if position not in chosen]
            cases = [case(name, chunks, target, sorted([*chosen, position])) for position in candidates]
            naive = naive_divergences(implementation[0], target, reference, cases)
            ranked = [candidates[place] for place in np.argsort(naive)]
            if num_chosen == 0:
                found = contexts[name].first_additions.divergences[index]
                np.testing.assert_allclose(found[: target - S], naive, atol=TOLERANCE)
                assert np.isnan(found[target - S :]).all()
                assert added[index].tolist() == ranked[:4]
            chosen.append(ranked[0])
        assert greedy[index].tolist() == chosen


@pytest.mark.parametrize("name", NAMES)
def test_every_sparse_context(
    implementation: tuple[Stock, CausalLM], contexts: dict[str, FarContext], chunks: Chunks, name: str
) -> None:
    rules = ("leave_one_out_divergence", "random", "nearest")
    positions = {rule: selected_positions(contexts[name], rule, 9, seed=[0]) for rule in rules}
    measured = sparse_contexts(contexts[name], positions, dict.fromkeys(rules, [1, 3, 9]))
    for rule in rules:
        for index, target in enumerate(TARGETS):
            cases = [case(name, chunks, target, positions[rule][index, :k]) for k in (1, 3, 9)]
            expected = naive_divergences(implementation[0], target, (chunks[0], range(target)), cases)
            np.testing.assert_allclose(measured[rule].divergences[index], expected, atol=TOLERANCE)
            losses = naive_losses(implementation[0], target, cases)
            np.testing.assert_allclose(measured[rule].losses[index], losses, atol=TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_leaving_one_out_is_compared_with_the_same_far_context(
    implementation: tuple[Stock, CausalLM], contexts: dict[str, FarContext], chunks: Chunks, name: str
) -> None:
    for index, target in enumerate(TARGETS):
        reference = seen(name, chunks, target), range(target)
        cases = [(reference[0], set(range(target)) - {position}) for position in range(target - S)]
        expected = naive_divergences(implementation[0], target, reference, cases)
        np.testing.assert_allclose(
            contexts[name].divergence_TF[index, : target - S], expected, atol=TOLERANCE
        )


def test_a_foreign_far_context(implementation: tuple[Stock, CausalLM], chunks: Chunks) -> None:
    stock, lm = implementation
    reference = full_pass(lm, own_context(chunks[0], LENGTHS)).predictions
    found = measured_in_foreign_context(lm, *chunks, LENGTHS, reference)
    for index, target in enumerate(TARGETS):
        foreign = [(seen("other_document", chunks, target), range(target))]
        (loss,) = naive_losses(stock, target, foreign)
        (expected,) = naive_divergences(stock, target, (chunks[0], range(target)), foreign)
        assert found.losses[index] == pytest.approx(loss, abs=TOLERANCE)
        assert found.divergences[index] == pytest.approx(expected, abs=TOLERANCE)


def test_one_model_from_another(
    implementation: tuple[Stock, CausalLM], chunks: Chunks, make_olmo: Callable[..., OLMo]
) -> None:
    stock, lm = implementation
    other_stock, other_lm = witness_and_model("olmo", 9, make_olmo)
    sequence = own_context(chunks[0], LENGTHS)
    reference = full_pass(other_lm, sequence).predictions
    found = measured_in_sequence(lm, sequence, reference).divergences
    for index, target in enumerate(TARGETS):
        long = [(chunks[0], range(target))]
        expected = divergence(log_probs(other_stock, target, long)[0], log_probs(stock, target, long)[0])
        assert found[index] == pytest.approx(expected, abs=TOLERANCE)
    assert found.min() > 0.1


def test_no_divergence_from_itself_and_none_below_0(
    implementation: tuple[Stock, CausalLM], contexts: dict[str, FarContext], chunks: Chunks
) -> None:
    lm, sequence = implementation[1], own_context(chunks[0], LENGTHS)
    reference = full_pass(lm, sequence).predictions
    assert (measured_in_sequence(lm, sequence, reference).divergences == 0).all()
    # As a context of its own for each target, the long context is computed in another order.
    for index, target in enumerate(TARGETS):
        window = measured_windows(
            lm, chunks[0], np.array([target]), target, Batching(100), reference.at(slice(index, index + 1))
        )
        assert 0 <= window.divergences[0] < 2e-6
    for context in contexts.values():
        for values_TF in (context.divergence_TF, context.first_additions.divergences):
            assert np.nanmin(values_TF) >= 0

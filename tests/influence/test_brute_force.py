"""Everything the engine computes, computed again naively: one pair at a time, by stock models and masks.

The witness is that of naive_predictions.py.
"""

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from losses_under_contexts import long_context_losses, window_losses
from naive_predictions import IMPLEMENTATIONS, Stock, naive_losses, witness_and_model
from olmo.model import OLMo

from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import far_contexts, selected_positions, sparse_contexts
from pipeline.measuring.flags import ContextLengths
from pipeline.models.interface import CausalLM

S, L, M, MAX_K = 4, 24, 5, 8
LENGTHS = ContextLengths(short_context_length=S, long_context_length=L, targets_per_chunk=M)
TARGETS = range(L - M, L)
TOLERANCE = 2e-5


def _naive_loss(stock: Stock, tokens: np.ndarray, target: int, context: Iterable[int]) -> float:
    return naive_losses(stock, target, [(tokens, context)])[0]


@pytest.fixture(scope="module")
def chunks() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(5)
    return generator.integers(0, 48, L), generator.integers(0, 48, L)


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest, make_olmo: Callable[..., OLMo]) -> tuple[Stock, CausalLM]:
    """The naive witness and the model under test, with the same weights."""
    return witness_and_model(request.param, 2, make_olmo)


@pytest.fixture(scope="module")
def stock(implementation: tuple[Stock, CausalLM]) -> Stock:
    return implementation[0]


@pytest.fixture(scope="module")
def lm(implementation: tuple[Stock, CausalLM]) -> CausalLM:
    return implementation[1]


def _far_tokens(name: str, chunks: tuple[np.ndarray, np.ndarray], target: int) -> np.ndarray:
    """The chunk as the target sees it: its own, or with the other document's tokens before t - s."""
    own, other = chunks
    return own if name == "own" else np.concatenate([other[: target - S], own[target - S :]])


def test_short_and_long_losses(stock: Stock, lm: CausalLM, chunks: tuple[np.ndarray, np.ndarray]) -> None:
    own = chunks[0]
    short = window_losses(lm, own, LENGTHS.targets_T, S, Batching(9))
    long = long_context_losses(lm, own, LENGTHS.targets_T)
    for index, target in enumerate(TARGETS):
        assert short[index] == pytest.approx(
            _naive_loss(stock, own, target, range(target - S, target)), abs=TOLERANCE
        )
        assert long[index] == pytest.approx(_naive_loss(stock, own, target, range(target)), abs=TOLERANCE)


@pytest.fixture(scope="module")
def contexts(lm: CausalLM, chunks: tuple[np.ndarray, np.ndarray]) -> dict:
    return far_contexts(Measurement(lm, LENGTHS, Batching(100)), *chunks)


@pytest.fixture(scope="module")
def naive_influences(stock: Stock, chunks: tuple[np.ndarray, np.ndarray]) -> dict[str, list[list[float]]]:
    found = {}
    for name in ("own", "other_document"):
        found[name] = []
        for target in TARGETS:
            tokens = _far_tokens(name, chunks, target)
            everything = _naive_loss(stock, tokens, target, range(target))
            found[name].append(
                [
                    _naive_loss(stock, tokens, target, [i for i in range(target) if i != left_out])
                    - everything
                    for left_out in range(target - S)
                ]
            )
    return found


@pytest.mark.parametrize("name", ["own", "other_document"])
def test_every_influence(contexts: dict, naive_influences: dict, name: str) -> None:
    influence_TF = contexts[name].influence_TF
    assert influence_TF.shape == (M, L - 1 - S)
    for index, naive in enumerate(naive_influences[name]):
        np.testing.assert_allclose(influence_TF[index, : len(naive)], naive, atol=TOLERANCE)
        assert np.isnan(influence_TF[index, len(naive) :]).all()
    assert np.nanstd(influence_TF) > 100 * TOLERANCE


@pytest.mark.parametrize("name", ["own", "other_document"])
def test_selection_takes_the_largest_naive_influences(
    contexts: dict, naive_influences: dict, name: str
) -> None:
    selected = selected_positions(contexts[name], "leave_one_out", MAX_K, seed=[0])
    for index, naive in enumerate(naive_influences[name]):
        assert selected[index].tolist() == sorted(range(len(naive)), key=lambda i: -naive[i])[:MAX_K]


@pytest.mark.parametrize("k", [1, 3, MAX_K])
def test_every_sparse_context_loss(
    stock: Stock, contexts: dict, chunks: tuple[np.ndarray, np.ndarray], k: int
) -> None:
    for name, context in contexts.items():
        selections = {
            rule: selected_positions(context, rule, MAX_K, seed=[0])
            for rule in ("leave_one_out", "random", "nearest")
        }
        measured = sparse_contexts(context, selections, dict.fromkeys(selections, [k]))
        assert measured.keys() == selections.keys()
        for rule, positions in selections.items():
            assert measured[rule].losses.shape == (M, 1)
            for index, target in enumerate(TARGETS):
                seen = [*positions[index, :k].tolist(), *range(target - S, target)]
                naive = _naive_loss(stock, _far_tokens(name, chunks, target), target, seen)
                assert measured[rule].losses[index, 0] == pytest.approx(naive, abs=TOLERANCE), (
                    rule,
                    name,
                    target,
                )


def test_a_wide_target_block_reaches_into_its_own_far_context(
    stock: Stock, lm: CausalLM, chunks: tuple[np.ndarray, np.ndarray]
) -> None:
    # With s < m, an early target's own rows are far context of a late one; the early one must not notice.
    lengths = ContextLengths(short_context_length=2, long_context_length=L, targets_per_chunk=12)
    own = chunks[0]
    context = far_contexts(Measurement(lm, lengths, Batching(100)), *chunks)["own"]
    first = L - 12
    everything = _naive_loss(stock, own, first, range(first))
    for left_out in range(first - 2):
        naive = _naive_loss(stock, own, first, [i for i in range(first) if i != left_out]) - everything
        assert context.influence_TF[0, left_out] == pytest.approx(naive, abs=TOLERANCE)
    assert np.isnan(context.influence_TF[0, first - 2 :]).all()

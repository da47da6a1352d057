"""What each rule ranks by, computed again naively: one pair at a time, by stock OLMo with masks in place.

As in test_brute_force, the witness shares no code with the engine. Keys and values are shared by two heads
each, so that attention and its gates are tried there too.
"""

import math
from collections.abc import Callable, Iterable
from itertools import combinations

import numpy as np
import pytest
import torch
from hand_made_models import exhaustive
from olmo.model import OLMo

from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import FarContext, far_contexts, selected_positions
from pipeline.measuring.flags import ContextLengths
from pipeline.models.olmo import OLMoCausalLM

S, L, M = 4, 24, 5
LENGTHS = ContextLengths(short_context_length=S, long_context_length=L, targets_per_chunk=M)
TARGETS = range(L - M, L)
TOLERANCE = 2e-5
NAMES = ["own", "other_document"]


@pytest.fixture(scope="module")
def chunks() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(6)
    return generator.integers(0, 48, L), generator.integers(0, 48, L)


@pytest.fixture(scope="module")
def stock(make_olmo: Callable[..., OLMo]) -> OLMo:
    return make_olmo(seed=3, n_kv_heads=2)


@pytest.fixture(scope="module")
def lm(make_olmo: Callable[..., OLMo]) -> OLMoCausalLM:
    return OLMoCausalLM(make_olmo(seed=3, n_kv_heads=2))


@pytest.fixture(scope="module")
def contexts(lm: OLMoCausalLM, chunks: tuple[np.ndarray, np.ndarray]) -> dict[str, FarContext]:
    return far_contexts(Measurement(lm, LENGTHS, Batching(100)), *chunks)


def _seen(name: str, chunks: tuple[np.ndarray, np.ndarray], target: int) -> np.ndarray:
    """The chunk as the target sees it: its own, or with the other document's tokens before t - s."""
    own, other = chunks
    return own if name == "own" else np.concatenate([other[: target - S], own[target - S :]])


def _log_probs(stock: OLMo, tokens: np.ndarray, target: int, gates: dict[int, float]) -> torch.Tensor:
    """ln p of the vocabulary; `gates` multiply exp(score) of the edges into a position, 1 elsewhere."""
    bias = torch.full((target, target), -math.inf).triu(1)
    for position, gate in gates.items():
        bias[position:, position] = math.log(gate) if gate else torch.finfo(torch.float32).min
    with torch.inference_mode():
        logits = stock(torch.tensor(tokens[None, :target]), attention_bias=bias[None, None]).logits[0, -1]
    return torch.log_softmax(logits, -1)


def _loss(
    stock: OLMo, tokens: np.ndarray, target: int, left_out: Iterable[int] = (), gate: float = 0.0
) -> float:
    gates = dict.fromkeys(left_out, gate)
    return -_log_probs(stock, tokens, target, gates)[int(tokens[target])].item()


def _loss_with(stock: OLMo, tokens: np.ndarray, target: int, kept: Iterable[int]) -> float:
    return _loss(stock, tokens, target, set(range(target - S)) - set(kept))


@pytest.mark.parametrize("name", NAMES)
def test_every_divergence(
    stock: OLMo, contexts: dict[str, FarContext], chunks: tuple[np.ndarray, np.ndarray], name: str
) -> None:
    found = contexts[name].divergence_TF
    for index, target in enumerate(TARGETS):
        tokens = _seen(name, chunks, target)
        long = _log_probs(stock, tokens, target, {})
        for position in range(target - S):
            without = _log_probs(stock, tokens, target, {position: 0.0})
            naive = (long.exp() * (long - without)).sum().item()
            assert found[index, position] == pytest.approx(naive, abs=TOLERANCE)
        assert np.isnan(found[index, target - S :]).all()
    assert np.nanstd(found) > 100 * TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_influences_measured_beside_the_divergence_are_the_same(
    lm: OLMoCausalLM, contexts: dict[str, FarContext], chunks: tuple[np.ndarray, np.ndarray], name: str
) -> None:
    alone = far_contexts(Measurement(lm, LENGTHS, Batching(100)), *chunks)[name]
    np.testing.assert_allclose(contexts[name].influence_TF, alone.influence_TF, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_every_influence_of_a_substitution(
    stock: OLMo, lm: OLMoCausalLM, chunks: tuple[np.ndarray, np.ndarray], name: str
) -> None:
    substitutes = np.random.default_rng(8).integers(0, 48, L)
    found = far_contexts(Measurement(lm, LENGTHS, Batching(100)), *chunks, substitute_ids_L=substitutes)[
        name
    ].influence_TF
    for index, target in enumerate(TARGETS):
        tokens = _seen(name, chunks, target)
        long = _loss(stock, tokens, target)
        for position in range(target - S):
            replaced = tokens.copy()
            replaced[position] = substitutes[position]
            naive = _loss(stock, replaced, target) - long
            assert found[index, position] == pytest.approx(naive, abs=TOLERANCE)
        assert np.isnan(found[index, target - S :]).all()
    assert np.nanstd(found) > 100 * TOLERANCE


def test_a_wide_target_block_reaches_into_its_own_far_context(
    stock: OLMo, lm: OLMoCausalLM, chunks: tuple[np.ndarray, np.ndarray]
) -> None:
    # With s < m, an early target's own rows are far context of a late one; the early one must not notice.
    lengths = ContextLengths(short_context_length=2, long_context_length=L, targets_per_chunk=12)
    substitutes, first = np.random.default_rng(9).integers(0, 48, L), L - 12
    removed = far_contexts(Measurement(lm, lengths, Batching(100)), *chunks)["own"]
    substituted = far_contexts(
        Measurement(lm, lengths, Batching(100)), *chunks, substitute_ids_L=substitutes
    )["own"]
    long = _log_probs(stock, chunks[0], first, {})
    for position in range(first - 2):
        without = _log_probs(stock, chunks[0], first, {position: 0.0})
        naive = (long.exp() * (long - without)).sum().item()
        assert removed.divergence_TF[0, position] == pytest.approx(naive, abs=TOLERANCE)
        replaced = chunks[0].copy()
        replaced[position] = substitutes[position]
        naive = _loss(stock, replaced, first) - _loss(stock, chunks[0], first)
        assert substituted.influence_TF[0, position] == pytest.approx(naive, abs=TOLERANCE)
    for found in (removed.divergence_TF, substituted.influence_TF, removed.gate_gradient_TF):
        assert np.isnan(found[0, first - 2 :]).all()


@pytest.mark.parametrize("name", NAMES)
def test_every_addition_and_every_greedy_choice(
    stock: OLMo, contexts: dict[str, FarContext], chunks: tuple[np.ndarray, np.ndarray], name: str
) -> None:
    added = selected_positions(contexts[name], "add_one_in", 4, seed=[0])
    greedy = selected_positions(contexts[name], "greedy", 3, seed=[0])
    for index, target in enumerate(TARGETS):
        tokens, chosen = _seen(name, chunks, target), []
        for num_chosen in range(3):
            candidates = [position for position in range(target - S) if position not in chosen]
            naive = {i: _loss_with(stock, tokens, target, [*chosen, i]) for i in candidates}
            ranked = sorted(candidates, key=lambda position: naive[position])
            if num_chosen == 0:
                found = contexts[name].first_additions.losses[index]
                np.testing.assert_allclose(found[: target - S], list(naive.values()), atol=TOLERANCE)
                assert np.isnan(found[target - S :]).all()
                assert added[index].tolist() == ranked[:4]
            chosen.append(ranked[0])
        assert greedy[index].tolist() == chosen


@pytest.mark.parametrize("name", NAMES)
def test_every_gate_gradient_is_a_finite_difference(
    stock: OLMo, contexts: dict[str, FarContext], chunks: tuple[np.ndarray, np.ndarray], name: str
) -> None:
    found, step = contexts[name].gate_gradient_TF, 0.005
    for index, target in enumerate(TARGETS):
        tokens = _seen(name, chunks, target)
        for position in range(target - S):
            opened, closed = (
                _loss(stock, tokens, target, [position], 1 + change) for change in (step, -step)
            )
            assert found[index, position] == pytest.approx((opened - closed) / (2 * step), abs=5e-4)
        assert np.isnan(found[index, target - S :]).all()
    assert np.nanstd(found) > 0.02


@pytest.mark.parametrize("name", NAMES)
def test_every_attention_mass(
    stock: OLMo,
    contexts: dict[str, FarContext],
    chunks: tuple[np.ndarray, np.ndarray],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rotated: list[tuple[torch.Tensor, torch.Tensor]] = []
    for block in stock.transformer.blocks:
        original = block._scaled_dot_product_attention

        def note(
            q: torch.Tensor, k: torch.Tensor, *rest: object, original: Callable = original, **more: object
        ) -> torch.Tensor:
            rotated.append((q[0], k[0]))
            return original(q, k, *rest, **more)

        monkeypatch.setattr(block, "_scaled_dot_product_attention", note)
    for index, target in enumerate(TARGETS):
        rotated.clear()
        _log_probs(stock, _seen(name, chunks, target), target, {})
        masses = []
        for query_HSE, key_GSE in rotated:
            for head in range(4):
                scores = [float(query_HSE[head, -1] @ key) / math.sqrt(8) for key in key_GSE[head // 2]]
                total = sum(math.exp(score) for score in scores)
                masses.append([math.exp(score) / total for score in scores])
        naive = np.mean(masses, axis=0)
        assert len(masses) == 2 * 4 and naive.sum() == pytest.approx(1)
        found = contexts[name].attention_TF[index]
        np.testing.assert_allclose(found[: target - S], naive[: target - S], atol=1e-6)
        assert np.isnan(found[target - S :]).all()


def test_exhaustive_takes_the_best_naive_pair_and_is_no_worse_than_greedy(
    stock: OLMo, contexts: dict[str, FarContext], chunks: tuple[np.ndarray, np.ndarray]
) -> None:
    own = contexts["own"]
    pairs = exhaustive(own, 2)
    target, every_pair = TARGETS[0], list(combinations(range(TARGETS[0] - S), 2))
    losses = [_loss_with(stock, chunks[0], target, pair) for pair in every_pair]
    assert sorted(pairs[0].tolist()) == list(every_pair[int(np.argmin(losses))])
    every_target = np.arange(M)
    of_exhaustive = own.measured_with(every_target, pairs).losses
    of_greedy = own.measured_with(every_target, selected_positions(own, "greedy", 2, seed=[0])).losses
    of_nothing = own.measured_with(every_target, np.empty((M, 0), dtype=np.int64)).losses
    assert (of_exhaustive <= of_greedy + TOLERANCE).all()
    assert (of_greedy < of_nothing).all()

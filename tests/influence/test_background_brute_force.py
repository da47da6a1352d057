"""The intervention `background`, computed again naively (naive_predictions.py).

Nothing is ever left out under it: the witness reads every position before the target, and only which
document's token stands there changes.
"""

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from naive_predictions import Case, Stock, naive_divergences, naive_losses, witness_and_model
from olmo.model import OLMo

from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import (
    FarContextInBackground,
    far_contexts,
    selected_positions,
    sparse_contexts,
)
from pipeline.measuring.flags import ContextLengths
from pipeline.models.interface import CausalLM

S, L, M = 4, 24, 4
LENGTHS = ContextLengths(short_context_length=S, long_context_length=L, targets_per_chunk=M)
TARGETS = range(L - M, L)
TOLERANCE = 2e-5
NAMES = ["own", "other_document"]
Chunks = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def chunks() -> Chunks:
    generator = np.random.default_rng(12)
    names = [*NAMES, "first background", "second background"]
    return {name: generator.integers(0, 48, L) for name in names}


@pytest.fixture(scope="module", params=["olmo", "llama", "gpt2"])
def implementation(request: pytest.FixtureRequest, make_olmo: Callable[..., OLMo]) -> tuple[Stock, CausalLM]:
    return witness_and_model(request.param, 5, make_olmo)


def backgrounds(chunks: Chunks) -> list[np.ndarray]:
    return [chunks["first background"], chunks["second background"]]


def in_backgrounds(lm: CausalLM, chunks: Chunks, number: int = 2) -> dict[str, FarContextInBackground]:
    return far_contexts(
        Measurement(lm, LENGTHS, Batching(100)), chunks["own"], chunks["other_document"],
        background_ids_BL=np.stack(backgrounds(chunks)[:number]),
    )  # fmt: skip


@pytest.fixture(scope="module")
def contexts(implementation: tuple[Stock, CausalLM], chunks: Chunks) -> dict[str, FarContextInBackground]:
    return in_backgrounds(implementation[1], chunks)


def restored(chunks: Chunks, name: str, background_L: np.ndarray, target: int, far: Iterable[int]) -> Case:
    """Of the far tokens, those of `far` are `name`'s and the others the background's; the rest is own."""
    tokens = np.concatenate([background_L[: target - S], chunks["own"][target - S :]])
    for position in far:
        tokens[position] = chunks[name][position]
    return tokens, range(target)


def mean_over_backgrounds(
    stock: Stock, chunks: Chunks, name: str, target: int, sets: list[list[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Losses and divergences of each set, restored in either background."""
    of_each = [
        [restored(chunks, name, background_L, target, far) for far in sets]
        for background_L in backgrounds(chunks)
    ]
    reference = chunks["own"], range(target)
    losses = [naive_losses(stock, target, cases) for cases in of_each]
    divergences = [naive_divergences(stock, target, reference, cases) for cases in of_each]
    return np.mean(losses, axis=0), np.mean(divergences, axis=0)


def test_nothing_restored(
    implementation: tuple[Stock, CausalLM], contexts: dict[str, FarContextInBackground], chunks: Chunks
) -> None:
    for index, target in enumerate(TARGETS):
        losses, divergences = mean_over_backgrounds(implementation[0], chunks, "own", target, [[]])
        for context in contexts.values():
            assert context.background.losses[index] == pytest.approx(losses[0], abs=TOLERANCE)
            assert context.background.divergences[index] == pytest.approx(divergences[0], abs=TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_one_token_restored(
    implementation: tuple[Stock, CausalLM],
    contexts: dict[str, FarContextInBackground],
    chunks: Chunks,
    name: str,
) -> None:
    found = contexts[name].first_additions
    for index, target in enumerate(TARGETS):
        sets = [[position] for position in range(target - S)]
        losses, divergences = mean_over_backgrounds(implementation[0], chunks, name, target, sets)
        np.testing.assert_allclose(found.losses[index, : target - S], losses, atol=TOLERANCE)
        np.testing.assert_allclose(found.divergences[index, : target - S], divergences, atol=TOLERANCE)
        assert np.isnan(found.losses[index, target - S :]).all()
        for rule, naive in (("add_one_in", losses), ("add_one_in_divergence", divergences)):
            chosen = selected_positions(contexts[name], rule, 5, seed=[0])[index]
            assert chosen.tolist() == np.argsort(naive)[:5].tolist()
    assert np.nanstd(found.losses) > 100 * TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_one_token_replaced(
    implementation: tuple[Stock, CausalLM],
    contexts: dict[str, FarContextInBackground],
    chunks: Chunks,
    name: str,
) -> None:
    stock = implementation[0]
    for index, target in enumerate(TARGETS):
        (tokens, everything), naive = restored(chunks, name, chunks[name], target, ()), []
        for background_L in backgrounds(chunks):
            cases: list[Case] = []
            for position in range(target - S):
                replaced = tokens.copy()
                replaced[position] = background_L[position]
                cases.append((replaced, everything))
            (loss,) = naive_losses(stock, target, [(tokens, everything)])
            influences = np.array(naive_losses(stock, target, cases)) - loss
            naive.append((influences, naive_divergences(stock, target, (tokens, everything), cases)))
        influences, divergences = np.mean(naive, axis=0)
        found = contexts[name]
        np.testing.assert_allclose(found.influence_TF[index, : target - S], influences, atol=TOLERANCE)
        np.testing.assert_allclose(found.divergence_TF[index, : target - S], divergences, atol=TOLERANCE)
        chosen = selected_positions(found, "leave_one_out_divergence", 3, seed=[0])[index]
        assert chosen.tolist() == np.argsort(-divergences)[:3].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_sparse_contexts(
    implementation: tuple[Stock, CausalLM],
    contexts: dict[str, FarContextInBackground],
    chunks: Chunks,
    name: str,
) -> None:
    rules = ("add_one_in_divergence", "random", "nearest")
    positions = {rule: selected_positions(contexts[name], rule, 16, seed=[0]) for rule in rules}
    measured = sparse_contexts(contexts[name], positions, dict.fromkeys(rules, [1, 4, 16]))
    for index, target in enumerate(TARGETS):
        for rule in rules:
            sets = [positions[rule][index, :k].tolist() for k in (1, 4, 16)]
            losses, divergences = mean_over_backgrounds(implementation[0], chunks, name, target, sets)
            np.testing.assert_allclose(measured[rule].losses[index], losses, atol=TOLERANCE)
            np.testing.assert_allclose(measured[rule].divergences[index], divergences, atol=TOLERANCE)


def test_the_whole_own_far_context_restored_is_the_long_context(
    contexts: dict[str, FarContextInBackground],
) -> None:
    own = contexts["own"]
    for index, target in enumerate(TARGETS):
        everything = own.measured_with(np.array([index]), np.arange(target - S)[None])
        assert 0 <= everything.divergences[0] < 2e-6
        assert everything.losses[0] == pytest.approx(own.long_losses_T[index], abs=TOLERANCE)


def test_a_background_of_the_own_tokens_changes_nothing(
    implementation: tuple[Stock, CausalLM], chunks: Chunks
) -> None:
    same = chunks | {"first background": chunks["own"]}
    own = in_backgrounds(implementation[1], same, number=1)["own"]
    np.testing.assert_allclose(own.background.losses, own.long_losses_T, atol=TOLERANCE)
    assert (own.background.divergences < 2e-6).all()
    assert np.nanmax(np.abs(own.influence_TF)) < TOLERANCE
    assert np.nanmax(own.first_additions.divergences) < 2e-6

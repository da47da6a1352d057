"""Context length probing: every loss recomputed by stock models, and scores that add up."""

from collections.abc import Callable

import numpy as np
import pytest
from naive_predictions import Stock, naive_divergences, naive_losses, witness_and_model
from olmo.model import OLMo

from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import FarContext, far_contexts
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.methods import (
    context_length_probing,
    context_length_probing_divergence,
    measured_from_each_start,
)
from pipeline.models.interface import CausalLM

S, L, M = 3, 16, 5  # s < m: an early target's own rows are far context of a late one
LENGTHS = ContextLengths(short_context_length=S, long_context_length=L, targets_per_chunk=M)
TOLERANCE = 2e-5
NAMES = ["own", "other_document"]
Pair = tuple[Stock, CausalLM]


@pytest.fixture(scope="module")
def chunks() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(23)
    return {name: generator.integers(0, 48, L) for name in (*NAMES, "first", "second")}


@pytest.fixture(scope="module", params=["olmo", "gemma2"])
def implementation(request: pytest.FixtureRequest, make_olmo: Callable[..., OLMo]) -> Pair:
    return witness_and_model(request.param, 9, make_olmo)


def measured(
    lm: CausalLM, chunks: dict[str, np.ndarray], fills: tuple[str, ...], tokens_per_batch: int = 60
) -> dict[str, FarContext]:
    return far_contexts(
        Measurement(lm, LENGTHS, Batching(tokens_per_batch)), chunks["own"], chunks["other_document"],
        background_ids_BL=np.stack([chunks[fill] for fill in fills]) if fills else None,
    )  # fmt: skip


@pytest.mark.parametrize("fills", [(), ("first", "second")])
@pytest.mark.parametrize("name", NAMES)
def test_every_start_is_measured_as_stock_models_do(
    implementation: Pair, chunks: dict[str, np.ndarray], name: str, fills: tuple[str, ...]
) -> None:
    stock, lm = implementation
    context = measured(lm, chunks, fills)[name]
    losses_TE, divergences_TE = measured_from_each_start(context)
    for index, target in enumerate(range(L - M, L)):
        num_far = target - S
        naive_of_fills = []
        for fill in fills or (None,):
            cases = []
            for start in range(num_far + 1):
                tokens = chunks["own"].copy()
                tokens[:num_far] = chunks[name][:num_far]
                if fill is not None:
                    tokens[:start] = chunks[fill][:start]
                cases.append((tokens, range(0 if fill else start, target)))
            naive_of_fills.append(
                (
                    naive_losses(stock, target, cases),
                    naive_divergences(stock, target, (chunks["own"], range(target)), cases),
                )
            )
        naive_losses_E, naive_divergences_E = np.mean(naive_of_fills, axis=0)
        np.testing.assert_allclose(losses_TE[index, : num_far + 1], naive_losses_E, atol=TOLERANCE)
        np.testing.assert_allclose(divergences_TE[index, : num_far + 1], naive_divergences_E, atol=TOLERANCE)
        assert np.isnan(losses_TE[index, num_far + 1 :]).all()
        np.testing.assert_allclose(
            context_length_probing(context)[index, :num_far],
            naive_losses_E[1:] - naive_losses_E[:-1],
            atol=2 * TOLERANCE,
        )
    assert np.nanstd(losses_TE) > 100 * TOLERANCE


@pytest.mark.parametrize("fills", [(), ("first",)])
@pytest.mark.parametrize("name", NAMES)
def test_scores_add_up_to_what_the_far_context_gives(
    implementation: Pair, chunks: dict[str, np.ndarray], name: str, fills: tuple[str, ...]
) -> None:
    context = measured(implementation[1], chunks, fills)[name]
    baseline = context.background or context.short
    gains_T = baseline.losses.astype(np.float64) - context.long_losses_T
    np.testing.assert_allclose(np.nansum(context_length_probing(context), axis=1), gains_T, atol=1e-12)
    if name == "own":  # whose divergence under the long context is 0
        found_T = np.nansum(context_length_probing_divergence(context), axis=1)
        np.testing.assert_allclose(found_T, baseline.divergences, atol=1e-5)


def test_batches_change_nothing_but_last_bits(implementation: Pair, chunks: dict[str, np.ndarray]) -> None:
    for name in NAMES:
        for fills in ((), ("first",)):
            single, many = (
                measured_from_each_start(measured(implementation[1], chunks, fills, size)[name]).losses
                for size in (1, 10_000)
            )
            np.testing.assert_allclose(single, many, atol=TOLERANCE)


def test_a_far_context_of_one_token_has_the_whole_gain(make_olmo: Callable[..., OLMo]) -> None:
    _, lm = witness_and_model("olmo", 9, make_olmo)
    lengths = ContextLengths(short_context_length=3, long_context_length=5, targets_per_chunk=1)
    own, _ = far_contexts(Measurement(lm, lengths, Batching(1)), np.arange(5), np.arange(5)).values()
    gain = float(own.short.losses[0]) - float(own.long_losses_T[0])
    assert context_length_probing(own).tolist() == [[gain]]

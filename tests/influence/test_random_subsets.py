"""Mean effects over random subsets: each recomputed naively, and all of a tiny far context's."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from naive_predictions import Stock, naive_divergences, naive_losses, witness_and_model
from olmo.model import OLMo

from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import FarContext, far_contexts, random_subsets
from pipeline.measuring.flags import ContextLengths
from pipeline.models.interface import CausalLM

S, L, M, NUM_SUBSETS = 3, 14, 3, 8
LENGTHS = ContextLengths(short_context_length=S, long_context_length=L, targets_per_chunk=M)
TOLERANCE = 2e-5
NAMES = ["own", "other_document"]
SEED = (3, 1, 4)
Pair = tuple[Stock, CausalLM]


@pytest.fixture(scope="module")
def chunks() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(13)
    return {name: generator.integers(0, 48, L) for name in (*NAMES, "background")}


@pytest.fixture(scope="module", params=["olmo", "gpt_neox"])
def implementation(request: pytest.FixtureRequest, make_olmo: Callable[..., OLMo]) -> Pair:
    return witness_and_model(request.param, 6, make_olmo)


def measured(
    lm: CausalLM,
    chunks: dict[str, np.ndarray],
    lengths: ContextLengths,
    num_subsets: int,
    is_background: bool,
) -> dict[str, FarContext]:
    return far_contexts(
        Measurement(lm, lengths, Batching(200), num_subsets=num_subsets, seed=SEED), chunks["own"],
        chunks["other_document"],
        background_ids_BL=chunks["background"][None] if is_background else None,
    )  # fmt: skip


def naive_values(
    stock: Stock, chunks: dict[str, np.ndarray], name: str, target: int, kept_NF: np.ndarray, fills: bool
) -> tuple[list[float], list[float]]:
    """Losses and divergences of the target with each subset of its far context."""
    num_far = target - S
    cases = []
    for kept_F in kept_NF[:, :num_far]:
        tokens = chunks["own"].copy()
        tokens[:num_far] = chunks[name][:num_far]
        if fills:
            tokens[:num_far] = np.where(kept_F, tokens[:num_far], chunks["background"][:num_far])
        far = range(num_far) if fills else np.nonzero(kept_F)[0]
        cases.append((tokens, [*far, *range(num_far, target)]))
    reference = chunks["own"], range(target)
    return naive_losses(stock, target, cases), naive_divergences(stock, target, reference, cases)


@pytest.mark.parametrize("is_background", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_effects_are_means_over_the_subsets(
    implementation: Pair, chunks: dict[str, np.ndarray], name: str, is_background: bool
) -> None:
    stock, lm = implementation
    found = measured(lm, chunks, LENGTHS, NUM_SUBSETS, is_background)[name].subset_effects
    kept_NF = random_subsets(L - 1 - S, NUM_SUBSETS, SEED)
    for index, target in enumerate(range(L - M, L)):
        of_criteria = naive_values(stock, chunks, name, target, kept_NF, is_background)
        for values_TF, naive in zip(found, of_criteria, strict=True):
            for position in range(target - S):
                with_it, without_it = (
                    [value for value, kept in zip(naive, kept_NF[:, position], strict=True) if kept == wanted]
                    for wanted in (True, False)
                )
                expected = np.mean(without_it) - np.mean(with_it)
                assert values_TF[index, position] == pytest.approx(expected, abs=TOLERANCE)
            assert np.isnan(values_TF[index, target - S :]).all()
    assert np.nanstd(found.losses) > 100 * TOLERANCE


def test_subsets_come_in_pairs_and_hold_half_of_all_tokens_on_average() -> None:
    kept_NF = random_subsets(9, 4000, SEED)
    assert (kept_NF[::2] == ~kept_NF[1::2]).all()
    assert (kept_NF.sum(0) == 2000).all()
    # Whether one token is there tells nothing of another: pairs are as likely as independence has them.
    for first, second in ((0, 1), (3, 8)):
        both = (kept_NF[::2, first] == kept_NF[::2, second]).sum()
        assert abs(both - 1000) < 5 * np.sqrt(2000 / 4)
    assert (random_subsets(9, 10, SEED) == kept_NF[:10]).all()
    assert (random_subsets(9, 10, (0,)) != kept_NF[:10]).any()


def test_many_subsets_tell_the_banzhaf_value(implementation: Pair, chunks: dict[str, np.ndarray]) -> None:
    num_far, num_subsets = 6, 2000
    stock, lm = implementation
    lengths = ContextLengths(short_context_length=S, long_context_length=S + num_far + 1, targets_per_chunk=1)
    tiny = {name: chunk_L[: lengths.long_context_length] for name, chunk_L in chunks.items()}
    found = measured(lm, tiny, lengths, num_subsets, is_background=False)["own"].subset_effects
    every_NF = np.array(list(product([False, True], repeat=num_far)))
    for values_TF, naive in zip(
        found, naive_values(stock, tiny, "own", S + num_far, every_NF, fills=False), strict=True
    ):
        values_N = np.array(naive)
        banzhaf = np.array([values_N[~with_N].mean() - values_N[with_N].mean() for with_N in every_NF.T])
        # A pair's difference is one draw of about this spread, and there are half as many as subsets.
        sampling_error = 2 * values_N.std() / np.sqrt(num_subsets)
        np.testing.assert_allclose(values_TF[0], banzhaf, atol=4 * sampling_error)
        assert np.ptp(banzhaf) > 8 * sampling_error

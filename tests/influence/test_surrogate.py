"""The linear surrogate: its subsets, its outputs by stock models, its fit by optimality, its sentence."""

import logging
from collections.abc import Callable

import numpy as np
import pytest
from hand_made_models import EvidenceLM
from naive_predictions import naive_divergences, naive_losses, witness_and_model
from olmo.model import OLMo

from pipeline.measuring import methods as method
from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import FarContext, far_contexts, selected_positions
from pipeline.measuring.flags import ContextLengths

S, L, M, NUM_SUBSETS = 3, 14, 3, 12
LENGTHS = ContextLengths(short_context_length=S, long_context_length=L, targets_per_chunk=M)
NAMES = ["own", "other_document"]


def is_optimal(
    kept_NF: np.ndarray, outputs_N: np.ndarray, weights_F: np.ndarray, penalty: float, tolerance: float
) -> bool:
    """Whether the weights of standardized features satisfy the conditions of the Lasso's optimum."""
    spread_F = kept_NF.std(0)
    features_NF = (kept_NF - kept_NF.mean(0)) / np.where(spread_F, spread_F, 1)
    scaled_F = weights_F * np.where(spread_F, spread_F, 1)
    rest_N = outputs_N - outputs_N.mean() - features_NF @ scaled_F
    slopes_F = features_NF.T @ rest_N / len(outputs_N)
    is_there_F = scaled_F != 0
    return bool(
        np.allclose(slopes_F[is_there_F], penalty * np.sign(scaled_F[is_there_F]), atol=tolerance)
        and (abs(slopes_F[~is_there_F]) <= penalty + tolerance).all()
    )


@pytest.mark.parametrize("fill", [None, "background"])
@pytest.mark.parametrize("name", NAMES)
def test_weights_are_the_lasso_of_what_stock_models_say(
    make_olmo: Callable[..., OLMo], name: str, fill: str | None
) -> None:
    stock, lm = witness_and_model("olmo", 6, make_olmo)
    generator = np.random.default_rng(31)
    chunks = {key: generator.integers(0, 48, L) for key in (*NAMES, "background")}
    measurement = Measurement(lm, LENGTHS, Batching(200), num_subsets=NUM_SUBSETS, kept_fraction=0.7)
    context = far_contexts(
        measurement, chunks["own"], chunks["other_document"],
        background_ids_BL=chunks[fill][None] if fill else None,
    )[name]  # fmt: skip
    kept_NF = method.subsets_of(context)
    found = method.surrogate(context), method.surrogate_divergence(context)
    for index, target in enumerate(range(L - M, L)):
        num_far, cases = target - S, []
        for kept_F in kept_NF[:, : target - S]:
            tokens = chunks["own"].copy()
            other = chunks[fill] if fill else tokens
            tokens[:num_far] = np.where(kept_F, chunks[name][:num_far], other[:num_far])
            far = range(num_far) if fill else np.nonzero(kept_F)[0]
            cases.append((tokens, [*far, *range(num_far, target)]))
        probs_N = np.exp(-np.array(naive_losses(stock, target, cases)))
        divergences_N = -np.array(naive_divergences(stock, target, (chunks["own"], range(target)), cases))
        outputs = np.log(probs_N / (1 - probs_N)), divergences_N
        for weights_TF, outputs_N in zip(found, outputs, strict=True):
            weights_F, kept = weights_TF[index, :num_far], kept_NF[:, :num_far]
            assert is_optimal(kept, outputs_N, weights_F, method.PENALTY, tolerance=2e-3)
            assert np.isnan(weights_TF[index, num_far:]).all()
            assert (weights_F != 0).any() and not is_optimal(kept, outputs_N, 1.3 * weights_F, 0.01, 2e-3)


def test_it_tells_the_tokens_that_add_to_the_logit() -> None:
    # One target at 30 of far tokens 0 to 27, which are all different: 3 adds 4 to the answer's logit, 8 takes
    # 2 away, 20 adds 1. The answer's logit is that of its probability plus ln 31, as 31 others have logit 0.
    worth = {3: 4.0, 8: -2.0, 20: 1.0}
    model = EvidenceLM(32, 31, lambda seen: sum(worth.get(token, 0) for token in seen))
    lengths = ContextLengths(short_context_length=2, long_context_length=31, targets_per_chunk=1)
    chunk = np.append(np.arange(30), 31)
    own = far_contexts(Measurement(model, lengths, Batching(1000)), chunk, np.full(31, 30))["own"]
    weights_F = method.surrogate(own)[0]
    # A penalty of 0.01 on features that spread by a half each shrinks weights by 0.02.
    assert [weights_F[token] for token in worth] == pytest.approx([3.98, -1.98, 0.98], abs=0.02)
    assert np.abs(np.delete(weights_F, list(worth))).max() < 0.01
    assert selected_positions(own, "surrogate", 2, seed=[0]).tolist() == [[3, 20]]
    assert selected_positions(own, "surrogate_divergence", 1, seed=[0]).tolist() == [[3]]


def test_subsets_hold_the_share_that_is_asked_for(make_olmo: Callable[..., OLMo]) -> None:
    lengths = ContextLengths(short_context_length=3, long_context_length=54, targets_per_chunk=1)
    _, lm = witness_and_model("olmo", 6, make_olmo)

    def subsets(**options: object) -> np.ndarray:
        measurement = Measurement(lm, lengths, Batching(1), num_subsets=400, **options)
        return method.subsets_of(far_contexts(measurement, np.arange(54) % 48, np.zeros(54, int))["own"])

    kept_NF = subsets(kept_fraction=0.8)
    assert kept_NF.shape == (400, 50) and abs(kept_NF.mean() - 0.8) < 5 * np.sqrt(0.16 / 20_000)
    assert abs(kept_NF[:, 0].mean() - 0.8) < 5 * np.sqrt(0.16 / 400)
    assert (kept_NF == subsets(kept_fraction=0.8)).all()
    assert (kept_NF != subsets(kept_fraction=0.8, seed=(1,))).any()
    assert subsets(kept_fraction=1.0).all() and not subsets(kept_fraction=0.0).any()


def test_logits_of_losses_by_hand() -> None:
    losses = np.array([np.log(2), np.log(4), 30.0, 0.0], dtype=np.float32)
    found = method.logits_of_losses(losses)
    np.testing.assert_allclose(found[:3], [0, -np.log(3), -30], atol=1e-6)
    assert 16 < found[3] < 17  # float32 tells no surer prediction


def test_a_fit_that_does_not_converge_is_said_with_its_target(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, make_olmo: Callable[..., OLMo]
) -> None:
    _, lm = witness_and_model("olmo", 6, make_olmo)
    measurement = Measurement(lm, LENGTHS, Batching(100), num_subsets=8, where="chunk 2 of document 00ab")
    own: FarContext = far_contexts(measurement, np.arange(L), np.arange(L)[::-1].copy())["own"]
    with caplog.at_level(logging.WARNING, logger="pipeline"):
        method.surrogate(own)
    assert not caplog.records
    monkeypatch.setattr(method, "MOST_ROUNDS", 1)
    with caplog.at_level(logging.WARNING, logger="pipeline"):
        weights_TF = method.surrogate(own)
    assert (
        "in 1 rounds for the target at place 11 of chunk 2 of document 00ab (far context: own)" in caplog.text
    )
    assert np.isfinite(weights_TF[-1]).all()

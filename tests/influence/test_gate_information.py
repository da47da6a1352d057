"""Rule gradient_divergence: its answers are spread as the prediction is, its squares are of true slopes."""

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from olmo.model import OLMo

from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import FarContext, far_contexts, sampled_answers, selected_positions
from pipeline.measuring.flags import ContextLengths
from pipeline.models.interface import Predictions
from pipeline.models.olmo import OLMoCausalLM

S, L, M = 4, 18, 3
LENGTHS = ContextLengths(short_context_length=S, long_context_length=L, targets_per_chunk=M)
SEED = (2, 7)


@pytest.fixture(scope="module")
def chunks() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(21)
    return generator.integers(0, 48, L), generator.integers(0, 48, L)


@pytest.fixture(scope="module")
def stock(make_olmo: Callable[..., OLMo]) -> OLMo:
    return make_olmo(seed=3, n_kv_heads=2)


def contexts(stock: OLMo, chunks: tuple[np.ndarray, np.ndarray], num_answers: int) -> dict[str, FarContext]:
    measurement = Measurement(
        OLMoCausalLM(stock), LENGTHS, Batching(100), num_sampled_answers=num_answers, seed=SEED
    )
    return far_contexts(measurement, *chunks)


def predictions(probs: list[list[float]]) -> Predictions:
    return Predictions.of_logits(torch.tensor(probs).log())


def test_answers_are_drawn_as_often_as_they_are_likely() -> None:
    probs = [[0.5, 0.25, 0.125, 0.125, 0.0], [0.0, 0.999, 0.0, 0.0, 0.001], [0.2, 0.2, 0.2, 0.2, 0.2]]
    answers = np.array(sampled_answers(predictions(probs), 400, SEED))
    for answers_of_target, row in zip(answers.T, probs, strict=True):
        counts = Counter(answers_of_target.tolist())
        for token, prob in enumerate(row):  # spread evenly, they are off by less than one
            assert abs(counts[token] - 400 * prob) < 1.001
    (few,) = sampled_answers(predictions(probs), 1, SEED)
    assert all(row[answer] > 0 for row, answer in zip(probs, few, strict=True))


def test_few_answers_are_right_on_average_over_seeds() -> None:
    probs = [[0.55, 0.3, 0.1, 0.05]]
    drawn = [
        int(answers[0]) for seed in range(3000) for answers in sampled_answers(predictions(probs), 2, (seed,))
    ]
    counts = np.bincount(drawn, minlength=4) / len(drawn)
    np.testing.assert_allclose(counts, probs[0], atol=5 * math.sqrt(0.25 / 3000))
    again = [sampled_answers(predictions(probs), 2, (5,)) for _ in range(2)]
    assert again[0] == again[1]


def _log_probs(stock: OLMo, tokens: np.ndarray, target: int, gates: dict[int, float]) -> np.ndarray:
    """ln p of the vocabulary; `gates` multiply exp(score) of the edges into a position, 1 elsewhere."""
    bias = torch.full((target, target), -math.inf).triu(1)
    for position, gate in gates.items():
        bias[position:, position] = math.log(gate)
    with torch.inference_mode():
        logits = stock(torch.tensor(tokens[None, :target]), attention_bias=bias[None, None]).logits[0, -1]
    return torch.log_softmax(logits.double(), -1).numpy()


@pytest.mark.parametrize("name", ["own", "other_document"])
def test_information_is_the_mean_square_of_finite_differences(
    stock: OLMo, chunks: tuple[np.ndarray, np.ndarray], name: str
) -> None:
    context, step = contexts(stock, chunks, num_answers=6)[name], 0.005
    answers = sampled_answers(context.predictions, 6, SEED)
    for index, target in enumerate(range(L - M, L)):
        tokens = chunks[0].copy()
        tokens[: target - S] = context.token_ids_L[: target - S]
        for position in range(target - S):
            opened, closed = (
                _log_probs(stock, tokens, target, {position: 1 + change}) for change in (step, -step)
            )
            slopes_V = (opened - closed) / (2 * step)
            expected = np.mean([slopes_V[answers_T[index]] ** 2 for answers_T in answers])
            assert context.gate_information_TF[index, position] == pytest.approx(expected, rel=2e-2, abs=2e-5)
        assert np.isnan(context.gate_information_TF[index, target - S :]).all()
    assert np.nanmax(context.gate_information_TF) > 1e-3


def test_many_answers_tell_the_divergence_of_a_gate_that_is_nearly_open(
    stock: OLMo, chunks: tuple[np.ndarray, np.ndarray]
) -> None:
    context, closed_by = contexts(stock, chunks, num_answers=200)["own"], 0.1
    target, position = L - 1, int(selected_positions(context, "gradient_divergence", 1, seed=[0])[-1, 0])
    long_V, nearly_V = (
        _log_probs(stock, chunks[0], target, {position: gate}) for gate in (1.0, 1 - closed_by)
    )
    divergence = (np.exp(long_V) * (long_V - nearly_V)).sum()
    information = context.gate_information_TF[-1, position]
    assert information * closed_by**2 / 2 == pytest.approx(divergence, rel=0.2)

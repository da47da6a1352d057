"""Rationale size by hand, and again by the predictions of stock models."""

from collections.abc import Callable

import numpy as np
import pytest
from hand_made_models import EvidenceLM
from naive_predictions import log_probs, witness_and_model
from olmo.model import OLMo

from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import FarContext, far_contexts, rationale_sizes, selected_positions
from pipeline.measuring.flags import ContextLengths

# One target at 11, its short context 9 and 10. The answer is the most likely of ten tokens where its logit is
# above 0; else all are alike, or the answer is the least likely, and token 0 or 1 comes first.
FILLER, A, B, ANSWER = 1, 2, 3, 9
CHUNK = np.array([FILLER, FILLER, A, FILLER, B, FILLER, FILLER, FILLER, FILLER, FILLER, FILLER, ANSWER])
LENGTHS = ContextLengths(short_context_length=2, long_context_length=12, targets_per_chunk=1)


def _own(logit_of: Callable[[set[int]], float], chunk: np.ndarray = CHUNK) -> FarContext:
    measurement = Measurement(EvidenceLM(10, ANSWER, logit_of), LENGTHS, Batching(100))
    return far_contexts(measurement, chunk, np.full(12, FILLER))["own"]


@pytest.mark.parametrize(
    ("logit_of", "size"),
    [
        (lambda seen: 5.0 * (A in seen), 1),
        (lambda seen: 5.0 * ({A, B} <= seen), 2),
        (lambda seen: 5.0, 0),
        (lambda seen: -5.0 * ({A, B} <= seen), 0),  # token 0 is the most likely throughout
        (lambda seen: 5.0 if {A, B} <= seen else -5.0, 2),
    ],
)
def test_the_first_size_that_reaches_the_full_prediction(
    logit_of: Callable[[set[int]], float], size: int
) -> None:
    assert rationale_sizes(_own(logit_of), np.array([[2, 4, 8]])) == [size]


def test_where_the_last_token_is_too_few_there_is_none() -> None:
    own = _own(lambda seen: 5.0 * ({A, B} <= seen))
    assert rationale_sizes(own, np.array([[2, 8, 7]])) == [None]
    assert rationale_sizes(own, np.array([[2, 8, 4]])) == [3]


def test_greedy_stops_where_it_says_the_answer() -> None:
    own = _own(lambda seen: 2.0 * (A in seen) + 2.0 * (B in seen) - 3.0)
    assert rationale_sizes(own, selected_positions(own, "greedy", 3, seed=[0])) == [2]


@pytest.mark.parametrize("name", ["olmo", "gemma2"])
def test_every_size_as_stock_models_have_it(make_olmo: Callable[..., OLMo], name: str) -> None:
    stock, lm = witness_and_model(name, 3, make_olmo)
    lengths = ContextLengths(short_context_length=3, long_context_length=20, targets_per_chunk=6)
    own, other = np.random.default_rng(5).integers(0, 48, (2, 20))
    context = far_contexts(Measurement(lm, lengths, Batching(50)), own, other)["own"]
    positions_TK = selected_positions(context, "greedy_divergence", 8, seed=[0])
    expected = []
    for target, positions_K in zip(range(14, 20), positions_TK, strict=True):
        short = range(target - 3, target)
        cases = [(own, [*positions_K[:size], *short]) for size in range(9)]
        full, *found = log_probs(stock, target, [(own, range(target)), *cases]).argmax(1)
        expected.append(found.index(full) if full in found else None)
    assert rationale_sizes(context, positions_TK) == expected
    assert len(set(expected)) > 1

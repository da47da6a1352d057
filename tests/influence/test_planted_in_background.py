"""Within a foreign far context k planted tokens, and nothing else, are found; of the null nothing is.

The model is made by hand (hand_made_models.py): it knows the answer as well as it sees the planted tokens.
"""

from collections.abc import Callable, Set

import numpy as np
import pytest
from hand_made_models import EvidenceLM

from pipeline.measuring.contexts import Batching, Measured, Measurement
from pipeline.measuring.far_context import (
    FarContextInBackground,
    far_contexts,
    selected_positions,
    sparse_contexts,
)
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.rules import BACKGROUND, RULES
from pipeline.measuring.sparsity import dependency_sparsity

VOCABULARY_SIZE, ANSWER = 40, 39
LENGTHS = ContextLengths(short_context_length=2, long_context_length=20, targets_per_chunk=2)
PLANTED = {3: 30, 7: 31, 12: 32, 13: 33}
"""Position -> token, which stands nowhere else."""
SEARCHES = [
    name for name, rule in RULES.items() if rule.knows_interventions and BACKGROUND in rule.interventions
]
STUDIED = [1, 2, 3, 4, 8, 16]


def _planted(k: int) -> dict[int, int]:
    return dict(list(PLANTED.items())[:k])


def _evidence(k: int) -> Callable[[Set[int]], float]:
    """Each of k planted tokens adds to the logit of the answer, and without the last much is missing."""
    tokens = set(_planted(k).values())
    return lambda seen: 6 * (len(tokens & seen) / k) ** 2


def _contexts(logit_of: Callable[[Set[int]], float], k: int) -> dict[str, FarContextInBackground]:
    """Documents share tokens with each other; only this one has those planted."""
    generator = np.random.default_rng(k)
    own, null, first, second = generator.integers(0, 8, (4, LENGTHS.long_context_length))
    for position, token in _planted(k).items():
        own[position] = token
    own[LENGTHS.targets_T] = ANSWER
    # A pass of all the random subsets at once; of 400 each planted token stands out.
    model = EvidenceLM(VOCABULARY_SIZE, ANSWER, logit_of)
    measurement = Measurement(model, LENGTHS, Batching(4000), num_subsets=400)
    return far_contexts(measurement, own, null, background_ids_BL=np.stack([first, second]))


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("rule", SEARCHES)
def test_exactly_the_planted_tokens_are_found(rule: str, k: int) -> None:
    own = _contexts(_evidence(k), k)["own"]
    selected_TK = selected_positions(own, rule, k, seed=[0])
    for selected in selected_TK.tolist():
        assert sorted(selected) == list(_planted(k))


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("criterion", ["losses", "divergences"])
def test_k_star_is_the_planted_k(criterion: str, k: int) -> None:
    own = _contexts(_evidence(k), k)["own"]
    rule = "add_one_in_divergence"
    positions_TK = selected_positions(own, rule, STUDIED[-1], seed=[0])
    sparse = sparse_contexts(own, {rule: positions_TK}, {rule: STUDIED})[rule]
    long = Measured(own.long_losses_T, np.zeros(2))
    without_T, with_some_TJ, with_all_T = (getattr(m, criterion) for m in (own.background, sparse, long))
    k_star, is_censored = dependency_sparsity(
        without_T - with_all_T, without_T[:, None] - with_some_TJ, np.array(STUDIED),
        recovery_fraction=0.9, minimum_gain=0.1,
    )  # fmt: skip
    assert k_star == [k, k] and not is_censored.any()
    # k tokens are all that there is: neither loss nor divergence is left
    np.testing.assert_allclose(sparse.losses[:, STUDIED.index(k)], own.long_losses_T, atol=1e-6)
    assert (sparse.divergences[:, STUDIED.index(k) :] < 1e-6).all()


@pytest.mark.parametrize("rule", SEARCHES)
def test_of_the_null_nothing_is_found(rule: str) -> None:
    null = _contexts(_evidence(2), 2)["other_document"]
    positions_TK = selected_positions(null, rule, 4, seed=[0])
    sparse = sparse_contexts(null, {rule: positions_TK}, {rule: [1, 4]})[rule]
    for values_TJ, nothing_T in zip(sparse, null.background, strict=True):
        np.testing.assert_allclose(values_TJ, np.tile(nothing_T[:, None], 2), atol=1e-6)
    # with no effect anywhere, ties go to the nearer tokens
    if not rule.startswith("banzhaf"):
        assert positions_TK.tolist() == [[15, 14, 13, 12], [16, 15, 14, 13]]


def test_what_any_far_context_gives_is_in_the_background_already() -> None:
    """A token that stands in every document is worth much under `remove`, and nothing here."""
    common = 5
    own_tokens = np.full(LENGTHS.long_context_length, 1)
    own_tokens[4], own_tokens[9], own_tokens[LENGTHS.targets_T] = common, PLANTED[3], ANSWER
    foreign = np.full((2, LENGTHS.long_context_length), 2)
    foreign[:, 6] = common
    model = EvidenceLM(VOCABULARY_SIZE, ANSWER, lambda seen: 6 * (common in seen) + 2 * (PLANTED[3] in seen))
    measurement = Measurement(model, LENGTHS, Batching(4000))
    removed = far_contexts(measurement, own_tokens, foreign[0])["own"]
    among_foreign = far_contexts(measurement, own_tokens, foreign[0], background_ids_BL=foreign[1:])["own"]
    rule = "add_one_in_divergence"
    assert selected_positions(removed, rule, 1, seed=[0])[:, 0].tolist() == [4, 4]
    assert selected_positions(among_foreign, rule, 1, seed=[0])[:, 0].tolist() == [9, 9]

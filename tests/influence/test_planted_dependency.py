"""A dependency put there on purpose must be found, and of the null nothing is.

Models made by hand (hand_made_models.py) know the answer as well as they see k planted tokens.
"""

from collections.abc import Callable, Set
from dataclasses import replace

import numpy as np
import pytest
from hand_made_models import EvidenceLM

from sparsity_length.measuring.contexts import Batching, Measured
from sparsity_length.measuring.far_context import FarContext, far_contexts, sparse_contexts
from sparsity_length.measuring.rules import LEAVE_ONE_OUT_RULES, RULES, find_rule
from sparsity_length.measuring.settings import ContextLengths
from sparsity_length.measuring.sparsity import minimal_sufficient_k
from sparsity_length.results.statistics import Interval, ratio_of_sums

VOCABULARY_SIZE = 40
ANSWER = 39
MADE_LENGTHS = ContextLengths(short_context_length=2, long_context_length=20, targets_per_chunk=2)
PLANTED = {3: 30, 7: 31, 12: 32, 13: 33}
"""Position -> token, which stands nowhere else."""
SEARCHES = [name for name, rule in RULES.items() if rule.knows_ablations]
STUDIED = [1, 2, 3, 4, 8, 16]


def _planted(k: int) -> dict[int, int]:
    return dict(list(PLANTED.items())[:k])


def _evidence(k: int) -> Callable[[Set[int]], float]:
    """Each of k planted tokens adds to the logit of the answer, and without the last much is missing."""
    tokens = set(_planted(k).values())
    return lambda seen: 6 * (len(tokens & seen) / k) ** 2


def _contexts(logit_of: Callable[[Set[int]], float], k: int) -> dict[str, FarContext]:
    """Documents share tokens with each other; only this one has those planted."""
    generator = np.random.default_rng(k)
    own, null, *swaps = generator.integers(0, 8, (6, MADE_LENGTHS.long_context_length))
    for position, token in _planted(k).items():
        own[position] = token
    own[MADE_LENGTHS.targets_T] = ANSWER
    model = EvidenceLM(VOCABULARY_SIZE, ANSWER, logit_of)
    options = {"search_swaps_BL": np.stack(swaps[:2]), "trial_swaps_BL": np.stack(swaps[2:])}
    return far_contexts(model, MADE_LENGTHS, Batching(4000), own, null, **options)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_exactly_the_planted_tokens_are_found(k: int) -> None:
    own = _contexts(_evidence(k), k)["own"]
    for rule in SEARCHES:
        for selected in find_rule(rule).rank(own, k).tolist():
            assert sorted(selected) == list(_planted(k)), rule


@pytest.mark.parametrize("screen", [8, 16])
def test_a_screen_of_a_long_text_finds_the_planted_tokens(screen: int) -> None:
    """A few dozen passes find the two of 999 distant tokens that tell the answer."""
    lengths = replace(MADE_LENGTHS, long_context_length=1003)
    own, foreign = np.random.default_rng(5).integers(0, 8, (2, 1003))
    own[[277, 600]] = list(_planted(2).values())
    own[lengths.targets_T] = ANSWER
    model = EvidenceLM(VOCABULARY_SIZE, ANSWER, _evidence(2))
    for options in ({}, {"search_swaps_BL": foreign[None]}):
        context = far_contexts(model, lengths, Batching(1), own, foreign, screen=screen, **options)["own"]
        for rule in LEAVE_ONE_OUT_RULES:
            selected_T2 = find_rule(rule).rank(context, 2)
            assert np.sort(selected_T2).tolist() == [[277, 600], [277, 600]], rule
        assert np.isnan(context.influence.losses[0]).sum() > 900


@pytest.mark.parametrize("k", [1, 2, 4])
def test_k_star_is_the_planted_k(k: int) -> None:
    own = _contexts(_evidence(k), k)["own"]
    rule = "add_one_in_divergence"
    positions_TK = find_rule(rule).rank(own, STUDIED[-1])
    sparse = sparse_contexts(own, {rule: (positions_TK, STUDIED)})[rule].over_swaps
    long = Measured(own.long_losses_T, np.zeros(2))
    without = own.baselines.over_swaps
    for without_T, with_some_TJ, with_all_T in zip(without, sparse, long, strict=True):
        k_star, is_censored = minimal_sufficient_k(
            without_T - with_all_T,
            without_T[:, None] - with_some_TJ,
            np.array(STUDIED),
            recovery_fraction=0.9,
            minimum_gain=0.1,
        )
        assert k_star.tolist() == [k, k] and not is_censored.any()
    # k tokens are all that there is: neither loss nor divergence is left
    np.testing.assert_allclose(sparse.losses[:, STUDIED.index(k)], own.long_losses_T, atol=1e-6)
    assert (sparse.divergences[:, STUDIED.index(k) :] < 1e-6).all()


def test_of_the_null_nothing_is_found() -> None:
    null = _contexts(_evidence(2), 2)["other_document"]
    for rule in SEARCHES:
        positions_TK = find_rule(rule).rank(null, 4)
        sparse = sparse_contexts(null, {rule: (positions_TK, [1, 4])})[rule].over_swaps
        for values_TJ, nothing_T in zip(sparse, null.baselines.over_swaps, strict=True):
            np.testing.assert_allclose(values_TJ, np.tile(nothing_T[:, None], 2), atol=1e-6, err_msg=rule)
        # with no effect anywhere, ties go to the nearer tokens
        assert positions_TK.tolist() == [[15, 14, 13, 12], [16, 15, 14, 13]], rule


def test_what_only_a_stand_in_does_is_recovered_in_its_own_swap_alone() -> None:
    """No distant token tells anything, but each other document has some that mislead, elsewhere each."""
    lengths = ContextLengths(short_context_length=2, long_context_length=120, targets_per_chunk=1)
    generator = np.random.default_rng(0)
    weights_V = generator.normal(0, 1, VOCABULARY_SIZE)
    weights_V[:8] = 0  # these are all that the own documents have

    def logit_of(seen: Set[int]) -> float:
        return 1 + float(weights_V[list(seen)].sum())

    def recovered(searched_in: str, tried_in: str) -> Interval:
        generator = np.random.default_rng(1)
        sums = []
        for _ in range(60):
            neutral_3L = generator.integers(0, 8, (3, lengths.long_context_length))
            is_loud_3L = generator.random(neutral_3L.shape) < 0.05
            loud_3L = generator.integers(8, ANSWER, neutral_3L.shape)
            swaps = dict(zip("abc", np.where(is_loud_3L, loud_3L, neutral_3L)[:, None], strict=True))
            own_L = generator.integers(0, 8, lengths.long_context_length)
            own = FarContext(
                EvidenceLM(VOCABULARY_SIZE, ANSWER, logit_of),
                lengths,
                Batching(4000),
                own_L,
                own_L,
                search_swaps_BL=swaps[searched_in],
                trial_swaps_BL=swaps[tried_in],
            )
            chosen_TK = find_rule("leave_one_out_divergence").rank(own, 4)
            left = own.measured_with(np.array([0]), chosen_TK).divergences
            total = own.baselines.divergences
            sums.append((float((total - left).sum()), float(total.sum())))
        return ratio_of_sums(*np.transpose(sums))

    assert recovered("a", "a").low > 0.3
    for tried_in in "bc":
        elsewhere = recovered("a", tried_in)
        assert elsewhere.low <= 0 <= elsewhere.high < 0.2

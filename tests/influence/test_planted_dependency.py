"""A dependency put there on purpose must be found, and of the null nothing is; rules and k* by hand.

Models made by hand (hand_made_models.py) know the answer as well as they see k planted tokens.
"""

from collections.abc import Callable, Set
from dataclasses import replace
from math import exp, log
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hand_made_models import EvidenceLM

from sparsity_length.measuring.contexts import Batching, Measured
from sparsity_length.measuring.far_context import FarContext, far_contexts, sparse_contexts
from sparsity_length.measuring.rules import (
    DEFAULT_RULES,
    LEAVE_ONE_OUT_RULES,
    RULES,
    find_rule,
    load_rule_file,
    sampled_answers,
)
from sparsity_length.measuring.selecting import Selecting
from sparsity_length.measuring.settings import ContextLengths
from sparsity_length.measuring.sparsity import minimal_sufficient_k
from sparsity_length.models.interface import Predictions
from sparsity_length.results.statistics import ratio_of_sums

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
    weights_V = np.random.default_rng(0).normal(0, 1, VOCABULARY_SIZE)
    weights_V[:8] = 0  # these are all that the own documents have
    model = EvidenceLM(VOCABULARY_SIZE, ANSWER, lambda seen: 1 + float(weights_V[list(seen)].sum()))
    generator = np.random.default_rng(1)
    sums = []
    for _ in range(60):
        own_L, *neutral_3L = generator.integers(0, 8, (4, lengths.long_context_length))
        loud_3L = generator.integers(8, ANSWER, (3, lengths.long_context_length))
        swaps_3L = np.where(generator.random(loud_3L.shape) < 0.05, loud_3L, neutral_3L)
        own = FarContext(model, lengths, Batching(4000), own_L, own_L, search_swaps_BL=swaps_3L[:1])
        chosen_TK = find_rule("leave_one_out_divergence").rank(own, 4)
        for swap_L in swaps_3L:
            tried = replace(own, trial_swaps_BL=swap_L[None])
            total = tried.baselines.divergences.sum()
            sums.append((total - tried.measured_with(np.array([0]), chosen_TK).divergences.sum(), total))
    recovered_3N, total_3N = np.transpose(sums).reshape(2, 60, 3).swapaxes(1, 2)
    of_the_search, *elsewhere = map(ratio_of_sums, recovered_3N, total_3N)
    assert of_the_search.low > 0.3
    for interval in elsewhere:
        assert interval.low <= 0 <= interval.high < 0.2


NAN = np.nan
SCORES_TF = np.array([[0.1, 0.5, -0.2, 0.5, NAN], [0.0, 0.0, 0.3, 0.0, 0.2]], dtype=np.float32)
SCORED = SimpleNamespace(
    num_far_tokens_T=np.array([4, 5]),
    necessity=Measured(SCORES_TF, SCORES_TF),
    first_additions=Measured(-SCORES_TF, -SCORES_TF),
)


def _select(rule: str, max_k: int, seed: int = 0, context: object = SCORED) -> list[list[int]]:
    if context is SCORED:
        context = SimpleNamespace(**vars(SCORED), generator=lambda: np.random.default_rng([seed]))
    return find_rule(rule).rank(context, max_k).tolist()


def test_scores_are_ranked_and_ties_go_to_the_nearer() -> None:
    for rule in ("leave_one_out", "leave_one_out_divergence", "add_one_in", "add_one_in_divergence"):
        assert _select(rule, 4) == [[3, 1, 0, 2], [2, 4, 3, 1]], rule
        assert _select(rule, 2) == [[3, 1], [2, 4]], rule


def test_random_draws_far_positions_without_repeating_and_again_the_same() -> None:
    for seed in range(50):
        first, second = _select("random", 4, seed)
        assert sorted(first) == [0, 1, 2, 3]
        assert len(set(second)) == 4 and set(second) <= set(range(5))
        assert _select("random", 4, seed) == [first, second]
        assert _select("random", 2, seed) == [first[:2], second[:2]]


# One target at 11, its short context 9 and 10, its distant context 0 to 8. A stands twice, at 2 and 5.
FILLER = 1
A = 2
B = 3
TENTH = 9
LENGTHS = ContextLengths(short_context_length=2, long_context_length=12, targets_per_chunk=1)
CHUNK = np.array([FILLER, FILLER, A, FILLER, B, A, FILLER, FILLER, FILLER, FILLER, FILLER, TENTH])


def _loss(logit: float) -> float:
    """Loss of the answer among ten tokens, the other nine with logit 0."""
    return log(exp(logit) + 9) - logit


def _own_context(chunk: np.ndarray = CHUNK) -> FarContext:
    """A is worth 3 and B 1, added."""
    model = EvidenceLM(10, TENTH, lambda seen: 3 * (A in seen) + (B in seen))
    return far_contexts(model, LENGTHS, Batching(100), chunk, np.full(12, FILLER))["own"]


def test_greedy_takes_redundant_evidence_once_where_leave_one_out_sees_none() -> None:
    context = _own_context()
    np.testing.assert_allclose(
        context.influence.losses[0], [0, 0, 0, 0, _loss(3) - _loss(4), 0, 0, 0, 0], atol=1e-6
    )
    assert _select("leave_one_out", 3, context=context) == [[4, 8, 7]]  # either A can go: the other stays
    assert _select("add_one_in", 3, context=context) == [[5, 2, 4]]  # each A is worth 3 alone
    assert _select("greedy", 3, context=context) == [[5, 4, 8]]  # after one A, the other is worth nothing


def test_divergence_by_hand_and_blind_to_the_target() -> None:
    context = _own_context()
    # Of the answer, without B.
    before = exp(4) / (exp(4) + 9)
    after = exp(3) / (exp(3) + 9)
    expected = before * log(before / after) + (1 - before) * log((1 - before) / (1 - after))
    assert context.influence.divergences[0, 4] == pytest.approx(expected, rel=1e-4)
    assert np.abs(np.delete(context.influence.divergences[0], 4)).max() < 1e-6
    other = _own_context(np.append(CHUNK[:-1], FILLER))
    assert (other.influence.divergences == context.influence.divergences).all()
    assert other.influence.losses[0, 4] < 0 < context.influence.losses[0, 4]


def _k_star(long_loss: float, sparse_losses: list[float]) -> tuple[list[int | None], list[bool]]:
    """Short loss 3; with long loss 1, 90 % of the gain is 1.8 nats."""
    k_star, censored = minimal_sufficient_k(
        np.array([3.0 - long_loss]),
        3.0 - np.array([sparse_losses]),
        np.array([1, 2, 4]),
        recovery_fraction=0.9,
        minimum_gain=0.1,
    )
    return [None if np.isnan(k) else int(k) for k in k_star], censored.tolist()


def test_k_star_is_the_least_k_that_reaches_ninety_percent() -> None:
    assert _k_star(1.0, [2.0, 1.1, 1.0]) == ([2], [False])
    assert _k_star(1.0, [1.15, 2.9, 2.9]) == ([1], [False])  # though later ones fall back
    assert _k_star(1.0, [2.9, 2.5, 1.3]) == ([None], [True])  # none reaches it
    for long_loss in (2.95, 4.0):  # nothing to recover
        assert _k_star(long_loss, [0.0, 0.0, 0.0]) == ([None], [False])


def test_drawn_answers_are_spread_over_the_prediction() -> None:
    """Of eight draws each token comes as often as its probability says, to within one."""
    probs_TV = torch.tensor([[0.5, 0.0, 0.25, 0.25], [0.05, 0.9, 0.0, 0.05]])
    for seed in range(20):
        drawn = sampled_answers(Predictions(probs_TV.log(), probs_TV), 8, np.random.default_rng(seed))
        for ids_8, probs_V in zip(np.transpose(drawn), probs_TV.numpy(), strict=True):
            counts_V = np.bincount(ids_8, minlength=4)
            assert (np.abs(counts_V - 8 * probs_V) <= 1).all() and not counts_V[probs_V == 0].any()


def test_the_sink_comes_last_and_is_a_candidate() -> None:
    attended_TF = np.array([[0.6, 0.1, 0.3, 0.0]])
    context = SimpleNamespace(num_far_tokens_T=np.array([4]), look_inside=lambda _: attended_TF.copy())
    assert _select("attention", 4, context=context) == [[0, 2, 1, 3]]
    assert _select("attention_no_sink", 4, context=context) == [[2, 1, 3, 0]]


@pytest.mark.parametrize(
    ("length", "asked", "rules", "screen"),
    [
        (2048, None, DEFAULT_RULES, None),
        (2049, None, DEFAULT_RULES, 16),
        (2049, None, ("recency",), None),
        (2049, 64, ("recency", "leave_one_out"), 64),
        # Of 64 tokens 48 stand before the first target, 32 of them distant: there is room for all.
        (64, 31, ("leave_one_out",), 31),
        (64, 32, ("leave_one_out",), None),
    ],
)
def test_a_screen_is_used_where_it_saves(
    length: int, asked: int | None, rules: tuple[str, ...], screen: int | None
) -> None:
    assert Selecting(long_context_length=length, rules=rules, screen=asked).screen == screen


OWN_RULE = """
import numpy as np

from sparsity_length.measuring.rules import rule


@rule(sees="nothing")
def after_same_token(far):
    before_F = np.roll(far.token_ids_L, 1)[: far.num_far_tokens_T[-1]]
    scores_TF = far.chunk_L[far.lengths.targets_T - 1][:, None] == before_F
    scores_TF[:, 0] = False  # nothing stands before the first token
    return scores_TF
"""
"""Tokens behind an earlier occurrence of the token before the target."""


def test_a_file_s_rule_is_used_like_a_built_in_one(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text(OWN_RULE)
    load_rule_file(path)
    text = np.array([7, A, 4, 7, B, A, 5, 1, 6, 8, A, TENTH])  # before the target stands A, as at 1 and 5
    assert _select("after_same_token", 3, context=_own_context(text)) == [[6, 2, 8]]

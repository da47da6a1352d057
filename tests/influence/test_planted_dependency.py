"""A dependency put there on purpose must be found, and of the null nothing is; rules and k* by hand.

Models made by hand (hand_made_models.py) know the answer as well as they see k planted tokens.
"""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hand_made_models import EvidenceLM

from sparsity_length.cli import InputError
from sparsity_length.measuring import rules
from sparsity_length.measuring.contexts import Batching, Measured
from sparsity_length.measuring.far_context import FarContext, far_contexts, sparse_contexts
from sparsity_length.measuring.rules import (
    DEFAULT_RULES,
    LEAVE_ONE_OUT_RULES,
    RULES,
    find_rule,
    ranked,
    ranked_by,
    sampled_answers,
)
from sparsity_length.measuring.selecting import Selecting
from sparsity_length.measuring.settings import ContextLengths
from sparsity_length.measuring.sparsity import minimal_sufficient_k
from sparsity_length.models.interface import Predictions
from sparsity_length.results.schemas import OTHER_DOCUMENT
from sparsity_length.results.statistics import ratio_of_sums

VOCABULARY_SIZE = 40
ANSWER = 39
MADE_LENGTHS = ContextLengths(short_context_length=2, long_context_length=20, targets_per_chunk=2)
SEARCHES = [name for name, rule in RULES.items() if rule.knows_ablations]
STUDIED = [1, 2, 3, 4, 8, 16]


def _planted(k: int) -> dict[int, int]:
    """Position -> token, which stands nowhere else."""
    return dict([(3, 30), (7, 31), (12, 32), (13, 33)][:k])


def _knowing(k: int) -> EvidenceLM:
    """Each of k planted tokens adds to the logit of the answer, and without the last much is missing."""
    tokens = set(_planted(k).values())
    return EvidenceLM(VOCABULARY_SIZE, ANSWER, lambda seen: 6 * (len(tokens & seen) / k) ** 2)


def _contexts(k: int) -> dict[str, FarContext]:
    """Documents share tokens with each other; only this one has those planted."""
    own, null, *swaps = np.random.default_rng(k).integers(0, 8, (6, MADE_LENGTHS.long_context_length))
    own[[*_planted(k)]] = [*_planted(k).values()]
    own[MADE_LENGTHS.targets_T] = ANSWER
    options = {"search_swaps_BL": np.stack(swaps[:2]), "trial_swaps_BL": np.stack(swaps[2:])}
    return far_contexts(_knowing(k), MADE_LENGTHS, Batching(4000), own, null, **options)


_k_star = partial(minimal_sufficient_k, recovery_fraction=0.9, minimum_gain=0.1)


def test_a_screen_of_a_long_text_finds_the_planted_tokens() -> None:
    """A few dozen passes find the two of 999 distant tokens that tell the answer."""
    lengths = replace(MADE_LENGTHS, long_context_length=1003)
    own, foreign = np.random.default_rng(5).integers(0, 8, (2, 1003))
    own[[277, 600]] = [*_planted(2).values()]
    own[lengths.targets_T] = ANSWER
    for options in ({}, {"search_swaps_BL": foreign[None]}):
        context = far_contexts(_knowing(2), lengths, Batching(1), own, foreign, screen=8, **options)["own"]
        for rule in LEAVE_ONE_OUT_RULES:
            assert np.sort(find_rule(rule).rank(context, 2)).tolist() == [[277, 600], [277, 600]], rule
        assert np.isnan(context.influence.losses[0]).sum() > 900


@pytest.mark.parametrize("k", [1, 2, 4])
def test_exactly_the_planted_tokens_are_found_and_k_star_is_their_number(k: int) -> None:
    own = _contexts(k)["own"]
    for rule in SEARCHES:
        assert np.sort(find_rule(rule).rank(own, k)).tolist() == [[*_planted(k)]] * 2, rule
    rule = "add_one_in_divergence"
    sparse = sparse_contexts(own, {rule: (find_rule(rule).rank(own, STUDIED[-1]), STUDIED)})[rule].over_swaps
    ks_J = np.array(STUDIED)
    for without_T, with_some_TJ, with_all_T in zip(
        own.baselines.over_swaps, sparse, Measured(own.long_losses_T, np.zeros(2)), strict=True
    ):
        k_star, is_censored = _k_star(without_T - with_all_T, without_T[:, None] - with_some_TJ, ks_J)
        assert k_star.tolist() == [k, k] and not is_censored.any()
    # k tokens are all that there is: neither loss nor divergence is left
    np.testing.assert_allclose(sparse.losses[:, STUDIED.index(k)], own.long_losses_T, atol=1e-6)
    assert (sparse.divergences[:, STUDIED.index(k) :] < 1e-6).all()


def test_k_star_is_the_least_k_that_reaches_ninety_percent() -> None:
    """Short loss 3; with long loss 1, 90 % of the gain is 1.8 nats."""
    sparse_losses_TJ = np.array(
        [
            [2.0, 1.1, 1.0],
            [1.15, 2.9, 2.9],  # later ones fall back
            [2.9, 2.5, 1.3],  # none reaches it
            [0.0, 0.0, 0.0],  # nothing to recover
            [0.0, 0.0, 0.0],
        ]
    )
    k_star, is_censored = _k_star(3 - np.array([1, 1, 1, 2.95, 4]), 3 - sparse_losses_TJ, np.array([1, 2, 4]))
    np.testing.assert_array_equal(k_star, [2, 1, np.nan, np.nan, np.nan])
    assert is_censored.tolist() == [False, False, True, False, False]


def test_of_the_null_nothing_is_found() -> None:
    null = _contexts(2)["other_document"]
    for rule in SEARCHES:
        positions_TK = find_rule(rule).rank(null, 4)
        sparse = sparse_contexts(null, {rule: (positions_TK, [1, 4])})[rule].over_swaps
        for values_TJ, nothing_T in zip(sparse, null.baselines.over_swaps, strict=True):
            np.testing.assert_allclose(values_TJ, np.tile(nothing_T[:, None], 2), atol=1e-6, err_msg=rule)
        # with no effect anywhere, ties go to the nearer tokens
        assert positions_TK.tolist() == [[15, 14, 13, 12], [16, 15, 14, 13]], rule


def test_what_only_a_stand_in_does_is_recovered_in_its_own_swap_alone() -> None:
    """No distant token tells anything, but each other document has some that mislead, elsewhere each."""
    lengths = ContextLengths(short_context_length=2, long_context_length=70, targets_per_chunk=1)
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


def _select(rule: str, max_k: int, num_far: list[int], **facts: object) -> list[list[int]]:
    return find_rule(rule).rank(SimpleNamespace(num_far_tokens_T=np.array(num_far), **facts), max_k).tolist()


def test_random_draws_far_positions_without_repeating_and_again_the_same() -> None:
    def drawn(max_k: int, seed: int) -> list[list[int]]:
        return _select("random", max_k, [4, 5], generator=lambda: np.random.default_rng([seed]))

    for seed in range(50):
        first, second = drawn(4, seed)
        assert sorted(first) == [0, 1, 2, 3]
        assert len(set(second)) == 4 and set(second) <= set(range(5))
        assert drawn(2, seed) == [first[:2], second[:2]]


def test_drawn_answers_are_spread_over_the_prediction() -> None:
    """Of eight draws each token comes as often as its probability says, to within one."""
    probs_TV = torch.tensor([[0.5, 0.0, 0.25, 0.25], [0.05, 0.9, 0.0, 0.05]])
    for seed in range(20):
        drawn = sampled_answers(Predictions(probs_TV.log()), 8, np.random.default_rng(seed))
        for ids_8, probs_V in zip(np.transpose(drawn), probs_TV.numpy(), strict=True):
            counts_V = np.bincount(ids_8, minlength=4)
            assert (np.abs(counts_V - 8 * probs_V) <= 1).all() and not counts_V[probs_V == 0].any()


@pytest.mark.parametrize(
    ("rule", "expected"), [("attention", [0, 2, 1, 3]), ("attention_no_sink", [2, 1, 3, 0])]
)
def test_the_sink_comes_last_and_is_a_candidate(rule: str, expected: list[int]) -> None:
    attended_TF = np.array([[0.6, 0.1, 0.3, 0.0]])
    assert _select(rule, 4, [4], look_inside=lambda _: attended_TF) == [expected]


def test_scores_that_are_no_numbers_come_last_of_the_distant_tokens() -> None:
    """Of four tokens the first target has two, whatever its other scores are."""
    assert ranked(np.array([[0, -np.inf, np.nan, np.nan]]), 2).tolist() == [[0, 1]]
    scores_TF = np.array([[np.nan, 1, 9, np.nan], [-np.inf, 7, np.nan, 8]])
    far = SimpleNamespace(num_far_tokens_T=np.array([2, 4]))
    assert ranked_by(lambda _: scores_TF)(far, 2).tolist() == [[1, 0], [3, 1]]


def test_rules_are_registered_once_with_what_they_see() -> None:
    def recency(far: FarContext, k: int) -> np.ndarray:
        raise NotImplementedError

    with pytest.raises(InputError, match="there is a rule 'recency' already"):
        rules.rule("nothing")(recency)
    of_loss = ["leave_one_out", "add_one_in", "greedy", "gradient"]
    expected = dict.fromkeys(of_loss, "answer") | {f"{name}_divergence": "prediction" for name in of_loss}
    expected |= dict.fromkeys(["attention", "attention_no_sink", "attention_rollout"], "attention")
    expected |= dict.fromkeys(["random", "recency"], "nothing")
    assert expected.items() <= {name: one.sees for name, one in RULES.items()}.items()


def test_the_end_of_an_id_decides_which_documents_have_a_null() -> None:
    asked = Selecting(long_context_length=64, rules=DEFAULT_RULES, null_fraction=0.5)
    found = [asked.rules_in(OTHER_DOCUMENT, f"ffffffff{end}") for end in ("7fffffff", "80000000")]
    assert found == [[*DEFAULT_RULES], []]


@pytest.mark.parametrize(
    ("length", "asked", "rules", "screen"),
    [
        (2048, None, DEFAULT_RULES, None),
        (2049, None, DEFAULT_RULES, 32),
        (2049, None, ("recency",), None),
        (2049, 64, ("recency", "leave_one_out"), 64),
        # Of 64 tokens 48 stand before the first target, 32 of them distant: there is room for all.
        (64, 31, ("leave_one_out",), 31),
        (64, 32, ("leave_one_out",), None),
        (4096, 5000, ("leave_one_out",), 5000),  # None would be a short list when built again
    ],
)
def test_a_screen_is_used_where_it_saves(
    length: int, asked: int | None, rules: tuple[str, ...], screen: int | None
) -> None:
    selecting = Selecting(long_context_length=length, rules=rules, screen=asked)
    assert selecting.screen == replace(selecting).screen == screen

"""The search: exact where it measures, null elsewhere, within its budget, and finding what is planted."""

from collections.abc import Callable, Set

import numpy as np
import pytest
from hand_made_models import CountingLM, EvidenceLM
from olmo.model import OLMo

from pipeline.cli import InputError
from pipeline.measuring.contexts import (
    Batching,
    Measurement,
    PackedSequence,
    leave_each_out,
    null_contexts,
    own_context,
)
from pipeline.measuring.far_context import (
    Reruns,
    estimated_losses,
    exhaustive_cost,
    far_contexts,
    least_budget,
    refuse_small_budget,
    removal_costs,
    reruns_within,
    rows_to_remove,
    search_influences,
    selected_positions,
)
from pipeline.measuring.flags import ContextLengths
from pipeline.models.olmo import OLMoCausalLM

# In the second, far context of late targets reaches into the rows that predict early ones.
ALL_LENGTHS = [ContextLengths(4, 40, 5), ContextLengths(2, 40, 12)]
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def lm(make_olmo: Callable[..., OLMo]) -> OLMoCausalLM:
    return OLMoCausalLM(make_olmo(seed=4))


def _sequences(lengths: ContextLengths) -> list[PackedSequence]:
    """Of the own far context, then of the null."""
    own_L, other_L = np.random.default_rng(9).integers(0, 48, (2, lengths.long_context_length))
    return [own_context(own_L, lengths), *null_contexts(own_L, other_L, lengths)]


SUBSTITUTES = [None, np.random.default_rng(10).integers(0, 48, 40)]


@pytest.mark.parametrize("substitute_ids", SUBSTITUTES, ids=["remove", "substitute"])
@pytest.mark.parametrize("lengths", ALL_LENGTHS)
def test_the_estimate_with_everything_run_again_is_exact(
    lm: OLMoCausalLM, lengths: ContextLengths, substitute_ids: np.ndarray | None
) -> None:
    for sequence in _sequences(lengths):
        exact_TF = leave_each_out(lm, sequence, Batching(500), substitute_ids_L=substitute_ids).influence_TF
        errors = []
        for num_before_query in (0, 39):
            reruns = Reruns(sequence, num_before_query, substitute_ids is not None)
            losses_TF = estimated_losses(lm, reruns, Batching(100), substitute_ids)
            assert (np.isnan(losses_TF) == np.isnan(exact_TF)).all()
            # Without the long loss, which is one number a target.
            errors_TF = losses_TF - exact_TF
            errors.append(np.nanmax(errors_TF - np.nanmin(errors_TF, axis=1, keepdims=True)))
        assert errors[1] < TOLERANCE < errors[0]


@pytest.mark.parametrize("substitute_ids", SUBSTITUTES, ids=["remove", "substitute"])
@pytest.mark.parametrize("lengths", ALL_LENGTHS)
def test_what_is_returned_is_exact_within_the_budget_and_the_rest_null(
    lm: OLMoCausalLM, lengths: ContextLengths, substitute_ids: np.ndarray | None
) -> None:
    is_substituted = substitute_ids is not None
    budget, max_k = least_budget(lengths, 3, is_substituted), 3
    for sequence in _sequences(lengths):
        exact_TF = leave_each_out(lm, sequence, Batching(500), substitute_ids_L=substitute_ids).influence_TF
        counting = CountingLM(lm)
        found_TF = search_influences(counting, sequence, Batching(1), budget, substitute_ids)
        assert counting.token_forwards <= budget * exhaustive_cost(sequence, is_substituted)
        is_found_TF = ~np.isnan(found_TF)
        assert (is_found_TF.sum(1) >= max_k).all()
        assert is_found_TF.sum() < (~np.isnan(exact_TF)).sum()
        np.testing.assert_allclose(found_TF[is_found_TF], exact_TF[is_found_TF], atol=TOLERANCE)
        batched_TF = search_influences(lm, sequence, Batching(200), budget, substitute_ids)
        np.testing.assert_allclose(batched_TF, found_TF, atol=TOLERANCE)


@pytest.mark.parametrize("is_substituted", [False, True])
def test_costs_are_those_counted(lm: OLMoCausalLM, is_substituted: bool) -> None:
    substitute_ids = SUBSTITUTES[1] if is_substituted else None
    for sequence in _sequences(ALL_LENGTHS[1]):
        counting = CountingLM(lm)
        leave_each_out(counting, sequence, Batching(1), substitute_ids_L=substitute_ids)
        assert counting.token_forwards == exhaustive_cost(sequence, is_substituted)
        for num_before_query in (0, 3):
            counting, reruns = CountingLM(lm), Reruns(sequence, num_before_query, is_substituted)
            estimated_losses(counting, reruns, Batching(50), substitute_ids)
            assert counting.token_forwards == reruns.cost


def test_windows_by_hand() -> None:
    # Chunks of 12, targets 9 to 11: rows 8, 9 and 10 predict them; far rows are 0 to 6.
    sequence = own_context(np.arange(12), ContextLengths(4, 12, 3))
    assert Reruns(sequence, 0).window(2).tolist() == [3, 4, 8, 9, 10]
    assert Reruns(sequence, 1).window(6).tolist() == [7, 8, 9, 10]
    assert Reruns(sequence, 1, is_substituted=True).window(0).tolist() == [0, 1, 2, 7, 8, 9, 10]
    assert Reruns(sequence, 99).window(5).tolist() == list(range(11))


def test_a_larger_budget_widens_the_windows() -> None:
    # 255 rows, 239 far ones: leave_one_out runs 32,520. A quarter of 0.4 of that, less 255 rows to read, is
    # 12 rows a removal: the 4 that predict, 2 after the removed one, and 6 before those that predict.
    sequence = own_context(np.zeros(256, dtype=np.int64), ContextLengths(16, 256, 4))
    assert exhaustive_cost(sequence) == 255 + (254 * 239 - 239 * 238 // 2)
    budgets = (0.05, 0.2, 0.4, 100.0)
    assert [reruns_within(sequence, budget).num_before_query for budget in budgets] == [0, 0, 6, 251]


def test_targets_take_turns() -> None:
    scores = np.array([[9.0, 8.0, 7.0, 1.0, np.nan], [1.0, 2.0, 3.0, 4.0, 5.0]])
    costs = np.array([5, 4, 3, 2, 1])
    # firsts: 0 and 4; seconds: 1 and 3; thirds: 2 for both
    assert rows_to_remove(scores, costs, 6).tolist() == [0, 4]
    assert rows_to_remove(scores, costs, 12).tolist() == [0, 1, 3, 4]
    assert rows_to_remove(scores, costs, 15).tolist() == [0, 1, 2, 3, 4]


def test_removal_costs_by_hand() -> None:
    sequence = own_context(np.arange(12), ContextLengths(4, 12, 3))
    assert removal_costs(sequence).tolist() == [10, 9, 8, 7, 6, 5, 4]
    assert exhaustive_cost(sequence) == 11 + 49
    assert removal_costs(sequence, is_substituted=True).tolist() == [11, 10, 9, 8, 7, 6, 5]


PLANTED = {30: 3.0, 77: 2.0, 140: 1.0}
"""Place in the chunk -> how much the answer's logit rises where its token, which is nowhere else, is seen."""


def test_what_is_planted_is_found_at_a_fifth_of_the_cost() -> None:
    lengths = ContextLengths(short_context_length=8, long_context_length=200, targets_per_chunk=2)
    answer, filler = 0, 1
    chunk = np.full(200, filler)
    chunk[list(PLANTED)] = [2, 3, 4]
    chunk[-2:] = answer

    def logit(seen: Set[int]) -> float:
        return sum(worth for token, worth in zip((2, 3, 4), PLANTED.values(), strict=True) if token in seen)

    counting = _CountingEvidence(5, answer, logit)
    measurement = Measurement(counting, lengths, Batching(400), search_budget=0.2)
    own = far_contexts(measurement, chunk, np.full(200, filler))["own"]
    found = selected_positions(own, "leave_one_out_search", 3, seed=[0])
    assert found.tolist() == [[30, 77, 140]] * 2
    # batching adds an eighth at most
    assert counting.token_forwards <= 0.2 * 9 / 8 * exhaustive_cost(own.sequences[0])


class _CountingEvidence(EvidenceLM):
    token_forwards = 0

    def read(self, token_ids: object, *arguments: object) -> object:
        self.token_forwards += token_ids.numel()
        return super().read(token_ids, *arguments)

    def hidden_states(self, token_ids: object, *arguments: object) -> object:
        self.token_forwards += token_ids.numel()
        return super().hidden_states(token_ids, *arguments)


def test_a_budget_that_does_not_pay_is_refused_with_the_one_that_does() -> None:
    lengths = ContextLengths(64, 1024, 16)
    refuse_small_budget(0.2, lengths, max_k=16)
    with pytest.raises(InputError, match=r"--search-budget 0.05 does not pay .* 16 removals take up to 0\.0"):
        refuse_small_budget(0.05, lengths, max_k=16)
    assert 0.05 < least_budget(lengths, 16) < 0.1

"""Everything the engine computes, computed again naively: one context at a time, by stock models and masks.

The witness is that of naive_predictions.py. All divergences are from the prediction under the chunk's own
long context, those of the null too: its tokens are chosen to mimic this document's prediction. Only
leave-one-out compares a null with itself. Under the ablation `swap` nothing is ever left out: the
witness reads every position before the target, and only which document's token stands there changes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from measured_documents import with_far
from naive_predictions import (
    IMPLEMENTATIONS,
    WITH_BOS,
    Case,
    Stock,
    naive_divergences,
    naive_losses,
    swapped,
    witness_and_model,
)
from olmo.model import OLMo

from sparsity_length.measuring.contexts import Batching, measured_windows
from sparsity_length.measuring.far_context import FarContext, far_contexts, sparse_contexts
from sparsity_length.measuring.rules import find_rule
from sparsity_length.measuring.settings import ContextLengths
from sparsity_length.models.interface import CausalLM

S = 4
L = 24
M = 4
LENGTHS = ContextLengths(short_context_length=S, long_context_length=L, targets_per_chunk=M)
WIDE = ContextLengths(short_context_length=2, long_context_length=L, targets_per_chunk=12)
TARGETS = range(L - M, L)
TOLERANCE = 1e-5
NAMES = ["own", "other_document"]
GENERATOR = np.random.default_rng(12)
CHUNKS = {name: GENERATOR.integers(0, 48, L) for name in [*NAMES, "first", "second", "third", "fourth"]}
SEARCH = [CHUNKS["first"], CHUNKS["second"]]
TRIAL = [CHUNKS["third"], CHUNKS["fourth"]]
Contexts = tuple[dict[str, FarContext], list[np.ndarray], list[np.ndarray]]
"""Of the fixture `measured`."""


@dataclass
class Implementation:
    """A stock model, the model under test with the same weights, and what it measures."""

    stock: Stock
    lm: CausalLM

    def contexts(self, lengths: ContextLengths = LENGTHS, **options: object) -> dict[str, FarContext]:
        return far_contexts(self.lm, lengths, Batching(100), *(CHUNKS[name] for name in NAMES), **options)

    def naive(
        self,
        name: str,
        target: int,
        sets: Sequence[Iterable[int]],
        swaps: Sequence[np.ndarray],
        reference: str = "own",
        short: int = S,
    ) -> np.ndarray:
        """Losses and divergences with each set of distant tokens, beside the short context or in swaps."""
        long = case(reference, target, range(target - short), None, short)
        values = []
        for swap in swaps or [None]:
            cases = [case(name, target, far, swap, short) for far in sets]
            divergences = naive_divergences(self.stock, target, long, cases)
            values.append((naive_losses(self.stock, target, cases), divergences))
        return np.mean(values, axis=0)


def case(name: str, target: int, far: Iterable[int], swap: np.ndarray | None, short: int) -> Case:
    """A context whose distant tokens in `far` are `name`'s; the others are the swap's, or not there."""
    tokens = with_far(CHUNKS["own"], CHUNKS[name], target, short)
    if swap is None:
        return tokens, [*far, *range(target - short, target)]
    return swapped(with_far(tokens, swap, target, short), tokens, [*far]), range(target)


FAST = ("olmo", "bos gemma3")
"""Ours, and a Hugging Face model with windows and a token before the text."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
        for name in (*IMPLEMENTATIONS, *WITH_BOS)
    ],
)
def model(request: pytest.FixtureRequest, make_olmo: Callable[..., OLMo]) -> Implementation:
    return Implementation(*witness_and_model(request.param, 5, make_olmo))


@pytest.fixture(scope="module", params=[([], []), (SEARCH, TRIAL)], ids=["mask", "swap"])
def measured(request: pytest.FixtureRequest, model: Implementation) -> Contexts:
    """The distant contexts, and the swaps of the search and of the trial."""
    search, trial = request.param
    swaps = {"search_swaps_BL": np.stack(search), "trial_swaps_BL": np.stack(trial)} if search else {}
    return model.contexts(**swaps), search, trial


def close(
    found: np.ndarray, naive: np.ndarray | Sequence[float], what: object, tolerance: float = TOLERANCE
) -> None:
    """The first values are those of the witness, and what is beyond the target's distant context is NaN."""
    np.testing.assert_allclose(found[: len(naive)], naive, rtol=0, atol=tolerance, err_msg=str(what))
    assert np.isnan(found[len(naive) :]).all(), what


def test_short_long_and_foreign_contexts_and_windows(model: Implementation) -> None:
    own, null = model.contexts().values()
    foreign = model.contexts(trial_swaps_BL=CHUNKS["other_document"][None])["own"].baselines.over_swaps
    found = {
        length: measured_windows(
            model.lm, CHUNKS["own"], LENGTHS.targets_T, length, Batching(30), own.predictions
        )
        for length in (1, 2, 7, L - M)
    }
    for index, target in enumerate(TARGETS):
        everything = range(target - S)
        short = model.naive("own", target, [[]], [])
        long, long_of_null = (model.naive(name, target, [everything], []) for name in NAMES)
        windows = [(window, model.naive("own", target, [[]], [], short=num)) for num, window in found.items()]
        for values, naive in [(own.short, short), (null.short, short), (foreign, long_of_null), *windows]:
            assert [row[index] for row in values] == pytest.approx(naive[:, 0], abs=TOLERANCE), target
        long_losses = [context.long_losses_T[index] for context in (own, null)]
        assert long_losses == pytest.approx([long[0, 0], long_of_null[0, 0]], abs=TOLERANCE), target
    assert own.short.divergences.max() > 100 * TOLERANCE


@pytest.mark.parametrize("search", [[], SEARCH], ids=["mask", "swap"])
@pytest.mark.parametrize("lengths", [LENGTHS, WIDE], ids=["narrow", "wide"])
def test_every_influence(lengths: ContextLengths, search: list[np.ndarray], model: Implementation) -> None:
    """With s < m, an early target's own rows are distant context of a late one, and tell it nothing."""
    contexts = model.contexts(lengths, **({"search_swaps_BL": np.stack(search)} if search else {}))
    short = lengths.short_context_length
    for (name, context), (index, target) in product(contexts.items(), enumerate(lengths.targets_T)):
        everything = {*range(target - short)}
        sets = [everything, *(everything - {position} for position in range(target - short))]
        losses, divergences = model.naive(name, target, sets, search, name, short)
        scores = {"leave_one_out": losses[1:] - losses[0], "leave_one_out_divergence": divergences[1:]}
        for (rule, naive), values_TF in zip(scores.items(), context.influence, strict=True):
            # The difference of two losses, each within TOLERANCE.
            close(values_TF[index], naive, (name, target, rule), 2 * TOLERANCE)
            chosen = find_rule(rule).rank(context, 3)[index]
            assert chosen.tolist() == np.argsort(-naive)[:3].tolist(), (name, target, rule)
        assert np.nanstd(context.influence.losses) > 100 * TOLERANCE


def test_a_screen_is_exact_for_its_short_list(measured: Contexts) -> None:
    """And with room for every token it is the exact search, bit for bit."""
    contexts, *_ = measured
    for name, context in contexts.items():
        screened = replace(context, screen=3)
        for values_TF, scores_TF, exact_TF in zip(
            screened.influence, screened.necessity, context.influence, strict=True
        ):
            is_exact_TF = ~np.isnan(values_TF)
            assert (is_exact_TF.sum(axis=1) >= 3).all() and not is_exact_TF.all(), name
            np.testing.assert_allclose(values_TF[is_exact_TF], exact_TF[is_exact_TF], atol=TOLERANCE)
            np.testing.assert_array_equal(scores_TF[is_exact_TF], values_TF[is_exact_TF])
            # Estimates for all others, and nothing beyond a target's distant context.
            np.testing.assert_array_equal(np.isnan(scores_TF), np.isnan(exact_TF))
        np.testing.assert_array_equal(replace(context, screen=19).necessity, context.necessity)


def test_every_addition(model: Implementation, measured: Contexts) -> None:
    contexts, search, _ = measured
    for (name, context), (index, target) in product(contexts.items(), enumerate(TARGETS)):
        naive = model.naive(name, target, [[position] for position in range(target - S)], search)
        for rule, values_TF, naive_F in zip(
            ("add_one_in", "add_one_in_divergence"), context.first_additions, naive, strict=True
        ):
            close(values_TF[index], naive_F, (name, target))
            ranked = find_rule(rule).rank(context, 4)[index]
            assert ranked.tolist() == np.argsort(naive_F)[:4].tolist(), (name, target)


def test_every_greedy_choice(model: Implementation) -> None:
    for (name, context), (criterion, rule) in product(
        model.contexts().items(), enumerate(("greedy", "greedy_divergence"))
    ):
        for target, found in zip(TARGETS, find_rule(rule).rank(context, 3).tolist(), strict=True):
            chosen: list[int] = []
            for _ in range(3):
                candidates = [position for position in range(target - S) if position not in chosen]
                naive = model.naive(name, target, [[*chosen, position] for position in candidates], [])
                chosen.append(candidates[naive[criterion].argmin()])
            assert found == chosen, (name, target)


def test_every_sparse_context_and_the_swap(model: Implementation, measured: Contexts) -> None:
    contexts, _, trial = measured
    rules = ("leave_one_out_divergence", "add_one_in", "random", "recency")
    for name, context in contexts.items():
        positions = {rule: find_rule(rule).rank(context, 9) for rule in rules}
        sparse = sparse_contexts(context, {rule: (positions[rule], [1, 3, 9]) for rule in rules})
        for index, target in enumerate(TARGETS):
            for rule in rules:
                sets = [positions[rule][index, :k].tolist() for k in (0, 1, 3, 9)]
                naive = model.naive(name, target, sets, trial)
                for nothing_T, found_TJ, values in zip(
                    context.baselines.over_swaps, sparse[rule].over_swaps, naive, strict=True
                ):
                    close(np.append(nothing_T[index], found_TJ[index]), values, (name, target, rule))
            whole = context.measured_with(np.array([index]), np.arange(target - S)[None]).over_swaps
            assert whole.losses[0] == pytest.approx(context.long_losses_T[index], abs=TOLERANCE)
            if name == "own":
                assert 0 <= whole.divergences[0] < 2e-6

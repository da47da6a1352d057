"""Everything the engine computes, computed again naively: one context at a time, by stock models and masks.

The witness is that of naive_predictions.py. All divergences are from the prediction under the chunk's own
long context, those of the null too: its tokens are chosen to mimic this document's prediction. Only
leave-one-out compares a null with itself. Under the ablation `swap` nothing is ever left out: the
witness reads every position before the target, and only which document's token stands there changes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from naive_predictions import (
    IMPLEMENTATIONS,
    WITH_BOS,
    Case,
    Stock,
    naive_divergences,
    naive_losses,
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
TARGETS = range(L - M, L)
TOLERANCE = 2e-5
NAMES = ["own", "other_document"]
GENERATOR = np.random.default_rng(12)
CHUNKS = {name: GENERATOR.integers(0, 48, L) for name in [*NAMES, "first", "second", "third", "fourth"]}
SEARCH = [CHUNKS["first"], CHUNKS["second"]]
TRIAL = [CHUNKS["third"], CHUNKS["fourth"]]
SWAPS = {"search_swaps_BL": np.stack(SEARCH), "trial_swaps_BL": np.stack(TRIAL)}


@dataclass
class Implementation:
    """A stock model, the model under test with the same weights, and what it measures."""

    stock: Stock
    lm: CausalLM

    def contexts(self, **options: object) -> dict[str, FarContext]:
        chunks = CHUNKS["own"], CHUNKS["other_document"]
        return far_contexts(self.lm, LENGTHS, Batching(100), *chunks, **options)

    def naive(
        self, name: str, target: int, sets: Sequence[Iterable[int]], swaps: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Losses and divergences with each set of distant tokens, beside the short context or in swaps."""
        values = []
        for swap in swaps or [None]:
            cases = [case(name, target, far, swap) for far in sets]
            reference = CHUNKS["own"], range(target)
            losses = naive_losses(self.stock, target, cases)
            values.append((losses, naive_divergences(self.stock, target, reference, cases)))
        losses, divergences = np.mean(values, axis=0)
        return losses, divergences


def case(name: str, target: int, far: Iterable[int], swap: np.ndarray | None = None) -> Case:
    """A context whose distant tokens in `far` are `name`'s; the others are the swap's, or not there."""
    tokens = CHUNKS["own"].copy()
    tokens[: target - S] = CHUNKS[name][: target - S]
    if swap is None:
        return tokens, [*far, *range(target - S, target)]
    restored = tokens.copy()
    tokens[: target - S] = swap[: target - S]
    tokens[list(far)] = restored[list(far)]
    return tokens, range(target)


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


@pytest.fixture(scope="module", params=["mask", "swap"])
def measured(request: pytest.FixtureRequest, model: Implementation) -> tuple[dict[str, FarContext], bool]:
    """The distant contexts, and whether what is left out is swapped."""
    is_swap = request.param == "swap"
    return model.contexts(**(SWAPS if is_swap else {})), is_swap


def close(found: np.ndarray, naive: np.ndarray | Sequence[float], what: object) -> None:
    """The first values are those of the witness, and what is beyond the target's distant context is NaN."""
    np.testing.assert_allclose(found[: len(naive)], naive, rtol=0, atol=TOLERANCE, err_msg=str(what))
    assert np.isnan(found[len(naive) :]).all(), what


def test_short_long_and_foreign_contexts_and_windows(model: Implementation) -> None:
    contexts = model.contexts()
    long = contexts["own"].predictions
    foreign = model.contexts(trial_swaps_BL=CHUNKS["other_document"][None])["own"].baselines.over_swaps
    windows = {
        length: measured_windows(model.lm, CHUNKS["own"], LENGTHS.targets_T, length, Batching(30), long)
        for length in (1, 2, 7, L - M)
    }
    for index, target in enumerate(TARGETS):
        everything = range(target - S)
        expected = {
            "short": (contexts["own"].short, model.naive("own", target, [[]], [])),
            "of the null": (contexts["other_document"].short, model.naive("own", target, [[]], [])),
            "foreign": (foreign, model.naive("other_document", target, [everything], [])),
        }
        for length, found in windows.items():
            window = [(CHUNKS["own"], range(target - length, target))]
            reference = CHUNKS["own"], range(target)
            naive = (
                naive_losses(model.stock, target, window),
                naive_divergences(model.stock, target, reference, window),
            )
            expected[f"window {length}"] = found, naive
        for what, (found, (losses, divergences)) in expected.items():
            assert found.losses[index] == pytest.approx(losses[0], abs=TOLERANCE), (what, target)
            assert found.divergences[index] == pytest.approx(divergences[0], abs=TOLERANCE), (what, target)
        for name, context in contexts.items():
            (loss,), _ = model.naive(name, target, [everything], [])
            assert context.long_losses_T[index] == pytest.approx(loss, abs=TOLERANCE), (name, target)
    assert contexts["own"].short.divergences.max() > 100 * TOLERANCE


@pytest.mark.parametrize("ablation", ["mask", "swap"])
def test_every_influence(model: Implementation, ablation: str) -> None:
    stand_ins = {"mask": [None], "swap": SEARCH}
    options = {"mask": {}, "swap": SWAPS}
    for name, context in model.contexts(**options[ablation]).items():
        for index, target in enumerate(TARGETS):
            tokens, _ = case(name, target, ())
            long = (tokens, range(target))
            naive = []
            for stand_in in stand_ins[ablation]:
                cases: list[Case] = []
                for position in range(target - S):
                    replaced = tokens.copy()
                    if stand_in is None:
                        cases.append((tokens, set(range(target)) - {position}))
                    else:
                        replaced[position] = stand_in[position]
                        cases.append((replaced, range(target)))
                everything, *losses = naive_losses(model.stock, target, [long, *cases])
                divergences = naive_divergences(model.stock, target, long, cases)
                naive.append((np.array(losses) - everything, divergences))
            influences, divergences = np.mean(naive, axis=0)
            close(context.influence.losses[index], influences, (name, target))
            close(context.influence.divergences[index], divergences, (name, target))
            for rule, scores in (("leave_one_out", influences), ("leave_one_out_divergence", divergences)):
                chosen = find_rule(rule).rank(context, 3)[index]
                assert chosen.tolist() == np.argsort(-scores)[:3].tolist(), (name, target, rule)
        assert np.nanstd(context.influence.losses) > 100 * TOLERANCE


def test_a_screen_is_exact_for_its_short_list(measured: tuple[dict[str, FarContext], bool]) -> None:
    """And with room for every token it is the exact search, bit for bit."""
    contexts, _ = measured
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
        everything = replace(context, screen=19)
        np.testing.assert_array_equal(everything.necessity, context.necessity)


def test_every_addition_and_every_choice(
    model: Implementation, measured: tuple[dict[str, FarContext], bool]
) -> None:
    contexts, is_swap = measured
    for name, context in contexts.items():
        for criterion, suffix in enumerate(("", "_divergence")):
            added = find_rule(f"add_one_in{suffix}").rank(context, 4)
            greedy = None if is_swap else find_rule(f"greedy{suffix}").rank(context, 3)
            for index, target in enumerate(TARGETS):
                chosen: list[int] = []
                for num_chosen in range(1 if is_swap else 3):
                    candidates = [position for position in range(target - S) if position not in chosen]
                    sets = [sorted([*chosen, position]) for position in candidates]
                    naive = model.naive(name, target, sets, SEARCH if is_swap else [])[criterion]
                    ranked = [candidates[place] for place in np.argsort(naive)]
                    if num_chosen == 0:
                        close(context.first_additions[criterion][index], naive, (name, target))
                        assert added[index].tolist() == ranked[:4], (name, target)
                    chosen.append(ranked[0])
                assert greedy is None or greedy[index].tolist() == chosen, (name, target)


def test_every_sparse_context_and_the_swap(
    model: Implementation, measured: tuple[dict[str, FarContext], bool]
) -> None:
    contexts, is_swap = measured
    trials = TRIAL if is_swap else []
    rules = ("leave_one_out_divergence", "add_one_in", "random", "recency")
    for name, context in contexts.items():
        positions = {rule: find_rule(rule).rank(context, 9) for rule in rules}
        sparse = sparse_contexts(context, {rule: (positions[rule], [1, 3, 9]) for rule in rules})
        for index, target in enumerate(TARGETS):
            for rule in rules:
                sets = [positions[rule][index, :k].tolist() for k in (1, 3, 9)]
                naive = model.naive(name, target, sets, trials)
                for found_TJ, values in zip(sparse[rule].over_swaps, naive, strict=True):
                    close(found_TJ[index], values, (name, target, rule))
            for found_T, (value,) in zip(
                context.baselines.over_swaps, model.naive(name, target, [[]], trials), strict=True
            ):
                assert found_T[index] == pytest.approx(value, abs=TOLERANCE), (name, target)
            whole = context.measured_with(np.array([index]), np.arange(target - S)[None]).over_swaps
            assert whole.losses[0] == pytest.approx(context.long_losses_T[index], abs=TOLERANCE)
            if name == "own":
                assert 0 <= whole.divergences[0] < 2e-6


def test_a_wide_target_block_reaches_into_its_own_far_context(model: Implementation) -> None:
    # With s < m, an early target's own rows are distant context of a late one; the early one must not notice.
    lengths = ContextLengths(short_context_length=2, long_context_length=L, targets_per_chunk=12)
    first = L - 12
    fields = model.lm, lengths, Batching(100), CHUNKS["own"], CHUNKS["other_document"]
    removed = far_contexts(*fields)["own"]
    replaced_by_first = far_contexts(*fields, search_swaps_BL=CHUNKS["first"][None])["own"]
    long = (CHUNKS["own"], range(first))
    without = []
    replaced = []
    for position in range(first - 2):
        without.append((CHUNKS["own"], set(range(first)) - {position}))
        tokens = CHUNKS["own"].copy()
        tokens[position] = CHUNKS["first"][position]
        replaced.append((tokens, range(first)))
    everything, *losses = naive_losses(model.stock, first, [long, *replaced])
    close(removed.influence.divergences[0], naive_divergences(model.stock, first, long, without), "removed")
    close(replaced_by_first.influence.losses[0], np.array(losses) - everything, "replaced")

"""Every task: its docstring's example, dependencies, position IDs; planted evidence is found."""

import doctest
from collections.abc import Iterable
from itertools import product

import numpy as np
import pytest
import torch
from hand_made_models import EvidenceLM

from sparsity_length.cli import InputError
from sparsity_length.synthetic import tasks
from sparsity_length.synthetic.config import TaskConfig
from sparsity_length.synthetic.evaluation import found_dependencies
from sparsity_length.synthetic.tasks import (
    BEST_LOSS_OF_CUES,
    CUES_VOCABULARY,
    FLIP_PROBABILITY,
    TASKS,
    Example,
    Task,
    of_test_examples,
)
from sparsity_length.synthetic.train import of_training_step

CERTAIN = [name for name in TASKS if not name.startswith("cues_")]
"""Tasks whose dependencies leave nothing open; those of cues have tests of their own."""
CUES = [name for name in TASKS if name not in CERTAIN]


def drawn(task: Task, seed: int, size: int = 8) -> Example:
    (example,) = task.draw(size, [3 if task.most_k else None], np.random.default_rng(seed))
    return example


def targets_of(example: Example) -> list[int]:
    targets: list[int] = example.token_ids_S[example.num_prompt_tokens :].tolist()
    return targets


def test_the_worked_examples_are_true() -> None:
    result = doctest.testmod(tasks)
    assert result.attempted >= 25 and result.failed == 0


@pytest.mark.parametrize("name", CERTAIN)
def test_the_dependency_set_decides_the_target(name: str) -> None:
    # Witness: among many examples, equal tokens at the dependencies mean equal targets. Which target of
    # the response it is may matter too: the first of a parity has one dependency fewer.
    task = TASKS[name]
    seen: dict[tuple[object, ...], int] = {}
    num_met_again = 0
    for seed in range(400):
        example = drawn(task, seed, size=8 if task.most_k else 4)
        tokens = example.token_ids_S
        for index, (places, target) in enumerate(zip(example.dependencies, targets_of(example), strict=True)):
            roles = (index,) if len(example.dependencies) > 1 else ()
            known = (*roles, *(int(tokens[place]) for place in places))
            num_met_again += known in seen
            assert seen.setdefault(known, target) == target
    assert num_met_again > 100


@pytest.mark.parametrize("name", CERTAIN)
def test_every_dependency_is_needed(name: str) -> None:
    # Left out of what is known, each place of a set leaves some target undecided.
    task = TASKS[name]
    first_sets: dict[tuple[int, int, tuple[int, ...]], set[int]] = {}
    width = {}
    for seed in range(1500):
        example = drawn(task, seed, size=8 if task.most_k else 4)
        for index, (places, target) in enumerate(zip(example.dependencies, targets_of(example), strict=True)):
            tokens = [int(example.token_ids_S[place]) for place in places]
            width[index] = len(places)
            for left_out in range(len(places)):
                rest = tuple(tokens[:left_out] + tokens[left_out + 1 :])
                first_sets.setdefault((index, left_out, rest), set()).add(target)
    undecided = {
        (index, left_out) for (index, left_out, _), targets in first_sets.items() if len(targets) > 1
    }
    needed = {(index, left_out) for index, num in width.items() for left_out in range(num)}
    if name.startswith("variable_assignment"):
        # Names repeat too seldom to show it for the copied tokens; "=" always follows.
        needed = set()
    if name in ("addition", "addition_padded"):
        # Sets of five digits repeat too seldom; the first and the last digit of the sum have fewer.
        needed = {(index, left_out) for index, left_out in needed if width[index] < 4}
    if name.startswith("sparse_"):
        # A mark is the same token in every example: what it decides is which bits count.
        needed = {(index, left_out) for index, left_out in needed if left_out % 2}
    assert needed <= undecided


@pytest.mark.parametrize(
    "sparsity", [1, 4, *(pytest.param(sparsity, marks=pytest.mark.slow) for sparsity in (7, 8))]
)
@pytest.mark.parametrize("name", [name for name in TASKS if name.startswith("sparse_")])
def test_both_answers_of_marked_bits_are_as_likely(name: str, sparsity: int) -> None:
    """Whatever k is."""
    task = TASKS[name]
    generator = np.random.default_rng(0)
    answers = [targets_of(example)[-1] for example in task.draw(18, [sparsity] * 1500, generator)]
    assert np.mean(answers) == pytest.approx(0.5, abs=0.05)


def test_the_last_partial_parity_is_that_of_all_marked_bits() -> None:
    for seed in range(20):
        answer, written = (drawn(TASKS[f"sparse_parity{name}"], seed) for name in ("", "_scratchpad"))
        assert targets_of(written)[-1:] == targets_of(answer)


@pytest.mark.parametrize("name", CUES)
def test_cues_stand_anywhere_and_their_posterior_is_right(name: str) -> None:
    """Over many examples: the answer is as likely as its posterior says, the best loss what is stated."""
    task = TASKS[name]
    size = 64
    examples = task.draw(size, [None] * 1000, np.random.default_rng(0))
    number = int(name.removeprefix("cues_"))
    losses = []
    gains = []
    first_place = size
    for example in examples:
        (places,) = example.dependencies
        tokens = example.token_ids_S
        ids = example.coupled_ids_S
        assert len(places) == number and example.num_prompt_tokens == size
        is_cue = (tokens[:size] >= 16) & (tokens[:size] < 16 + 112)
        assert np.flatnonzero(is_cue).tolist() == list(places)
        assert ids is not None and sorted(ids[list(places)]) == list(range(size - 1 - number, size - 1))
        assert (np.delete(ids, places) == np.delete(np.arange(size + 1), places)).all()
        assert example.log_posterior_V is not None
        posterior_V = np.exp(example.log_posterior_V)
        assert posterior_V.sum() == pytest.approx(1)
        losses.append(-example.log_posterior_V[tokens[size]])
        gains.append(posterior_V[tokens[size]] - (posterior_V**2).sum())  # 0 in the mean where it is right
        first_place = min(first_place, places[0])
    for values, expected in ((losses, np.log(2)), (gains, 0)):
        assert np.mean(values) == pytest.approx(expected, abs=4 * np.std(values) / np.sqrt(len(values)))
    assert first_place == 0


@pytest.mark.parametrize("name", CUES)
def test_the_posterior_and_the_best_loss_of_cues_are_those_of_all_cases_counted(name: str) -> None:
    """Every answer with every flip of its bits: the posterior by Bayes, and the mean loss."""
    k = int(name.removeprefix("cues_"))
    posteriors = {}
    for example in TASKS[name].draw(k + 1, [None] * 200, np.random.default_rng(0)):
        # Named as the number of cues, which of them it is, and its token, whose last 4 / k bits count.
        cues = sorted(CUES_VOCABULARY[token].split(".") for token in example.token_ids_S[:k])
        told = sum(
            (int(token, 16) % 2 ** (4 // k)) << (4 - (4 // k) * (int(at) + 1)) for _, at, token in cues
        )
        assert example.log_posterior_V is not None
        posteriors[told] = np.exp(example.log_posterior_V[-16:])
    best_loss = 0.0
    for told in range(16):
        by_answer = np.array([0.0] * 16)
        for answer in range(16):
            num_flipped = (told ^ answer).bit_count()
            by_answer[answer] = (
                FLIP_PROBABILITY**num_flipped * (1 - FLIP_PROBABILITY) ** (4 - num_flipped) / 16
            )
        posterior = by_answer / by_answer.sum()
        np.testing.assert_allclose(posteriors[told], posterior, atol=1e-12)
        best_loss -= (by_answer * np.log(posterior)).sum()
    assert best_loss == pytest.approx(BEST_LOSS_OF_CUES, abs=1e-12)


def states(streams: Iterable[np.random.Generator]) -> set[str]:
    return {str(stream.bit_generator.state["state"]) for stream in streams}


@pytest.mark.parametrize("seeds", [(0, 1, 2, 20, (1 << 32) - 1), (1 << 32, (20 << 32) + 1, (1 << 63) - 1)])
def test_streams_of_two_purposes_are_never_one(seeds: tuple[int, ...]) -> None:
    numbers = (1, 2, 20)
    tests = states(of_test_examples(*cell) for cell in product(numbers, (None, *numbers)))
    training = states(of_training_step(seed, step) for seed, step in product(seeds, (0, *numbers)))
    assert (len(tests), len(training)) == (12, 4 * len(seeds))
    assert len(tests | training) == 12 + 4 * len(seeds)


@pytest.mark.parametrize(("name", "size"), [("variable_assignment", 300), ("cues_4", 2), ("sparse_or", 3)])
def test_a_size_that_a_task_lacks_is_refused(name: str, size: int) -> None:
    with pytest.raises(InputError, match=f"size {size}"):
        TASKS[name].draw(size, [1], np.random.default_rng(0))


COUPLED = np.array([1, 2, 0, 1, 2])


def ids_of(
    scheme: str, num_examples: int, num_position_ids: int, seed: int = 0, spread: str = "contiguous"
) -> np.ndarray:
    examples = [Example(np.zeros(5, int), 1, (), COUPLED)] * num_examples
    config = TaskConfig("copy", scheme, num_position_ids=num_position_ids, spread_of_coupled_ids=spread)
    return config.ids_of(examples, np.random.default_rng(seed))[1]


def test_every_start_that_fits_is_as_likely_and_no_other() -> None:
    starts, counts = np.unique(ids_of("coupled", 3000, 5, seed=1), axis=0, return_counts=True)
    assert starts.tolist() == [[1, 2, 0, 1, 2], [2, 3, 1, 2, 3], [3, 4, 2, 3, 4]]
    assert (abs(counts - 1000) < 130).all()  # a standard deviation of 26
    assert ids_of("coupled", 1, 3).tolist() == [COUPLED.tolist()]


def test_a_spread_parts_coupled_ids_by_one_skip() -> None:
    # With 5 position IDs: no skip and starts 0 to 2; a skip of 1 or 2 before coupled ID 1 or 2 and what fits.
    drawn = ids_of("coupled", 1000, 5, spread="pose")
    assert sorted(set(map(tuple, drawn.tolist()))) == [
        (1, 2, 0, 1, 2),
        (1, 3, 0, 1, 3),
        (1, 4, 0, 1, 4),
        (2, 3, 0, 2, 3),
        (2, 3, 1, 2, 3),
        (2, 4, 1, 2, 4),
        (3, 4, 0, 3, 4),
        (3, 4, 1, 3, 4),
        (3, 4, 2, 3, 4),
    ]
    drawn = ids_of("coupled", 3000, 40, spread="pose")
    assert set((drawn[:, 1] - drawn[:, 2]).tolist()) == set(range(2, 40))


def test_coupled_schemes_keep_the_coupling_and_others_ignore_it() -> None:
    for scheme in ("coupled", "predicted"):
        ids = ids_of(scheme, 4, 40)
        assert (ids - ids[:, 2:3] == COUPLED).all() and len(set(ids[:, 2].tolist())) > 1
    assert ids_of("contiguous", 2, 9).tolist() == [[0, 1, 2, 3, 4]] * 2
    pose = ids_of("pose", 400, 9)
    # No skip, or one of 1 to 4 before any of the last four tokens.
    assert pose.max() == 8 and (pose[:, 0] == 0).all() and len({tuple(row) for row in pose.tolist()}) == 17
    randomized = ids_of("randomized", 200, 9)
    assert randomized.max() == 8 and randomized[:, 0].max() > 0


SURE = 4.0
TOKENS = np.array([5, 1, 2, 6, 7, 8, 3])  # the answer, 3, is sure where 1 and 2 are both seen


class Planted(EvidenceLM):
    config = TaskConfig("copy", "contiguous")

    def at(self, position_ids_L: torch.Tensor) -> "Planted":
        return self


def positions(rule: str, ablation: str, *others: np.ndarray) -> list[int]:
    model = Planted(10, 3, lambda seen: SURE if {1, 2} <= seen else 0.0)
    examples = [Example(tokens_S, 6, ((1, 2),), None) for tokens_S in (TOKENS, *others)]
    tables = found_dependencies(model, examples, np.random.default_rng(0), [rule], 2)  # type: ignore[arg-type]
    rows = tables["found_dependencies"].query("example_index == 0")
    assert rows["ablation"].unique().tolist() == ["mask", "swap"]
    return sorted(rows[rows["ablation"] == ablation]["context_position"])


@pytest.mark.parametrize("rule", ["leave_one_out", "leave_one_out_divergence"])
def test_what_must_be_there_is_found_by_removing_it(rule: str) -> None:
    assert positions(rule, "mask") == [1, 2]


@pytest.mark.parametrize("rule", ["leave_one_out", "leave_one_out_divergence"])
def test_a_background_is_a_mean_over_other_examples(rule: str) -> None:
    # The first example replaces the 1 by itself and says nothing of it; the second does.
    says_nothing = TOKENS.copy()
    tells = TOKENS.copy()
    says_nothing[2] = tells[1] = tells[2] = 9
    assert positions(rule, "swap", says_nothing) == [2, 3]  # of the others the nearest
    assert positions(rule, "swap", says_nothing, tells) == [1, 2]

"""Every task: its docstring's example, its dependency sets, its coupled IDs, what it refuses."""

import doctest

import numpy as np
import pytest

from pipeline.cli import InputError
from pipeline.synthetic import tasks
from pipeline.synthetic.tasks import TASKS, Example, Task, probability_of_one, task_called

CERTAIN = [name for name in TASKS if not name.startswith("signs_")]
"""Tasks whose dependencies leave nothing open; those of signs have tests of their own."""
COUPLED = [name for name in CERTAIN if not TASKS[name].has_sparsity]
SIGNS = [name for name in TASKS if name not in CERTAIN]


def drawn(task: Task, seed: int, size: int = 8) -> Example:
    return task.draw(size, 3 if task.has_sparsity else None, np.random.default_rng(seed))


def test_the_worked_examples_are_true() -> None:
    result = doctest.testmod(tasks)
    assert result.attempted >= 25 and result.failed == 0


@pytest.mark.parametrize("name", CERTAIN)
def test_examples_of_a_size_stack(name: str) -> None:
    task = task_called(name)
    shapes = {(len(e.token_ids_S), e.num_prompt_tokens) for e in (drawn(task, seed) for seed in range(20))}
    assert len(shapes) == 1
    assert all(drawn(task, 0).token_ids_S >= 0) and all(drawn(task, 0).token_ids_S < len(task.vocabulary))


@pytest.mark.parametrize("name", CERTAIN)
def test_the_dependency_set_decides_the_target(name: str) -> None:
    # Witness: among many examples, equal tokens at the dependencies mean equal targets. Which target of
    # the response it is may matter too: the first of a parity has one dependency fewer.
    task = task_called(name)
    seen: dict[tuple[object, ...], int] = {}
    num_met_again = 0
    for seed in range(400):
        example = drawn(task, seed, size=8 if task.has_sparsity else 4)
        tokens = example.token_ids_S
        for index, (places, target) in enumerate(
            zip(example.dependencies, example.target_ids_T, strict=True)
        ):
            roles = () if task.has_sparsity else (index,)
            known = (*roles, *(int(tokens[place]) for place in places))
            num_met_again += known in seen
            assert seen.setdefault(known, int(target)) == target
    assert num_met_again > 100


@pytest.mark.parametrize("name", CERTAIN)
def test_every_dependency_is_needed(name: str) -> None:
    # Left out of what is known, each place of a set leaves some target undecided.
    task = task_called(name)
    first_sets: dict[tuple[int, int, tuple[int, ...]], set[int]] = {}
    width = {}
    for seed in range(3000):
        example = drawn(task, seed, size=8 if task.has_sparsity else 4)
        for index, (places, target) in enumerate(
            zip(example.dependencies, example.target_ids_T, strict=True)
        ):
            tokens = [int(example.token_ids_S[place]) for place in places]
            width[index] = len(places)
            for left_out in range(len(places)):
                rest = tuple(tokens[:left_out] + tokens[left_out + 1 :])
                first_sets.setdefault((index, left_out, rest), set()).add(int(target))
    undecided = {
        (index, left_out) for (index, left_out, _), targets in first_sets.items() if len(targets) > 1
    }
    needed = {(index, left_out) for index, num in width.items() for left_out in range(num)}
    if name == "variable_assignment":
        # Names repeat too seldom to show it for the copied tokens; "=" always follows.
        needed = set()
    if name in ("addition", "addition_padded"):
        # Sets of five digits repeat too seldom; the first and the last digit of the sum have fewer.
        needed = {(index, left_out) for index, left_out in needed if width[index] < 4}
    if name.startswith("sparse_"):
        # A mark is the same token in every example: what it decides is which bits count.
        needed = {(index, left_out) for index, left_out in needed if left_out % 2}
    assert needed <= undecided


@pytest.mark.parametrize("sparsity", [1, 4, 7, 8])
@pytest.mark.parametrize("name", [name for name in TASKS if name.startswith("sparse_")])
def test_both_answers_of_marked_bits_are_as_likely(name: str, sparsity: int) -> None:
    """Whatever k is; and OR's bits are ones with the probability 1 - 2^(-1/k), counted by hand."""
    task = task_called(name)
    generator = np.random.default_rng(0)
    answers = [int(task.draw(18, sparsity, generator).target_ids_T[0]) for _ in range(3000)]
    assert np.mean(answers) == pytest.approx(0.5, abs=0.04)
    assert probability_of_one("or", sparsity) == pytest.approx(1 - 2 ** (-1 / sparsity))
    assert probability_of_one("majority", 7) == pytest.approx(0.5)


@pytest.mark.parametrize("name", COUPLED)
def test_coupled_ids_pair_each_response_token_with_what_it_depends_on(name: str) -> None:
    example = drawn(task_called(name), 0)
    ids = example.coupled_ids_S
    assert ids is not None and ids.dtype == np.int64 and ids.min() == 0
    for target, places in enumerate(example.dependencies, start=example.num_prompt_tokens):
        is_last_carry = name in ("addition", "addition_padded") and target == len(ids) - 1
        is_copied_from_before = name == "variable_assignment" and len(places) == 1
        if not is_last_carry and not is_copied_from_before:
            assert ids[target] in ids[list(places)]


def test_a_chain_is_followed_to_its_value() -> None:
    task = task_called("variable_assignment")
    for seed in range(20):
        example = drawn(task, seed, size=7)
        names = [task.vocabulary[token] for token in example.token_ids_S]
        prompt = names[: example.num_prompt_tokens]
        response = names[example.num_prompt_tokens :]
        value_of = {prompt[place]: prompt[place + 2] for place in range(0, 21, 3)}
        name = prompt[-1]
        for step in range(4):
            assert response[3 * step : 3 * step + 3] == [name, "=", value_of[name]]
            name = value_of[name]
        assert name.isdigit() and len(response) == 12


@pytest.mark.parametrize("name", SIGNS)
def test_signs_stand_where_they_should_and_their_posterior_is_right(name: str) -> None:
    """Over many examples: the answer is as likely as its posterior says, the best loss what is stated."""
    task = task_called(name)
    size = 64
    generator = np.random.default_rng(0)
    examples = [task.draw(size, None, generator) for _ in range(3000)]
    number = {"signs_growing": 8}.get(name) or int(name.split("_")[1])
    losses = []
    gains = []
    first_place = size
    for example in examples:
        (places,), tokens, ids = example.dependencies, example.token_ids_S, example.coupled_ids_S
        assert len(places) == number and example.num_prompt_tokens == size
        is_sign = (tokens[:size] >= 16) & (tokens[:size] < 16 + 112)
        assert np.flatnonzero(is_sign).tolist() == list(places)
        assert ids is not None and sorted(ids[list(places)]) == list(range(size - 1 - number, size - 1))
        assert (np.delete(ids, places) == np.delete(np.arange(size + 1), places)).all()
        assert example.log_posterior_V is not None
        posterior_V = np.exp(example.log_posterior_V)
        assert posterior_V.sum() == pytest.approx(1)
        losses.append(-example.log_posterior_V[tokens[size]])
        gains.append(posterior_V[tokens[size]] - (posterior_V**2).sum())  # 0 in the mean where it is right
        first_place = min(first_place, places[0])
    assert [example.best_loss for example in examples] == pytest.approx([np.log(2)] * 3000)
    for values, expected in ((losses, np.log(2)), (gains, 0)):
        assert np.mean(values) == pytest.approx(expected, abs=4 * np.std(values) / np.sqrt(len(values)))
    assert first_place == (size - 1 - 16 if name.endswith("_local") else 0)


def test_growing_signs_grow_and_tell_as_much() -> None:
    generator = np.random.default_rng(0)
    task = task_called("signs_growing")
    for size in (64, 256, 2048):
        example = task.draw(size, None, generator)
        assert len(example.dependencies[0]) == size // 8 and example.best_loss == pytest.approx(np.log(2))


def test_a_sign_is_met_as_often_whatever_their_number() -> None:
    generator = np.random.default_rng(0)
    for k in (1, 2, 4):
        drawn_ids = [
            task_called(f"signs_{k}").draw(32, None, generator).token_ids_S[:31] for _ in range(8000)
        ]
        counts = np.bincount(np.concatenate(drawn_ids), minlength=128)[16:]
        met = counts[counts > 0]
        assert len(met) == 16 * k and (abs(met - 500) < 5 * np.sqrt(500)).all()


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("sparse_parity", 9),
        ("signs_4", 4),
        ("signs_32_weak", 32),
        ("signs_growing", 48),
        ("copy", 0),
        ("variable_assignment", 257),
    ],
)
def test_sizes_that_a_task_has_not(name: str, size: int) -> None:
    with pytest.raises(InputError, match=f"task {name}: size {size} "):
        task_called(name).draw(size, None, np.random.default_rng(0))


def test_coupled_ids_are_refused_where_there_are_none() -> None:
    for name, scheme in (("sparse_parity", "coupled"), ("signs_2", "predicted")):
        with pytest.raises(InputError, match=f"task {name} has no coupled"):
            task_called(name).require_coupled_ids(scheme)
    task_called("copy").require_coupled_ids("predicted")
    task_called("signs_2").require_coupled_ids("coupled")
    with pytest.raises(InputError, match="did you mean 'sparse_parity'"):
        task_called("sparse_party")


@pytest.mark.parametrize("name", COUPLED)
def test_what_decides_an_id_decides_it(name: str) -> None:
    # Witness: from the tokens and coupled IDs of the places that decide, every ID is known; where the
    # content is said to decide, not without them.
    task = task_called(name)
    told = {}
    of_last = {}
    for seed in range(300):
        example = drawn(task, seed)
        ids = example.coupled_ids_S
        tokens = example.token_ids_S
        for are_spread in (False, True):
            for index, places in enumerate(example.id_dependencies(are_spread=are_spread)):
                target = example.num_prompt_tokens + index
                assert target - 1 in places
                held = [place for place in places if place != target - 1]
                assert all(ids[place] == ids[target] and place < example.num_prompt_tokens for place in held)
                if not held:
                    step = ids[target] - ids[target - 1]
                    assert told.setdefault((are_spread, index), step) == step
                elif not are_spread:
                    assert [tokens[place] for place in held] == [tokens[target - 1]]
                    of_last.setdefault(index, set()).add(ids[target] - ids[target - 1])
    assert all(len(steps) > 5 for steps in of_last.values())
    assert bool(of_last) == (name == "variable_assignment")


@pytest.mark.parametrize("name", COUPLED)
def test_where_ids_are_spread_the_prompts_token_of_that_id_decides(name: str) -> None:
    example = drawn(task_called(name), 0)
    spread = example.id_dependencies(are_spread=True)
    # Of an addition no token of the prompt has the last ID.
    alone = [index for index, places in enumerate(spread) if len(places) == 1]
    assert alone == ([len(spread) - 1] if name == "addition" else [])

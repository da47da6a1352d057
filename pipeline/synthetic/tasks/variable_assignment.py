"""The task `variable_assignment`: follow a chain of assignments to its value, with distractors.

The prompt assigns every variable once, a variable or a digit, in random order, then asks for one. The
response restates, in the order of the chain, each assignment that leads from the variable to its value,
which is the last token. Each token depends on at most three: where an assignment begins, on the right side
before it; where it ends, on its restated left side and on the two variables of the original.

Coupled IDs: the prompt's are contiguous, a restated assignment has those of the original. Within an
assignment the next ID is the one before it plus 1; from one assignment to the next it depends on the
content. Nobody can give the response's IDs without solving the task, so plain position coupling has none at
test time, and a model that predicts them (PPC) has.

The sources name the task, its scratchpad, and that its coupled IDs depend on the input. All else is our
choice: two chains, one of n / 2 assignments, rounded up, which is asked for, and one of the rest, so that
response and distraction both grow with n; names drawn from 256, which is the most that n can be, so that
the names of a long test were all seen in training; no end token (n says how long the response is).

    >>> example = lay_out([("b", "7"), ("a", "c"), ("d", "3"), ("c", "d"), ("e", "b")], "a", (*"abcde37=?",))
    >>> example.text((*"abcde37=?",))
    'b = 7 a = c d = 3 c = d e = b ? a | a = c c = d d = 3'
    >>> example.coupled_ids_S[17:].tolist()
    [3, 4, 5, 9, 10, 11, 6, 7, 8]
    >>> example.dependencies[:4]
    ((16,), (17,), (3, 5, 17), (19,))
    >>> example.id_dependencies(are_spread=False)[:4]  # each begins at the left side of the one it restates
    ((3, 16), (17,), (18,), (9, 19))
"""

from collections.abc import Sequence

import numpy as np

from pipeline.synthetic.tasks.example import Example, Vocabulary, refuse_size, sorted_places, token_ids

NUM_NAMES = 256
_NAMES = tuple(f"v{number}" for number in range(NUM_NAMES))
_DIGITS = (*"0123456789",)
VOCABULARY: Vocabulary = (*_DIGITS, "=", "?", *_NAMES)

Assignment = tuple[str, str]
"""A variable, and the variable or digit that it is assigned."""
_TOKENS_PER_ASSIGNMENT = 3


def lay_out(assignments: Sequence[Assignment], asked: str, vocabulary: Vocabulary = VOCABULARY) -> Example:
    """The example that asks for a variable after these assignments, in this order."""
    chain = _chain(assignments, asked)
    prompt = [token for left, right in assignments for token in (left, "=", right)] + ["?", asked]
    response = [token for index in chain for token in (assignments[index][0], "=", assignments[index][1])]
    prompt_ids = np.arange(len(prompt))
    response_ids = [_TOKENS_PER_ASSIGNMENT * index + part for index in chain for part in range(3)]
    return Example(
        token_ids_S=token_ids(prompt + response, vocabulary),
        num_prompt_tokens=len(prompt),
        dependencies=_dependencies(chain, len(prompt)),
        coupled_ids_S=np.concatenate([prompt_ids, response_ids]).astype(np.int64),
        content_decides_id_T=(True, False, False) * len(chain),
    )


def _chain(assignments: Sequence[Assignment], asked: str) -> list[int]:
    """Indices of the assignments that lead from the variable asked for to its value, in that order."""
    index_of = {left: index for index, (left, _) in enumerate(assignments)}
    chain, name = [], asked
    while name in index_of:
        chain.append(index_of[name])
        name = assignments[chain[-1]][1]
    return chain


def _dependencies(chain: Sequence[int], num_prompt_tokens: int) -> tuple[tuple[int, ...], ...]:
    dependencies = []
    for step, index in enumerate(chain):
        original_left = _TOKENS_PER_ASSIGNMENT * index
        left = num_prompt_tokens + _TOKENS_PER_ASSIGNMENT * step
        dependencies += [(left - 1,), (left,), sorted_places(original_left, original_left + 2, left)]
    return tuple(dependencies)


def draw(size: int, sparsity: None, generator: np.random.Generator) -> Example:
    """An example with `size` assignments; names, values and order are uniform.

    Raises:
        InputError: there are fewer than two, or more than there are names.
    """
    refuse_size("variable_assignment", size, 2, "assignments", most=NUM_NAMES)
    names = [_NAMES[number] for number in generator.choice(NUM_NAMES, size, replace=False)]
    values = [_DIGITS[number] for number in generator.integers(0, 10, 2)]
    asked_for = (size + 1) // 2
    chains = (names[:asked_for], names[asked_for:])
    assignments = [
        pair
        for chain, value in zip(chains, values, strict=True)
        for pair in zip(chain, [*chain[1:], value], strict=True)
    ]
    return lay_out([assignments[index] for index in generator.permutation(size)], names[0])

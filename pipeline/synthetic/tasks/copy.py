"""The task `copy`: repeat the prompt. The simplest task with a long response; each token depends on one.

Our choice, none of it from the sources: ten letters, a separator between prompt and response, no end token
(the prompt says how long the response is). Letters repeat, so the place to read from cannot be told by
content: it must be kept by position, which is what coupled IDs give. The separator has ID 0 so that every
ID of the response is the one before it plus 1.

    >>> example = lay_out([2, 0, 2])
    >>> example.text(VOCABULARY)
    'c a c = | c a c'
    >>> example.coupled_ids_S.tolist()
    [1, 2, 3, 0, 1, 2, 3]
    >>> example.dependencies
    ((0,), (1,), (2,))
    >>> example.id_dependencies(are_spread=False)
    ((3,), (4,), (5,))
"""

from collections.abc import Sequence

import numpy as np

from pipeline.synthetic.tasks.example import Example, Vocabulary, refuse_size

NUM_LETTERS = 10
VOCABULARY: Vocabulary = (*"abcdefghij", "=")


def lay_out(letters: Sequence[int]) -> Example:
    """The example that copies these letters, given as token IDs."""
    size = len(letters)
    ids = np.arange(1, size + 1)
    return Example(
        token_ids_S=np.array([*letters, VOCABULARY.index("="), *letters], dtype=np.int64),
        num_prompt_tokens=size + 1,
        dependencies=tuple((place,) for place in range(size)),
        coupled_ids_S=np.concatenate([ids, [0], ids]),
        content_decides_id_T=(False,) * size,
    )


def draw(size: int, sparsity: None, generator: np.random.Generator) -> Example:
    """An example with `size` letters, drawn uniformly.

    Raises:
        InputError: there are none.
    """
    refuse_size("copy", size, 1, "letters")
    return lay_out(generator.integers(0, NUM_LETTERS, size).tolist())

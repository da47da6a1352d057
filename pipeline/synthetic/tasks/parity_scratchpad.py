"""The task `parity_scratchpad`: the parity of all bits, with every partial parity written down.

Without a scratchpad the answer depends on all bits, however many there are; with it each token depends on
two: the partial parity before it and the next bit. Sparse, but not local: the bit is as far away as the
prompt is long. Coupled IDs pair each step with its bit, which removes the distance.

Our choice, none of it from the sources: prefix parities as the scratchpad, so that its last token is the
answer; a separator with ID 0, so that every ID of the response is the one before it plus 1; no end token
(the prompt says how long the response is).

    >>> example = lay_out([1, 1, 0, 1])
    >>> example.text(VOCABULARY)
    '1 1 0 1 = | 1 0 0 1'
    >>> example.coupled_ids_S.tolist()
    [1, 2, 3, 4, 0, 1, 2, 3, 4]
    >>> example.dependencies
    ((0,), (1, 5), (2, 6), (3, 7))
"""

from collections.abc import Sequence

import numpy as np

from pipeline.synthetic.tasks.example import Example, Vocabulary, refuse_size

VOCABULARY: Vocabulary = ("0", "1", "=")


def lay_out(bits: Sequence[int]) -> Example:
    """The example of these bits, 0 or 1."""
    size = len(bits)
    parities = np.cumsum(bits) % 2
    ids = np.arange(1, size + 1)
    later_steps = tuple((step, size + step) for step in range(1, size))
    return Example(
        token_ids_S=np.array([*bits, VOCABULARY.index("="), *parities], dtype=np.int64),
        num_prompt_tokens=size + 1,
        dependencies=((0,), *later_steps),
        coupled_ids_S=np.concatenate([ids, [0], ids]),
        content_decides_id_T=(False,) * size,
    )


def draw(size: int, sparsity: None, generator: np.random.Generator) -> Example:
    """An example with `size` bits, drawn uniformly.

    Raises:
        InputError: there are none.
    """
    refuse_size("parity_scratchpad", size, 1, "bits")
    return lay_out(generator.integers(0, 2, size).tolist())

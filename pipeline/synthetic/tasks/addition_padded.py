"""The task `addition_padded`: `addition` with a zero in front of both operands.

In `addition` the sum has a digit more than the operands, so that no token of the prompt has its last digit's
ID: where IDs are spread at random, nobody can predict it. Here the zeros have that ID. Every place of the sum
has two digits in the prompt, and the last is made as all others are.

Our choice, as a layout for predictive position coupling with spread IDs. Sizes are counted without the zeros.

    >>> example = addition.lay_out([1, 7], [0, 5], is_padded=True)
    >>> example.text(VOCABULARY)
    '0 1 7 + 0 0 5 = | 2 2 0'
    >>> example.coupled_ids_S.tolist()
    [0, 1, 2, 3, 0, 1, 2, 3, 2, 1, 0]
    >>> example.dependencies
    ((2, 6), (1, 2, 5, 6, 8), (1, 5, 9))
"""

import numpy as np

from pipeline.synthetic.tasks import addition
from pipeline.synthetic.tasks.addition import VOCABULARY as VOCABULARY
from pipeline.synthetic.tasks.example import Example, refuse_size


def draw(size: int, sparsity: None, generator: np.random.Generator) -> Example:
    """An example with operands of `size` digits, drawn uniformly, and a zero in front of each.

    Raises:
        InputError: there are none.
    """
    refuse_size("addition_padded", size, 1, "digits")
    return addition.lay_out(*addition.operands(size, generator), is_padded=True)

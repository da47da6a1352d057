"""The task `addition`: two numbers of n digits and their sum, least significant digit first.

Known reference point: with coupled positions a transformer trained on up to 30 digits adds 200 (Cho et al.
2024, "Position Coupling", arXiv 2405.20671). As there: operands padded with zeros to one width, a sum of n
+ 1 digits in reversed order, digits of equal significance and the two operators with one ID each, so that
every ID of the response is the one before it minus 1.

Our choice: digits are uniform and independent, so operands seldom have leading zeros (Cho et al. draw the
number of digits of each operand); no token marks begin or end (the prompt says how long the response is). A
digit of the sum depends on the two digits above it and on the carry, which the three digits of the place
before determine: a + b - s of that place is 9 or 10 where something is carried, -1 or 0 where not.

No token of the prompt has the last digit's ID, 0. Parted from the others at random (`spread_of_coupled_ids`),
it cannot be predicted; predictive position coupling is trained here with spread_of_coupled_ids=contiguous.
`addition_padded` lays the same sums out so that it can.

    >>> example = lay_out([1, 7], [0, 5])
    >>> example.text(VOCABULARY)
    '1 7 + 0 5 = | 2 2 0'
    >>> example.coupled_ids_S.tolist()
    [1, 2, 3, 1, 2, 3, 2, 1, 0]
    >>> example.dependencies
    ((1, 4), (0, 1, 3, 4, 6), (0, 3, 7))
"""

from collections.abc import Sequence

import numpy as np

from pipeline.synthetic.tasks.example import Example, Vocabulary, refuse_size, token_ids

VOCABULARY: Vocabulary = (*"0123456789", "+", "=")


def lay_out(first: Sequence[int], second: Sequence[int], *, is_padded: bool = False) -> Example:
    """The example that adds two numbers, given as digits of equal number, most significant first.

    Args:
        is_padded: both operands have a zero in front, and so as many digits as the sum.
    """
    size = len(first)
    total = int("".join(map(str, first))) + int("".join(map(str, second)))
    response = f"{total:0{size + 1}d}"[::-1]
    pad = ["0"] if is_padded else []
    names = [*pad, *map(str, first), "+", *pad, *map(str, second), "=", *response]
    operand_ids = [*range(1 - len(pad), size + 2)]
    num_digits = len(pad) + size
    return Example(
        token_ids_S=token_ids(names, VOCABULARY),
        num_prompt_tokens=2 * num_digits + 2,
        dependencies=tuple(_decides(place, size, num_digits) for place in range(size + 1)),
        coupled_ids_S=np.array([*operand_ids, *operand_ids, *range(size, -1, -1)]),
        content_decides_id_T=(False,) * (size + 1),
    )


def _decides(place: int, size: int, num_digits: int) -> tuple[int, ...]:
    """Where the digits stand that decide digit `place` of the sum, counted from the least significant.

    A padding zero decides nothing.
    """
    own = _operand_digits(place, num_digits) if place < size else ()
    before = (*_operand_digits(place - 1, num_digits), 2 * num_digits + 2 + place - 1) if place > 0 else ()
    return tuple(sorted((*own, *before)))


def _operand_digits(place: int, num_digits: int) -> tuple[int, int]:
    return num_digits - 1 - place, 2 * num_digits - place


def draw(size: int, sparsity: None, generator: np.random.Generator) -> Example:
    """An example with operands of `size` digits, drawn uniformly.

    Raises:
        InputError: there are none.
    """
    refuse_size("addition", size, 1, "digits")
    return lay_out(*operands(size, generator))


def operands(size: int, generator: np.random.Generator) -> tuple[list[int], list[int]]:
    """The digits of two numbers, uniform and independent."""
    first, second = generator.integers(0, 10, (2, size)).tolist()
    return first, second

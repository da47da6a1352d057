"""The task `sparse_parity`: the parity of the k bits that are marked, among l bits.

The planted k-sparse correlation that a transformer can be trained on: the answer depends on k marked bits,
wherever they are, and the rest is noise.

From the sources: the distribution D^sp_{l,k}; samples are 2l tokens long; the model predicts the last
token; in training k ~ Unif([K_train]), K_train in {4, 6, 8, 10, 12}, and 2l in [20, 50]; in testing 2l in
[20, 500] and k in {4, 6, 8, 10, 12, 14, 16}.

Our choice, as the sources do not give the layout: each of the l bits is preceded by a token that marks it
or not, which makes 2l tokens; the answer is one more token, predicted from the last bit. A mark stands
before its bit, so that a bit's row can know that it is marked when the answer looks for it. The k marked
places are a uniform random subset, the bits uniform. The dependency set holds the k marked bits and their
marks, 2k tokens: without its mark a bit would not count.

    >>> example = lay_out(bits=[1, 0, 1, 1], marked=[0, 3])
    >>> example.text(VOCABULARY)
    '* 1 . 0 . 1 * 1 | 0'
    >>> example.dependencies
    ((0, 1, 6, 7),)
    >>> example.coupled_ids_S is None
    True
"""

from collections.abc import Sequence

import numpy as np

from pipeline.cli import InputError
from pipeline.synthetic.tasks.example import Example, Vocabulary, refuse_size, sorted_places

VOCABULARY: Vocabulary = ("0", "1", ".", "*")
_UNMARKED, _MARKED = 2, 3


def lay_out(bits: Sequence[int], marked: Sequence[int]) -> Example:
    """The example of these bits, 0 or 1, of which those with the indices `marked` count."""
    marks = np.full(len(bits), _UNMARKED)
    marks[list(marked)] = _MARKED
    prompt = np.stack([marks, bits], axis=1).ravel()
    parity = sum(bits[index] for index in marked) % 2
    return Example(
        token_ids_S=np.append(prompt, parity).astype(np.int64),
        num_prompt_tokens=len(prompt),
        dependencies=(sorted_places(*(2 * index + part for index in marked for part in (0, 1))),),
        coupled_ids_S=None,
    )


def draw(size: int, sparsity: int, generator: np.random.Generator) -> Example:
    """An example with `size` = 2l prompt tokens, `sparsity` = k of its l bits marked.

    Raises:
        InputError: 2l is odd, or k is not 1 to l.
    """
    refuse_size("sparse_parity", size, 2, "tokens, 2l")
    if size % 2:
        raise InputError(f"task sparse_parity: size {size} is odd; it is 2l, a mark and a bit for each of l")
    num_bits = size // 2
    if not 1 <= sparsity <= num_bits:
        raise InputError(
            f"task sparse_parity: k = {sparsity} of l = {num_bits} bits cannot be marked; k is 1 to"
            f" {num_bits}"
        )
    bits = generator.integers(0, 2, num_bits).tolist()
    return lay_out(bits, np.sort(generator.choice(num_bits, sparsity, replace=False)).tolist())

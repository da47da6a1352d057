"""Synthetic tasks whose dependencies are known: which earlier tokens decide each answer.

An example is a prompt and the response to it. A task is a function that draws one; its docstring says how
examples are laid out and shows some, which the tests draw again. What the sources do not fix is marked as our
choice; no task marks begin or end, as the prompt says how long the response is.

Dimension letters: S tokens of an example, P tokens of its prompt, T = S - P of its response, K cues, A
possible answers, V vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from sparsity_length.cli import InputError, cause_of


@dataclass(frozen=True)
class Example:
    """A prompt, the response to it, and what decides the response.

    Examples of one task, size and sparsity have the same P and T, so that they stack without padding.
    """

    token_ids_S: np.ndarray
    """int64; the prompt, then the response."""
    num_prompt_tokens: int
    """P, at least 1: the first target is predicted from the prompt's last token."""
    dependencies: tuple[tuple[int, ...], ...]
    """The true dependency set of each target: ascending places of the tokens that decide it."""
    coupled_ids_S: np.ndarray | None
    """int64, from 0: tokens with one ID belong together (position coupling). None: the task has none."""
    log_posterior_V: np.ndarray | None = None
    """float64; ln p of each token as the response's only one, by the prompt: no model can predict better.
    None: the response is certain."""

    def text(self, vocabulary: Sequence[str]) -> str:
        """The tokens by name, with a bar between prompt and response, as the worked examples show them."""
        names = [vocabulary[token_id] for token_id in self.token_ids_S]
        return " ".join([*names[: self.num_prompt_tokens], "|", *names[self.num_prompt_tokens :]])


def _example(
    prompt: ArrayLike,
    response: ArrayLike,
    dependencies: Iterable[Iterable[int]],
    coupled_ids: ArrayLike | None = None,
    log_posterior_V: np.ndarray | None = None,
) -> Example:
    return Example(
        np.concatenate([prompt, response]).astype(np.int64),
        np.size(prompt),
        # Python's own integers, as worked examples and results show them.
        tuple(tuple(sorted(map(int, places))) for places in dependencies),
        None if coupled_ids is None else np.array(coupled_ids, dtype=np.int64),
        log_posterior_V,
    )


COPY_VOCABULARY = (*"abcdefghij", "=")


def copy(size: int, sparsity: None, generator: np.random.Generator) -> Example:
    """`copy`: repeat the prompt's letters. A long response; each token depends on one.

    All of it is our choice. Letters repeat, so the place to read from cannot be told by content: it must be
    kept by position, which is what coupled IDs give.

        >>> example = copy(3, None, np.random.default_rng(11))
        >>> example.text(COPY_VOCABULARY)
        'b b h = | b b h'
        >>> example.coupled_ids_S.tolist()
        [1, 2, 3, 0, 1, 2, 3]
        >>> example.dependencies
        ((0,), (1,), (2,))
    """
    equals = COPY_VOCABULARY.index("=")  # the letters are the token IDs below
    letters = generator.integers(0, equals, size)
    ids = range(1, size + 1)
    return _example([*letters, equals], letters, ([place] for place in range(size)), [*ids, 0, *ids])


ADDITION_VOCABULARY = (*"0123456789", "+", "=")


def addition(
    size: int, sparsity: None, generator: np.random.Generator, *, is_padded: bool = False
) -> Example:
    """`addition`: two numbers of n digits, most significant first, and their sum, least significant first.

    Known reference point: with coupled positions a transformer trained on up to 30 digits adds 200 (Cho et
    al. 2024, "Position Coupling", arXiv 2405.20671). As there: operands padded with zeros to one width, a sum
    of n + 1 digits in reversed order, digits of equal significance and the two operators with one ID each, so
    that every ID of the response is the one before it minus 1.

    Our choice: digits are uniform and independent (Cho et al. draw the number of digits of each operand). A
    digit of the sum depends on the two digits above it and on the carry, which the three digits of the place
    before determine: a + b - s of that place is 9 or 10 if something is carried, else -1 or 0.

    No token of the prompt has the last digit's ID, 0. Parted from the others at random
    (`spread_of_coupled_ids`), it cannot be predicted; predictive position coupling is trained here with
    spread_of_coupled_ids=contiguous. `addition_padded` puts a zero in front of both operands, which has that
    ID: every place of the sum has two digits in the prompt. Its sizes are counted without the zeros.

        >>> example = addition(2, None, np.random.default_rng(4))
        >>> example.text(ADDITION_VOCABULARY)
        '7 9 + 8 5 = | 4 6 1'
        >>> example.coupled_ids_S.tolist()
        [1, 2, 3, 1, 2, 3, 2, 1, 0]
        >>> example.dependencies
        ((1, 4), (0, 1, 3, 4, 6), (0, 3, 7))
        >>> padded = addition(2, None, np.random.default_rng(4), is_padded=True)
        >>> padded.text(ADDITION_VOCABULARY)
        '0 7 9 + 0 8 5 = | 4 6 1'
        >>> padded.coupled_ids_S.tolist()
        [0, 1, 2, 3, 0, 1, 2, 3, 2, 1, 0]
        >>> padded.dependencies
        ((2, 6), (1, 2, 5, 6, 8), (1, 5, 9))
    """
    pad = [0] if is_padded else []
    first, second = generator.integers(0, 10, (2, size)).tolist()
    # Python's integers have no largest: sums of 200 digits are exact.
    total = int("".join(map(str, first))) + int("".join(map(str, second)))
    prompt = [*pad, *first, ADDITION_VOCABULARY.index("+"), *pad, *second, ADDITION_VOCABULARY.index("=")]
    # Both operands' digits of each significance, least first; the highest of the sum has none of its own.
    num_digits = len(pad) + size
    digits = [*((num_digits - 1 - place, 2 * num_digits - place) for place in range(size)), ()]
    # What the carry out of a place follows from: its two digits and its digit of the sum.
    carries = [(*digits[place], len(prompt) + place) for place in range(size)]
    dependencies = [digits[0], *((*digits[place + 1], *carries[place]) for place in range(size))]
    operand_ids = range(1 - len(pad), size + 2)  # the operator behind an operand has the last
    ids = [*operand_ids, *operand_ids, *range(size, -1, -1)]
    return _example(prompt, [int(digit) for digit in reversed(f"{total:0{size + 1}d}")], dependencies, ids)


SCRATCHPAD_VOCABULARY = ("0", "1", "=")


def parity_scratchpad(size: int, sparsity: None, generator: np.random.Generator) -> Example:
    """`parity_scratchpad`: the parity of all bits, with every partial parity written down.

    Without a scratchpad the answer depends on all bits, however many there are; with it each token depends on
    two: the partial parity before it and the next bit. Sparse, but not local: the bit is as far away as the
    prompt is long. Coupled IDs pair each step with its bit, which removes the distance. All of it is our
    choice.

        >>> example = parity_scratchpad(4, None, np.random.default_rng(9))
        >>> example.text(SCRATCHPAD_VOCABULARY)
        '0 1 1 0 = | 0 1 0 0'
        >>> example.coupled_ids_S.tolist()
        [1, 2, 3, 4, 0, 1, 2, 3, 4]
        >>> example.dependencies
        ((0,), (1, 5), (2, 6), (3, 7))
    """
    bits = generator.integers(0, 2, size)
    ids = range(1, size + 1)
    # Step n reads bit n and, one token before itself, the parity of the bits before.
    dependencies = [(0,), *((step, size + step) for step in range(1, size))]
    prompt = [*bits, SCRATCHPAD_VOCABULARY.index("=")]
    return _example(prompt, np.cumsum(bits) % 2, dependencies, [*ids, 0, *ids])


NUM_NAMES = 256
ASSIGNMENT_VOCABULARY = (*"0123456789", "=", "?", *(f"v{name}" for name in range(NUM_NAMES)))


def variable_assignment(size: int, sparsity: int | None, generator: np.random.Generator) -> Example:
    """`variable_assignment`: follow a chain of assignments (variable, variable or digit) to its value.

    The prompt assigns every variable once, in random order, then asks for one. The response restates, in the
    order of the chain, each assignment that leads from the variable to its value, which is the last token.
    Each token depends on at most three: where an assignment begins, on the right side before it; where it
    ends, on its restated left side and on the two variables of the original.

    Coupled IDs: the prompt's are contiguous, a restated assignment has those of the original. From one
    assignment to the next the ID depends on the content. Nobody can give the response's IDs without solving
    the task, so plain position coupling has none at test time, and a model that predicts them (PPC) has.

    The sources name the task, its scratchpad, and that its coupled IDs depend on the input. All else is our
    choice: two chains, one of n / 2 assignments, rounded up, which is asked for, and one of the rest, so that
    response and distraction both grow with n; names drawn from 256, which is the most that n can be, so that
    training has seen all names of a long test.

    `variable_assignment_hops` has a k, also our choice: the chain asked for has k assignments, the other one
    the rest, so that the number of hops and that of assignments can be set apart. Each token still depends on
    at most three.

        >>> example = variable_assignment(4, None, np.random.default_rng(2))
        >>> example.text(ASSIGNMENT_VOCABULARY)
        'v76 = v211 v27 = v66 v66 = 3 v211 = 0 ? v76 | v76 = v211 v211 = 0'
        >>> example.coupled_ids_S[14:].tolist()
        [0, 1, 2, 9, 10, 11]
        >>> example.dependencies[:4]
        ((13,), (14,), (0, 2, 14), (16,))
        >>> variable_assignment(3, 1, np.random.default_rng(2)).text(ASSIGNMENT_VOCABULARY)
        'v66 = 8 v212 = 4 v27 = v212 ? v66 | v66 = 8'
    """
    # Without replacement, as a variable that is assigned twice would have two values.
    names = generator.choice(NUM_NAMES, size, replace=False) + ASSIGNMENT_VOCABULARY.index("v0")
    in_chain = sparsity or (size + 1) // 2
    # Each variable is the next one, but for the last of either chain, which is a digit.
    values = np.roll(names, -1)
    values[[in_chain - 1, -1]] = generator.integers(0, 10, 2)
    order = generator.permutation(size)
    equals = ASSIGNMENT_VOCABULARY.index("=")
    # The chain's order must not be that of the prompt, or copying onwards would solve the task.
    assignments = np.column_stack([names, np.full(size, equals), values])[order]
    prompt = [*assignments.ravel(), ASSIGNMENT_VOCABULARY.index("?"), names[0]]
    restated: list[int] = []  # places in the prompt
    dependencies: list[tuple[int, ...]] = []
    for original in np.argsort(order)[:in_chain].tolist():
        left = len(prompt) + len(restated)
        dependencies += [(left - 1,), (left,), (3 * original, 3 * original + 2, left)]
        restated += range(3 * original, 3 * original + 3)
    response = [prompt[place] for place in restated]
    return _example(prompt, response, dependencies, [*range(len(prompt)), *restated])


def uniform_places(size: int, sparsity: int, generator: np.random.Generator) -> np.ndarray:
    """Any k places, each set as likely."""
    return np.sort(generator.choice(size, sparsity, replace=False))


PARITY_VOCABULARY = ("0", "1", ".", "*")
_KEYS = "abcdefgh"
LOOKUP_VOCABULARY = ("0", "1", ".", *_KEYS)
# In both vocabularies.
_UNMARKED = 2
_MARKED = 3


def marked_bits(
    size: int, sparsity: int, generator: np.random.Generator, *, function: str = "parity"
) -> Example:
    """`sparse_parity`, `_or`, `_majority`, `_first`, `_last`: a function of the k marked of l bits.

    The planted k-sparse correlation that a transformer can be trained on. From the sources: the distribution
    D^sp_{l,k}; samples are 2l tokens long; the model predicts the last token; in training
    k ~ Unif([K_train]), K_train in {4, 6, 8, 10, 12}, and 2l in [20, 50]; in testing 2l in [20, 500] and k in
    {4, 6, ..., 16}.

    Our choice, as the sources do not give the layout: each of the l bits is preceded by a token that marks it
    or not, which makes 2l tokens; the answer is one more token, predicted from the last bit. A mark stands
    before its bit, so that a bit's row can know that it is marked when the answer looks for it. The k marked
    places are a uniform random subset, the bits uniform. The dependency set holds the k marked bits and their
    marks, 2k tokens: without its mark a bit would not count. (Of `sparse_first` and `sparse_last` one of
    them.)

    The other functions, our addition, tell whether parity fails at length because of the number of tokens or
    because of counting them: OR and the majority (more ones than zeros) need all k bits too, the first
    marked bit, which is far, and the last, which is near, need one. Marked bits are 1 with the probability
    that makes both answers equally likely at every k, for OR 1 - 2^(-1/k); unmarked bits are uniform.

        >>> example = marked_bits(8, 2, np.random.default_rng(5))
        >>> example.text(PARITY_VOCABULARY)
        '. 1 * 1 * 0 . 1 | 1'
        >>> example.dependencies
        ((2, 3, 4, 5),)
        >>> for name in ("parity", "or", "majority", "last"):
        ...     marked_bits(8, 3, np.random.default_rng(10), function=name).text(PARITY_VOCABULARY)
        '. 1 * 1 * 0 * 0 | 1'
        '. 1 * 1 * 0 * 0 | 1'
        '. 1 * 1 * 0 * 0 | 0'
        '. 1 * 1 * 0 * 0 | 0'
    """
    bits = generator.integers(0, 2, size // 2)
    marked = uniform_places(size // 2, sparsity, generator)
    if function in ("or", "majority"):
        from scipy.special import betaincinv  # late: few need it

        least = 1 if function == "or" else sparsity // 2 + 1  # ones for the answer 1
        # OR of eight uniform bits would be 1 in 255 of 256 examples, and nothing to learn. At least n of k
        # bits that are 1 with probability p: the regularized incomplete beta function at p.
        bits[marked] = generator.random(sparsity) < betaincinv(least, sparsity - least + 1, 0.5)
    marks = np.full(size // 2, _UNMARKED)
    marks[marked] = _MARKED
    num_ones = int(bits[marked].sum())
    answers = {
        "parity": num_ones % 2,
        "or": num_ones > 0,
        "majority": 2 * num_ones > sparsity,
        "first": bits[marked[0]],
        "last": bits[marked[-1]],
    }
    decisive = 2 * {"first": marked[:1], "last": marked[-1:]}.get(function, marked)
    prompt = np.stack([marks, bits], axis=1).ravel()  # mark n stands at 2n, its bit behind it
    return _example(prompt, [answers[function]], [[*decisive, *(decisive + 1)]])


PARITY_SCRATCHPAD_VOCABULARY = (*PARITY_VOCABULARY, "=")


def sparse_parity_scratchpad(size: int, sparsity: int, generator: np.random.Generator) -> Example:
    """`sparse_parity_scratchpad`: the parity of the k marked of l bits, with every partial parity written.

    Our reading of a scratchpad with k, which the sources name and do not lay out: the response goes through
    all l bits, so that it is as long for every k, and writes the parity of the marked ones so far. Each token
    depends on three, however many bits are marked: the next mark, its bit, and the partial parity before.
    Coupled IDs pair each step with its mark and bit, and tell nothing of the marks.

        >>> example = sparse_parity_scratchpad(8, 2, np.random.default_rng(5))
        >>> example.text(PARITY_SCRATCHPAD_VOCABULARY)
        '. 1 * 1 * 0 . 1 = | 0 1 1 1'
        >>> example.coupled_ids_S.tolist()
        [1, 1, 2, 2, 3, 3, 4, 4, 0, 1, 2, 3, 4]
        >>> example.dependencies
        ((0, 1), (2, 3, 9), (4, 5, 10), (6, 7, 11))
    """
    *prompt, _ = marked_bits(size, sparsity, generator).token_ids_S
    marks, bits = np.reshape(prompt, (-1, 2)).T
    equals = PARITY_SCRATCHPAD_VOCABULARY.index("=")
    # The partial parity before step n stands at size + n; before the first there is none.
    dependencies = [(0, 1), *((2 * step, 2 * step + 1, size + step) for step in range(1, size // 2))]
    ids = range(1, size // 2 + 1)
    partial_parities = np.cumsum(bits * (marks == _MARKED)) % 2
    return _example([*prompt, equals], partial_parities, dependencies, [*np.repeat(ids, 2), 0, *ids])


def lookup(size: int, sparsity: int, generator: np.random.Generator) -> Example:
    """`sparse_lookup`: k of the bits have a key before them instead of a mark; the last token asks for one.

    Our choice, beside `sparse_parity`: the answer is one bit, found among k by its key, so that the number of
    candidates grows with k and the number of bits that decide does not. Keys are drawn without replacement
    from eight letters. The dependency set holds the asked key's two tokens, and the question.

        >>> example = lookup(8, 2, np.random.default_rng(5))
        >>> example.text(LOOKUP_VOCABULARY)
        '. 1 h 1 c 0 . 1 h | 1'
        >>> example.dependencies
        ((2, 3, 8),)
    """
    bits = generator.integers(0, 2, size // 2)
    marked = uniform_places(size // 2, sparsity, generator)
    marks = np.full(size // 2, _UNMARKED)
    # Without replacement, so that a key names one bit.
    marks[marked] = _MARKED + generator.choice(len(_KEYS), sparsity, replace=False)
    asked = marked[generator.integers(sparsity)]
    prompt = [*np.stack([marks, bits], axis=1).ravel(), marks[asked]]
    return _example(prompt, [bits[asked]], [[2 * asked, 2 * asked + 1, size]])


PLANTED_VOCABULARY = ("0", "1", *"abcdefgh", "=")
DEFAULT_LOCAL_LENGTH = 16


def local_places(
    size: int, sparsity: int, generator: np.random.Generator, *, local_length: int = DEFAULT_LOCAL_LENGTH
) -> np.ndarray:
    """Draw k places within a block of `local_length` positions; the block begins anywhere it fits."""
    num_places = min(local_length, size)  # a short sequence is all one block
    first = generator.integers(0, size - num_places, endpoint=True)
    return first + uniform_places(num_places, sparsity, generator)


def draw_planted(
    size: int,
    sparsity: int,
    generator: np.random.Generator,
    *,
    position_law: Callable[[int, int, np.random.Generator], np.ndarray] = local_places,
) -> Example:
    """`planted_correlation`: k tokens, planted anywhere among noise, decide the answer.

    From the sources (Definition 3.2, the k-sparse planted correlation): draw a set S* of k positions from a
    position law, draw their tokens Z jointly from a vocabulary law, every other token i.i.d. from a
    background law mu; the label is g*(Z). The theorems ask that S* be local: within L_local positions of
    itself.

    Our choice, as the definition leaves the laws open: S* is uniform over all k-subsets, or local: uniform
    over the k-subsets of a block of L_local positions, itself drawn uniformly. Z is uniform over two signal
    tokens, "0" and "1", mu over eight noise tokens, so that what is planted can be told from noise; g* is
    parity. The task of this name has the local law with L_local = 16. The answer is asked for by "=", which
    `size` does not count.

        >>> example = draw_planted(6, 2, np.random.default_rng(4))
        >>> example.text(PLANTED_VOCABULARY)
        'h e h 0 1 d = | 1'
        >>> example.dependencies
        ((3, 4),)

    Args:
        position_law: (size, k, generator) -> k places below size, ascending.
    """
    tokens = generator.choice(10, size, p=[0.0] * 2 + [1 / 8] * 8)  # noise, and no signal
    planted = position_law(size, sparsity, generator)
    tokens[planted] = generator.integers(0, 2, sparsity)
    prompt = [*tokens, PLANTED_VOCABULARY.index("=")]
    return _example(prompt, [tokens[planted].sum() % 2], [planted])


NUM_BITS = 4
FLIP_PROBABILITY = 0.0416926902736567
"""Its binary entropy is a quarter of a bit."""
BEST_LOSS_OF_CUES = math.log(2)
"""Nats, exactly: of each of four bits a quarter is open."""
NUM_NOISES = 16
_NUMBERS_OF_CUES = (1, 2, 4)
CUES_VOCABULARY = (
    *(f"n{number}" for number in range(NUM_NOISES)),
    *(f"{k}.{place}.{token:x}" for k in _NUMBERS_OF_CUES for place in range(k) for token in range(16)),
    "?",
    *(f"={answer:x}" for answer in range(16)),
)
_FIRST_ANSWER = CUES_VOCABULARY.index("=0")
_POWERS = 1 << np.arange(NUM_BITS)[::-1]  # of two, for bits of which the most significant is the first
_BITS_OF_ANSWERS = np.arange(16)[:, None] // _POWERS % 2


def cues(size: int, sparsity: None, generator: np.random.Generator, *, num_cues: int) -> Example:
    """`cues_*`: k cues among noise tell one of 16 answers, three of its four bits; then "?".

    Each bit is flipped with probability e, and told by one cue: of k cues each tells 4 / k bits, the first
    the first. Only their number differs: 1, 2 or 4, anywhere in the prompt. The best possible loss is ln 2
    for all, at every size. A cue has 16 tokens, token i of which says i modulo 2^(4 / k): so each stands in
    one example of 16, whatever k is.

    Coupled IDs: noise has those of its places; cues, in the order of what they tell, those next to the
    question's, however far away they are, as the theorem asks.

        >>> example = cues(6, None, np.random.default_rng(10), num_cues=2)
        >>> example.text(CUES_VOCABULARY)  # a and f say 10 and 11, by their last two bits: 1011 is b
        'n3 n12 n13 2.1.f 2.0.a ? | =b'
        >>> example.dependencies
        ((3, 4),)
        >>> example.coupled_ids_S.tolist()
        [0, 1, 2, 4, 3, 5, 6]
        >>> round(float(np.exp(example.log_posterior_V[-5])), 4)  # of =b, the answer: each bit 0.9583
        0.8434
    """
    question = size - 1
    positions_K = generator.choice(question, num_cues, replace=False)
    noise = generator.integers(NUM_NOISES, size=question - num_cues)
    bits = generator.integers(2, size=NUM_BITS)
    # The answer is right by definition; it is the cues that err.
    told = bits ^ (generator.random(NUM_BITS) < FLIP_PROBABILITY)
    bits_of_cue = NUM_BITS // num_cues
    values_K = told.reshape(num_cues, bits_of_cue) @ _POWERS[-bits_of_cue:]
    # Of one cue all 16 tokens say something else; of four cues eight say the same.
    tokens_K = values_K + 2**bits_of_cue * generator.integers(16 // 2**bits_of_cue, size=num_cues)
    prompt = np.full(size, CUES_VOCABULARY.index("?"))
    prompt[np.delete(np.arange(question), positions_K)] = noise
    prompt[positions_K] = CUES_VOCABULARY.index(f"{num_cues}.0.0") + 16 * np.arange(num_cues) + tokens_K
    ids = np.arange(size + 1)  # of the prompt, and of the answer behind it
    ids[positions_K] = np.arange(question - num_cues, question)
    num_flipped_A = (told != _BITS_OF_ANSWERS).sum(1)
    log_posterior_V = np.full(len(CUES_VOCABULARY), -np.inf)
    # A bit is as told with probability 1 - e, so each flip costs the factor e / (1 - e).
    log_posterior_V[_FIRST_ANSWER:] = (
        math.log(FLIP_PROBABILITY / (1 - FLIP_PROBABILITY)) * num_flipped_A
        + math.log(1 - FLIP_PROBABILITY) * NUM_BITS
    )
    return _example(prompt, [_FIRST_ANSWER + bits @ _POWERS], [positions_K], ids, log_posterior_V)


COUPLED_SCHEMES = ("coupled", "predicted")
"""Schemes that take the task's coupled IDs. In training the two are given the same IDs; in testing `coupled`
is given those of the response too, as an oracle, and `predicted` (PPC) must predict them."""


@dataclass(frozen=True)
class Task:
    """A synthetic task."""

    vocabulary: tuple[str, ...]
    """Every token by name; a token ID is an index into it."""
    draw_example: Callable[..., Example]
    """(size, sparsity, generator) -> one example of this size, in the task's own unit. Sparsity is k, at most
    `largest_sparsity`; None if the task has none."""
    coupled_schemes: tuple[str, ...] = COUPLED_SCHEMES
    """Coupled schemes that the task has: none without coupled IDs. With `predicted`, a model of coupled IDs
    has a table of them, which predicting them needs. Without, IDs are what RoPE rotates by and nothing else,
    and the model is that of any other positions."""
    step: int = 1
    """Sizes are its multiples: a bit and its mark take two tokens, a planted one one."""
    most_k: int = 0
    """The largest k at any size, of tasks whose k is chosen; 0: the task fixes how many tokens decide."""
    response_grows_with_k: bool = False
    """Whether examples of different k have responses of different lengths, which do not stack."""

    def largest_sparsity(self, size: int) -> int:
        """The largest k that a size has room for."""
        return min(size // self.step, self.most_k)

    def draw(
        self, size: int, sparsities: Sequence[int | None], generator: np.random.Generator
    ) -> list[Example]:
        """An example for each of the sparsities; InputError if the task has no such size."""
        if size % self.step:
            raise InputError(f"size {size} is not a multiple of {self.step}, as the task's sizes are")
        try:
            return [self.draw_example(size, sparsity, generator) for sparsity in sparsities]
        except ValueError as error:  # more names than there are, or no room for all cues
            raise InputError(f"no example of size {size} can be drawn ({cause_of(error)})") from error


TASKS = {
    "copy": Task(COPY_VOCABULARY, copy),
    "addition": Task(ADDITION_VOCABULARY, addition),
    "addition_padded": Task(ADDITION_VOCABULARY, partial(addition, is_padded=True)),
    "parity_scratchpad": Task(SCRATCHPAD_VOCABULARY, parity_scratchpad),
    "variable_assignment": Task(ASSIGNMENT_VOCABULARY, variable_assignment),
    "variable_assignment_hops": Task(
        ASSIGNMENT_VOCABULARY, variable_assignment, most_k=NUM_NAMES, response_grows_with_k=True
    ),
    "sparse_parity_scratchpad": Task(
        PARITY_SCRATCHPAD_VOCABULARY, sparse_parity_scratchpad, step=2, most_k=1 << 31
    ),
    **{
        f"sparse_{name}": Task(
            PARITY_VOCABULARY, partial(marked_bits, function=name), (), step=2, most_k=1 << 31
        )
        for name in ("parity", "or", "majority", "first", "last")
    },
    "sparse_lookup": Task(LOOKUP_VOCABULARY, lookup, (), step=2, most_k=len(_KEYS)),
    "planted_correlation": Task(PLANTED_VOCABULARY, draw_planted, (), most_k=DEFAULT_LOCAL_LENGTH),
    **{f"cues_{k}": Task(CUES_VOCABULARY, partial(cues, num_cues=k), ("coupled",)) for k in _NUMBERS_OF_CUES},
}

TEST_STREAM = 1
"""The spawn key of test examples; training draws have none. Results tell it among their settings."""


def of_test_examples(size: int, sparsity: int | None) -> np.random.Generator:
    """The source of the test examples of a size, and of a k for tasks that have it: the same for every model.

    No test example is drawn as in training. Lists of numbers alone would not keep the streams apart: to NumPy
    zeros at a list's end do not count, and [0, 20, 0] is [0, 20]. A spawn key does, which NumPy sets behind
    the list, at a place of its own.
    """
    # No k is 0, so tasks without k share no stream with a k.
    return np.random.default_rng(np.random.SeedSequence([0, size, sparsity or 0], spawn_key=(TEST_STREAM,)))

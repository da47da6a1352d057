"""Synthetic tasks whose dependencies are known: which earlier tokens decide each answer.

An example is a prompt and the response to it. For each task: how its examples are laid out, with a worked
example that the tests run, and how they are drawn. What the sources do not fix is marked as our choice; no
task marks begin or end, as the prompt says how long the response is.

Dimension letters: B examples, S tokens of an example, P tokens of its prompt, T = S - P of its response.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pipeline.cli import InputError, unknown_name

Vocabulary = tuple[str, ...]
"""Every token of a task by name; a token ID is an index into it."""


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

    @property
    def target_ids_T(self) -> np.ndarray:
        """The tokens to be predicted: the response."""
        return self.token_ids_S[self.num_prompt_tokens :]

    def text(self, vocabulary: Vocabulary) -> str:
        """The tokens by name, with a bar between prompt and response, as the worked examples show them."""
        names = [vocabulary[token_id] for token_id in self.token_ids_S]
        return " ".join([*names[: self.num_prompt_tokens], "|", *names[self.num_prompt_tokens :]])


def _example(
    prompt: Sequence[int],
    response: Sequence[int],
    dependencies: Sequence[Sequence[int]],
    coupled_ids: Sequence[int] | None = None,
) -> Example:
    return Example(
        token_ids_S=np.array([*prompt, *response], dtype=np.int64),
        num_prompt_tokens=len(prompt),
        dependencies=tuple(tuple(sorted(places)) for places in dependencies),
        coupled_ids_S=None if coupled_ids is None else np.array(coupled_ids, dtype=np.int64),
    )


# copy

NUM_LETTERS = 10
COPY_VOCABULARY: Vocabulary = (*"abcdefghij", "=")


def lay_out_copy(letters: Sequence[int]) -> Example:
    """`copy`: repeat the prompt, letters given as token IDs. A long response; each token depends on one.

    All of it is our choice. Letters repeat, so the place to read from cannot be told by content: it must be
    kept by position, which is what coupled IDs give.

        >>> example = lay_out_copy([2, 0, 2])
        >>> example.text(COPY_VOCABULARY)
        'c a c = | c a c'
        >>> example.coupled_ids_S.tolist()
        [1, 2, 3, 0, 1, 2, 3]
        >>> example.dependencies
        ((0,), (1,), (2,))
    """
    ids = range(1, len(letters) + 1)
    dependencies = [[place] for place in range(len(letters))]
    return _example([*letters, COPY_VOCABULARY.index("=")], letters, dependencies, [*ids, 0, *ids])


def _draw_copy(size: int, sparsity: None, generator: np.random.Generator) -> Example:
    return lay_out_copy(generator.integers(0, NUM_LETTERS, size).tolist())


# addition, addition_padded

ADDITION_VOCABULARY: Vocabulary = (*"0123456789", "+", "=")


def lay_out_addition(first: Sequence[int], second: Sequence[int], *, is_padded: bool = False) -> Example:
    """`addition`: two numbers of n digits, most significant first, and their sum, least significant first.

    Known reference point: with coupled positions a transformer trained on up to 30 digits adds 200 (Cho et
    al. 2024, "Position Coupling", arXiv 2405.20671). As there: operands padded with zeros to one width, a sum
    of n + 1 digits in reversed order, digits of equal significance and the two operators with one ID each, so
    that every ID of the response is the one before it minus 1.

    Our choice: digits are uniform and independent (Cho et al. draw the number of digits of each operand). A
    digit of the sum depends on the two digits above it and on the carry, which the three digits of the place
    before determine: a + b - s of that place is 9 or 10 where something is carried, -1 or 0 where not.

    No token of the prompt has the last digit's ID, 0. Parted from the others at random
    (`spread_of_coupled_ids`), it cannot be predicted; predictive position coupling is trained here with
    spread_of_coupled_ids=contiguous. `addition_padded` puts a zero in front of both operands, which has that
    ID: every place of the sum has two digits in the prompt. Its sizes are counted without the zeros.

        >>> example = lay_out_addition([1, 7], [0, 5])
        >>> example.text(ADDITION_VOCABULARY)
        '1 7 + 0 5 = | 2 2 0'
        >>> example.coupled_ids_S.tolist()
        [1, 2, 3, 1, 2, 3, 2, 1, 0]
        >>> example.dependencies
        ((1, 4), (0, 1, 3, 4, 6), (0, 3, 7))
        >>> padded = lay_out_addition([1, 7], [0, 5], is_padded=True)
        >>> padded.text(ADDITION_VOCABULARY)
        '0 1 7 + 0 0 5 = | 2 2 0'
        >>> padded.coupled_ids_S.tolist()
        [0, 1, 2, 3, 0, 1, 2, 3, 2, 1, 0]
        >>> padded.dependencies
        ((2, 6), (1, 2, 5, 6, 8), (1, 5, 9))
    """
    size = len(first)
    pad = [0] if is_padded else []
    num_digits = len(pad) + size
    total = int("".join(map(str, first))) + int("".join(map(str, second)))
    response = [int(digit) for digit in reversed(f"{total:0{size + 1}d}")]
    prompt = [*pad, *first, ADDITION_VOCABULARY.index("+"), *pad, *second, ADDITION_VOCABULARY.index("=")]
    operand_ids = [*range(1 - len(pad), size + 2)]
    # Both operands' digits of each significance, least first; the highest of the sum has none of its own.
    digits = [*((num_digits - 1 - place, 2 * num_digits - place) for place in range(size)), ()]
    dependencies = [digits[0]]
    for place in range(1, size + 1):
        dependencies.append((*digits[place], *digits[place - 1], len(prompt) - 1 + place))
    coupled_ids = [*operand_ids, *operand_ids, *range(size, -1, -1)]
    return _example(prompt, response, dependencies, coupled_ids)


def _draw_addition(
    size: int, sparsity: None, generator: np.random.Generator, *, is_padded: bool = False
) -> Example:
    return lay_out_addition(*generator.integers(0, 10, (2, size)).tolist(), is_padded=is_padded)


# parity_scratchpad

SCRATCHPAD_VOCABULARY: Vocabulary = ("0", "1", "=")


def lay_out_parity_scratchpad(bits: Sequence[int]) -> Example:
    """`parity_scratchpad`: the parity of all bits, with every partial parity written down.

    Without a scratchpad the answer depends on all bits, however many there are; with it each token depends on
    two: the partial parity before it and the next bit. Sparse, but not local: the bit is as far away as the
    prompt is long. Coupled IDs pair each step with its bit, which removes the distance. All of it is our
    choice.

        >>> example = lay_out_parity_scratchpad([1, 1, 0, 1])
        >>> example.text(SCRATCHPAD_VOCABULARY)
        '1 1 0 1 = | 1 0 0 1'
        >>> example.coupled_ids_S.tolist()
        [1, 2, 3, 4, 0, 1, 2, 3, 4]
        >>> example.dependencies
        ((0,), (1, 5), (2, 6), (3, 7))
    """
    size = len(bits)
    ids = range(1, size + 1)
    dependencies = [(0,), *((step, size + step) for step in range(1, size))]
    prompt = [*bits, SCRATCHPAD_VOCABULARY.index("=")]
    return _example(prompt, (np.cumsum(bits) % 2).tolist(), dependencies, [*ids, 0, *ids])


def _draw_parity_scratchpad(size: int, sparsity: None, generator: np.random.Generator) -> Example:
    return lay_out_parity_scratchpad(generator.integers(0, 2, size).tolist())


# variable_assignment

NUM_NAMES = 256
_NAMES = tuple(f"v{number}" for number in range(NUM_NAMES))
_DIGITS = "0123456789"
ASSIGNMENT_VOCABULARY: Vocabulary = (*_DIGITS, "=", "?", *_NAMES)


def lay_out_assignments(
    assignments: Sequence[tuple[str, str]], asked: str, vocabulary: Vocabulary = ASSIGNMENT_VOCABULARY
) -> Example:
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

        >>> vocabulary = (*"abcde37=?",)
        >>> pairs = [("b", "7"), ("a", "c"), ("d", "3"), ("c", "d"), ("e", "b")]
        >>> example = lay_out_assignments(pairs, "a", vocabulary)
        >>> example.text(vocabulary)
        'b = 7 a = c d = 3 c = d e = b ? a | a = c c = d d = 3'
        >>> example.coupled_ids_S[17:].tolist()
        [3, 4, 5, 9, 10, 11, 6, 7, 8]
        >>> example.dependencies[:4]
        ((16,), (17,), (3, 5, 17), (19,))
    """
    index_of = {left: index for index, (left, _) in enumerate(assignments)}
    chain = [index_of[asked]]
    while (value := assignments[chain[-1]][1]) in index_of:
        chain.append(index_of[value])
    names = [name for left, right in assignments for name in (left, "=", right)] + ["?", asked]
    prompt = [vocabulary.index(name) for name in names]
    restated = [3 * index + part for index in chain for part in range(3)]  # places in the prompt
    dependencies: list[tuple[int, ...]] = []
    for place in range(0, len(restated), 3):
        left = len(prompt) + place
        dependencies += [(left - 1,), (left,), (restated[place], restated[place + 2], left)]
    response = [prompt[place] for place in restated]
    return _example(prompt, response, dependencies, [*range(len(prompt)), *restated])


def _draw_assignments(size: int, sparsity: None, generator: np.random.Generator) -> Example:
    names = [_NAMES[number] for number in generator.choice(NUM_NAMES, size, replace=False)]
    values = [_DIGITS[number] for number in generator.integers(0, 10, 2)]
    asked_for = (size + 1) // 2
    right_sides = [*names[1:asked_for], values[0], *names[asked_for + 1 :], values[1]]
    assignments = list(zip(names, right_sides, strict=True))
    return lay_out_assignments([assignments[index] for index in generator.permutation(size)], names[0])


# sparse_parity, sparse_or, sparse_majority, sparse_last, sparse_lookup


def uniform_places(size: int, sparsity: int, generator: np.random.Generator) -> np.ndarray:
    """Any k places, each set as likely."""
    return np.sort(generator.choice(size, sparsity, replace=False))


PARITY_VOCABULARY: Vocabulary = ("0", "1", ".", "*")
_UNMARKED = 2
_MARKED = 3
_KEYS = "abcdefgh"
LOOKUP_VOCABULARY: Vocabulary = ("0", "1", ".", *_KEYS)

MARKED_FUNCTIONS = ("parity", "or", "majority", "last")
"""What `sparse_NAME` answers, given the k marked bits in order."""


def lay_out_marked_bits(bits: Sequence[int], marked: Sequence[int], function: str = "parity") -> Example:
    """`sparse_parity`, `sparse_or`, `sparse_majority`, `sparse_last`: a function of the k marked of l bits.

    The planted k-sparse correlation that a transformer can be trained on. From the sources: the distribution
    D^sp_{l,k}; samples are 2l tokens long; the model predicts the last token; in training
    k ~ Unif([K_train]), K_train in {4, 6, 8, 10, 12}, and 2l in [20, 50]; in testing 2l in [20, 500] and k in
    {4, 6, ..., 16}.

    Our choice, as the sources do not give the layout: each of the l bits is preceded by a token that marks it
    or not, which makes 2l tokens; the answer is one more token, predicted from the last bit. A mark stands
    before its bit, so that a bit's row can know that it is marked when the answer looks for it. The k marked
    places are a uniform random subset, the bits uniform. The dependency set holds the k marked bits and their
    marks, 2k tokens: without its mark a bit would not count. (Of `sparse_last` only the last of them.)

    The other functions, our addition, tell whether parity fails at length because of the number of tokens or
    because of counting them: OR and the majority (more ones than zeros) need all k bits too, the last marked
    bit needs one. Marked bits are 1 with the probability that makes both answers equally likely at every k,
    for OR 1 - 2^(-1/k); unmarked bits are uniform.

        >>> example = lay_out_marked_bits(bits=[1, 0, 1, 1], marked=[0, 3])
        >>> example.text(PARITY_VOCABULARY)
        '* 1 . 0 . 1 * 1 | 0'
        >>> example.dependencies
        ((0, 1, 6, 7),)
        >>> example.coupled_ids_S is None
        True
        >>> answers = [lay_out_marked_bits([1, 0, 1, 0], [0, 1, 3], name) for name in MARKED_FUNCTIONS]
        >>> [int(example.target_ids_T[0]) for example in answers]
        [1, 1, 0, 0]
    """
    marks = np.full(len(bits), _UNMARKED)
    marks[list(marked)] = _MARKED
    prompt = np.stack([marks, bits], axis=1).ravel().tolist()
    marked_bits = [bits[index] for index in marked]
    answers = {
        "parity": sum(marked_bits) % 2,
        "or": any(marked_bits),
        "majority": 2 * sum(marked_bits) > len(marked_bits),
        "last": marked_bits[-1],
    }
    decisive = marked[-1:] if function == "last" else marked
    places = [place for index in decisive for place in (2 * index, 2 * index + 1)]
    return _example(prompt, [int(answers[function])], [places])


def lay_out_lookup(bits: Sequence[int], marked: Sequence[int], keys: Sequence[int], asked: int) -> Example:
    """`sparse_lookup`: k of the bits have a key before them instead of a mark; the last token asks for one.

    Our choice, beside `sparse_parity`: the answer is one bit, found among k by its key, so that the number of
    candidates grows with k and the number of bits that decide does not. Keys are drawn without replacement
    from eight letters. The dependency set holds the asked key's two tokens, and the question.

        >>> example = lay_out_lookup(bits=[1, 0, 1, 1], marked=[1, 3], keys=[4, 0], asked=0)
        >>> example.text(LOOKUP_VOCABULARY)
        '. 1 e 0 . 1 a 1 e | 0'
        >>> example.dependencies
        ((2, 3, 8),)
    """
    marks = np.full(len(bits), _UNMARKED)
    marks[list(marked)] = _MARKED + np.array(keys)
    prompt = [*np.stack([marks, bits], axis=1).ravel().tolist(), _MARKED + keys[asked]]
    found = marked[asked]
    return _example(prompt, [bits[found]], [[2 * found, 2 * found + 1, len(prompt) - 1]])


def probability_of_one(function: str, sparsity: int) -> float:
    """How likely each of k marked bits must be 1 for both answers of OR or majority to be equally likely."""
    from scipy.special import betaincinv  # late: few need it

    least = 1 if function == "or" else sparsity // 2 + 1  # ones for the answer 1
    return float(betaincinv(least, sparsity - least + 1, 0.5))


def _draw_marked_bits(size: int, sparsity: int, generator: np.random.Generator, *, function: str) -> Example:
    bits = generator.integers(0, 2, size // 2)
    marked = uniform_places(size // 2, sparsity, generator)
    if function in ("or", "majority"):
        bits[marked] = generator.random(sparsity) < probability_of_one(function, sparsity)
    return lay_out_marked_bits(bits.tolist(), marked.tolist(), function)


def _draw_lookup(size: int, sparsity: int, generator: np.random.Generator) -> Example:
    bits = generator.integers(0, 2, size // 2)
    marked = uniform_places(size // 2, sparsity, generator)
    keys = generator.choice(len(_KEYS), sparsity, replace=False)
    asked = int(generator.integers(sparsity))
    return lay_out_lookup(bits.tolist(), marked.tolist(), keys.tolist(), asked)


# planted_correlation

PLANTED_VOCABULARY: Vocabulary = ("0", "1", *"abcdefgh", "=")
DEFAULT_LOCAL_LENGTH = 16


def local_places(
    size: int, sparsity: int, generator: np.random.Generator, *, local_length: int = DEFAULT_LOCAL_LENGTH
) -> np.ndarray:
    """Draw k places within a block of `local_length` positions; the block begins anywhere it fits."""
    num_places = min(local_length, size)
    first = generator.integers(0, size - num_places, endpoint=True)
    return first + uniform_places(num_places, sparsity, generator)


def lay_out_planted(noise_and_signals: Sequence[int], planted: Sequence[int]) -> Example:
    """`planted_correlation`: k tokens, planted anywhere among noise, decide the answer.

    From the sources (Definition 3.2, the k-sparse planted correlation): draw a set S* of k positions from a
    position law, draw their tokens Z jointly from a vocabulary law, every other token i.i.d. from a
    swap law mu; the label is g*(Z). The theorems ask that S* be local: within L_local positions of
    itself.

    Our choice, as the definition leaves the laws open: S* is uniform over all k-subsets, or local: uniform
    over the k-subsets of a block of L_local positions, itself drawn uniformly. Z is uniform over two signal
    tokens, "0" and "1", mu over eight noise tokens, so that what is planted can be told from noise; g* is
    parity. The task of this name has the local law with L_local = 16. The answer is asked for by "=".

        >>> example = lay_out_planted([2, 7, 0, 9, 1, 2], planted=[2, 4])
        >>> example.text(PLANTED_VOCABULARY)
        'a f 0 h 1 a = | 1'
        >>> example.dependencies
        ((2, 4),)
    """
    answer = sum(noise_and_signals[place] for place in planted) % 2
    return _example([*noise_and_signals, PLANTED_VOCABULARY.index("=")], [answer], [planted])


def draw_planted(
    size: int,
    sparsity: int,
    generator: np.random.Generator,
    *,
    position_law: Callable[[int, int, np.random.Generator], np.ndarray] = local_places,
) -> Example:
    """An example with `size` tokens before "=", k of them planted.

    Args:
        position_law: (size, k, generator) -> k places below size, ascending.
    """
    tokens = generator.choice(10, size, p=[0.0] * 2 + [1 / 8] * 8)  # noise, and no signal
    planted = position_law(size, sparsity, generator)
    tokens[planted] = generator.integers(0, 2, sparsity)
    return lay_out_planted(tokens.tolist(), planted.tolist())


# cues_1, cues_2, cues_4

NUM_BITS = 4
FLIP_PROBABILITY = 0.0416926902736567
"""Its binary entropy is a quarter of a bit."""
BEST_LOSS_OF_CUES = math.log(2)
"""Nats, exactly: of each of four bits a quarter is open."""
_NOISES = tuple(f"n{number}" for number in range(16))
_OF_CUES = (1, 2, 4)
_CUE_NAMES = [f"{k}.{place}.{token:x}" for k in _OF_CUES for place in range(k) for token in range(16)]
CUES_VOCABULARY: Vocabulary = (*_NOISES, *_CUE_NAMES, "?", *(f"={answer:x}" for answer in range(16)))
_FIRST_ANSWER = CUES_VOCABULARY.index("=0")
_POWERS = 1 << np.arange(NUM_BITS)[::-1]  # of two, for bits of which the most significant is the first
_BITS_OF_ANSWERS = np.arange(16)[:, None] // _POWERS % 2


def lay_out_cues(
    noise: Sequence[int], positions: Sequence[int], tokens: Sequence[int], answer: int
) -> Example:
    """`cues_*`: k cues among noise tell one of 16 answers, three of its four bits; then "?".

    Each bit is flipped with probability e, and told by one cue: of k cues each tells 4 / k bits, the first
    the first. Only their number differs: 1, 2 or 4, anywhere in the prompt. The best possible loss is ln 2
    for all, at every size. A cue has 16 tokens, token i of which says i modulo 2^(4 / k): so each stands in
    one example of 16, whatever k is.

    Coupled IDs: noise has those of its places; cues, in the order of what they tell, those next to the
    question's, however far away they are, as the theorem asks.

        >>> example = lay_out_cues([0, 2, 4], positions=[3, 1], tokens=[6, 11], answer=11)
        >>> example.text(CUES_VOCABULARY)  # 6 and 11 say 10 and 11, by their last two bits: 1011 is b
        'n0 2.1.b n2 2.0.6 n4 ? | =b'
        >>> example.dependencies
        ((1, 3),)
        >>> example.coupled_ids_S.tolist()
        [0, 4, 2, 3, 4, 5, 6]
        >>> round(float(np.exp(example.log_posterior_V[-5])), 4)  # of =b, the answer: each bit 0.9583
        0.8434
    """
    k = len(positions)
    question = len(noise) + k
    prompt = np.full(question + 1, CUES_VOCABULARY.index("?"))
    prompt[np.delete(np.arange(question), positions)] = noise
    prompt[positions] = CUES_VOCABULARY.index(f"{k}.0.0") + 16 * np.arange(k) + tokens
    ids = np.arange(question + 2)
    ids[positions] = np.arange(len(noise), question)
    num_values = 2 ** (NUM_BITS // k)
    told = np.ravel_multi_index(tuple(np.array(tokens) % num_values), (num_values,) * k)
    num_flipped_A = (_BITS_OF_ANSWERS[told] != _BITS_OF_ANSWERS).sum(1)
    e = FLIP_PROBABILITY
    log_posterior_V = np.full(len(CUES_VOCABULARY), -np.inf)
    log_posterior_V[_FIRST_ANSWER:] = num_flipped_A * math.log(e / (1 - e)) + NUM_BITS * math.log(1 - e)
    example = _example(prompt.tolist(), [_FIRST_ANSWER + answer], [positions], ids.tolist())
    return replace(example, log_posterior_V=log_posterior_V)


def _draw_cues(size: int, sparsity: None, generator: np.random.Generator, *, num_cues: int) -> Example:
    """A prompt of `size` tokens, "?" included."""
    positions = generator.choice(size - 1, num_cues, replace=False)
    noise = generator.integers(len(_NOISES), size=size - 1 - num_cues)
    bits = generator.integers(2, size=NUM_BITS)
    is_flipped = generator.random(NUM_BITS) < FLIP_PROBABILITY
    num_values = 2 ** (NUM_BITS // num_cues)
    values = np.array(np.unravel_index((bits ^ is_flipped) @ _POWERS, (num_values,) * num_cues))
    synonyms = generator.integers(16 // num_values, size=num_cues)
    tokens = values + num_values * synonyms
    return lay_out_cues(noise.tolist(), positions.tolist(), tokens.tolist(), int(bits @ _POWERS))


# All tasks by name, and examples in batches

COUPLED_SCHEMES = ("coupled", "predicted")
"""Schemes that take the task's coupled IDs. In training the two are given the same IDs; in testing `coupled`
is given those of the response too, as an oracle, and `predicted` (PPC) must predict them."""


@dataclass(frozen=True)
class Task:
    """A synthetic task."""

    name: str
    vocabulary: Vocabulary
    draw_example: Callable[..., Example]
    """(size, sparsity, generator) -> one example of this size, in the task's own unit. Sparsity is k, at most
    `largest_sparsity`; None where the task has none."""
    sizes: range
    """The sizes that the task has."""
    most_k: int = 0
    """The largest k at any size, of tasks whose k is chosen: these have no coupled IDs, and all others have.
    0: the task fixes how many tokens decide each."""
    embeds_coupled_ids: bool = True
    """Whether a model of coupled IDs also has a table of them, as predicting them needs. Without, IDs are
    what RoPE rotates by and nothing else, and the model is that of any other positions."""

    @property
    def has_sparsity(self) -> bool:
        """Whether k is chosen."""
        return self.most_k > 0

    def largest_sparsity(self, size: int) -> int:
        """The largest k that a size has room for: a bit and its mark take two tokens, a planted one one."""
        return min(size // self.sizes.step, self.most_k)

    def draw(self, size: int, sparsity: int | None, generator: np.random.Generator) -> Example:
        """One example; InputError if the task has no such size."""
        if size not in self.sizes:
            raise InputError(f"task {self.name}: size {size} is none of its sizes, {self.sizes}")
        return self.draw_example(size, sparsity, generator)


_BEYOND = 1 << 31
_ALL_SIZES = range(1, _BEYOND)
_EVEN_SIZES = range(2, _BEYOND, 2)
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("copy", COPY_VOCABULARY, _draw_copy, _ALL_SIZES),
        Task("addition", ADDITION_VOCABULARY, _draw_addition, _ALL_SIZES),
        Task("addition_padded", ADDITION_VOCABULARY, partial(_draw_addition, is_padded=True), _ALL_SIZES),
        Task("parity_scratchpad", SCRATCHPAD_VOCABULARY, _draw_parity_scratchpad, _ALL_SIZES),
        Task("variable_assignment", ASSIGNMENT_VOCABULARY, _draw_assignments, range(2, NUM_NAMES + 1)),
        *(
            Task(
                f"sparse_{function}",
                PARITY_VOCABULARY,
                partial(_draw_marked_bits, function=function),
                _EVEN_SIZES,
                most_k=_BEYOND,
            )
            for function in MARKED_FUNCTIONS
        ),
        Task("sparse_lookup", LOOKUP_VOCABULARY, _draw_lookup, _EVEN_SIZES, most_k=len(_KEYS)),
        Task(
            "planted_correlation", PLANTED_VOCABULARY, draw_planted, _ALL_SIZES, most_k=DEFAULT_LOCAL_LENGTH
        ),
        *(
            Task(
                f"cues_{k}",
                CUES_VOCABULARY,
                partial(_draw_cues, num_cues=k),
                range(k + 1, _BEYOND),
                embeds_coupled_ids=False,
            )
            for k in _OF_CUES
        ),
    )
}


def task_called(name: str) -> Task:
    """The task of that name; InputError names the nearest where there is none."""
    if name not in TASKS:
        raise unknown_name("task", name, TASKS)
    return TASKS[name]


def draw_batch(
    task: Task, size: int, sparsities: Sequence[int | None], generator: np.random.Generator
) -> list[Example]:
    """Draw an example for each of the sparsities."""
    return [task.draw(size, sparsity, generator) for sparsity in sparsities]


# Test examples: sizes and k, and the streams that they are drawn from

Cell = tuple[int, int | None]
"""A test size, and k for tasks that have it."""
TEST_STREAM = 1
"""The spawn key of test examples; training draws have none. Results tell it among their settings."""


def cells_of(task_name: str, sizes: Sequence[int], sparsities: Sequence[int] | None) -> list[Cell]:
    """Every size with every k that the task has room for; InputError where k is missing or of no use."""
    task = task_called(task_name)
    ks = sorted(set(sparsities or ()))
    most = task.largest_sparsity(max(sizes))
    if task.has_sparsity != bool(ks) or max(ks, default=0) > most:
        room = f"has k from 1 to {most} at --sizes {max(sizes)}" if task.has_sparsity else "has no k"
        raise InputError(f"--sparsities: task {task.name} {room}")
    if not ks:
        return [(size, None) for size in sorted(set(sizes))]
    return [(size, k) for size in sorted(set(sizes)) for k in ks if k <= task.largest_sparsity(size)]


def of_test_examples(test_seed: int, size: int, sparsity: int | None) -> np.random.Generator:
    """The source of the test examples of a size, and of a k for tasks that have it.

    No test example is drawn as in training. Lists of numbers alone would not keep the streams apart: to NumPy
    zeros at a list's end do not count, and [0, 20, 0] is [0, 20]. A spawn key does, which NumPy sets behind
    the list, at a place of its own.
    """
    sequence = np.random.SeedSequence([test_seed, size, sparsity or 0], spawn_key=(TEST_STREAM,))
    return np.random.default_rng(sequence)


def test_examples(
    task: Task, cell: Cell, num_examples: int, test_seed: int
) -> tuple[list[Example], np.random.Generator]:
    """The examples of a cell, the same for every model, and the generator that has drawn them."""
    size, sparsity = cell
    generator = of_test_examples(test_seed, size, sparsity)
    return draw_batch(task, size, [sparsity] * num_examples, generator), generator

"""Text whose truth is known: needles in haystacks, and planted cues; pipeline/plant_cues.py shows both.

The tokens of a needle's answer are the document's last targets, and the same in the needle are what their
prediction needs. The document without the needle, the haystack longer by as much, is the control.

How cues tell an answer is `CueLaw`; pipeline/synthetic/tasks.py plants them among noise by the same law. In
text cues, questions and answers are the vocabulary's rarest tokens, and no other token tells anything of an
answer: the number of cues is the true dependency sparsity of that target.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.cli import InputError
from pipeline.results.files import write_parquet
from pipeline.results.schemas import SCHEMA_VERSION, SCHEMAS
from pipeline.text.folder import EvaluationDocument
from pipeline.text.tokenizer import DocumentTokenizer

NEEDLES_FILE = "needles/00000-of-00001.parquet"
PLANTED_FILE = "planted/00000-of-00001.parquet"
KEYS = (
    "Athens",
    "Berlin",
    "Boston",
    "Cairo",
    "Delhi",
    "Dublin",
    "Geneva",
    "Havana",
    "Lima",
    "Lisbon",
    "London",
    "Madrid",
    "Moscow",
    "Oslo",
    "Paris",
    "Prague",
    "Rome",
    "Seoul",
    "Sydney",
    "Tokyo",
    "Vienna",
    "Warsaw",
)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Parts of the haystack before the needle."""
_NUM_DIGITS = 5
_FURTHEST_WORD = 16  # tokens that a needle moves back at most, so as not to stand within a word


@dataclass(frozen=True)
class CueLaw:
    """How cues tell a latent of 2 ** B values, B bits; k cues tell B / k bits each, or many vote weakly.

    The latent is uniform. There are v votes on each of its bits, and each vote is flipped with probability e.
    Of k cues, where k divides B, each carries the votes on B / k bits, v = 1, and there are k places: the
    first has the first B / k bits, and so on. Of v B cues each carries one vote, and there is a place a bit.
    Here e is such that all votes on a bit together leave as much of it open, for every number of cues:

        H(bit | v votes) = (B - bits_told) / B bits,

    so that every number of cues tells as much, and the best possible loss of the answer is the same:
    (B - bits_told) ln 2 nats, exactly. Weak cues are dense: to predict the answer well, all are needed.

    A place has a token for each value of its bits; `is_balanced` gives every place 2 ** B tokens, several of
    which tell the same, so that with k cues each token stands in one text of 2 ** B, whatever k.

    Four bits, of which two cues tell three; with cues 6 and 11 at the first and second place:

        >>> law = CueLaw(num_cues=2, num_bits=4, bits_told=3.0, is_balanced=True)
        >>> law.values_a_place, law.tokens_a_place, round(law.flip_probability, 4)
        (4, 16, 0.0417)
        >>> votes = law.votes(np.array([0, 1]), np.array([6, 11]))  # 6 % 4 = 0b10, 11 % 4 = 0b11
        >>> votes.tolist()
        [[1, 0, 1, 1]]
        >>> posterior = np.exp(law.log_posterior(votes))
        >>> int(posterior.argmax()), round(float(posterior[11]), 4)  # 0.9583 to the power of 4
        (11, 0.8434)
        >>> [round(float(one.best_loss / np.log(2)), 12) for one in (law, CueLaw(32, 4, 3.0))]
        [1.0, 1.0]
    """

    num_cues: int
    num_bits: int = 4
    bits_told: float | None = None
    """Bits that all cues together tell; None: all, without flips, if k divides their number."""
    is_balanced: bool = False

    def __post_init__(self) -> None:
        if self.num_bits % self.num_cues and (self.bits_told is None or self.num_cues % self.num_bits):
            raise InputError(
                f"{self.num_cues} cues cannot share the {self.num_bits} bits of {2**self.num_bits} answers;"
                f" choose a number that divides {self.num_bits}, or a multiple of it"
            )

    @property
    def num_votes(self) -> int:
        """v, on each bit."""
        return max(1, self.num_cues // self.num_bits)

    @property
    def num_places(self) -> int:
        """Kinds of cues: their tokens differ."""
        return min(self.num_cues, self.num_bits)

    @property
    def values_a_place(self) -> int:
        """Number of values that a cue may tell."""
        return int(2 ** (self.num_bits // self.num_places))

    @property
    def tokens_a_place(self) -> int:
        """Token i says i modulo `values_a_place`."""
        return int(2**self.num_bits) if self.is_balanced else self.values_a_place

    @property
    def _open_share(self) -> float:
        return 0.0 if self.bits_told is None else 1 - self.bits_told / self.num_bits

    @property
    def best_loss(self) -> float:
        """The least mean loss of the answer that any model of the cues can have, nats."""
        return self._open_share * self.num_bits * math.log(2)

    @cached_property
    def flip_probability(self) -> float:
        """Probability e that a vote is flipped."""
        return flip_probability(self.num_votes, self._open_share)

    def draw(self, generator: np.random.Generator) -> tuple[int, np.ndarray, np.ndarray]:
        """A latent, and of each of its cues the place and the token there: int64 [num_cues]."""
        bits_B = generator.integers(2, size=self.num_bits)
        votes_VB = np.tile(bits_B, (self.num_votes, 1))
        if self.bits_told is not None:
            votes_VB = votes_VB ^ (generator.random(votes_VB.shape) < self.flip_probability)
        values = _as_number(votes_VB.reshape(self.num_cues, -1))
        synonyms = generator.integers(self.tokens_a_place // self.values_a_place, size=self.num_cues)
        places = np.tile(np.arange(self.num_places), self.num_votes)
        return int(_as_number(bits_B)), places, values + self.values_a_place * synonyms

    def votes(self, places: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Votes of cues on each bit, in the order of their places: int64 [v, B], 0 or 1."""
        in_order = np.argsort(places, kind="stable")
        values_PV = (tokens[in_order] % self.values_a_place).reshape(self.num_places, self.num_votes)
        digits = np.arange(self.num_bits // self.num_places)[::-1]
        bits_PVD = values_PV[..., None] >> digits & 1
        return bits_PVD.transpose(1, 0, 2).reshape(self.num_votes, self.num_bits)

    def log_posterior(self, votes_VB: np.ndarray) -> np.ndarray:
        """Ln p of each latent, given the votes: float64 [2 ** B]. No model can predict better."""
        e = self.flip_probability
        odds_a_vote = math.log((1 - e) / e) if e else math.inf
        log_odds_B = (2 * votes_VB.sum(0) - self.num_votes) * odds_a_vote
        log_of_bit_2B = -np.logaddexp(0, np.stack([log_odds_B, -log_odds_B]))  # of a 0, and of a 1
        latents = np.arange(2**self.num_bits)[:, None] >> np.arange(self.num_bits)[::-1] & 1
        return np.where(latents, log_of_bit_2B[1], log_of_bit_2B[0]).sum(1)


def _as_number(bits: np.ndarray) -> np.ndarray:
    """Bits along the last axis, the most significant first."""
    return bits @ (1 << np.arange(bits.shape[-1])[::-1])


def open_share(num_votes: int, flip_probability: float) -> float:
    """H(bit | votes), in bits, of a bit that is 0 or 1 alike and votes that are flipped independently."""
    v = num_votes
    e = flip_probability
    if e == 0:
        return 0.0
    ones = np.arange(v + 1)
    ways = [math.lgamma(v + 1) - math.lgamma(n + 1) - math.lgamma(v - n + 1) for n in ones]
    log_of_one = np.array(ways) + ones * math.log(1 - e) + (v - ones) * math.log(e)
    log_of_zero = log_of_one[::-1]
    log_of_both = np.logaddexp(log_of_one, log_of_zero)
    # Both bits are alike: the entropy is that of a 1's posterior, where the bit is 1.
    return float((np.exp(log_of_one) * (log_of_both - log_of_one)).sum() / math.log(2))


@lru_cache
def flip_probability(num_votes: int, share: float) -> float:
    """The e for which `open_share` is `share`, to the last bits, by halving."""
    low = 0.0
    high = 0.5
    while share and low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if open_share(num_votes, middle) < share else (low, middle)
    return (low + high) / 2 if share else 0.0


def needle_document(
    source: EvaluationDocument,
    tokenizer: DocumentTokenizer,
    key: str,
    answer: str,
    context_length: int,
    depth: float | None,
) -> tuple[EvaluationDocument, dict[str, Any]]:
    """A document of exactly `context_length` tokens, answer included, and its row of the schema `needles`.

    `depth` is the part of the haystack before the needle, 0 to 1: the place is rounded to a token, and moved
    back to the start of a word if one is near. None plants nothing, which is the control.
    """
    statement = f" The magic number of {key} is {answer}"
    needle_ids, in_needle = _answer_in(f"{statement}.", answer, tokenizer)
    question_ids, in_question = _answer_in(
        f" What is the magic number of {key}?{statement}", answer, tokenizer
    )
    answer_ids = question_ids[in_question[0] :]
    question_ids = question_ids[: in_question[0]]
    sentence = needle_ids[: 0 if depth is None else None]
    num_hay = context_length - len(sentence) - len(question_ids) - len(answer_ids)
    if num_hay < 1:
        raise InputError(
            f"a length of {context_length} tokens has no room for a haystack: needle, question and answer"
            f" take {context_length - num_hay}; choose larger --document-lengths"
        )
    hay = source.token_ids[:num_hay]
    place = 0 if depth is None else _start_of_word(tokenizer.pieces(hay.tolist()), round(depth * num_hay))
    parts = [hay[:place], sentence, hay[place:], question_ids, answer_ids]
    token_ids = np.concatenate(parts).astype(np.int32)
    text = "".join(tokenizer.pieces(token_ids.tolist()))
    document_id = hashlib.sha256(text.encode()).hexdigest()[:16]
    num_answer_tokens = len(answer_ids)
    row = {
        "document_id": document_id,
        "source_document_id": source.document_id,
        "context_length": context_length,
        "depth": depth,
        "needle_position": None if depth is None else place,
        "num_needle_tokens": len(sentence),
        "needle_answer_positions": [] if depth is None else [place + token for token in in_needle],
        "answer_position": context_length - num_answer_tokens,
        "num_answer_tokens": num_answer_tokens,
        "answer": answer,
    }
    return EvaluationDocument(document_id, token_ids, source.url), row


def _answer_in(text: str, answer: str, tokenizer: DocumentTokenizer) -> tuple[np.ndarray, list[int]]:
    """The token IDs of a sentence, read whole, and which of them hold its answer and the blank before that.

    InputError where the tokens do not say the text: cases and blanks aside, decoding gives something else.
    """
    read = tokenizer.read(text)
    said = "".join(tokenizer.pieces(read.token_ids_N.tolist()))
    if _letters(said) != _letters(text):
        raise InputError(
            f"the needle '{text.strip()}' is '{said.strip()}' in the tokens of {tokenizer.name}; choose a"
            " tokenizer that has all of its characters"
        )
    start = text.rindex(f" {answer}")
    starts_N, ends_N = read.characters_N2.T
    is_in_N = (starts_N <= start + len(answer)) & ((starts_N >= start) | (ends_N > start + 1))
    return read.token_ids_N, np.flatnonzero(is_in_N).tolist()


def _letters(text: str) -> str:
    return "".join(text.casefold().split())


def needle_documents(
    texts: Sequence[EvaluationDocument],
    tokenizer: DocumentTokenizer,
    length: int,
    max_documents: int,
    seed: int,
) -> tuple[list[EvaluationDocument], list[dict[str, Any]]]:
    """Documents of one length, at every depth and the control, and their rows of the schema `needles`."""
    sources = [source for source in texts if len(source.token_ids) >= length][:max_documents]
    if not sources:
        raise InputError(
            f"no evaluation document has {length} tokens; the longest has"
            f" {max(len(source.token_ids) for source in texts)}, choose smaller --document-lengths or longer"
            " documents"
        )
    documents: dict[str, EvaluationDocument] = {}
    rows = []
    for source in sources:
        # The same needle at every length and depth.
        generator = np.random.default_rng([seed, int(source.document_id, 16)])
        key = KEYS[generator.integers(len(KEYS))]
        first, *others = generator.integers(0, 10, _NUM_DIGITS).tolist()
        value = "".join(map(str, [first or 1, *others]))  # a number does not begin with 0
        for depth in (None, *DEPTHS):
            document, row = needle_document(source, tokenizer, key, value, length, depth)
            if document.document_id in documents:
                raise InputError(
                    f"two depths are the same place in a haystack of {length} tokens; choose larger"
                    " --document-lengths"
                )
            documents[document.document_id] = document
            rows.append(row)
    return list(documents.values()), rows


def _start_of_word(pieces: Sequence[str], place: int) -> int:
    """The nearest place at or before one where a word begins; that one where none is near.

    Both ends of a haystack are good places: nothing of a word stands on their other side.
    """
    if place < len(pieces):
        for earlier in range(place, max(-1, place - _FURTHEST_WORD), -1):
            if earlier == 0 or pieces[earlier][:1].isspace():
                return earlier
    return place


def write_truth(folder: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write where the needles or cues of a data folder are, in the schema of this name; the path."""
    metadata = {"schema_version": str(SCHEMA_VERSION), "stage": "plant_cues"}
    schema = SCHEMAS[name].with_metadata(metadata)
    path = folder / (NEEDLES_FILE if name == "needles" else PLANTED_FILE)
    write_parquet(path, {column: [row[column] for row in rows] for column in schema.names}, schema)
    return path


@dataclass(frozen=True)
class Cues:
    """The token IDs that are planted. Shapes: A answers, P places, C tokens a place."""

    answer_ids: np.ndarray
    """Answers of the law that has most; every other has the first of them."""
    question_ids: Mapping[int, int]
    """Number of cues -> the token that asks for the answer that they tell."""
    cue_ids: Mapping[int, np.ndarray]
    """Number of cues -> int64 [P, C]."""
    laws: Mapping[int, CueLaw]

    @classmethod
    def rarest(cls, counts_V: np.ndarray, eos_token_id: int, laws: Mapping[int, CueLaw]) -> "Cues":
        """Cues for each law, of the tokens that occur least in training text by `counts_V`, EOS never."""
        num_answers = max(2**law.num_bits for law in laws.values())
        num_needed = num_answers + sum(1 + law.num_places * law.tokens_a_place for law in laws.values())
        by_count = [int(token) for token in np.argsort(counts_V, kind="stable") if token != eos_token_id]
        if num_needed > len(by_count) // 4:
            raise InputError(
                f"--num-planted {' '.join(map(str, laws))} takes {num_needed} tokens for cues, questions and"
                f" answers, more than a quarter of the vocabulary of {len(counts_V)}; choose fewer,"
                " or another tokenizer"
            )
        rare = iter(by_count)

        def take(*shape: int) -> np.ndarray:
            return np.array([next(rare) for _ in range(math.prod(shape))], dtype=np.int64).reshape(shape)

        return cls(
            take(num_answers),
            {k: int(take(1)[0]) for k in laws},
            {k: take(law.num_places, law.tokens_a_place) for k, law in laws.items()},
            laws,
        )


def plant_cues(
    text_ids: np.ndarray,
    ks: Sequence[int],
    cues: Cues,
    generator: np.random.Generator,
    num_near: int,
    num_copies: int = 1,
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """A text with cues in it, questions and answers at its end, in the place of tokens; where they are.

    Args:
        text_ids: the text; it keeps its length.
        ks: one question and answer each, in this order.
        cues: the tokens.
        generator: draws places and choices.
        num_near: tokens before the first question without a cue.
        num_copies: how often each cue is planted; more than once it is easier to learn what it means.
    """
    token_ids = np.array(text_ids, dtype=np.int64)
    rows = []
    end = len(token_ids) - 2 * len(ks)
    num_cues = num_copies * sum(cues.laws[k].num_cues for k in ks)
    # Among twice as many tokens, so that a text is not all cues.
    if end - num_near < 2 * num_cues:
        raise InputError(
            f"a text of {len(token_ids)} tokens has no room for {num_cues} cues {num_near} tokens before"
            " their questions; choose a larger --context-length"
        )
    free = iter(generator.permutation(end - num_near))
    for index, k in enumerate(ks):
        law = cues.laws[k]
        of_k = cues.cue_ids[k]
        positions = np.array([next(free) for _ in range(law.num_cues * num_copies)])
        latent, places, tokens = law.draw(generator)
        token_ids[positions] = np.repeat(of_k[places, tokens], num_copies)
        target = end + 2 * index + 1
        token_ids[target - 1 : target + 1] = cues.question_ids[k], cues.answer_ids[latent]
        rows.append(
            {
                "num_planted": law.num_cues,
                "target_position": target,
                "planted_positions": np.sort(positions).tolist(),
                "best_loss": -float(law.log_posterior(law.votes(places, tokens))[latent]),
            }
        )
    return token_ids, rows


def document_of(token_ids: np.ndarray, url: str | None) -> EvaluationDocument:
    """An evaluation document, whose ID is the hash of its tokens: cues need not be text."""
    tokens = np.ascontiguousarray(token_ids, dtype="<i4")
    return EvaluationDocument(hashlib.sha256(tokens.tobytes()).hexdigest()[:16], tokens, url)

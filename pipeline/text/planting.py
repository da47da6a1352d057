"""Text whose truth is known: needles in haystacks, and answers that planted signs tell.

A needle and its question are made of a key and a value:

    … haystack … The magic number of Paris is 48213. … haystack … What is the magic number of Paris? The magic
    number of Paris is 48213

The answer's tokens are the document's last targets, and the same tokens in the needle are what their
prediction needs. The document without the needle, the haystack longer by as much, is the control.

    … text … sign 1 … text … sign 2 … text … question answer

Of k places for signs, each has num_answers ** (1 / k) signs that belong to it alone, so that all k together
name one of the answers, and no other token tells anything of it: k is the true dependency sparsity of that
target. Every k asks for as many nats, ln(num_answers), but for k so large that two signs a place already tell
more answers: 2 ** k then. Signs, questions and answers are the vocabulary's rarest tokens.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.cli import InputError
from pipeline.results.files import make_table, read_parquet, write_parquet
from pipeline.results.schemas import SCHEMA_VERSION, SCHEMAS
from pipeline.text.folder import EvaluationDocument, TokenizedData
from pipeline.text.tokenizer import DocumentTokenizer

NEEDLES_FILE = "needles/00000-of-00001.parquet"
PLANTED_FILE = "planted/00000-of-00001.parquet"
KEYS = (
    "Athens", "Berlin", "Boston", "Cairo", "Delhi", "Dublin", "Geneva", "Havana", "Lima", "Lisbon", "London",
    "Madrid", "Moscow", "Oslo", "Paris", "Prague", "Rome", "Seoul", "Sydney", "Tokyo", "Vienna", "Warsaw",
)  # fmt: skip
_FURTHEST_WORD = 16  # tokens that a needle moves back at most, so as not to stand within a word


@dataclass(frozen=True)
class Needle:
    """One needle as tokens. `answer_ids` stand twice in its document: in the needle, and at the end."""

    before_ids: np.ndarray
    answer_ids: np.ndarray
    after_ids: np.ndarray
    question_ids: np.ndarray
    answer: str

    @classmethod
    def of(cls, tokenizer: DocumentTokenizer, needle: str, question: str, key: str, value: str) -> "Needle":
        """The needle of a key and a value, of a sentence and a question with {key} and {value} in them."""
        before, after = needle.split("{value}")
        space = before[len(before.rstrip(" ")) :]
        texts = [before.rstrip(" "), space + value, after, question.rstrip(" ")]
        # Each part by itself: the answer then has the same tokens in both of its places.
        before_ids, answer_ids, after_ids, question_ids = tokenizer.encode(
            [text.replace("{key}", key) for text in texts]
        )
        return cls(before_ids, answer_ids, after_ids, question_ids, value)


def needle_document(
    source: EvaluationDocument,
    tokenizer: DocumentTokenizer,
    needle: Needle,
    context_length: int,
    depth: float | None,
) -> tuple[EvaluationDocument, dict[str, Any]]:
    """A document of exactly `context_length` tokens, answer included, and its row of the schema `needles`.

    `depth` is the part of the haystack before the needle, 0 to 1: the place is rounded to a token, and moved
    back to the start of a word if one is near. None plants nothing, which is the control.
    """
    sentence = np.concatenate([needle.before_ids, needle.answer_ids, needle.after_ids])
    sentence = sentence[:0] if depth is None else sentence
    num_hay = context_length - len(sentence) - len(needle.question_ids) - len(needle.answer_ids)
    if num_hay < 1:
        raise InputError(
            f"a length of {context_length} tokens has no room for a haystack: needle, question and answer"
            f" take {context_length - num_hay}; choose larger --lengths, or a shorter --needle and --question"
        )
    hay = source.token_ids[:num_hay]
    place = 0 if depth is None else _start_of_word(tokenizer.pieces(hay.tolist()), round(depth * num_hay))
    token_ids = np.concatenate(
        [hay[:place], sentence, hay[place:], needle.question_ids, needle.answer_ids]
    ).astype(np.int32)
    text = "".join(tokenizer.pieces(token_ids.tolist()))
    document_id = hashlib.sha256(text.encode()).hexdigest()[:16]
    first, num_answer_tokens = place + len(needle.before_ids), len(needle.answer_ids)
    row = {
        "document_id": document_id,
        "source_document_id": source.document_id,
        "context_length": context_length,
        "depth": depth,
        "needle_position": None if depth is None else place,
        "num_needle_tokens": len(sentence),
        "needle_answer_positions": [] if depth is None else list(range(first, first + num_answer_tokens)),
        "answer_position": context_length - num_answer_tokens,
        "num_answer_tokens": num_answer_tokens,
        "answer": needle.answer,
    }
    return EvaluationDocument(document_id, token_ids, source.url), row


def _start_of_word(pieces: Sequence[str], place: int) -> int:
    """The nearest place at or before one where a word begins; that one where none is near.

    Both ends of a haystack are good places: nothing of a word stands on their other side.
    """
    if place < len(pieces):
        for earlier in range(place, max(-1, place - _FURTHEST_WORD), -1):
            if earlier == 0 or pieces[earlier][:1].isspace():
                return earlier
    return place


def _write_truth(path: Path, name: str, stage: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write the rows of a schema; the path."""
    schema = SCHEMAS[name].with_metadata({"schema_version": str(SCHEMA_VERSION), "stage": stage})
    columns = {column: [row[column] for row in rows] for column in schema.names}
    write_parquet(path, make_table(columns, schema))
    return path


def write_needles(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write where the needles of a data folder are; the path."""
    return _write_truth(folder / NEEDLES_FILE, "needles", "plant_needles", rows)


def read_needles(folder: Path) -> list[dict[str, Any]]:
    """The rows that `write_needles` wrote in a data folder."""
    if not (folder / NEEDLES_FILE).exists():
        raise InputError(f"{folder} holds no {NEEDLES_FILE}; pipeline/plant_needles.py writes it")
    rows: list[dict[str, Any]] = read_parquet(folder / NEEDLES_FILE, SCHEMAS["needles"].names).to_pylist()
    return rows


@dataclass(frozen=True)
class Signs:
    """The token IDs that are planted. Shapes: A answers of k, k places, c = A ** (1 / k) signs a place."""

    answer_ids: np.ndarray
    """Of the k that has most; every k has the first A of them."""
    question_ids: Mapping[int, int]
    """k -> the token that asks for the answer that k signs tell."""
    sign_ids: Mapping[int, np.ndarray]
    """k -> int64 [k, c]."""

    @classmethod
    def rarest(cls, counts_V: np.ndarray, eos_token_id: int, ks: Sequence[int], num_answers: int) -> "Signs":
        """Signs for each k, of the tokens that occur least in training text by `counts_V`, EOS never.

        There are `num_answers`, at least: for every k whose 2 ** k is less, this must be a k-th power.
        """
        choices = {k: round(max(num_answers, 2**k) ** (1 / k)) for k in ks}
        for k, root in choices.items():
            if root**k != max(num_answers, 2**k) or root < 2:
                raise InputError(
                    f"--num-answers {num_answers} is not a whole number to the power of {k}, so that {k}"
                    " signs cannot each tell as much; 16 serves 1, 2 and 4 signs (8 signs tell 256 answers"
                    " then), and so does 256"
                )
        num_of_all = max(choices[k] ** k for k in ks)
        num_needed = num_of_all + sum(1 + k * choices[k] for k in ks)
        by_count = [int(token) for token in np.argsort(counts_V, kind="stable") if token != eos_token_id]
        if num_needed > len(by_count) // 4:
            raise InputError(
                f"--num-answers {num_answers} and --num-planted {' '.join(map(str, ks))} take {num_needed}"
                f" tokens for signs, more than a quarter of the vocabulary of {len(counts_V)}; choose fewer"
                " answers, or another tokenizer"
            )
        rare = iter(by_count)

        def take(count: int) -> np.ndarray:
            return np.array([next(rare) for _ in range(count)], dtype=np.int64)

        return cls(
            take(num_of_all),
            {k: int(take(1)[0]) for k in ks},
            {k: take(k * choices[k]).reshape(k, choices[k]) for k in ks},
        )

    def answer_of(self, choices_k: Sequence[int]) -> int:
        """The answer's token ID, of the choice at each place."""
        k = len(choices_k)
        return int(self.answer_ids[np.ravel_multi_index(choices_k, [self.sign_ids[k].shape[1]] * k)])


def plant_signs(
    text_ids: np.ndarray,
    ks: Sequence[int],
    signs: Signs,
    generator: np.random.Generator,
    num_near: int,
    num_copies: int = 1,
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """A text with signs in it, questions and answers at its end, in the place of tokens; where they are.

    Args:
        text_ids: the text; it keeps its length.
        ks: one question and answer each, in this order.
        signs: the tokens.
        generator: draws places and choices.
        num_near: tokens before the first question that no sign stands in.
        num_copies: how often each sign is planted; more than once it is easier to learn what it means.
    """
    token_ids, rows = np.array(text_ids, dtype=np.int64), []
    end = len(token_ids) - 2 * len(ks)
    num_signs = num_copies * sum(ks)
    if end - num_near < 2 * num_signs:
        raise InputError(
            f"a text of {len(token_ids)} tokens has no room for {num_signs} signs {num_near} tokens before"
            " their questions; choose a larger --context-length"
        )
    free = iter(generator.permutation(end - num_near))
    for index, k in enumerate(ks):
        positions = np.array([next(free) for _ in range(k * num_copies)])
        choices = generator.integers(signs.sign_ids[k].shape[1], size=k)
        token_ids[positions] = np.repeat(signs.sign_ids[k][np.arange(k), choices], num_copies)
        target = end + 2 * index + 1
        token_ids[target - 1 : target + 1] = signs.question_ids[k], signs.answer_of(choices.tolist())
        places = np.sort(positions).tolist()
        rows.append({"num_planted": k, "target_position": target, "planted_positions": places})
    return token_ids, rows


def question_ids(data: TokenizedData) -> list[int]:
    """The tokens that ask for planted answers: what stands before those of the evaluation documents."""
    if not (data.folder / PLANTED_FILE).is_file():
        raise InputError(
            f"{data.folder} says of no planted answers; leave answer_loss_weight out, or name a folder that"
            " pipeline/plant_signs.py planted signs in"
        )
    documents = {document.document_id: document.token_ids for document in data.evaluation_documents()}
    rows = read_planted(data.folder)
    return sorted({int(documents[row["document_id"]][row["target_position"] - 1]) for row in rows})


def document_of(token_ids: np.ndarray, url: str | None) -> EvaluationDocument:
    """An evaluation document, whose ID is the hash of its tokens: signs need not be text."""
    tokens = np.ascontiguousarray(token_ids, dtype="<i4")
    return EvaluationDocument(hashlib.sha256(tokens.tobytes()).hexdigest()[:16], tokens, url)


def write_planted(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write where the signs of a data folder are; the path."""
    return _write_truth(folder / PLANTED_FILE, "planted_signs", "plant_signs", rows)


def read_planted(folder: Path) -> list[dict[str, Any]]:
    """The truth that `write_planted` wrote: a row a planted answer."""
    rows: list[dict[str, Any]] = read_parquet(folder / PLANTED_FILE).to_pylist()
    return rows

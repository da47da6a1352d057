"""Needles in haystacks: a sentence planted in real text at a known place, and its question at the end.

A needle and its question are made of a key and a value, as in

    … haystack … The magic number of Paris is 48213. … haystack … What is the magic number of Paris? The magic
    number of Paris is 48213

The last tokens of the document, the answer, are then its last targets, and the same tokens in the needle are
what their prediction needs. The document without the needle, the haystack longer by as much, is the control.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError
from pipeline.results.parquet import make_table, read_parquet, write_parquet
from pipeline.results.schemas import SCHEMA_VERSION, SCHEMAS
from pipeline.text.evaluation_documents import EvaluationDocument
from pipeline.text.tokenizer import DocumentTokenizer

NEEDLES_FILE = "needles/00000-of-00001.parquet"
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
        """The needle of a key and a value.

        Args:
            tokenizer: of the documents.
            needle: a sentence with {key} and {value}, which the space before it belongs to.
            question: with {key}; the value is what comes next.
            key, value: what is put there.
        """
        before, after = needle.split("{value}")
        space = before[len(before.rstrip(" ")) :]
        texts = [before.rstrip(" "), space + value, after, question.rstrip(" ")]
        # Each part by itself: the answer then has the same tokens in both of its places.
        before_ids, answer_ids, after_ids, question_ids = tokenizer.encode(
            [text.replace("{key}", key) for text in texts]
        )
        return cls(before_ids, answer_ids, after_ids, question_ids, value)

    @property
    def token_ids(self) -> np.ndarray:
        """The sentence."""
        return np.concatenate([self.before_ids, self.answer_ids, self.after_ids])


def refuse_bad_templates(needle: str, question: str) -> None:
    """Refuse templates that lack a place for the key or the value.

    Raises:
        InputError: which, and what would be right.
    """
    if needle.count("{value}") != 1 or "{key}" not in needle:
        raise InputError(f"--needle '{needle}' must hold {{key}}, and {{value}} once, as in the default")
    if "{key}" not in question or "{value}" in question:
        raise InputError(f"--question '{question}' must hold {{key}}, and not {{value}}, which is its answer")


def needle_document(
    source: EvaluationDocument,
    tokenizer: DocumentTokenizer,
    needle: Needle,
    context_length: int,
    depth: float | None,
) -> tuple[EvaluationDocument, dict[str, Any]]:
    """A document of exactly `context_length` tokens, and its row of the schema `needles`.

    Args:
        source: the haystack is cut from its start.
        tokenizer: of the documents.
        needle: what is planted and asked for.
        context_length: tokens of the whole, the answer at its end included.
        depth: part of the haystack before the needle, 0 to 1: its place is rounded to a token, and moved back
            to the start of a word if one is near; None plants nothing, which is the control.

    Raises:
        InputError: needle, question and answer leave no room for a haystack.
    """
    sentence = needle.token_ids if depth is not None else needle.token_ids[:0]
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
    row = {
        "document_id": document_id,
        "source_document_id": source.document_id,
        "context_length": context_length,
        "depth": depth,
        **_places(needle, context_length, None if depth is None else place),
        "answer": needle.answer,
    }
    return EvaluationDocument(document_id, token_ids, source.url), row


def _places(needle: Needle, context_length: int, place: int | None) -> dict[str, Any]:
    """Where needle and answer are in a document; `place`: the needle's start, None where none is planted."""
    num_answer_tokens = len(needle.answer_ids)
    first = 0 if place is None else place + len(needle.before_ids)
    return {
        "needle_position": place,
        "num_needle_tokens": 0 if place is None else len(needle.token_ids),
        "needle_answer_positions": [] if place is None else list(range(first, first + num_answer_tokens)),
        "answer_position": context_length - num_answer_tokens,
        "num_answer_tokens": num_answer_tokens,
    }


def _start_of_word(pieces: Sequence[str], place: int) -> int:
    """The nearest place at or before one where a word begins; that one where none is near.

    Both ends of a haystack are good places: nothing of a word stands on their other side.
    """
    if place < len(pieces):
        for earlier in range(place, max(-1, place - _FURTHEST_WORD), -1):
            if earlier == 0 or pieces[earlier][:1].isspace():
                return earlier
    return place


def write_needles(folder: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write the truth of a data folder as `NEEDLES_FILE`; the path."""
    schema = SCHEMAS["needles"].with_metadata(
        {"schema_version": str(SCHEMA_VERSION), "stage": "plant_needles"}
    )
    columns = {name: [row[name] for row in rows] for name in schema.names}
    write_parquet(folder / NEEDLES_FILE, make_table(columns, schema))
    return folder / NEEDLES_FILE


def read_needles(folder: Path) -> list[dict[str, Any]]:
    """The rows that `write_needles` wrote in a data folder.

    Raises:
        InputError: there are none.
    """
    if not (folder / NEEDLES_FILE).exists():
        raise InputError(f"{folder} holds no {NEEDLES_FILE}; pipeline/plant_needles.py writes it")
    rows: list[dict[str, Any]] = read_parquet(folder / NEEDLES_FILE, SCHEMAS["needles"].names).to_pylist()
    return rows

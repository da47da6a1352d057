"""Planted dependencies: real text whose last token is decided by k signs planted far back, and nothing else.

    … text … sign 1 … text … sign 2 … text … question answer

There are k places for signs; the sign of a place is one of `num_answers ** (1 / k)` that belong to it alone,
so that all k together name one of the answers. Every k asks for as many nats, ln(num_answers), but for k so
large that two signs a place already tell more answers: 2 ** k then. No token but the k signs tells anything
of the answer: k is the true dependency sparsity of that target, and the signs are its influential tokens.

Signs, questions and answers are the vocabulary's rarest tokens: hardly any stands in a text by chance.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError
from pipeline.results.parquet import make_table, read_parquet, write_parquet
from pipeline.results.schemas import SCHEMA_VERSION, SCHEMAS
from pipeline.text.evaluation_documents import EvaluationDocument
from pipeline.text.tokenized_data import TokenizedData

PLANTED_FILE = "planted/00000-of-00001.parquet"


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
        """Signs for each k, of the tokens that occur least.

        Args:
            counts_V: how often each token occurs in the training text.
            eos_token_id: never a sign.
            ks: numbers of signs.
            num_answers: of the answers, at least; for every k whose 2 ** k is less, a k-th power.

        Raises:
            InputError: `num_answers` is no k-th power, or the vocabulary is too small.
        """
        choices = {k: _root(max(num_answers, 2**k), k) for k in ks}
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
        num_choices = self.sign_ids[len(choices_k)].shape[1]
        index = 0
        for choice in choices_k:
            index = index * num_choices + choice
        return int(self.answer_ids[index])


def _root(num_answers: int, k: int) -> int:
    root = round(num_answers ** (1 / k))
    if root**k != num_answers or root < 2:
        raise InputError(
            f"--num-answers {num_answers} is not a whole number to the power of {k}, so that {k} signs"
            " cannot each tell as much; 16 serves 1, 2 and 4 signs (8 signs tell 256 answers then), and so"
            " does 256"
        )
    return root


@dataclass(frozen=True)
class Planted:
    """A text with its signs. `rows` say of each answer where it and its signs are."""

    token_ids: np.ndarray
    rows: list[dict[str, Any]]


def plant_signs(
    text_ids: np.ndarray,
    ks: Sequence[int],
    signs: Signs,
    generator: np.random.Generator,
    num_near: int,
    num_copies: int = 1,
) -> Planted:
    """Put signs into a text, and their questions and answers at its end, in the place of tokens there.

    Args:
        text_ids: the text; it keeps its length.
        ks: one question and answer each, in this order.
        signs: the tokens.
        generator: draws places and choices.
        num_near: tokens before the first question that no sign stands in.
        num_copies: how often each sign is planted; more than once it is easier to learn what it means.

    Raises:
        InputError: the text is too short for so many signs.
    """
    token_ids = np.array(text_ids, dtype=np.int64)
    end = len(token_ids) - 2 * len(ks)
    num_signs = num_copies * sum(ks)
    if end - num_near < 2 * num_signs:
        raise InputError(
            f"a text of {len(token_ids)} tokens has no room for {num_signs} signs {num_near} tokens before"
            " their questions; choose a larger --context-length"
        )
    free = iter(generator.permutation(end - num_near))
    rows = []
    for index, k in enumerate(ks):
        positions = np.array([next(free) for _ in range(k * num_copies)])
        choices = generator.integers(signs.sign_ids[k].shape[1], size=k)
        token_ids[positions] = np.repeat(signs.sign_ids[k][np.arange(k), choices], num_copies)
        question = end + 2 * index
        token_ids[question : question + 2] = signs.question_ids[k], signs.answer_of(choices.tolist())
        rows.append(
            {
                "num_planted": k,
                "target_position": question + 1,
                "planted_positions": np.sort(positions).tolist(),
            }
        )
    return Planted(token_ids, rows)


def question_ids(data: TokenizedData) -> list[int]:
    """The tokens that ask for planted answers: what stands before those of the evaluation documents.

    Raises:
        InputError: nothing is planted in the data.
    """
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
    """Write the truth of a data folder; the path."""
    names = SCHEMAS["planted_signs"].names
    columns = {name: [row[name] for row in rows] for name in names}
    schema = SCHEMAS["planted_signs"].with_metadata(
        {"schema_version": str(SCHEMA_VERSION), "stage": "plant_signs"}
    )
    write_parquet(folder / PLANTED_FILE, make_table(columns, schema))
    return folder / PLANTED_FILE


def read_planted(folder: Path) -> list[dict[str, Any]]:
    """The truth that `write_planted` wrote: a row a planted answer."""
    rows: list[dict[str, Any]] = read_parquet(folder / PLANTED_FILE).to_pylist()
    return rows

"""Text whose truth is known: needles in haystacks, and planted cues; pipeline/plant_cues.py shows both.

The tokens of a needle's answer are the document's last targets, and the same in the needle are what their
prediction needs. The document without the needle, the haystack longer by as much, is the control.

An answer is one of 16, uniform: four bits. Of k cues, where k divides 4, each tells 4 / k of them: the first
the first, and so on. Cues, questions and answers are the vocabulary's rarest tokens, and no other token tells
anything of an answer: k is the true dependency sparsity of that target.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
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
NUM_BITS = 4
NUM_ANSWERS = 2**NUM_BITS


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
    # Sentences are encoded whole: a number's tokens depend on what stands before it.
    needle_ids, in_needle = _answer_in(f"{statement}.", answer, tokenizer)
    question_ids, in_question = _answer_in(
        f" What is the magic number of {key}?{statement}", answer, tokenizer
    )
    answer_ids = question_ids[in_question[0] :]
    question_ids = question_ids[: in_question[0]]
    # Nothing is planted in the control, and the haystack is longer instead, so lengths are equal.
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
    # A token may be the blank alone, or begin before it and reach into the number: both count.
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
    for earlier in range(place, max(-1, place - _FURTHEST_WORD), -1):
        if earlier in (0, len(pieces)) or pieces[earlier][:1].isspace():
            return earlier
    return place


def write_truth(folder: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write where the needles or cues of a data folder are, in the schema of this name; the path."""
    schema = SCHEMAS[name].with_metadata({"schema_version": str(SCHEMA_VERSION), "stage": "plant_cues"})
    path = folder / (NEEDLES_FILE if name == "needles" else PLANTED_FILE)
    write_parquet(path, {column: [row[column] for row in rows] for column in schema.names}, schema)
    return path


@dataclass(frozen=True)
class Cues:
    """The token IDs that are planted. Shapes: C tokens of a cue, one for each value of the bits it tells."""

    answer_ids: np.ndarray
    """int64 [16]."""
    question_ids: Mapping[int, int]
    """Number of cues -> the token that asks for the answer that they tell."""
    cue_ids: Mapping[int, np.ndarray]
    """Number k of cues -> int64 [k, C]."""

    @classmethod
    def rarest(cls, counts_V: np.ndarray, eos_token_id: int, ks: Sequence[int]) -> "Cues":
        """Take the tokens that occur least in training text by `counts_V`, EOS never."""
        # k = 2: two cues of 2 bits, four tokens each; k = 4: four cues of 1 bit.
        shapes = {k: (k, 2 ** (NUM_BITS // k)) for k in ks}
        num_needed = NUM_ANSWERS + sum(1 + k * num_values for k, num_values in shapes.values())
        # Stable, so that ties, such as tokens that never occur, fall the same way on every machine.
        by_count = [int(token) for token in np.argsort(counts_V, kind="stable") if token != eos_token_id]
        if num_needed > len(by_count) // 4:
            raise InputError(
                f"--num-planted {' '.join(map(str, ks))} takes {num_needed} tokens for cues, questions and"
                f" answers, more than a quarter of the vocabulary of {len(counts_V)}; choose fewer,"
                " or another tokenizer"
            )
        rare = iter(by_count)
        return cls(
            np.array([*islice(rare, NUM_ANSWERS)]),
            {k: next(rare) for k in ks},
            {k: np.array([*islice(rare, np.prod(shape))]).reshape(shape) for k, shape in shapes.items()},
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
    num_cues = num_copies * sum(ks)
    # Among twice as many tokens, so that a text is not all cues.
    if end - num_near < 2 * num_cues:
        raise InputError(
            f"a text of {len(token_ids)} tokens has no room for {num_cues} cues {num_near} tokens before"
            " their questions; choose a larger --context-length"
        )
    # Drawn once for all cues: no place is taken twice.
    free = iter(generator.permutation(end - num_near))
    for index, k in enumerate(ks):
        positions = np.array([*islice(free, k * num_copies)])
        answer = int("".join(map(str, generator.integers(2, size=NUM_BITS))), base=2)
        cue_ids = cues.cue_ids[k]
        values = np.unravel_index(answer, (cue_ids.shape[1],) * k)  # the answer's digits, one a cue
        token_ids[positions] = np.repeat(cue_ids[range(k), values], num_copies)
        # Question and answer in turn: with two of them in 100 tokens, answers stand at 97 and 99.
        target = end + 2 * index + 1
        token_ids[target - 1 : target + 1] = cues.question_ids[k], cues.answer_ids[answer]
        rows.append(
            {
                "num_planted": k,
                "target_position": target,
                "planted_positions": np.sort(positions).tolist(),
            }
        )
    return token_ids, rows

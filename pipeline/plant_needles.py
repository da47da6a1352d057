"""Text whose truth is known: a sentence that holds a number, far before the question that asks for it.

Documents of each of --document-lengths end with a question whose answer, a number, stands in a sentence at
one of five depths and nowhere else on purpose; one beside them lacks it, the control. The same text keeps its
needle at every depth and length:

  … The magic number of Oslo is 48213. … What is the magic number of Oslo? The magic number of Oslo is 48213

The answer's tokens are the document's last targets, and the same in the needle are what their prediction
needs. The haystack of the control is longer by as much as the needle, so lengths are equal.

writes   <out>/length-<tokens>/data/              as tokenize_c4, without training text
         and below it needles/*.parquet           where each needle is: pipeline/RESULTS.md
resumes  run the same command again; complete folders are kept, other settings are refused

In the text of `make demo`; what is then measured is in pipeline/RECIPES.md:
  python pipeline/plant_needles.py --data runs/demo/data --out runs/needles --document-lengths 128 256 \\
      --max-documents 20
"""

import argparse
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from pipeline.cli import InputError, folder_path, logger, positive_int, random_seed, run_stage, stage_parser
from pipeline.results.files import describe_files, folder_lock, write_parquet
from pipeline.results.schemas import SCHEMA_VERSION, SCHEMAS
from pipeline.text.folder import (
    EVALUATION_FILE,
    EvaluationDocument,
    TokenizedData,
    is_complete,
    write_data_folder,
)
from pipeline.text.tokenizer import DocumentTokenizer

NEEDLES_FILE = "needles/00000-of-00001.parquet"
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


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add = stage.add_argument
    add("--data", type=folder_path, required=True, help="folder written by tokenize_c4.py: the texts")
    add("--out", type=folder_path, required=True, help="length-<tokens>/data is written here")
    add("--document-lengths", type=positive_int, nargs="+", required=True, help="tokens of the documents")
    add("--max-documents", type=positive_int, default=400, help="texts, at most; each gives six documents")
    add("--seed", type=random_seed, default=0, help="of keys and numbers")
    return stage


def main(arguments: argparse.Namespace) -> None:
    """Plant needles, and write a folder a length."""
    data = TokenizedData.open(arguments.data)
    tokenizer = data.tokenizer()
    inputs = [
        {"file": "train", "sha256": data.train_sha256},
        {"file": EVALUATION_FILE, "sha256": data.evaluation_sha256},
    ]
    schema = SCHEMAS["needles"].with_metadata(
        {"schema_version": str(SCHEMA_VERSION), "stage": "plant_needles"}
    )
    with folder_lock(arguments.out, "--out"):
        for length in arguments.document_lengths:
            folder = arguments.out / f"length-{length}" / "data"
            given = {"max_documents": arguments.max_documents, "seed": arguments.seed}
            configuration = {"settings": {"needles_in": length, **given}, "inputs": {"data": inputs}}
            if is_complete(folder, configuration):
                continue
            documents, rows = needle_documents(data.evaluation_documents(), tokenizer, length, **given)
            columns = {name: [row[name] for row in rows] for name in schema.names}
            write_parquet(folder / NEEDLES_FILE, columns, schema)
            files = describe_files(folder, [folder / NEEDLES_FILE])
            write_data_folder(folder, documents, files, tokenizer, configuration, {}, "plant_needles")
            logger.info(
                "%s: %d documents; measure them with --long-context-length %d --targets-per-chunk %d",
                folder,
                len(documents),
                length,
                max(row["num_answer_tokens"] for row in rows),
            )


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
    documents = []
    rows = []
    for source in sources:
        # By document: the choice of others, of length and of depth does not change its needle.
        generator = np.random.default_rng([seed, int(source.document_id, 16)])
        key = KEYS[generator.integers(len(KEYS))]
        first, *others = generator.integers(0, 10, _NUM_DIGITS).tolist()
        value = "".join(map(str, [first or 1, *others]))  # a number does not begin with 0
        for depth in (None, *DEPTHS):
            document, row = needle_document(source, tokenizer, key, value, length, depth)
            documents.append(document)
            rows.append(row)
    return documents, rows


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
    end_ids, in_end = _answer_in(f" What is the magic number of {key}?{statement}", answer, tokenizer)
    num_answer_tokens = len(end_ids) - in_end[0]
    if depth is None:
        needle_ids = needle_ids[:0]
        in_needle = []
    num_hay = context_length - len(needle_ids) - len(end_ids)
    if num_hay < 1:
        raise InputError(
            f"a length of {context_length} tokens has no room for a haystack: needle, question and answer"
            f" take {context_length - num_hay}; choose larger --document-lengths"
        )
    hay = source.token_ids[:num_hay]
    place = _start_of_word(tokenizer.pieces(hay.tolist()), round((depth or 0) * num_hay))
    token_ids = np.concatenate([hay[:place], needle_ids, hay[place:], end_ids]).astype(np.int32)
    text = "".join(tokenizer.pieces(token_ids.tolist()))
    document_id = sha256(text.encode()).hexdigest()[:16]
    row = {
        "document_id": document_id,
        "source_document_id": source.document_id,
        "context_length": context_length,
        "depth": depth,
        "needle_position": None if depth is None else place,
        "num_needle_tokens": len(needle_ids),
        "needle_answer_positions": [place + token for token in in_needle],
        "answer_position": context_length - num_answer_tokens,
        "num_answer_tokens": num_answer_tokens,
        "answer": answer,
    }
    return EvaluationDocument(document_id, token_ids, source.url), row


def _answer_in(text: str, answer: str, tokenizer: DocumentTokenizer) -> tuple[np.ndarray, list[int]]:
    """The token IDs of a sentence, read whole, and which of them hold its answer and the blank before it."""
    read = tokenizer.read(text)
    start = text.rindex(f" {answer}")
    starts_N, ends_N = read.characters_N2.T
    # A token may be the blank alone, or begin before it and reach into the number: both count.
    is_in_N = (starts_N <= start + len(answer)) & ((starts_N >= start) | (ends_N > start + 1))
    return read.token_ids_N, np.flatnonzero(is_in_N).tolist()


def _start_of_word(pieces: Sequence[str], place: int) -> int:
    """The nearest place at or before one where a word begins; that one where none is near.

    Both ends of a haystack are good places: nothing of a word stands on their other side.
    """
    for earlier in range(place, max(-1, place - _FURTHEST_WORD), -1):
        if earlier in (0, len(pieces)) or pieces[earlier][:1].isspace():
            return earlier
    return place


if __name__ == "__main__":
    run_stage(parser(), main)

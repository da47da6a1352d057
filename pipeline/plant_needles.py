"""Needles in haystacks: documents cut to given lengths, with a sentence planted at given depths.

For each length, a data folder like tokenize_c4's, on which every measuring stage runs unchanged. Its
evaluation documents end with a question and its answer, whose tokens are their last targets; the answer
stands in the needle, at the depth, and nowhere else on purpose. Beside the document of each depth stands one
without the needle, the control. Needles are numbers that nothing but the needle tells:

  … The magic number of Oslo is 48213. … What is the magic number of Oslo? The magic number of Oslo is 48213

reads    the evaluation documents of --data that are long enough, the first in the order of their IDs
writes   <out>/length-<tokens>/data/                  as tokenize_c4, without training tokens
         <out>/length-<tokens>/data/needles/*.parquet where each needle is: pipeline/RESULTS.md
resumes  run the same command again; complete lengths are kept, other settings are refused

with the models of `make demo`; the last lines say how many targets a chunk hold every answer:
  python pipeline/plant_needles.py --data runs/demo/data --out runs/needles --lengths 128 256 \\
      --max-documents 20
  for L in 128 256; do for stage in loss_differences influential_tokens; do
    python pipeline/$stage.py --data runs/needles/length-$L/data --results runs/needles/length-$L/results \\
        --checkpoints runs/demo/models/long-seed0 --short-context-length 8 --long-context-length $L \\
        --targets-per-chunk 5
  done; done
  python analysis/run_notebooks.py --results runs/demo/results --figures runs/demo/figures \\
      --needles runs/needles --notebooks needles
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
from contextlib import ExitStack
from typing import Any

import numpy as np

from pipeline.cli import InputError, folder_path, fraction, logger, positive_int, random_seed, stage_parser
from pipeline.results.files import FolderLock
from pipeline.text.folder import (
    EVALUATION_FILE,
    TOKENIZER_FILE,
    EvaluationDocument,
    TokenizedData,
    is_complete,
    write_data_folder,
)
from pipeline.text.planting import KEYS, Needle, needle_document, write_needles
from pipeline.text.tokenizer import DocumentTokenizer, load_tokenizer


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add = stage.add_argument
    add("--data", type=folder_path, required=True, help="folder written by tokenize_c4.py: the haystacks")
    add("--out", type=folder_path, required=True, help="length-<tokens>/data is written here for each length")
    add("--lengths", type=positive_int, nargs="+", required=True, help="tokens of the whole documents")
    add(
        "--depths", type=fraction, nargs="+", default=[0.0, 0.25, 0.5, 0.75, 1.0],
        help="parts of the haystack before the needle, from 0 to 1",
    )  # fmt: skip
    add("--max-documents", type=positive_int, default=100, help="haystacks of each length, at most")
    add("--needle", default=" The magic number of {key} is {value}.", help="the sentence planted")
    add(
        "--question", default=" What is the magic number of {key}? The magic number of {key} is",
        help="what stands before the answer at the end",
    )  # fmt: skip
    add("--answer-digits", type=positive_int, default=5, help="digits of the numbers asked for")
    add("--seed", type=random_seed, default=0, help="of keys and numbers")
    return stage


def main(arguments: argparse.Namespace) -> None:
    """Plant the needles of every length; nothing is written before all of them have been planted."""
    if arguments.needle.count("{value}") != 1 or "{key}" not in arguments.needle:
        raise InputError("--needle must hold {key}, and {value} once, as in the default")
    if "{key}" not in arguments.question or "{value}" in arguments.question:
        raise InputError("--question must hold {key}, and not {value}, which is its answer")
    data = TokenizedData.open(arguments.data)
    tokenizer = load_tokenizer(data.folder / TOKENIZER_FILE)
    names = ("depths", "max_documents", "needle", "question", "answer_digits", "seed")
    settings = {name: getattr(arguments, name) for name in names}
    inputs = {"data": [{"file": EVALUATION_FILE, "sha256": data.evaluation_sha256}]}
    lengths = sorted(set(arguments.lengths))
    folders = {length: arguments.out / f"length-{length}" / "data" for length in lengths}
    made_by = {
        length: {"settings": settings | {"context_length": length}, "inputs": inputs} for length in lengths
    }
    with ExitStack() as locks:
        # Before the planting, which takes a while: a folder that cannot be written to is refused at once.
        for folder in folders.values():
            locks.enter_context(FolderLock(folder, "--out"))
        complete = {length: is_complete(folders[length], made_by[length], verify=True) for length in lengths}
        planted = {length: plant(data, tokenizer, length, arguments) for length in lengths}
        for length, (documents, rows) in planted.items():
            folder = folders[length]
            if not complete[length]:
                paths = [write_needles(folder, rows)]
                write_data_folder(folder, documents, paths, tokenizer, made_by[length], {}, "plant_needles")
            logger.info(
                "%s: %d documents from %d haystacks; measure them with --long-context-length %d"
                " --targets-per-chunk %d",
                folder, len(documents), len({row["source_document_id"] for row in rows}), length,
                max(row["num_answer_tokens"] for row in rows),
            )  # fmt: skip


def plant(
    data: TokenizedData, tokenizer: DocumentTokenizer, length: int, arguments: argparse.Namespace
) -> tuple[list[EvaluationDocument], list[dict[str, Any]]]:
    """The documents of one length, every depth and the control, and their rows of the schema `needles`."""
    every = data.evaluation_documents()
    sources = [source for source in every if len(source.token_ids) >= length][: arguments.max_documents]
    if not sources:
        raise InputError(
            f"no evaluation document of {data.folder} has {length} tokens; the longest has"
            f" {max(len(source.token_ids) for source in every)}, choose smaller --lengths or longer documents"
        )
    documents: dict[str, EvaluationDocument] = {}
    rows = []
    for source in sources:
        # The same needle at every length and depth.
        generator = np.random.default_rng([arguments.seed, int(source.document_id, 16)])
        key = KEYS[generator.integers(len(KEYS))]
        first, *others = generator.integers(0, 10, arguments.answer_digits).tolist()
        value = "".join(map(str, [first or 1, *others]))  # a number does not begin with 0
        needle = Needle.of(tokenizer, arguments.needle, arguments.question, key, value)
        for depth in (None, *sorted(set(arguments.depths))):
            document, row = needle_document(source, tokenizer, needle, length, depth)
            if document.document_id in documents:
                raise InputError(
                    f"two of --depths {' '.join(map(str, arguments.depths))} are the same place in a haystack"
                    f" of {length} tokens; choose fewer of them or larger --lengths"
                )
            documents[document.document_id] = document
            rows.append(row)
    return list(documents.values()), rows

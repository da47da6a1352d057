"""Text whose truth is known: real documents with k planted cues, or with a needle.

A cue is a rare token put in the place of a token of the text; k of them, far back, together tell the answer
that stands behind the question at the end, and no other token does (pipeline/text/planting.py). A model
is trained on such text, and then asked which tokens decide its answers:

  … text … cue … text … cue … text … question answer

<out>/planted/data holds training text, in which every piece of --context-length tokens plants cues for each
of --num-planted and asks for all; and evaluation documents of that length, which plant and ask for one of
--num-planted, or for none. <out>/planted-<length>/data holds such documents of each of --document-lengths.

With --needles documents of each of --document-lengths end with a question whose answer, a number, stands in a
sentence at one of five depths and nowhere else on purpose; one beside them lacks it, the control:

  … The magic number of Oslo is 48213. … What is the magic number of Oslo? The magic number of Oslo is 48213

writes   <out>/planted/data/                        as tokenize_c4
         <out>/planted-<length>/data/               likewise, without training tokens
         <out>/planted*/data/planted/*.parquet      where the cues are: pipeline/RESULTS.md
         with --needles only <out>/length-<tokens>/data/ and below it needles/*.parquet, where each needle is
resumes  run the same command again; complete folders are kept, other settings are refused

with the text of `make demo`; commit 9a5d093 holds a study of such text, olmo_configs/studies/measures.yaml:
  python pipeline/plant_cues.py --data runs/demo/data --out runs/cues --context-length 256 \\
      --short-context-length 8

needles, in the text of `make demo`; what is then measured is in pipeline/RECIPES.md:
  python pipeline/plant_cues.py --needles --data runs/demo/data --out runs/needles \\
      --document-lengths 128 256 --max-documents 20
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.cli import (
    InputError,
    folder_path,
    logger,
    positive_int,
    progress,
    random_seed,
    stage_parser,
)
from pipeline.results.files import describe_files, folder_lock
from pipeline.text.chunks import long_enough_documents
from pipeline.text.encode import PackedShardWriter
from pipeline.text.folder import (
    EVALUATION_FILE,
    TRAIN_FOLDER,
    EvaluationDocument,
    TokenizedData,
    count_tokens,
    is_complete,
    training_token_counts,
    write_data_folder,
    write_token_counts,
)
from pipeline.text.planting import (
    CueLaw,
    Cues,
    document_of,
    needle_documents,
    plant_cues,
    write_truth,
)

_NUM_BITS = 4
"""Bits of an answer: there are 16. More cues than bits tell an answer of as many bits."""
_TOKENS_PER_PART = 1 << 26
Documents = tuple[list[EvaluationDocument], list[dict[str, Any]]]
"""Evaluation documents, and the rows that say what is planted in them."""


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add = stage.add_argument
    add("--data", type=folder_path, required=True, help="folder written by tokenize_c4.py: the texts")
    add("--out", type=folder_path, required=True, help="planted/data is written here")
    add("--needles", action="store_true", default=None, help="plant these and no cues")
    add("--context-length", type=positive_int, help="tokens of a piece and of a document")
    add(
        "--short-context-length",
        type=positive_int,
        help="tokens before a question that hold no cue",
    )
    add(
        "--num-planted",
        type=positive_int,
        nargs="+",
        default=[1, 2, 4],
        help="cues that tell an answer, 1, 2 or 4: each tells an equal part of its 4 bits; k > 4 tell k bits",
    )
    add(
        "--max-copies",
        type=positive_int,
        default=8,
        help="a training piece plants its cues once to so many times, so that their meaning can be learnt;"
        " evaluation documents plant them once",
    )
    add("--document-lengths", type=positive_int, nargs="+", help="tokens of further evaluation documents")
    add("--max-documents", type=positive_int, default=400, help="texts of each kind, at most")
    add("--seed", type=random_seed, default=0, help="of places, cues and questions")
    return stage


def main(arguments: argparse.Namespace) -> None:
    """Plant, and write the folders; nothing is written before all evaluation documents are planted."""
    folders = _folders(arguments)
    data = TokenizedData.open(arguments.data)
    tokenizer = data.tokenizer()
    made_by = {folder: _configuration(data, arguments, length) for folder, length in folders.items()}
    with folder_lock(arguments.out, "--out"):
        to_write = [folder for folder in folders if not is_complete(folder, made_by[folder])]
        contents: dict[Path, Documents] = {}
        if arguments.needles:
            texts = data.evaluation_documents()
            for folder, length in folders.items():
                contents[folder] = needle_documents(
                    texts, tokenizer, length, arguments.max_documents, arguments.seed
                )
        else:
            laws = {k: CueLaw(k, max(k, _NUM_BITS)) for k in arguments.num_planted}
            cues = Cues.rarest(training_token_counts(data), data.eos_token_id, laws)
            for folder, length in folders.items():
                texts = long_enough_documents(data, length, arguments.max_documents)
                contents[folder] = planted_documents(texts, cues, arguments, length)
        planted = next(iter(folders))
        for folder in to_write:
            documents, rows = contents[folder]
            paths = [write_truth(folder, "needles" if arguments.needles else "planted_cues", rows)]
            tally = {}
            if not arguments.needles:
                train_paths = write_training_text(folder, data, cues, arguments) if folder == planted else []
                counts_V = count_tokens(train_paths, data) if train_paths else training_token_counts(data)
                num_tokens = sum(path.stat().st_size for path in train_paths) // data.token_dtype.itemsize
                num_pieces = num_tokens // arguments.context_length
                tally = {"train_documents": num_pieces, "train_tokens": num_tokens}
                paths = [*train_paths, write_token_counts(folder, counts_V), *paths]
            files = describe_files(folder, paths)
            write_data_folder(folder, documents, files, tokenizer, made_by[folder], tally, "plant_cues")
    for folder, (documents, rows) in contents.items():
        logger.info(
            "%s: %d documents; measure them with --long-context-length %d --targets-per-chunk %d",
            folder,
            len(documents),
            len(documents[0].token_ids),
            max((row.get("num_answer_tokens", 1) for row in rows), default=1),
        )


def _folders(arguments: argparse.Namespace) -> dict[Path, int]:
    """Each folder to write, and the tokens of its texts; flags that say too little are refused."""
    arguments.num_planted = sorted(set(arguments.num_planted))
    lengths = sorted(set(arguments.document_lengths or ()))
    if arguments.needles:
        if not lengths:
            raise InputError("--needles wants --document-lengths, the tokens of the documents")
        return {arguments.out / f"length-{length}" / "data": length for length in lengths}
    if None in (arguments.context_length, arguments.short_context_length):
        raise InputError("cues are planted with --context-length and --short-context-length; see --help")
    longer = {arguments.out / f"planted-{length}" / "data": length for length in lengths}
    return {arguments.out / "planted" / "data": arguments.context_length, **longer}


def _configuration(data: TokenizedData, arguments: argparse.Namespace, length: int) -> dict[str, Any]:
    """Settings and inputs that decide what is written, of needles into the folder of documents so long."""
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    if arguments.needles:
        given = {"needles_in": length, "max_documents": given["max_documents"], "seed": given["seed"]}
    inputs = {"train": data.train_sha256, EVALUATION_FILE: data.evaluation_sha256}
    return {
        "settings": {name: value for name, value in given.items() if name not in ("data", "out")},
        "inputs": {"data": [{"file": file, "sha256": sha256} for file, sha256 in inputs.items()]},
    }


def planted_documents(
    texts: Sequence[EvaluationDocument], cues: Cues, arguments: argparse.Namespace, length: int
) -> Documents:
    """Documents of `length` tokens that plant one of the numbers of cues, or none."""
    documents = []
    rows = []
    for text in texts:
        generator = np.random.default_rng([arguments.seed, int(text.document_id, 16)])
        k = int(generator.choice([0, *arguments.num_planted]))
        ks = [k] if k else []
        token_ids, truth = plant_cues(
            text.token_ids[:length], ks, cues, generator, arguments.short_context_length
        )
        documents.append(document_of(token_ids, text.url))
        rows += [{"document_id": documents[-1].document_id, **row} for row in truth]
    return documents, rows


def write_training_text(
    folder: Path, data: TokenizedData, cues: Cues, arguments: argparse.Namespace
) -> list[Path]:
    """The training tokens, planted piece by piece; the files written.

    Each piece is a document of its own, EOS its last token, so that packed training reads whole pieces.
    """
    generator = np.random.default_rng([arguments.seed, 1])
    length = arguments.context_length - 1
    train = folder / TRAIN_FOLDER
    writer = PackedShardWriter(train, data.token_dtype, data.eos_token_id, _TOKENS_PER_PART)
    dtype = data.token_dtype.newbyteorder("<")
    paths = [path for path in data.train_paths if path.stat().st_size]
    files = [np.memmap(path, dtype=dtype, mode="r") for path in paths]
    pieces = [(file, start) for file in files for start in range(0, len(file) - length + 1, length)]
    for file, start in progress(pieces, "planting", "piece"):
        asked = generator.permutation(arguments.num_planted).tolist()
        num_copies = int(generator.integers(1, arguments.max_copies + 1))
        piece = file[start : start + length]
        token_ids, _ = plant_cues(piece, asked, cues, generator, arguments.short_context_length, num_copies)
        writer.add(token_ids)
    writer.flush()
    return writer.paths

"""Text whose truth is known: real documents with k planted cues, or with a needle.

A cue is a rare token put in the place of a token of the text; k of them, far back, together tell the answer
that stands behind the question at the end, and no other token does (pipeline/text/planting.py). A model
is trained on such text, and then asked which tokens decide its answers:

  … text … cue … text … cue … text … question answer

<out>/planted/data holds training text, in which every piece of --context-length tokens plants cues for each
of --num-planted and asks for all; and evaluation documents of that length, which plant and ask for one of
--num-planted, or for none. The same data gives the same cues at every --context-length.

With --needles documents of each of --document-lengths end with a question whose answer, a number, stands in a
sentence at one of five depths and nowhere else on purpose; one beside them lacks it, the control:

  … The magic number of Oslo is 48213. … What is the magic number of Oslo? The magic number of Oslo is 48213

writes   <out>/planted/data/                        as tokenize_c4
         <out>/planted/data/planted/*.parquet       where the cues are: pipeline/RESULTS.md
         with --needles <out>/length-<tokens>/data/ and below it needles/*.parquet, where each needle is
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
from collections.abc import Mapping, Sequence
from hashlib import sha256
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
from pipeline.text.planting import Cues, needle_documents, plant_cues, write_truth

_TOKENS_PER_PART = 1 << 26
_OF_CUES = (
    "context_length",
    "short_context_length",
    "num_planted",
    "max_copies",
    "max_documents",
    "seed",
)


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add = stage.add_argument
    add("--data", type=folder_path, required=True, help="folder written by tokenize_c4.py: the texts")
    add("--out", type=folder_path, required=True, help="planted/data is written here")
    add("--needles", action="store_true", help="plant these and no cues")
    add("--document-lengths", type=positive_int, nargs="+", help="tokens of the documents with needles")
    add("--context-length", type=positive_int, help="tokens of a piece and of a document with cues")
    add("--short-context-length", type=positive_int, help="tokens before a question that hold no cue")
    add(
        "--num-planted",
        type=int,
        nargs="+",
        choices=(1, 2, 4),
        default=[1, 2, 4],
        help="cues that tell an answer: each tells an equal part of its 4 bits",
    )
    add(
        "--max-copies",
        type=positive_int,
        default=8,
        help="a training piece plants its cues once to so many times, so that their meaning can be learnt;"
        " evaluation documents plant them once",
    )
    add("--max-documents", type=positive_int, default=400, help="texts of each kind, at most")
    add("--seed", type=random_seed, default=0, help="of places, cues and questions")
    return stage


def main(arguments: argparse.Namespace) -> None:
    """Plant needles or cues, and write the folders."""
    lengths = (arguments.context_length, arguments.short_context_length)
    if arguments.needles and not arguments.document_lengths:
        raise InputError("--needles wants --document-lengths, the tokens of the documents")
    if not arguments.needles and (None in lengths or arguments.document_lengths):
        raise InputError("cues are planted with --context-length and --short-context-length; see --help")
    data = TokenizedData.open(arguments.data)
    with folder_lock(arguments.out, "--out"):
        if arguments.needles:
            _write_needles(data, arguments)
        else:
            _write_cues(data, arguments)


def _write_needles(data: TokenizedData, arguments: argparse.Namespace) -> None:
    given = {"max_documents": arguments.max_documents, "seed": arguments.seed}
    for length in sorted(set(arguments.document_lengths)):
        folder = arguments.out / f"length-{length}" / "data"
        made_by = _configuration(data, {"needles_in": length, **given})
        if is_complete(folder, made_by):
            continue
        documents, rows = needle_documents(data.evaluation_documents(), data.tokenizer(), length, **given)
        files = describe_files(folder, [write_truth(folder, "needles", rows)])
        write_data_folder(folder, documents, files, data.tokenizer(), made_by, {}, "plant_cues")
        logger.info(
            "%s: %d documents; measure them with --long-context-length %d --targets-per-chunk %d",
            folder,
            len(documents),
            length,
            max(row["num_answer_tokens"] for row in rows),
        )


def _write_cues(data: TokenizedData, arguments: argparse.Namespace) -> None:
    arguments.num_planted = sorted(set(arguments.num_planted))
    folder = arguments.out / "planted" / "data"
    made_by = _configuration(data, {name: getattr(arguments, name) for name in _OF_CUES})
    if is_complete(folder, made_by):
        return
    texts = long_enough_documents(data, arguments.context_length, arguments.max_documents)
    cues = Cues.rarest(training_token_counts(data), data.eos_token_id, arguments.num_planted)
    documents, rows = planted_documents(texts, cues, arguments)
    truth = write_truth(folder, "planted_cues", rows)
    train_paths = write_training_text(folder, data, cues, arguments)
    counts_V = count_tokens(train_paths, data)
    num_tokens = sum(path.stat().st_size for path in train_paths) // data.token_dtype.itemsize
    tally = {"train_documents": num_tokens // arguments.context_length, "train_tokens": num_tokens}
    files = describe_files(folder, [*train_paths, write_token_counts(folder, counts_V), truth])
    write_data_folder(folder, documents, files, data.tokenizer(), made_by, tally, "plant_cues")
    logger.info("%s: %d documents; measure them with --targets-per-chunk 1", folder, len(documents))


def _configuration(data: TokenizedData, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings and inputs that decide what is written."""
    inputs = {"train": data.train_sha256, EVALUATION_FILE: data.evaluation_sha256}
    files = [{"file": file, "sha256": digest} for file, digest in inputs.items()]
    return {"settings": settings, "inputs": {"data": files}}


def planted_documents(
    texts: Sequence[EvaluationDocument], cues: Cues, arguments: argparse.Namespace
) -> tuple[list[EvaluationDocument], list[dict[str, Any]]]:
    """Documents that plant one of the numbers of cues, or none, and the rows that say where."""
    documents = []
    rows = []
    for text in texts:
        # By document: the choice of others does not change its cues.
        generator = np.random.default_rng([arguments.seed, int(text.document_id, 16)])
        # 0 plants nothing and asks nothing: ordinary text, for comparison.
        k = int(generator.choice([0, *arguments.num_planted]))
        piece = text.token_ids[: arguments.context_length]
        token_ids, truth = plant_cues(
            piece, [k] if k else [], cues, generator, arguments.short_context_length
        )
        token_ids = token_ids.astype("<i4")
        document_id = sha256(token_ids.tobytes()).hexdigest()[:16]  # of the tokens: cues need not be text
        documents.append(EvaluationDocument(document_id, token_ids, text.url))
        rows += [{"document_id": document_id, **row} for row in truth]
    return documents, rows


def write_training_text(
    folder: Path, data: TokenizedData, cues: Cues, arguments: argparse.Namespace
) -> list[Path]:
    """The training tokens, planted piece by piece; the files written.

    Each piece is a document of its own, EOS its last token, so that packed training reads whole pieces.
    """
    # One stream for the training text, apart from those of the evaluation documents.
    generator = np.random.default_rng([arguments.seed, 1])
    # The writer adds EOS, which makes it the context length.
    length = arguments.context_length - 1
    writer = PackedShardWriter(folder / TRAIN_FOLDER, data.token_dtype, data.eos_token_id, _TOKENS_PER_PART)
    dtype = data.token_dtype.newbyteorder("<")
    # An empty file cannot be mapped.
    files = [np.memmap(path, dtype, mode="r") for path in data.train_paths if path.stat().st_size]
    pieces = [(file, start) for file in files for start in range(0, len(file) - length + 1, length)]
    for file, start in progress(pieces, "planting", "piece"):
        asked = generator.permutation(arguments.num_planted).tolist()
        num_copies = int(generator.integers(1, arguments.max_copies + 1))
        piece = file[start : start + length]
        token_ids, _ = plant_cues(piece, asked, cues, generator, arguments.short_context_length, num_copies)
        writer.add(token_ids)
    writer.flush()
    return writer.paths

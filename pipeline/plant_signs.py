"""Text whose truth is known: real documents with k planted signs, and ones whose far context is foreign.

A sign is a rare token put in the place of a token of the text; k of them, far back, together tell the answer
that stands behind the question at the end, and no other token does (pipeline/text/planting.py). A model
is trained on such text, and then asked which tokens decide its answers:

  … text … sign … text … sign … text … question answer

<out>/planted/data holds training text, in which every piece of --context-length tokens plants signs for
each of --num-planted and asks for all (or for --asked-per-piece of them); and evaluation documents of that
length, which plant and ask for one of --num-planted, or for none (with --every-number each text is planted
for each of them in turn). <out>/foreign/data holds evaluation documents, nothing planted, whose far context
is another document's: all but the last --short-context-length tokens and the last token, the target. There
no far token is this document's own. They are as long as the text of a piece before its questions, since
behind it a model trained on pieces expects questions. <out>/planted-<length>/data holds evaluation documents
of each of --document-lengths, planted like those of planted: what a model does with them beyond the length
that it was trained at.

reads    training tokens and evaluation documents of --data; of the latter those that are long enough
writes   <out>/planted/data/                        as tokenize_c4
         <out>/foreign/data/, planted-<length>/data/ likewise, without training tokens
         <out>/planted*/data/planted/*.parquet      where the signs are: pipeline/RESULTS.md
resumes  run the same command again; complete folders are kept, other settings are refused

with the text of `make demo`; the study that uses it is olmo_configs/studies/measures.yaml:
  python pipeline/plant_signs.py --data runs/demo/data --out runs/signs --context-length 256 \\
      --short-context-length 8
  python pipeline/pretrain.py olmo_configs/tiny.yaml --data runs/signs/planted/data \\
      --save-folder runs/signs/models/long train_context_length=256
  python pipeline/influential_tokens.py --data runs/signs/planted/data --checkpoints runs/signs/models/long \\
      --results runs/signs/planted/results --short-context-length 8 --long-context-length 256 \\
      --targets-per-chunk 1
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from pipeline.cli import InputError, folder_path, logger, positive_int, progress, random_seed, stage_parser
from pipeline.results.files import FolderLock, write_atomically, write_json
from pipeline.text.encode import PackedShardWriter
from pipeline.text.folder import (
    EVALUATION_FILE,
    MANIFEST_FILE,
    TOKENIZER_FILE,
    TRAIN_FOLDER,
    EvaluationDocument,
    TokenizedData,
    count_tokens,
    is_complete,
    make_manifest,
    training_token_counts,
    write_evaluation_documents,
    write_token_counts,
)
from pipeline.text.planting import Signs, document_of, plant_signs, write_planted
from pipeline.text.tokenizer import DocumentTokenizer, load_tokenizer

STAGE = "plant_signs"
_TOKENS_PER_PART = 1 << 28
_NOT_THE_TEXT = ("data", "out")


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add = stage.add_argument
    add("--data", type=folder_path, required=True, help="folder written by tokenize_c4.py: the texts")
    add("--out", type=folder_path, required=True, help="planted/data and foreign/data are written here")
    add("--context-length", type=positive_int, required=True, help="tokens of a piece and of a document")
    add(
        "--short-context-length",
        type=positive_int,
        required=True,
        help="no sign stands in so many tokens before a question, or is foreign there",
    )
    add("--num-planted", type=positive_int, nargs="+", default=[1, 2, 4], help="signs that tell an answer")
    add(
        "--num-answers",
        type=positive_int,
        default=16,
        help="answers, a k-th power for each k planted; 2 to the power of k where that is more",
    )
    add(
        "--max-copies",
        type=positive_int,
        default=8,
        help="a training piece plants its signs once to so many times, so that their meaning can be learnt;"
        " evaluation documents plant them once",
    )
    add(
        "--asked-per-piece",
        type=positive_int,
        help="of --num-planted in a training piece, drawn; all if not given",
    )
    add(
        "--document-lengths",
        type=positive_int,
        nargs="+",
        help="tokens of further evaluation documents, a folder each; none if not given",
    )
    add(
        "--every-number",
        action="store_true",
        default=None,
        help="a document of each text for each of --num-planted; one of them, or none, is drawn if not given",
    )
    add("--max-documents", type=positive_int, default=400, help="texts of each kind, at most")
    add("--seed", type=random_seed, default=0, help="of places, signs and questions")
    return stage


def is_done(arguments: argparse.Namespace) -> bool:
    """Whether all folders are whole; those of other settings or another text are refused."""
    arguments.num_planted = sorted(set(arguments.num_planted))
    configuration = configuration_of(TokenizedData.open(arguments.data), arguments)
    folders = [
        planted_folder(arguments.out, length) for length in (None, *(arguments.document_lengths or ()))
    ]
    return all(
        is_complete(folder, configuration) for folder in (*folders, arguments.out / "foreign" / "data")
    )


def main(arguments: argparse.Namespace) -> None:
    """Plant, and write the folders.

    Raises:
        InputError: the data has no training tokens or too short documents, or the settings do not fit it.
    """
    arguments.num_planted = sorted(set(arguments.num_planted))
    data = TokenizedData.open(arguments.data)
    tokenizer = load_tokenizer(data.folder / TOKENIZER_FILE)
    signs = Signs.rarest(
        training_token_counts(data), data.eos_token_id, arguments.num_planted, arguments.num_answers
    )
    texts = _long_enough(data, arguments.context_length, arguments.max_documents)
    planted, foreign = planted_folder(arguments.out), arguments.out / "foreign" / "data"
    documents, rows = planted_documents(texts, signs, arguments, arguments.context_length)
    further = {
        planted_folder(arguments.out, length): planted_documents(
            _long_enough(data, length, arguments.max_documents), signs, arguments, length
        )
        for length in arguments.document_lengths or ()
    }
    configuration = configuration_of(data, arguments)
    folders = planted, foreign, *further
    with ExitStack() as locks:
        for folder in folders:
            locks.enter_context(FolderLock(folder, "--out"))
        to_write = [folder for folder in folders if not is_complete(folder, configuration, verify=True)]
        if planted in to_write:
            training = write_training_text(planted, data, signs, arguments)
            write_folder(
                planted, documents, [*training, write_planted(planted, rows)], tokenizer, configuration
            )
        # Counts of the text's training tokens, for --intervention substitute to draw from.
        counts_V = training_token_counts(data)
        if foreign in to_write:
            counts = write_token_counts(foreign, counts_V)
            write_folder(foreign, foreign_documents(texts, arguments), [counts], tokenizer, configuration)
        for folder in further.keys() & to_write:
            longer, their_rows = further[folder]
            files = [write_token_counts(folder, counts_V), write_planted(folder, their_rows)]
            write_folder(folder, longer, files, tokenizer, configuration)
    logger.info(
        "%s: %d documents of %d tokens, %d of them with signs; measure them with --long-context-length %d"
        " --targets-per-chunk 1, and those of %s with --long-context-length %d",
        planted, len(documents), arguments.context_length, len(rows), arguments.context_length, foreign,
        foreign_context_length(arguments),
    )  # fmt: skip


def planted_folder(out: Path, length: int | None = None) -> Path:
    """Of documents with signs: those as long as a training piece, or of another length."""
    return out / ("planted" if length is None else f"planted-{length}") / "data"


def configuration_of(data: TokenizedData, arguments: argparse.Namespace) -> dict[str, Any]:
    """Settings and inputs that decide what is written."""
    settings = {name: value for name, value in vars(arguments).items() if name not in _NOT_THE_TEXT}
    settings = {name: value for name, value in settings.items() if value is not None}
    inputs = {"train": data.train_sha256, EVALUATION_FILE: data.evaluation_sha256}
    return {
        "settings": settings,
        "inputs": {"data": [{"file": file, "sha256": sha256} for file, sha256 in inputs.items()]},
    }


def planted_documents(
    texts: Sequence[EvaluationDocument], signs: Signs, arguments: argparse.Namespace, length: int
) -> tuple[list[EvaluationDocument], list[dict[str, Any]]]:
    """The documents that plant one of the numbers of signs, or none; and their rows of `planted_signs`.

    Args:
        length: tokens of each.
    """
    documents, rows = [], []
    for text in texts:
        generator = np.random.default_rng([arguments.seed, int(text.document_id, 16)])
        drawn = [int(generator.choice([0, *arguments.num_planted]))]
        for k in arguments.num_planted if arguments.every_number else drawn:
            piece = text.token_ids[:length]
            planted = plant_signs(piece, [k] if k else [], signs, generator, arguments.short_context_length)
            documents.append(document_of(planted.token_ids, text.url))
            rows += [{"document_id": documents[-1].document_id, **row} for row in planted.rows]
    return documents, rows


def foreign_documents(
    texts: Sequence[EvaluationDocument], arguments: argparse.Namespace
) -> list[EvaluationDocument]:
    """The documents whose far context is that of the document before."""
    length = foreign_context_length(arguments)
    num_far = length - 1 - arguments.short_context_length
    return [
        document_of(
            np.concatenate([texts[index - 1].token_ids[:num_far], text.token_ids[num_far:length]]), text.url
        )
        for index, text in enumerate(texts)
    ]


def foreign_context_length(arguments: argparse.Namespace) -> int:
    """Tokens of a document with a foreign far context: of a piece before its questions and its EOS."""
    num_asked = min(arguments.asked_per_piece or len(arguments.num_planted), len(arguments.num_planted))
    return int(arguments.context_length) - 2 * (num_asked + 1)


def write_training_text(
    folder: Path, data: TokenizedData, signs: Signs, arguments: argparse.Namespace
) -> list[Path]:
    """The training tokens, planted piece by piece; the files written.

    Each piece is a document of its own, EOS its last token, so that packed training reads whole pieces.
    """
    generator = np.random.default_rng([arguments.seed, 1])
    writer = PackedShardWriter(folder / TRAIN_FOLDER, data.token_dtype, data.eos_token_id, _TOKENS_PER_PART)
    num_pieces = sum(
        path.stat().st_size // data.token_dtype.itemsize // (arguments.context_length - 1)
        for path in data.train_paths
    )
    with writer:
        pieces = _pieces(data, arguments.context_length - 1)
        for piece in progress(pieces, "planting", "piece", num_pieces):
            asked = generator.permutation(arguments.num_planted)[: arguments.asked_per_piece].tolist()
            num_copies = int(generator.integers(1, arguments.max_copies + 1))
            planted = plant_signs(piece, asked, signs, generator, arguments.short_context_length, num_copies)
            writer.add(planted.token_ids)
    counts_V = count_tokens(writer.paths, data.token_dtype, data.vocabulary_size, data.eos_token_id)
    return [*writer.paths, write_token_counts(folder, counts_V)]


def _pieces(data: TokenizedData, length: int) -> Iterator[np.ndarray]:
    for path in data.train_paths:
        tokens = np.memmap(path, dtype=data.token_dtype.newbyteorder("<"), mode="r")
        for start in range(0, len(tokens) - length + 1, length):
            yield tokens[start : start + length]


def _long_enough(data: TokenizedData, length: int, max_documents: int) -> list[EvaluationDocument]:
    """Evaluation documents of so many tokens or more, the first `max_documents`.

    Raises:
        InputError: there are fewer than two, or there is no training text.
    """
    documents = data.evaluation_documents()
    texts = [document for document in documents if len(document.token_ids) >= length]
    if len(texts) < 2:
        raise InputError(
            f"{len(texts)} evaluation document(s) of {data.folder} have {length} tokens, and two are needed;"
            " choose a smaller --context-length (or --document-lengths) or longer documents"
        )
    if data.num_train_tokens < length:
        raise InputError(
            f"{data.folder} holds {data.num_train_tokens} training tokens, fewer than one piece of"
            f" {length}; name a folder of tokenize_c4.py with training text"
        )
    return texts[:max_documents]


def write_folder(
    folder: Path,
    documents: Sequence[EvaluationDocument],
    files: Sequence[Path],
    tokenizer: DocumentTokenizer,
    configuration: dict[str, Any],
) -> None:
    """Write the rest of a data folder, its manifest last: whoever finds that may trust all of it."""
    write_evaluation_documents(folder / EVALUATION_FILE, documents, STAGE)
    tokenizer_json = tokenizer.to_json()
    write_atomically(folder / TOKENIZER_FILE, lambda path: path.write_text(tokenizer_json, "utf-8"))
    parts = [path for path in files if path.suffix == ".npy"]
    num_tokens = sum(path.stat().st_size for path in parts) // tokenizer.token_dtype.itemsize
    tally = Counter(
        train_documents=num_tokens // configuration["settings"]["context_length"],
        train_tokens=num_tokens,
        evaluation_documents=len(documents),
        evaluation_tokens=sum(len(document.token_ids) for document in documents),
    )
    manifest = make_manifest(folder, configuration, tokenizer, files, tally, STAGE)
    write_json(folder / MANIFEST_FILE, manifest)

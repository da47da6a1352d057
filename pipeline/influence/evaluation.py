"""What the three measuring stages share: documents cut into chunks, checkpoints, shards, progress.

Shapes: L chunk (long_context_length).
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.errors import InputError
from pipeline.models.causal_lm import CausalLM
from pipeline.models.olmo import find_checkpoint, load_olmo, model_name
from pipeline.results.folder import StageOutput
from pipeline.results.provenance import sha256_of_files
from pipeline.stage import logger, positive_int, progress
from pipeline.text.tokenized_data import EvaluationDocument, TokenizedData

Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class Chunk:
    """`long_context_length` tokens of one document, and the same chunk of the document that is its null."""

    document_id: str
    chunk_index: int
    token_ids_L: np.ndarray
    null_token_ids_L: np.ndarray

    @property
    def start(self) -> int:
        """Place of the chunk's first token in the document."""
        return self.chunk_index * len(self.token_ids_L)

    def target_columns(self, targets_T: np.ndarray) -> Columns:
        """The columns that name a target, in the document's coordinates, a row for each of `targets_T`."""
        return {
            "document_id": [self.document_id] * len(targets_T),
            "chunk_index": [self.chunk_index] * len(targets_T),
            "target_position": (self.start + targets_T).tolist(),
        }


Measure = Callable[[CausalLM, Chunk], dict[str, Columns]]
"""What a stage does with one chunk: artefact -> column -> values."""


def add_evaluation_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that every measuring stage has."""
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        required=True,
        help="folder written by tokenize_c4.py; its evaluation documents are used",
    )
    add(
        "--checkpoints", type=Path, nargs="+", required=True,
        help="OLMo checkpoints: run folders of pretrain.py (their last step), or step<N>-unsharded folders",
    )  # fmt: skip
    add("--results", type=Path, required=True, help="results folder; complete shards in it are kept")
    add("--long-context-length", type=positive_int, required=True, help="chunk length ℓ, in tokens")
    add(
        "--targets-per-chunk", type=positive_int, default=16,
        help="m: the last m positions of a chunk are predicted, each from all before it in the chunk",
    )  # fmt: skip
    add(
        "--max-documents",
        type=positive_int,
        help="use the first documents only (their order is a hash's); all if not given",
    )
    add(
        "--documents-per-shard",
        type=positive_int,
        default=32,
        help="documents a Parquet file; a killed run resumes there",
    )
    add(
        "--tokens-per-batch",
        type=positive_int,
        default=8192,
        help="tokens a forward pass may hold; bounds memory",
    )
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="torch device")


def evaluate_checkpoints(
    arguments: argparse.Namespace,
    stage: str,
    settings: Mapping[str, Any],
    measure: Measure,
) -> None:
    """Run `measure` on every chunk of every document with every checkpoint, writing shard by shard.

    Args:
        arguments: of `add_evaluation_arguments`.
        stage: the stage's name, as results are filed under.
        settings: the stage's own settings, beyond those of `add_evaluation_arguments`.
        measure: the stage's work on one chunk.

    Raises:
        InputError: data or a checkpoint is missing or does not fit, no document is long enough, two
            checkpoints have one name, or the results folder holds another configuration's results.
    """
    data = TokenizedData.open(arguments.data)
    documents = _long_enough(data, arguments.long_context_length, arguments.max_documents)
    shards = [
        range(start, min(start + arguments.documents_per_shard, len(documents)))
        for start in range(0, len(documents), arguments.documents_per_shard)
    ]
    every_setting = {
        "long_context_length": arguments.long_context_length,
        "targets_per_chunk": arguments.targets_per_chunk,
        **settings,
        "num_documents": len(documents),
        "documents_per_shard": arguments.documents_per_shard,
        "tokens_per_batch": arguments.tokens_per_batch,
        "dtype": "float32",
    }
    for name, checkpoint in _named_checkpoints(arguments.checkpoints).items():
        inputs = {
            "checkpoint": sha256_of_files(checkpoint / "config.yaml", checkpoint / "model.pt"),
            "evaluation_documents": data.evaluation_sha256,
        }
        output = StageOutput(
            arguments.results, stage, name, settings=every_setting, inputs=inputs, num_shards=len(shards)
        )
        pending = output.pending_shards()
        if not pending:
            logger.info("%s of model '%s' is complete in %s", stage, name, arguments.results)
            continue
        model = load_olmo(checkpoint, torch.device(arguments.device))
        _refuse_foreign_tokens(model, data, documents, checkpoint)
        work = [(shard, index) for shard in pending for index in shards[shard]]
        tables: dict[str, Columns] = {}
        for shard, index in progress(work, f"{stage} {name}", "document"):
            for chunk in _chunks(documents, index, arguments.long_context_length):
                append_columns(tables, measure(model, chunk))
            if index == shards[shard][-1]:
                output.write_shard(shard, tables)
                tables = {}


def _long_enough(
    data: TokenizedData, chunk_length: int, max_documents: int | None
) -> list[EvaluationDocument]:
    documents = data.evaluation_documents()
    usable = [document for document in documents if len(document.token_ids) >= chunk_length]
    if len(usable) < len(documents):
        logger.info(
            "%d of %d documents are shorter than %d tokens and are skipped",
            len(documents) - len(usable), len(documents), chunk_length,
        )  # fmt: skip
    if len(usable) < 2:
        raise InputError(
            f"{data.folder} has {len(usable)} evaluation document(s) of at least {chunk_length} tokens; two"
            " are needed, since each serves as the null of another: choose a smaller --long-context-length"
        )
    return usable[:max_documents]


def _named_checkpoints(paths: Sequence[Path]) -> dict[str, Path]:
    named: dict[str, Path] = {}
    for path in paths:
        if model_name(path) in named:
            raise InputError(
                f"two of --checkpoints are named '{model_name(path)}'; results are filed by run folder name,"
                " so these must differ"
            )
        named[model_name(path)] = find_checkpoint(path)
    return named


def _refuse_foreign_tokens(
    model: CausalLM, data: TokenizedData, documents: Sequence[EvaluationDocument], checkpoint: Path
) -> None:
    largest = max(int(document.token_ids.max()) for document in documents)
    if data.vocabulary_size != model.vocabulary_size or largest >= model.vocabulary_size:
        raise InputError(
            f"the tokenizer of {data.folder} has {data.vocabulary_size} tokens (largest ID used: {largest})"
            f" and {checkpoint} a vocabulary of {model.vocabulary_size}: they do not belong together"
        )


def _chunks(documents: Sequence[EvaluationDocument], index: int, chunk_length: int) -> list[Chunk]:
    """The document's full chunks. Its null is the next document, around the end: the order is a hash's."""
    document, null = documents[index], documents[(index + 1) % len(documents)]
    num_null_chunks = len(null.token_ids) // chunk_length
    chunks = []
    for chunk_index in range(len(document.token_ids) // chunk_length):
        start, null_start = chunk_index * chunk_length, chunk_index % num_null_chunks * chunk_length
        chunks.append(
            Chunk(
                document.document_id,
                chunk_index,
                document.token_ids[start : start + chunk_length].astype(np.int64),
                null.token_ids[null_start : null_start + chunk_length].astype(np.int64),
            )
        )
    return chunks


def append_columns(tables: dict[str, Columns], rows: Mapping[str, Columns]) -> None:
    """Append the rows of each artefact to its table, in place."""
    for artefact, columns in rows.items():
        table = tables.setdefault(artefact, {name: [] for name in columns})
        for name, values in columns.items():
            table[name].extend(values)

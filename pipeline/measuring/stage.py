"""What the measuring stages share: every checkpoint on every chunk of every document, shard by shard.

Here the checkpoints of a command line are found, given a dtype and a device, and refused where they don't
belong to the data.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch

from pipeline.cli import InputError, logger, progress
from pipeline.measuring.contexts import Batching
from pipeline.measuring.given import refuse_foreign_tokens
from pipeline.models.devices import keep_freed_memory, usable_device, warn_of_slow_bfloat16
from pipeline.models.interface import CausalLM, NotFiniteLossError, num_positions_of
from pipeline.models.load import Checkpoint, Loading, find_model, load_causal_lm
from pipeline.results.files import Task
from pipeline.results.schemas import Columns, append_columns
from pipeline.results.versions import sha256_of_files
from pipeline.results.write import StageOutput
from pipeline.text.chunks import Chunk, chunks_of, long_enough_documents
from pipeline.text.folder import TOKENIZER_FILE, EvaluationDocument, TokenizedData


@dataclass(frozen=True)
class LoadedModel:
    """A model to measure, by the name that its results are filed under."""

    name: str
    model: CausalLM
    batching: Batching


Measure = Callable[[LoadedModel, Chunk], dict[str, Columns]]
"""What a stage does with one chunk: artefact -> column -> values."""


def measure_documents(
    arguments: argparse.Namespace,
    stage: str,
    settings: Mapping[str, Any],
    measure: Measure,
    *,
    selector: str | None = None,
    inputs: Mapping[str, str] | None = None,
    model_facts: Mapping[str, Any] | None = None,
    num_other_documents: int = 1,
    num_positions: int | None = None,
) -> None:
    """Measure every checkpoint on every chunk of every document, and write what is missing, shard by shard.

    Tasks, then the processes of each, take turns with the shards: 2 tasks of 2 processes have 0, 4, 8, …;
    2, 6, …; 1, 5, …; 3, 7, … With --status only say what is missing; exit with 0 if nothing is, else 1.

    Args:
        arguments: of `measuring.flags.add_evaluation_arguments`.
        settings: the stage's own, beyond those flags.
        selector: who chose the tokens that the checkpoints try; results are filed under both names.
        inputs: SHA-256 of what else is measured with, by name.
        model_facts: of the selector; None: of the checkpoint.
        num_other_documents: those whose chunks a chunk is measured with: its null, then swaps.
        num_positions: position IDs are below it; None: those of a chunk.
    """
    keep_freed_memory()
    task = Task(arguments.task_index, arguments.num_tasks)
    # Set by torchrun, `accelerate launch` and study.py. Process 1 of task 1, of two tasks of two processes,
    # is share 1 + 2 * 1 = 3 of 4.
    rank = int(os.environ.get("RANK", 0))
    num_processes = int(os.environ.get("WORLD_SIZE", 1))
    share = Task(task.index + task.num_tasks * rank, task.num_tasks * num_processes)
    # --status runs no model, so it must also answer where the device asked for is missing.
    device = torch.device("cpu") if arguments.status else usable_device(arguments.device)
    data = TokenizedData.open(arguments.data)
    length = arguments.long_context_length
    documents = long_enough_documents(data, length, arguments.max_documents, num_other_documents)
    # From the documents alone, never from the number of tasks: any number may finish the work. 1 up to 127
    # documents, so that a small run, if killed, keeps each that is measured; 32 at most.
    size = arguments.documents_per_shard or max(1, min(32, len(documents) // 64))
    indices = range(len(documents))
    shards = [indices[start : start + size] for start in indices[::size]]

    outputs = []
    for checkpoint in _found_models(arguments):
        name = checkpoint.name
        output = StageOutput(
            arguments.results,
            stage,
            name if selector is None else f"{selector}/evaluator={name}",
            settings={
                "long_context_length": length,
                "targets_per_chunk": arguments.targets_per_chunk,
                # Null at its default, which is how `ContextLengths.of` reads settings without it.
                **({"target_stride": arguments.target_stride} if arguments.target_stride > 1 else {}),
                **settings,
                "num_documents": len(documents),
                "max_chunks_per_document": arguments.max_chunks_per_document,
                "documents_per_shard": size,
                "dtype": arguments.dtype,
                **({"bos_token_ids": list(data.bos_token_ids)} if data.bos_token_ids else {}),
            },
            inputs={
                "evaluation_documents": data.evaluation_sha256,
                **(inputs or {}),
                "checkpoint" if selector is None else f"evaluator {name}": sha256_of_files(
                    *checkpoint.files(arguments.trust_remote_code)
                ),
            },
            num_shards=len(shards),
            task=share,
        )
        outputs.append(output)
        if arguments.status or not output.pending_shards():
            continue
        with output.writing():
            if arguments.dtype == "bfloat16":
                warn_of_slow_bfloat16(device, "--dtype float32")
            loaded = _load(checkpoint, arguments, device, data, documents, num_positions or length)
            facts = model_facts
            if facts is None:
                facts = {**checkpoint.training_facts, "num_parameters": loaded.model.num_parameters}
            work = [(shard, index) for shard in output.pending_shards() for index in shards[shard]]
            tables: dict[str, Columns] = {}
            for shard, index in progress(work, f"{stage} {name}", "document"):
                for chunk in chunks_of(
                    documents, index, length, arguments.max_chunks_per_document, num_other_documents
                ):
                    where = f" of document {chunk.document_id}, or of the document that is its null,"
                    with failures_in_words(name, chunk.start, where):
                        append_columns(tables, measure(loaded, chunk))
                # Whole shards only: a killed run takes up again with those that are missing.
                if index == shards[shard][-1]:
                    output.write_shard(shard, tables, facts)
                    tables = {}
    if arguments.status:
        sys.stdout.writelines(output.state() + "\n" for output in outputs)
        raise SystemExit(any(output.pending_shards() for output in outputs))
    for output in outputs:
        logger.info(output.state())


def _found_models(arguments: argparse.Namespace) -> list[Checkpoint]:
    """The checkpoints, by the names that results are filed under."""
    found = [find_model(word, arguments.trust_remote_code) for word in arguments.checkpoints]
    for one, other in combinations(found, 2):
        if one.name == other.name:
            raise InputError(
                f"two models are named '{one.name}', {one.folder} and {other.folder}; results are filed by"
                " the last part of the name, so rename one, or the folder that it is copied to"
            )
    return found


def _load(
    checkpoint: Checkpoint,
    arguments: argparse.Namespace,
    device: torch.device,
    data: TokenizedData,
    documents: Sequence[EvaluationDocument],
    num_tokens: int,
) -> LoadedModel:
    """Load a model for so many position IDs; refuse one that was not trained on such tokens."""
    bos_token_ids = data.bos_token_ids
    loading = Loading(
        device,
        getattr(torch, arguments.dtype),
        device_map=arguments.device_map,
        trust_remote_code=arguments.trust_remote_code,
    )
    model = load_causal_lm(checkpoint, loading, num_positions_of(num_tokens, len(bos_token_ids)))
    tokenizer = data.tokenizer() if (data.folder / TOKENIZER_FILE).is_file() else None
    refuse_foreign_tokens(
        model,
        str(checkpoint.folder),
        checkpoint,
        [np.array(bos_token_ids), *(document.token_ids for document in documents)],
        tokenizer,
        f"the tokenizer of {data.folder}",
        data.vocabulary_size,
        trust_remote_code=loading.trust_remote_code,
    )
    led = model.led_by(bos_token_ids)
    return LoadedModel(checkpoint.name, led, Batching.for_model(led))


@contextmanager
def failures_in_words(model: str, start: int, where: str = "") -> Iterator[None]:
    """Turn a loss that is no number into an InputError; `start` is where the chunk begins."""
    try:
        yield
    except NotFiniteLossError as error:
        raise InputError(
            f"model '{model}' gives the token at position {start + error.target_position}{where} a"
            f" {error.what} of {error.loss}: its weights are damaged, or --dtype is too coarse for them"
        ) from error

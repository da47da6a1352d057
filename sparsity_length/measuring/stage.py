"""What the measuring stages share: every checkpoint on every chunk of every document, shard by shard.

Here the checkpoints of a command line are found, and refused where they don't belong to the data.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparsity_length.cli import InputError, logger, progress
from sparsity_length.measuring.given import GivenModel
from sparsity_length.measuring.settings import Chunked
from sparsity_length.models.devices import warn_of_slow_bfloat16
from sparsity_length.models.interface import CausalLM, NotFiniteLossError
from sparsity_length.models.load import find_model
from sparsity_length.results.files import Task, sha256_of_files
from sparsity_length.results.schemas import Columns
from sparsity_length.results.write import StageOutput
from sparsity_length.text.chunks import Chunk, chunks_of, long_enough_documents
from sparsity_length.text.folder import TokenizedData

Measure = Callable[[CausalLM, Chunk], Iterator[tuple[str, Columns]]]
"""What a stage does with a model and a chunk: tables, and rows of each."""


def measure_documents(
    arguments: argparse.Namespace,
    stage: str,
    settings: Chunked,
    measure: Measure,
    *,
    selector: str | None = None,
    inputs: Mapping[str, str] | None = None,
    rule_files: Sequence[Path] = (),
    model_facts: Mapping[str, Any] | None = None,
    num_other_documents: int = 1,
    num_positions: int | None = None,
) -> None:
    """Measure every checkpoint on every chunk of every document, and write what is missing, shard by shard.

    Tasks, then the processes of each, take turns with the shards: 2 tasks of 2 processes have 0, 4, 8, …;
    2, 6, …; 1, 5, …; 3, 7, … With --status only say what is missing; exit with 0 if nothing is, else 1.

    Args:
        arguments: of `measuring.settings.add_stage_arguments`.
        settings: what is measured.
        selector: who chose the tokens that the checkpoints try.
        inputs: SHA-256 of what else is measured with, by name.
        rule_files: the user's own rules, whose SHA-256 is one of the settings.
        model_facts: of the selector; None: of the checkpoint.
        num_other_documents: those whose chunks a chunk is measured with, as `Selecting.num_others`.
        num_positions: position IDs are below it; None: those of a chunk.
    """
    task = Task(arguments.task_index, arguments.num_tasks)
    # Set by torchrun, `accelerate launch` and study.py. Process 1 of task 1, of two tasks of two processes,
    # is share 1 + 2 * 1 = 3 of 4.
    share = Task(
        task.index + task.num_tasks * int(os.environ.get("RANK", 0)),
        task.num_tasks * int(os.environ.get("WORLD_SIZE", 1)),
    )
    data = TokenizedData.open(arguments.data)
    length = settings.long_context_length
    documents = long_enough_documents(data, length, settings.max_documents, num_other_documents)
    # From the documents alone, never from the number of tasks: any number may finish the work. 1 up to 127
    # documents, so that a small run, if killed, keeps each that is measured; 32 at most.
    size = arguments.documents_per_shard or max(1, min(32, len(documents) // 64))
    shards = [range(len(documents))[start : start + size] for start in range(0, len(documents), size)]

    checkpoints = [find_model(word, arguments.trust_remote_code) for word in arguments.checkpoints]
    names = [checkpoint.name for checkpoint in checkpoints]
    if len({*names}) < len(names):
        raise InputError(
            f"two models are named alike, of {', '.join(names)}; results are filed by the last part of the"
            " name, so rename one, or the folder that it is copied to"
        )
    digests = [checkpoint.sha256(arguments.trust_remote_code) for checkpoint in checkpoints]
    all_settings = {
        **replace(settings, max_documents=None).as_metadata,
        # What is None is left out, as in results of before there was such a setting.
        "rule_files_sha256": sha256_of_files(*rule_files) if rule_files else None,
        "num_documents": len(documents),
        "documents_per_shard": size,
        "dtype": arguments.dtype,
        "rope": arguments.rope and str(arguments.rope),
        "bos_token_ids": list(data.bos_token_ids),
    }
    outputs = []
    for name, checkpoint, digest in zip(names, checkpoints, digests, strict=True):
        output = StageOutput(
            arguments.results,
            stage,
            selector or name,
            evaluator=None if selector is None else name,
            settings={name: value for name, value in all_settings.items() if value is not None},
            inputs={
                "evaluation_documents": data.evaluation_sha256,
                **(inputs or {}),
                "checkpoint" if selector is None else "evaluator": digest,
            },
            num_shards=len(shards),
            task=share,
        )
        outputs.append(output)
        # --status runs no model, so it also answers where the device asked for is missing.
        if arguments.status or not output.pending_shards():
            continue
        with output.writing():
            given = GivenModel(
                checkpoint,
                device=arguments.device,
                dtype=arguments.dtype,
                device_map=arguments.device_map,
                trust_remote_code=arguments.trust_remote_code,
                rope=arguments.rope,
            )
            model = given.ready(
                num_positions or length,
                (document.token_ids for document in documents),
                data.tokenizer(),
                data.bos_token_ids,
            )
            if arguments.dtype == "bfloat16":
                warn_of_slow_bfloat16(model.device, "--dtype float32")
            facts = model_facts or {**checkpoint.training_facts, "num_parameters": model.num_parameters}
            work = [(shard, index) for shard in output.pending_shards() for index in shards[shard]]
            rows: list[tuple[str, Columns]] = []
            for shard, index in progress(work, f"{stage} {name}", "document"):
                for chunk in chunks_of(
                    documents, index, length, settings.max_chunks_per_document, num_other_documents
                ):
                    with failures_in_words(name, chunk.start, f" of document {chunk.document_id}"):
                        of_chunk = {"document_id": chunk.document_id, "chunk_index": chunk.chunk_index}
                        rows += [(table, {**of_chunk, **columns}) for table, columns in measure(model, chunk)]
                # Whole shards only: a killed run takes up again with those that are missing.
                if index == shards[shard][-1]:
                    output.write_shard(shard, rows, facts)
                    rows = []
    if arguments.status:
        sys.stdout.writelines(output.state() + "\n" for output in outputs)
        raise SystemExit(any(output.pending_shards() for output in outputs))
    for output in outputs:
        logger.info(output.state())


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

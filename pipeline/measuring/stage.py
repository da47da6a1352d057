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

from pipeline.cli import InputError, is_out_of_memory, logger, progress
from pipeline.measuring.contexts import Batching
from pipeline.measuring.flags import default_documents_per_shard
from pipeline.measuring.given import refuse_foreign_tokens
from pipeline.models.devices import (
    GIBIBYTE,
    keep_freed_memory,
    peak_bytes,
    usable_device,
    warn_of_slow_bfloat16,
)
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


Measure = Callable[[LoadedModel, Chunk, LoadedModel | None], dict[str, Columns]]
"""What a stage does with one chunk, given a model and the one that it is compared with, if any: artefact ->
column -> values."""


def measure_documents(
    arguments: argparse.Namespace,
    stage: str,
    settings: Mapping[str, Any],
    measure: Measure,
    *,
    reference_model: str | None = None,
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
        reference_model: what each checkpoint is compared with, as --reference-model names it.
        selector: who chose the tokens that the checkpoints try; results are filed under both names.
        inputs: SHA-256 of what else is measured with, by name.
        model_facts: of the selector; None: of the checkpoint.
        num_other_documents: those whose chunks a chunk is measured with: its null, then swaps.
        num_positions: position IDs are below it; None: those of a chunk.
    """
    keep_freed_memory()
    share = _share(arguments)
    remedy = "leave it out, or say cpu" if arguments.device else "--device cpu computes without it"
    # --status runs no model, so it must also answer where the device asked for is missing.
    device = torch.device("cpu") if arguments.status else usable_device(arguments.device, remedy)
    data = TokenizedData.open(arguments.data)
    documents = long_enough_documents(
        data, arguments.long_context_length, arguments.max_documents, num_other_documents
    )
    checkpoints = _found_models(arguments, reference_model)
    # `_found_models` puts it last.
    reference = None if reference_model is None else checkpoints.pop()
    places = {
        one.name: one.name if selector is None else f"{selector}/evaluator={one.name}" for one in checkpoints
    }
    # From the documents alone, never from the number of tasks: any number may finish the work.
    size = arguments.documents_per_shard or default_documents_per_shard(len(documents))
    indices = range(len(documents))
    shards = [indices[start : start + size] for start in indices[::size]]
    mine = share.turns(len(shards))

    outputs = []
    for checkpoint in checkpoints:
        name = checkpoint.name
        of_inputs = {"checkpoint" if selector is None else f"evaluator {name}": checkpoint}
        if reference is not None:
            of_inputs[f"reference-model {reference.name}"] = reference
        output = StageOutput(
            arguments.results,
            stage,
            places[name],
            settings={
                "long_context_length": arguments.long_context_length,
                "targets_per_chunk": arguments.targets_per_chunk,
                # Absent at its default, which is how `ContextLengths.of` reads settings without it.
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
                **{
                    of: sha256_of_files(*one.files(arguments.trust_remote_code))
                    for of, one in of_inputs.items()
                },
            },
            num_shards=len(shards),
        )
        outputs.append(output)
        pending = output.pending_shards(mine)
        if arguments.status or not pending:
            continue
        with output.writing(share.name):
            if arguments.dtype == "bfloat16":
                warn_of_slow_bfloat16(device, "--dtype float32")
            loading = Loading(
                device,
                device_map=arguments.device_map,
                trust_remote_code=arguments.trust_remote_code,
                dtype=getattr(torch, arguments.dtype),
            )
            how = arguments, loading, data, documents, num_positions or arguments.long_context_length
            loaded = _load(checkpoint, *how)
            # The same object, not a second copy: a stage asks `reference is loaded`.
            compared = loaded if reference is not None and reference.name == name else None
            if reference is not None and compared is None:
                compared = _load(reference, *how)
            facts = model_facts
            if facts is None:
                facts = checkpoint.training_facts
                facts["num_parameters"] = loaded.model.num_parameters
            limits = arguments.long_context_length, arguments.max_chunks_per_document, num_other_documents
            work = [(shard, index) for shard in output.pending_shards(mine) for index in shards[shard]]
            tables: dict[str, Columns] = {}
            for shard, index in progress(work, f"{stage} {name}", "document"):
                for chunk in chunks_of(documents, index, *limits):
                    where = f" of document {chunk.document_id}, or of the document that is its null,"
                    with failures_in_words(name, len(chunk.token_ids_L), chunk.start, where):
                        append_columns(tables, measure(loaded, chunk, compared))
                # Whole shards only: a killed run takes up again with those that are missing.
                if index == shards[shard][-1]:
                    output.write_shard(shard, tables, facts)
                    tables = {}
            logger.info(
                "%s: %.2f GiB of memory at the peak", name, peak_bytes(loaded.model.device) / GIBIBYTE
            )
    if arguments.status:
        of_task = None if arguments.task_index is None else mine
        sys.stdout.writelines(output.state(of_task) + "\n" for output in outputs)
        raise SystemExit(any(output.pending_shards(of_task) for output in outputs))
    for output in outputs:
        logger.info(output.state())


def _share(arguments: argparse.Namespace) -> Task:
    """What this process does of the work, by the command line and the launcher."""
    index, count = arguments.task_index, arguments.num_tasks
    if (index is None) != (count is None):
        raise InputError("--task-index and --num-tasks say only together what to measure: give both")
    # Set, like RANK, by torchrun and `accelerate launch`.
    num_processes = int(os.environ.get("WORLD_SIZE", 1))
    if arguments.device_map is not None and num_processes > 1:
        raise InputError(
            f"--device-map spreads one model over all devices, and each of {num_processes} processes would do"
            " so; start one process, or leave --device-map out"
        )
    task = Task() if count is None else Task(index, count)
    # Process 1 of task 1, of two tasks of two processes, is share 1 + 2 * 1 = 3 of 4.
    return Task(task.index + task.num_tasks * int(os.environ.get("RANK", 0)), task.num_tasks * num_processes)


def _found_models(arguments: argparse.Namespace, reference_model: str | None) -> list[Checkpoint]:
    """The checkpoints, and last the reference if there is one, by the names that results are filed under."""
    words = [*arguments.checkpoints, *([] if reference_model is None else [reference_model])]
    found = [find_model(word, arguments.revision, arguments.trust_remote_code) for word in words]
    for one, other in combinations(found, 2):
        # The reference may be one of the checkpoints.
        is_itself = other is found[-1] and reference_model is not None and one.folder.samefile(other.folder)
        if one.name == other.name and not is_itself:
            raise InputError(
                f"two models are named '{one.name}', {one.folder} and {other.folder}; results are filed by"
                " the last part of the name, so rename one, or the folder that it is copied to"
            )
    return found


def _load(
    checkpoint: Checkpoint,
    arguments: argparse.Namespace,
    loading: Loading,
    data: TokenizedData,
    documents: Sequence[EvaluationDocument],
    num_tokens: int,
) -> LoadedModel:
    """Load a model for so many position IDs; refuse one that was not trained on such tokens."""
    bos_token_ids = data.bos_token_ids
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
def failures_in_words(model: str, num_tokens: int, start: int, where: str = "") -> Iterator[None]:
    """Turn a loss that is no number, and a lack of memory, into an InputError; `start`: of the tokens."""
    try:
        yield
    except NotFiniteLossError as error:
        raise InputError(
            f"model '{error.model_name or model}' gives the token at position"
            f" {start + error.target_position}{where} a {error.what} of {error.loss}: its weights are"
            " damaged, or --dtype is too coarse for them"
        ) from error
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            f"the memory does not suffice for a chunk of {num_tokens} tokens with model '{model}'; choose a"
            " shorter --long-context-length, or --dtype bfloat16"
        ) from error

"""What the three measuring stages share: their checkpoints, shards and progress."""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch

from pipeline.errors import InputError, is_out_of_memory
from pipeline.influence.batching import Batching
from pipeline.influence.dtypes import dtype_of_results
from pipeline.influence.shares import device_of_this_process, share_of_this_process
from pipeline.models.causal_lm import CausalLM, NotFiniteLossError
from pipeline.models.loading import Checkpoint, Loading, find_model, load_causal_lm
from pipeline.models.memory import GIBIBYTE, keep_freed_memory, peak_bytes
from pipeline.models.training_facts import training_facts
from pipeline.results.provenance import sha256_of_files
from pipeline.results.stage_output import StageOutput
from pipeline.stage import logger, progress
from pipeline.text.chunks import Chunk, Columns, append_columns, chunks_of, long_enough_documents
from pipeline.text.manifest import TOKENIZER_FILE
from pipeline.text.tokenized_data import EvaluationDocument, TokenizedData
from pipeline.text.tokenizer import knows_token_ids
from pipeline.training.precision import warn_where_bfloat16_is_slow

Measure = Callable[[CausalLM, Chunk, Batching], dict[str, Columns]]
"""What a stage does with one chunk: artefact -> column -> values."""


def evaluate_checkpoints(
    arguments: argparse.Namespace,
    stage: str,
    settings: Mapping[str, Any],
    measure: Measure,
) -> list[str]:
    """Run `measure` on every chunk of every document with every checkpoint, writing shard by shard.

    Args:
        arguments: of `measuring.flags.add_evaluation_arguments`.
        stage: the stage's name, as results are filed under.
        settings: the stage's own settings, beyond those flags.
        measure: the stage's work on one chunk.

    Returns:
        The names, which results are filed under, of the models whose results are now complete.

    Raises:
        InputError: data or a checkpoint is missing or does not fit, no document is long enough, two
            checkpoints have one name, a loss is not a number, there is no such share of the documents, or
            the results folder holds another configuration's results.
        SystemExit: with --status, after saying what is missing: 0 where nothing is, else 1.
    """
    share = share_of_this_process(arguments)
    keep_freed_memory()
    loading = Loading(
        _device(arguments),
        device_map=arguments.device_map,
        trust_remote_code=arguments.trust_remote_code,
    )
    data = TokenizedData.open(arguments.data)
    documents = long_enough_documents(data, arguments.long_context_length, arguments.max_documents)
    shards = [
        range(start, min(start + arguments.documents_per_shard, len(documents)))
        for start in range(0, len(documents), arguments.documents_per_shard)
    ]
    every_setting = {
        "long_context_length": arguments.long_context_length,
        "targets_per_chunk": arguments.targets_per_chunk,
        **settings,
        "num_documents": len(documents),
        "max_chunks_per_document": arguments.max_chunks_per_document,
        "documents_per_shard": arguments.documents_per_shard,
    }
    outputs: dict[str, StageOutput] = {}
    for name, checkpoint in _named_checkpoints(arguments).items():
        inputs = {
            "checkpoint": sha256_of_files(*checkpoint.files(arguments.trust_remote_code)),
            "evaluation_documents": data.evaluation_sha256,
        }
        dtype = dtype_of_results(arguments.dtype, arguments.results, stage, name, loading.device)
        outputs[name] = output = StageOutput(
            arguments.results, stage, name, settings={**every_setting, "dtype": dtype}, inputs=inputs,
            num_shards=len(shards), num_tasks=arguments.num_shards,
        )  # fmt: skip
        if arguments.status or output.is_done(share.shards(len(shards))):
            continue
        with output.writing(share.name):
            pending = output.pending_shards(share.shards(len(shards)))
            if dtype == "bfloat16":
                warn_where_bfloat16_is_slow(loading.device, "--dtype float32")
            loading = replace(loading, dtype=getattr(torch, dtype))
            model = load_causal_lm(checkpoint, loading, arguments.long_context_length)
            facts = training_facts(checkpoint.folder, checkpoint.is_olmo)
            facts["num_parameters"] = model.num_parameters
            _refuse_foreign_tokens(model, data, documents, checkpoint)
            batching = Batching.for_model(model, arguments.tokens_per_batch, arguments.memory_budget)
            chunk_limits = arguments.long_context_length, arguments.max_chunks_per_document
            work = [(shard, index) for shard in pending for index in shards[shard]]
            tables: dict[str, Columns] = {}
            for shard, index in progress(work, f"{stage} {name}", "document"):
                for chunk in chunks_of(documents, index, *chunk_limits):
                    append_columns(tables, _measured(measure, model, batching, name, chunk))
                if index == shards[shard][-1]:
                    output.write_shard(shard, tables, facts)
                    tables = {}
            _log_memory(name, model, batching)
    if arguments.status:
        of_the_task = None if arguments.shard_index is None else share.of_the_task().shards(len(shards))
        _exit_with_status(outputs.values(), of_the_task)
    for output in outputs.values():
        logger.info(output.state())
    return [name for name, output in outputs.items() if not output.pending_shards()]


def _exit_with_status(outputs: Iterable[StageOutput], shards: Sequence[int] | None) -> NoReturn:
    """Say what is missing of `shards` (None: of all); exit code 0 where nothing is, else 1."""
    outputs = list(outputs)
    sys.stdout.writelines(output.state(shards) + "\n" for output in outputs)
    raise SystemExit(any(output.pending_shards(shards) for output in outputs))


def _log_memory(name: str, model: CausalLM, batching: Batching) -> None:
    logger.info(
        "%s: %.2f GiB of memory at the peak; batches of up to %d tokens, within a budget of %.2f GiB",
        name, peak_bytes(model.device) / GIBIBYTE, batching.tokens_per_batch,
        batching.memory_budget_bytes / GIBIBYTE,
    )  # fmt: skip


def _measured(
    measure: Measure, model: CausalLM, batching: Batching, name: str, chunk: Chunk
) -> dict[str, Columns]:
    try:
        return measure(model, chunk, batching)
    except NotFiniteLossError as error:
        raise InputError(
            f"model '{name}' gives the token at position {chunk.start + error.target_position} of document"
            f" {chunk.document_id}, or of the document that is its null, a loss of {error.loss}: its weights"
            " are damaged, or --dtype is too coarse for them"
        ) from error
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        # Batches were halved where memory ran out; what is left is a whole chunk, or a rule's pass over it.
        raise InputError(
            f"the memory does not suffice for a chunk of {len(chunk.token_ids_L)} tokens with model '{name}';"
            " choose a shorter --long-context-length, --dtype bfloat16, or a device with more memory"
        ) from error


def _device(arguments: argparse.Namespace) -> torch.device:
    """The device that is asked for, or the best one here.

    Raises:
        InputError: it cannot be computed on.
    """
    name = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        one = torch.ones(1, device="cpu" if arguments.status else device_of_this_process(name))
        one.item()  # of `meta`, whose tensors have no numbers, this is refused
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA
        reason = str(error).splitlines()[0]
        raise InputError(
            f"--device {name} cannot be used here ({reason}); leave it out, or say cpu"
        ) from None
    return one.device


def _named_checkpoints(arguments: argparse.Namespace) -> dict[str, Checkpoint]:
    named: dict[str, Checkpoint] = {}
    for word in arguments.checkpoints:
        checkpoint = find_model(word, arguments.revision, arguments.trust_remote_code)
        if checkpoint.name in named:
            raise InputError(
                f"two of --checkpoints are named '{checkpoint.name}'; results are filed by the name of the"
                " folder, or the last part of a hub name, so these must differ"
            )
        named[checkpoint.name] = checkpoint
    return named


def _refuse_foreign_tokens(
    model: CausalLM, data: TokenizedData, documents: Sequence[EvaluationDocument], checkpoint: Checkpoint
) -> None:
    largest = max(int(document.token_ids.max()) for document in documents)
    if not checkpoint.fits(model, data.vocabulary_size) or largest >= model.vocabulary_size:
        raise InputError(
            f"the tokenizer of {data.folder} has {data.vocabulary_size} tokens (largest ID used: {largest})"
            f" and {checkpoint.folder} a vocabulary of {model.vocabulary_size}: they do not belong together"
        )
    # Sizes tell little where a vocabulary may be padded, but such models mostly bring their tokenizer along.
    tokenizers = checkpoint.folder / TOKENIZER_FILE, data.folder / TOKENIZER_FILE
    if all(path.is_file() for path in tokenizers) and not knows_token_ids(*tokenizers):
        raise InputError(
            f"{data.folder} was tokenized with another tokenizer than {tokenizers[0]}: tokenize the text"
            f" again with --tokenizer {tokenizers[0]}"
        )

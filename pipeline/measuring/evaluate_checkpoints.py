"""What the measuring stages share: every checkpoint on every chunk, shard by shard."""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch

from pipeline.errors import InputError, is_out_of_memory
from pipeline.influence.batching import Batching
from pipeline.measuring.checkpoints import device_to_measure_on, named_checkpoints, refuse_foreign_tokens
from pipeline.measuring.dtypes import dtype_of_results
from pipeline.measuring.tasks import share_of_this_process
from pipeline.models.causal_lm import CausalLM, NotFiniteLossError
from pipeline.models.loading import Checkpoint, Loading, load_causal_lm
from pipeline.models.memory import GIBIBYTE, keep_freed_memory, peak_bytes
from pipeline.models.training_facts import training_facts
from pipeline.results.columns import Columns, append_columns
from pipeline.results.provenance import sha256_of_files
from pipeline.results.stage_output import StageOutput
from pipeline.stage import logger, progress
from pipeline.text.chunks import Chunk, chunks_of, long_enough_documents
from pipeline.text.tokenized_data import TokenizedData
from pipeline.training.precision import warn_where_bfloat16_is_slow


@dataclass(frozen=True)
class LoadedModel:
    """A model to measure."""

    name: str
    """As results are filed under."""
    model: CausalLM
    batching: Batching


Measure = Callable[[LoadedModel, Chunk, Sequence[LoadedModel]], dict[str, Columns]]
"""What a stage does with one chunk: artefact -> column -> values. The last are the models beside it."""
Prepare = Callable[[LoadedModel, str, str], None]
"""What a stage does with a model before its first chunk, given the SHA-256 of its files and its dtype."""


def evaluate_checkpoints(
    arguments: argparse.Namespace,
    stage: str,
    settings: Mapping[str, Any],
    measure: Measure,
    *,
    beside: Mapping[str, Sequence[str]] | None = None,
    num_others: int = 1,
    prepare: Prepare | None = None,
) -> list[str]:
    """Run `measure` on every chunk of every document with every checkpoint, writing shard by shard.

    Args:
        arguments: of `measuring.flags.add_evaluation_arguments`.
        stage: the stage's name, as results are filed under.
        settings: the stage's own settings, beyond those flags.
        measure: the stage's work on one chunk.
        beside: flag -> checkpoints, as that flag names them, that every checkpoint is measured beside.
        num_others: chunks of other documents that a chunk is measured beside.
        prepare: the stage's work on a model before its first chunk.

    Returns:
        The names, which results are filed under, of the models whose results are now complete.

    Raises:
        InputError: data or a checkpoint is missing or does not fit, no document is long enough, two
            checkpoints have one name, a loss is not a number, there is no such share of the documents, or
            the results folder holds another configuration's results.
        SystemExit: with --status, after saying what is missing: 0 where nothing is, else 1.
    """
    keep_freed_memory()
    evaluation = _Evaluation(arguments, stage, settings, measure, num_others, prepare)
    for flag, words in (beside or {}).items():
        evaluation.put_beside(flag, named_checkpoints(words, arguments, flag))
    outputs: dict[str, StageOutput] = {}
    for name, checkpoint in named_checkpoints(arguments.checkpoints, arguments).items():
        dtype = dtype_of_results(arguments.dtype, arguments.results, stage, name, evaluation.loading.device)
        outputs[name] = output = evaluation.output_of(name, checkpoint, dtype)
        if not arguments.status and not output.is_done(evaluation.own_shards):
            with output.writing(evaluation.share.name):
                evaluation.run(name, checkpoint, output, dtype)
    if arguments.status:
        of_the_task = None if arguments.task_index is None else evaluation.shards_of_the_task
        _exit_with_status(outputs.values(), of_the_task)
    for output in outputs.values():
        logger.info(output.state())
    return [name for name, output in outputs.items() if not output.pending_shards()]


class _Evaluation:
    """What one run of a stage measures, with whatever checkpoint."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        stage: str,
        settings: Mapping[str, Any],
        measure: Measure,
        num_others: int,
        prepare: Prepare | None,
    ) -> None:
        self._arguments, self._stage, self._measure, self._prepare = arguments, stage, measure, prepare
        self._num_others = num_others
        self._beside: dict[str, Checkpoint] = {}
        self._of_flag: dict[str, str] = {}
        self._loaded_beside: dict[tuple[str, str], LoadedModel] = {}
        self.share = share_of_this_process(arguments)
        self.loading = Loading(
            device_to_measure_on(arguments),
            device_map=arguments.device_map,
            trust_remote_code=arguments.trust_remote_code,
        )
        self._data = TokenizedData.open(arguments.data)
        self._documents = long_enough_documents(
            self._data, arguments.long_context_length, arguments.max_documents, num_others
        )
        size, num_documents = arguments.documents_per_shard, len(self._documents)
        self._shards = [
            range(start, min(start + size, num_documents)) for start in range(0, num_documents, size)
        ]
        self._settings = {
            "long_context_length": arguments.long_context_length,
            "targets_per_chunk": arguments.targets_per_chunk,
            **settings,
            "num_documents": num_documents,
            "max_chunks_per_document": arguments.max_chunks_per_document,
            "documents_per_shard": size,
        }

    @property
    def own_shards(self) -> range:
        """The shards that fall to this process."""
        return self.share.shards(len(self._shards))

    @property
    def shards_of_the_task(self) -> range:
        """Those that fall to all processes of its task."""
        return self.share.of_the_task().shards(len(self._shards))

    def put_beside(self, flag: str, checkpoints: Mapping[str, Checkpoint]) -> None:
        """Measure every checkpoint beside these, which `flag` names."""
        self._beside |= checkpoints
        self._of_flag |= dict.fromkeys(checkpoints, flag)

    def output_of(self, name: str, checkpoint: Checkpoint, dtype: str) -> StageOutput:
        """Where the results of a checkpoint go.

        Raises:
            InputError: another checkpoint beside it has its name.
        """
        namesake = self._beside.get(name)
        if namesake is not None and namesake.folder.resolve() != checkpoint.folder.resolve():
            raise InputError(
                f"{self._of_flag[name]} {namesake.folder} and --checkpoints {checkpoint.folder} are both"
                f" named '{name}', by which results tell models; rename one of the folders"
            )
        inputs = {
            "checkpoint": self._sha256(checkpoint),
            "evaluation_documents": self._data.evaluation_sha256,
        }
        for other, checkpoint_beside in self._beside.items():
            inputs[f"{self._of_flag[other].removeprefix('--')} {other}"] = self._sha256(checkpoint_beside)
        return StageOutput(
            self._arguments.results, self._stage, name, settings={**self._settings, "dtype": dtype},
            inputs=inputs, num_shards=len(self._shards), num_tasks=self._arguments.num_tasks,
        )  # fmt: skip

    def _sha256(self, checkpoint: Checkpoint) -> str:
        return sha256_of_files(*checkpoint.files(self.loading.trust_remote_code))

    def run(self, name: str, checkpoint: Checkpoint, output: StageOutput, dtype: str) -> None:
        """Measure the shards that are missing of those that fall to this process."""
        arguments = self._arguments
        pending = output.pending_shards(self.own_shards)
        if dtype == "bfloat16":
            warn_where_bfloat16_is_slow(self.loading.device, "--dtype float32")
        loaded = self._load(name, checkpoint, dtype)
        facts = training_facts(checkpoint.folder, checkpoint.is_olmo)
        facts["num_parameters"] = loaded.model.num_parameters
        beside = [self._load_beside(other, dtype) for other in self._beside if other != name]
        self._refuse_other_vocabularies(loaded, beside)
        if self._prepare is not None:
            self._prepare(loaded, self._sha256(checkpoint), dtype)
        chunk_limits = arguments.long_context_length, arguments.max_chunks_per_document, self._num_others
        work = [(shard, index) for shard in pending for index in self._shards[shard]]
        tables: dict[str, Columns] = {}
        for shard, index in progress(work, f"{self._stage} {name}", "document"):
            for chunk in chunks_of(self._documents, index, *chunk_limits):
                append_columns(tables, _measured(self._measure, loaded, chunk, beside))
            if index == self._shards[shard][-1]:
                output.write_shard(shard, tables, facts)
                tables = {}
        _log_memory(loaded)

    def _load(self, name: str, checkpoint: Checkpoint, dtype: str) -> LoadedModel:
        loading = replace(self.loading, dtype=getattr(torch, dtype))
        model = load_causal_lm(checkpoint, loading, self._arguments.long_context_length)
        refuse_foreign_tokens(model, self._data, self._documents, checkpoint)
        arguments = self._arguments
        batching = Batching.for_model(model, arguments.tokens_per_batch, arguments.memory_budget)
        return LoadedModel(name, model, batching)

    def _refuse_other_vocabularies(self, loaded: LoadedModel, beside: Sequence[LoadedModel]) -> None:
        size = loaded.model.vocabulary_size
        for other in beside:
            if other.model.vocabulary_size != size:
                raise InputError(
                    f"{self._of_flag[other.name]} {other.name} has a vocabulary of"
                    f" {other.model.vocabulary_size} and model '{loaded.name}' one of {size}: their"
                    " predictions cannot be compared; name a model of the same vocabulary"
                )

    def _load_beside(self, name: str, dtype: str) -> LoadedModel:
        """Loaded once, whatever is measured beside it."""
        if (name, dtype) not in self._loaded_beside:
            self._loaded_beside[name, dtype] = self._load(name, self._beside[name], dtype)
        return self._loaded_beside[name, dtype]


def _exit_with_status(outputs: Iterable[StageOutput], shards: Sequence[int] | None) -> NoReturn:
    """Say what is missing of `shards` (None: of all); exit code 0 where nothing is, else 1."""
    outputs = list(outputs)
    sys.stdout.writelines(output.state(shards) + "\n" for output in outputs)
    raise SystemExit(any(output.pending_shards(shards) for output in outputs))


def _log_memory(loaded: LoadedModel) -> None:
    logger.info(
        "%s: %.2f GiB of memory at the peak; batches of up to %d tokens, within a budget of %.2f GiB",
        loaded.name, peak_bytes(loaded.model.device) / GIBIBYTE, loaded.batching.tokens_per_batch,
        loaded.batching.memory_budget_bytes / GIBIBYTE,
    )  # fmt: skip


def _measured(
    measure: Measure, loaded: LoadedModel, chunk: Chunk, beside: Sequence[LoadedModel]
) -> dict[str, Columns]:
    try:
        return measure(loaded, chunk, beside)
    except NotFiniteLossError as error:
        raise InputError(
            f"model '{error.model_name or loaded.name}' gives the token at position"
            f" {chunk.start + error.target_position} of document {chunk.document_id}, or of the document that"
            f" is its null, a {error.what} of {error.loss}: its weights are damaged, or --dtype is too coarse"
            " for them"
        ) from error
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        # Batches were halved where memory ran out; what is left is a whole chunk, or a rule's pass over it.
        raise InputError(
            f"the memory does not suffice for a chunk of {len(chunk.token_ids_L)} tokens with model"
            f" '{loaded.name}'; choose a shorter --long-context-length, --dtype bfloat16, or a device with"
            " more memory"
        ) from error

"""What the measuring stages share: every checkpoint on every chunk of every document, shard by shard.

Here the checkpoints of a job are found, and refused if they don't belong to the data.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sparsity_length.cli import InputError, logger, progress
from sparsity_length.measuring.settings import Chunked, Job
from sparsity_length.models.devices import warn_of_slow_bfloat16
from sparsity_length.models.given import GivenModel
from sparsity_length.models.interface import CausalLM, NotFiniteLossError
from sparsity_length.models.load import Checkpoint, find_model
from sparsity_length.models.settings import Loading
from sparsity_length.results.files import Task, launched_process, sha256_of_files
from sparsity_length.results.schemas import Columns
from sparsity_length.results.write import StageOutput
from sparsity_length.text.chunks import Chunk, chunks_of, long_enough_documents
from sparsity_length.text.folder import TokenizedData

Measure = Callable[[CausalLM, Chunk], Iterator[tuple[str, Columns]]]
"""What a stage does with a model and a chunk: tables, and rows of each."""


@dataclass(frozen=True)
class Measurement:
    """What a stage measures of every chunk of every document."""

    stage: str
    settings: Chunked
    measure: Measure
    num_other_documents: int = 1
    """Documents whose chunks a chunk is measured with, as in `Selecting.num_others`."""
    num_positions: int | None = None
    """Position IDs are below this number; None: the length of a chunk."""
    rule_files: Sequence[Path] = ()
    """The user's own rules, whose SHA-256 is one of the settings."""
    selector: str | None = None
    """The model that selected the tokens which the checkpoints evaluate."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of what else is measured with, by name."""
    model_facts: Mapping[str, Any] | None = None
    """Facts of the selector; None: those of the checkpoint."""


class Work:
    """A measurement of the checkpoints and documents of a job, cut into shards.

    InputError if the checkpoints do not belong to the documents, or the results were made otherwise.
    """

    def __init__(self, job: Job, loading: Loading, asked: Measurement) -> None:
        """Find the checkpoints, the documents, and what has been measured of them; no model is loaded."""
        self._loading = loading
        self._asked = asked
        share = _share_of(Task(job.task_index, job.num_tasks))
        self._data = TokenizedData.open(job.data)
        self._documents = long_enough_documents(
            self._data,
            asked.settings.long_context_length,
            asked.settings.max_documents,
            asked.num_other_documents,
        )
        count = len(self._documents)
        # From the documents alone, never from the number of tasks: any number may finish the work. 1 up to
        # 127 documents, so that a small run, if killed, keeps each that is measured; 32 at most.
        size = job.documents_per_shard or max(1, min(32, count // 64))
        self._shards = [range(count)[start : start + size] for start in range(0, count, size)]
        checkpoints = [find_model(word, loading.trust_remote_code) for word in job.checkpoints]
        names = [checkpoint.name for checkpoint in checkpoints]
        if len({*names}) < len(names):
            raise InputError(
                f"two models are named alike, of {', '.join(names)}; results are filed by the last part of"
                " the name, so rename one, or the folder that it is copied to"
            )
        settings = {
            **replace(asked.settings, max_documents=None).as_metadata,
            # What is None is left out, as in results of before there was such a setting.
            "rule_files_sha256": sha256_of_files(*asked.rule_files) if asked.rule_files else None,
            "num_documents": count,
            "documents_per_shard": size,
            "dtype": loading.dtype,
            "rope": loading.rope and str(loading.rope),
            "bos_token_ids": list(self._data.bos_token_ids),
        }
        settings = {name: value for name, value in settings.items() if value is not None}
        role = "checkpoint" if asked.selector is None else "evaluator"
        self._outputs = []
        for checkpoint in checkpoints:
            digest = checkpoint.sha256(loading.trust_remote_code)
            output = StageOutput(
                job.results,
                asked.stage,
                asked.selector or checkpoint.name,
                evaluator=None if asked.selector is None else checkpoint.name,
                settings=settings,
                inputs={
                    "evaluation_documents": self._data.evaluation_sha256,
                    **asked.inputs,
                    role: digest,
                },
                num_shards=len(self._shards),
                task=share,
            )
            self._outputs.append((checkpoint, output))

    def left(self) -> list[str]:
        """What is still to be measured, one line per model."""
        return [output.state() for _, output in self._outputs if output.pending_shards()]

    def run(self) -> None:
        """Measure what is missing, shard by shard."""
        for checkpoint, output in self._outputs:
            output.fill(partial(self._measure, checkpoint, output))

    def status(self) -> None:
        """Print what is there, and end the process: exit code 0 if nothing is missing, else 1."""
        sys.stdout.writelines(f"{output.state()}\n" for _, output in self._outputs)
        raise SystemExit(bool(self.left()))

    def _measure(self, checkpoint: Checkpoint, output: StageOutput) -> None:
        """Measure one model's missing shards."""
        asked = self._asked
        model = self._loaded(checkpoint)
        facts = asked.model_facts
        if facts is None:
            facts = {**checkpoint.training_facts, "num_parameters": model.num_parameters}
        work = [(shard, index) for shard in output.pending_shards() for index in self._shards[shard]]
        rows: list[tuple[str, Columns]] = []
        bar = progress(work, f"{asked.stage} {checkpoint.name}", "document")

        def show_tokens(num_rows: int) -> None:
            """A document of many tokens takes minutes, so that its passes are shown."""
            bar.set_postfix_str(f"{model.num_rows_run + num_rows:,} forward tokens", refresh=False)
            bar.update(0)

        model.before_pass = show_tokens
        for shard, index in bar:
            for chunk in chunks_of(
                self._documents,
                index,
                asked.settings.long_context_length,
                asked.settings.max_chunks_per_document,
                asked.num_other_documents,
            ):
                with failures_in_words(checkpoint.name, chunk.start, f" of document {chunk.document_id}"):
                    of_chunk = {"document_id": chunk.document_id, "chunk_index": chunk.chunk_index}
                    for table, columns in asked.measure(model, chunk):
                        rows.append((table, {**of_chunk, **columns}))
            # Whole shards only: a killed run takes up again with those that are missing.
            if index == self._shards[shard][-1]:
                output.write_shard(shard, rows, facts)
                rows = []

    def _loaded(self, checkpoint: Checkpoint) -> CausalLM:
        model = GivenModel(checkpoint, self._loading).ready(
            self._asked.num_positions or self._asked.settings.long_context_length,
            (document.token_ids for document in self._documents),
            self._data.tokenizer(),
            self._data.bos_token_ids,
        )
        if self._loading.dtype == "bfloat16":
            warn_of_slow_bfloat16(model.device, "--dtype float32")
        return model


def _share_of(task: Task) -> Task:
    """What this process does of a task: tasks, then the processes of each, take turns with the shards.

    Of two tasks of two processes each, the shares are 0, 4, 8, …; 2, 6, …; 1, 5, …; 3, 7, …
    """
    process = launched_process()
    # Process 1 of task 1 has share 1 + 2 * 1 = 3 of 4.
    share = Task(task.index + task.num_tasks * process.index, task.num_tasks * process.num_tasks)
    if not process.is_whole:
        logger.info(
            "share %d of %d alone is measured here, as RANK and WORLD_SIZE in the environment say (torchrun);"
            " unset them to measure all",
            *(share.index + 1, share.num_tasks),
        )
    return share


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

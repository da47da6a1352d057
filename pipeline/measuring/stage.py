"""What the measuring stages share: every checkpoint on every chunk of every document, shard by shard.

Here the checkpoints of a command line are found, given a dtype and a device, and refused where they don't
belong to the data.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.cli import InputError, is_out_of_memory, logger, progress
from pipeline.measuring.contexts import Batching
from pipeline.measuring.flags import default_documents_per_shard, task_of, task_of_this_process
from pipeline.models.devices import GIBIBYTE, keep_freed_memory, peak_bytes, supports_bfloat16, usable_device
from pipeline.models.interface import CausalLM, NotFiniteLossError
from pipeline.models.leading import led_by, num_positions_of
from pipeline.models.load import Checkpoint, Loading, find_model, load_causal_lm, told_apart, training_facts
from pipeline.models.vocabulary import refuse_foreign_tokens
from pipeline.results.read import what_made
from pipeline.results.schemas import DIVERGENCE, Columns, append_columns
from pipeline.results.versions import sha256_of_files
from pipeline.results.write import StageOutput
from pipeline.text.chunks import Chunk, chunks_of, long_enough_documents
from pipeline.text.folder import TOKENIZER_FILE, TokenizedData
from pipeline.training.speed import faster_dtype, warn_where_bfloat16_is_slow

AUTO = "auto"


@dataclass(frozen=True)
class LoadedModel:
    """A model to measure, by the name that its results are filed under."""

    name: str
    model: CausalLM
    batching: Batching


Measure = Callable[[LoadedModel, Chunk, LoadedModel | None], dict[str, Columns]]
"""What a stage does with one chunk, given a model and the one that it is compared with, if any: artefact ->
column -> values."""


def named_checkpoints(
    words: Sequence[str], arguments: argparse.Namespace, flag: str = "--checkpoints",
    all_words: Iterable[str] = (),
) -> dict[str, Checkpoint]:  # fmt: skip
    """The checkpoints that the words of `flag` mean, by the names that results are filed under.

    `all_words` are those of other flags, too: two models of the hub of one last name are told apart.
    """
    named: dict[str, Checkpoint] = {}
    names = told_apart([*words, *all_words], arguments.revision)
    for word in words:
        checkpoint = find_model(word, arguments.revision, arguments.trust_remote_code)
        checkpoint = replace(checkpoint, name=names.get(word, checkpoint.name), word=word)
        if checkpoint.name in named:
            raise InputError(
                f"two of {flag} are named '{checkpoint.name}', {named[checkpoint.name].folder} and"
                f" {checkpoint.folder}; results are filed by the name of the folder, so rename one of them"
            )
        named[checkpoint.name] = checkpoint
    return named


def dtype_of_results(requested: str, results: Path, stage: str, model: str, device: torch.device) -> str:
    """`requested`; where it is auto, what results already begun have, else what is faster on this device.

    So results of one model are of one dtype, wherever and by however many tasks they are measured. A GPU
    without bfloat16 gets float32, and that is said.
    """
    if requested == "bfloat16" and not supports_bfloat16(device):
        logger.warning("%s has no bfloat16; float32 is used", torch.cuda.get_device_name(device))
        return "float32"
    if requested != AUTO:
        return requested
    begun = what_made(results, stage, model) or {"settings": {}}
    return str(begun["settings"].get("dtype") or faster_dtype(device)).removeprefix("torch.")


@dataclass
class MeasuringStage:
    """A stage on its documents: every checkpoint on every chunk of every document, shard by shard."""

    arguments: argparse.Namespace
    """Of `measuring.flags.add_evaluation_arguments`."""
    stage: str
    settings: Mapping[str, Any]
    """The stage's own, beyond those flags."""
    measure: Measure
    reference_model: str | None = None
    """What each checkpoint is compared with, as --reference-model names it."""
    selector: str | None = None
    """Who chose the tokens that the checkpoints try: results are filed under its name, then theirs."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of what else is measured with, by name."""
    model_facts: Mapping[str, Any] | None = None
    """Of the selector; None: of the checkpoint."""
    num_other_documents: int = 1
    """Those whose chunks a chunk is measured with: its null, then swaps."""
    has_null: Callable[[str], bool] | None = None
    """Whether the document of an ID is measured with its null; None: all are."""
    num_positions: int | None = None
    """Position IDs are below it; None: those of a chunk."""
    shards: list[range] = field(default_factory=list, init=False)
    """The documents of each, by their places; known once `run` knows the models."""

    def __post_init__(self) -> None:
        arguments = self.arguments
        self.task = task_of_this_process(arguments)
        remedy = "leave it out, or say cpu" if arguments.device else "--device cpu computes without it"
        device = torch.device("cpu") if arguments.status else usable_device(arguments.device, remedy)
        self.loading = Loading(
            device, device_map=arguments.device_map, trust_remote_code=arguments.trust_remote_code
        )
        self.data = TokenizedData.open(arguments.data)
        self.documents = long_enough_documents(
            self.data, arguments.long_context_length, arguments.max_documents, self.num_other_documents,
            self.has_null,
        )  # fmt: skip
        beside = [] if self.reference_model is None else [self.reference_model]
        all_words = [*arguments.checkpoints, *beside]
        self.checkpoints = named_checkpoints(arguments.checkpoints, arguments, all_words=all_words)
        references = named_checkpoints(beside, arguments, "--reference-model", all_words)
        self.reference = next(iter(references.values()), None)
        self._loaded_reference: LoadedModel | None = None

    def documents_per_shard(self, names: Iterable[str]) -> int:
        """As many as are asked for, as results under these names already have, or the default."""
        if self.arguments.documents_per_shard:
            return int(self.arguments.documents_per_shard)
        begun = [what_made(self.arguments.results, self.stage, name) or {"settings": {}} for name in names]
        sizes = (made["settings"].get("documents_per_shard") for made in begun)
        return next(filter(None, sizes), default_documents_per_shard(len(self.documents)))

    def run(self) -> None:
        """Measure what is missing; with --status say what is, and exit with 0 where nothing is, else 1."""
        keep_freed_memory()
        arguments = self.arguments
        outputs: list[StageOutput] = []
        places = {name: self._place(name) for name in self.checkpoints}
        size = self.documents_per_shard(places.values())
        indices = range(len(self.documents))
        self.shards = [indices[start : start + size] for start in indices[::size]]
        num_shards = len(self.shards)
        for name, checkpoint in self.checkpoints.items():
            dtype = dtype_of_results(
                arguments.dtype, arguments.results, self.stage, places[name], self.loading.device
            )
            output = self.output_of(checkpoint, dtype, size)
            outputs.append(output)
            if not arguments.status and not output.is_done(self.task.turns(num_shards)):
                with output.writing(self.task.name):
                    self.measure_model(checkpoint, output, dtype)
        if arguments.status:
            of_task = None if arguments.task_index is None else task_of(arguments).turns(num_shards)
            sys.stdout.writelines(output.state(of_task) + "\n" for output in outputs)
            raise SystemExit(any(output.pending_shards(of_task) for output in outputs))
        for output in outputs:
            logger.info(output.state())

    def _place(self, name: str) -> str:
        return name if self.selector is None else f"{self.selector}/evaluator={name}"

    def output_of(self, checkpoint: Checkpoint, dtype: str, documents_per_shard: int) -> StageOutput:
        """Where the results of a checkpoint go; refuse that another of its name is the reference."""
        arguments, reference = self.arguments, self.reference
        of_inputs = {"checkpoint": checkpoint}
        if self.selector is not None:
            of_inputs = {f"evaluator {checkpoint.name}": checkpoint}
        if reference is not None:
            is_namesake = reference.name == checkpoint.name
            if is_namesake and reference.folder.resolve() != checkpoint.folder.resolve():
                raise InputError(
                    f"--reference-model {reference.folder} and --checkpoints {checkpoint.folder} are both"
                    f" named '{checkpoint.name}', by which results tell models; rename one of the folders"
                )
            of_inputs[f"reference-model {reference.name}"] = reference
        settings = {
            "long_context_length": arguments.long_context_length,
            "targets_per_chunk": arguments.targets_per_chunk,
            **({"target_stride": arguments.target_stride} if arguments.target_stride > 1 else {}),
            **self.settings,
            "num_documents": len(self.documents),
            "max_chunks_per_document": arguments.max_chunks_per_document,
            "documents_per_shard": documents_per_shard,
            "dtype": dtype,
            **bos_setting(self.data),
        }
        inputs = {"evaluation_documents": self.data.evaluation_sha256, **self.inputs}
        inputs |= {of: self._sha256(one) for of, one in of_inputs.items()}
        return StageOutput(
            arguments.results,
            self.stage,
            self._place(checkpoint.name),
            settings=settings,
            inputs=inputs,
            num_shards=len(self.shards),
            num_tasks=arguments.num_tasks,
        )

    def _sha256(self, checkpoint: Checkpoint) -> str:
        return sha256_of_files(*checkpoint.files(self.loading.trust_remote_code))

    def measure_model(self, checkpoint: Checkpoint, output: StageOutput, dtype: str) -> None:
        """Measure the shards that are missing of those of this process."""
        arguments, name = self.arguments, checkpoint.name
        pending = output.pending_shards(self.task.turns(len(self.shards)))
        if dtype == "bfloat16":
            warn_where_bfloat16_is_slow(self.loading.device, "--dtype float32")
        loaded = self._load(checkpoint, dtype)
        facts = self.model_facts
        if facts is None:
            facts = training_facts(checkpoint.folder, checkpoint.is_olmo)
            facts["num_parameters"] = loaded.model.num_parameters
        reference = self._reference(loaded, dtype)
        limits = arguments.long_context_length, arguments.max_chunks_per_document, self.num_other_documents
        work = [(shard, index) for shard in pending for index in self.shards[shard]]
        tables: dict[str, Columns] = {}
        for shard, index in progress(work, f"{self.stage} {name}", "document"):
            for chunk in chunks_of(self.documents, index, *limits):
                where = f" of document {chunk.document_id}, or of the document that is its null,"
                with failures_in_words(name, len(chunk.token_ids_L), chunk.start, where):
                    append_columns(tables, self.measure(loaded, chunk, reference))
            if index == self.shards[shard][-1]:
                output.write_shard(shard, tables, {**facts, **left_out(tables)})
                tables = {}
        logger.info("%s: %.2f GiB of memory at the peak", name, peak_bytes(loaded.model.device) / GIBIBYTE)

    def _load(self, checkpoint: Checkpoint, dtype: str) -> LoadedModel:
        arguments, loading = self.arguments, replace(self.loading, dtype=getattr(torch, dtype))
        bos_token_ids = self.data.bos_token_ids
        num_tokens = self.num_positions or arguments.long_context_length
        model = load_causal_lm(checkpoint, loading, num_positions_of(num_tokens, len(bos_token_ids)))
        tokenizer = self.data.tokenizer() if (self.data.folder / TOKENIZER_FILE).is_file() else None
        refuse_foreign_tokens(
            model, str(checkpoint.folder), checkpoint.own_tokenizer(loading.trust_remote_code),
            [np.array(bos_token_ids), *(document.token_ids for document in self.documents)],
            tokenizer, f"the tokenizer of {self.data.folder}", self.data.vocabulary_size,
        )  # fmt: skip
        model = led_by(model, bos_token_ids)
        budget = arguments.memory_budget and arguments.memory_budget * GIBIBYTE
        return LoadedModel(checkpoint.name, model, Batching.for_model(model, budget))

    def _reference(self, loaded: LoadedModel, dtype: str) -> LoadedModel | None:
        """What a model is compared with, loaded once; the model itself where it is that."""
        if self.reference is None:
            return None
        if self.reference.name == loaded.name:
            return loaded
        # Of --dtype auto two models may have two.
        if self._loaded_reference is None or self._loaded_reference.model.dtype != getattr(torch, dtype):
            self._loaded_reference = self._load(self.reference, dtype)
        return self._loaded_reference


def bos_setting(data: TokenizedData) -> dict[str, list[int]]:
    """The setting that names the tokens before every context; none where there are none, as before."""
    return {"bos_token_ids": list(data.bos_token_ids)} if data.bos_token_ids else {}


def left_out(tables: Mapping[str, Columns]) -> dict[str, int]:
    """Number of pairs of target and evaluator, and of those with too small a total effect for a sparsity."""
    if (rows := tables.get("dependency_sparsity")) is None:
        return {}
    pairs = {
        (document, target, evaluator): value is None
        for document, target, evaluator, criterion, value in zip(
            *(
                rows[name]
                for name in ("document_id", "target_position", "evaluator", "criterion", "mean_log2_k")
            ),
            strict=True,
        )
        if criterion == DIVERGENCE
    }
    return {"num_asked": len(pairs), "num_without_gain": sum(pairs.values())}


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
        # Batches were halved where memory ran out; what is left is a whole chunk, or a rule's pass over it.
        raise InputError(
            f"the memory does not suffice for a chunk of {num_tokens} tokens with model '{model}'; choose a"
            " shorter --long-context-length, --dtype bfloat16, or a device with more memory"
        ) from error

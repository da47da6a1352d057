"""What the measuring stages share: every checkpoint on every chunk of every document, shard by shard.

Here the checkpoints of a command line are found, given a dtype and a device, and refused where they don't
belong to the data.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.cli import InputError, is_out_of_memory, logger, progress
from pipeline.measuring.contexts import Batching
from pipeline.measuring.flags import default_documents_per_shard, split_of_this_process
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


Measure = Callable[[Sequence[LoadedModel], Chunk, Sequence[LoadedModel]], dict[str, Columns]]
"""What a stage does with one chunk, given the models of a result, mostly one, and others beside them:
artefact -> column -> values."""


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
    other_models: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Flag -> checkpoints, as that flag names them, which `measure` is given beside each."""
    num_other_documents: int = 1
    """Those whose chunks a chunk is measured with: its null, then backgrounds."""
    has_null: Callable[[str], bool] | None = None
    """Whether the document of an ID is measured with its null; None: all are."""
    together: bool = False
    """All checkpoints make one result, under their names joined by +."""
    num_positions: int | None = None
    """Position IDs are below it; None: those of a chunk."""
    shards: list[range] = field(default_factory=list, init=False)
    """The documents of each, by their places; known once `run` knows the models."""
    _loaded_others: dict[tuple[str, str], LoadedModel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        arguments = self.arguments
        self.split = split_of_this_process(arguments)
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
        of_flags = arguments.checkpoints, *self.other_models.values(), arguments.among
        self._all_words = list(chain.from_iterable(of_flags))
        self.others = {
            name: (flag, checkpoint)
            for flag, words in self.other_models.items()
            for name, checkpoint in named_checkpoints(words, arguments, flag, self._all_words).items()
        }

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
        outputs: dict[str, StageOutput] = {}
        checkpoints = named_checkpoints(arguments.checkpoints, arguments, all_words=self._all_words)
        groups = [checkpoints] if self.together else [{name: one} for name, one in checkpoints.items()]
        if self.together and (twice := checkpoints.keys() & self.others.keys()):
            raise InputError(
                f"model {min(twice)} is named by --checkpoints and by {self.others[min(twice)][0]}: who"
                " chooses together with others does not try the choice; name it once"
            )
        indices, size = range(len(self.documents)), self.documents_per_shard(map("+".join, groups))
        self.shards = [indices[start : start + size] for start in indices[::size]]
        num_shards = len(self.shards)
        for models in groups:
            name = "+".join(models)
            dtype = dtype_of_results(
                arguments.dtype, arguments.results, self.stage, name, self.loading.device
            )
            outputs[name] = output = self.output_of(name, models, dtype, size)
            if not arguments.status and not output.is_done(self.split.shards(num_shards)):
                with output.writing(self.split.name):
                    self.measure_models(name, models, output, dtype)
        if arguments.status:
            of_task = None if arguments.task_index is None else self.split.of_the_task().shards(num_shards)
            sys.stdout.writelines(output.state(of_task) + "\n" for output in outputs.values())
            raise SystemExit(any(output.pending_shards(of_task) for output in outputs.values()))
        for output in outputs.values():
            logger.info(output.state())

    def output_of(
        self, name: str, models: Mapping[str, Checkpoint], dtype: str, documents_per_shard: int
    ) -> StageOutput:
        """Where the results of checkpoints go; refuse that another of the name of one is measured beside."""
        arguments = self.arguments
        for model, checkpoint in models.items():
            flag, namesake = self.others.get(model, ("", checkpoint))
            if namesake.folder.resolve() != checkpoint.folder.resolve():
                raise InputError(
                    f"{flag} {namesake.folder} and --checkpoints {checkpoint.folder} are both named"
                    f" '{model}', by which results tell models; rename one of the folders"
                )
        settings = {
            "long_context_length": arguments.long_context_length,
            "targets_per_chunk": arguments.targets_per_chunk,
            **({"target_stride": arguments.target_stride} if arguments.target_stride > 1 else {}),
            **self.settings, "num_documents": len(self.documents),
            "max_chunks_per_document": arguments.max_chunks_per_document,
            "documents_per_shard": documents_per_shard, "dtype": dtype, **bos_setting(self.data),
        }  # fmt: skip
        evaluated = self.data.evaluation_sha256
        of_inputs = {
            "checkpoint" if model == name else f"checkpoint {model}": checkpoint
            for model, checkpoint in models.items()
        } | {f"{flag.removeprefix('--')} {other}": beside for other, (flag, beside) in self.others.items()}
        inputs = {"evaluation_documents": evaluated}
        inputs |= {of: self._sha256(checkpoint) for of, checkpoint in of_inputs.items()}
        return StageOutput(
            arguments.results, self.stage, name, settings=settings, inputs=inputs,
            num_shards=len(self.shards), num_tasks=arguments.num_tasks,
        )  # fmt: skip

    def _sha256(self, checkpoint: Checkpoint) -> str:
        return sha256_of_files(*checkpoint.files(self.loading.trust_remote_code))

    def measure_models(
        self, name: str, models: Mapping[str, Checkpoint], output: StageOutput, dtype: str
    ) -> None:
        """Measure the shards that are missing of those of this process."""
        arguments = self.arguments
        pending = output.pending_shards(self.split.shards(len(self.shards)))
        if dtype == "bfloat16":
            warn_where_bfloat16_is_slow(self.loading.device, "--dtype float32")
        loaded = [self._load(model, checkpoint, dtype) for model, checkpoint in models.items()]
        first, checkpoint = loaded[0], next(iter(models.values()))
        facts = training_facts(checkpoint.folder, checkpoint.is_olmo)
        facts["num_parameters"] = first.model.num_parameters
        others = [self._other(other, dtype) for other in self.others if other not in models]
        limits = arguments.long_context_length, arguments.max_chunks_per_document, self.num_other_documents
        work = [(shard, index) for shard in pending for index in self.shards[shard]]
        tables: dict[str, Columns] = {}
        for shard, index in progress(work, f"{self.stage} {name}", "document"):
            for chunk in chunks_of(self.documents, index, *limits):
                where = f" of document {chunk.document_id}, or of the document that is its null,"
                with failures_in_words(name, len(chunk.token_ids_L), chunk.start, where):
                    append_columns(tables, self.measure(loaded, chunk, others))
            if index == self.shards[shard][-1]:
                output.write_shard(shard, tables, facts | left_out(tables))
                tables = {}
        logger.info("%s: %.2f GiB of memory at the peak", name, peak_bytes(first.model.device) / GIBIBYTE)

    def _load(self, name: str, checkpoint: Checkpoint, dtype: str) -> LoadedModel:
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
        return LoadedModel(name, model, Batching.for_model(model, budget))

    def _other(self, name: str, dtype: str) -> LoadedModel:
        """Another model, loaded once, whatever it is measured beside."""
        checkpoint = self.others[name][1]
        if (name, dtype) not in self._loaded_others:
            self._loaded_others[name, dtype] = self._load(name, checkpoint, dtype)
        return self._loaded_others[name, dtype]


def bos_setting(data: TokenizedData) -> dict[str, list[int]]:
    """The setting that names the tokens before every context; none where there are none, as before."""
    return {"bos_token_ids": list(data.bos_token_ids)} if data.bos_token_ids else {}


def left_out(tables: Mapping[str, Columns]) -> dict[str, int]:
    """How many pairs of target and judge there are, and how many have too little at stake for a sparsity."""
    if (rows := tables.get("dependency_sparsity")) is None:
        return {}
    pairs = {
        (document, target, judge): value is None
        for document, target, judge, criterion, value in zip(
            *(rows[name] for name in ("document_id", "target_position", "judge", "criterion", "mean_log2_k")),
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

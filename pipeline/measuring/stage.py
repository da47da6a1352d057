"""What a model is measured in: the --dtype that is asked for, or where that is auto, the faster one.

The checkpoints that a measuring stage is given: found, named, on which device, of the data's tokens.

What the measuring stages share: every checkpoint on every chunk, shard by shard.

The rows of loss_differences for one chunk: a target's loss and prediction under several contexts.

Shapes: T targets.

The weights of heads that the rules learned_attention* need: fitted once a model, kept with its results.

They are fitted to what leaving tokens out of chunks of the *training* tokens does, at the lengths that are
measured, so that no document that is measured has a part in them.

Everything that influential_tokens measures of one chunk: what is chosen, and what it is worth.

Shapes: T targets, K largest k of a rule, J studied values of k.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from pipeline.cli import InputError, is_out_of_memory, logger, progress
from pipeline.measuring.contexts import (
    Batching,
    HeadWeights,
    Measured,
    Measurement,
    PackedSequence,
    measured_in_foreign_context,
    measured_in_sequence,
    measured_windows,
    own_context,
    read_everything,
    windowed_losses,
)
from pipeline.measuring.far_context import (
    FarContext,
    far_contexts,
    selected_positions,
    sparse_contexts,
)
from pipeline.measuring.flags import ContextLengths, share_of_this_process
from pipeline.measuring.methods import RIDGE, fitted_head_weights
from pipeline.measuring.rules import find_rule, studied_numbers
from pipeline.measuring.sparsity import (
    Judgement,
    Sparsity,
    dependency_sparsity,
    influence_rows,
    selection_rows,
    sparse_loss_rows,
    sparsity_rows,
)
from pipeline.models.devices import GIBIBYTE, keep_freed_memory, peak_bytes, supports_bfloat16, usable_device
from pipeline.models.interface import CausalLM, NotFiniteLossError
from pipeline.models.load import Checkpoint, Loading, find_model, load_causal_lm, training_facts
from pipeline.results.read import read_artefact
from pipeline.results.schemas import ATTENTION_HEADS, DIVERGENCE, LOSS, OWN, Columns, append_columns
from pipeline.results.versions import sha256_of_files
from pipeline.results.write import StageOutput, what_made
from pipeline.text.chunks import Chunk, chunks_of, long_enough_documents
from pipeline.text.folder import (
    TOKENIZER_FILE,
    EvaluationDocument,
    TokenizedData,
    UnigramDistribution,
    training_chunks,
)
from pipeline.text.tokenizer import knows_token_ids
from pipeline.training.speed import faster_dtype, warn_where_bfloat16_is_slow

AUTO = "auto"


def dtype_of_results(asked: str, results: Path, stage: str, model: str, device: torch.device) -> str:
    """`asked`; where it is auto, what results already begun have, else what is faster on this device.

    Results of one model are of one dtype: a measurement that goes on elsewhere must not change it, and one of
    several tasks finds what the first of them chose. A GPU without bfloat16 gets float32, and that is said.
    """
    if asked == "bfloat16" and not supports_bfloat16(device):
        logger.warning("%s has no bfloat16; float32 is used", torch.cuda.get_device_name(device))
        return "float32"
    if asked != AUTO:
        return asked
    begun = what_made(results, stage, model) or {"settings": {}}
    begun_in = begun["settings"].get("dtype")
    return str(begun_in or faster_dtype(device)).removeprefix("torch.")


_ON_THE_CPU = "--device cpu computes without it"


def device_to_measure_on(arguments: argparse.Namespace) -> torch.device:
    """The device that is asked for, or the best one here.

    Raises:
        InputError: it cannot be computed on.
    """
    if arguments.status:
        return torch.device("cpu")
    return usable_device(arguments.device, "leave it out, or say cpu" if arguments.device else _ON_THE_CPU)


def named_checkpoints(
    words: Iterable[str], arguments: argparse.Namespace, flag: str = "--checkpoints"
) -> dict[str, Checkpoint]:
    """The checkpoints that the words of `flag` mean, by the names that results are filed under.

    Raises:
        InputError: one is missing, or two have one name.
    """
    named: dict[str, Checkpoint] = {}
    for word in words:
        checkpoint = find_model(word, arguments.revision, arguments.trust_remote_code)
        if checkpoint.name in named:
            raise InputError(
                f"two of {flag} are named '{checkpoint.name}'; results are filed by the name of the"
                " folder, or the last part of a hub name, so these must differ"
            )
        named[checkpoint.name] = checkpoint
    return named


def refuse_foreign_tokens(
    model: CausalLM, data: TokenizedData, documents: Sequence[EvaluationDocument], checkpoint: Checkpoint
) -> None:
    """Refuse a model that was not trained on tokens of the data's tokenizer, as far as that can be told.

    Raises:
        InputError: sizes or tokenizers differ.
    """
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


def compared_losses(
    loaded: LoadedModel,
    chunk: Chunk,
    references: Sequence[LoadedModel],
    lengths: ContextLengths,
    *,
    windowed_stride: int | None,
    is_compared: bool,
) -> dict[str, Columns]:
    """A row a target: losses under the long, the short and a foreign context, divergences from the long one.

    Args:
        references: the model of --reference-model, or none where that is this one.
        is_compared: whether there is a reference model.
        windowed_stride: of LongPPL's short context; None: it is not measured.
    """
    model, batching, targets_T = loaded.model, loaded.batching, lengths.targets_T
    chunk_L, short_length = chunk.token_ids_L, lengths.short_context_length
    own = own_context(chunk_L, lengths)
    long = read_everything(model, own)
    short = measured_windows(model, chunk_L, targets_T, short_length, batching, long.predictions)
    foreign = measured_in_foreign_context(model, chunk_L, chunk.null_token_ids_L, lengths, long.predictions)
    columns = chunk.target_columns(targets_T) | {
        "target_token_id": chunk_L[targets_T].tolist(),
        "num_long_context_tokens": targets_T.tolist(),
        "short_context_loss": short.losses.tolist(),
        "long_context_loss": long.losses_T.tolist(),
        "loss_difference": (short.losses - long.losses_T).tolist(),
        "foreign_context_loss": foreign.losses.tolist(),
        "specific_gain": (foreign.losses - long.losses_T).tolist(),
        "short_context_divergence": short.divergences.tolist(),
        "foreign_context_divergence": foreign.divergences.tolist(),
    }
    if windowed_stride is not None:
        windowed = windowed_losses(model, chunk_L, targets_T, short_length, windowed_stride, batching)
        columns["windowed_short_context_loss"] = windowed.tolist()
    if is_compared:
        columns["reference_divergence"] = _from_reference(loaded, references, own)
    return {"loss_differences": columns}


def _from_reference(
    loaded: LoadedModel, references: Sequence[LoadedModel], own: PackedSequence
) -> list[float]:
    """KL(p_ref || p), both under the long context, of each target; 0 of the reference itself.

    Raises:
        NotFiniteLossError: a model gives what is no number; the reference is named where it does.
    """
    for reference in references:
        try:
            predictions = read_everything(reference.model, own).predictions
        except NotFiniteLossError as error:
            error.model_name = reference.name
            raise
        return measured_in_sequence(loaded.model, own, predictions).divergences.tolist()
    return [0.0] * len(own.target_ids_T)


LEARNING_RULES = ("learned_attention", "learned_attention_divergence")
"""Those that need the weights."""


def head_weights_of(
    loaded: LoadedModel,
    arguments: argparse.Namespace,
    lengths: ContextLengths,
    checkpoint_sha256: str,
    dtype: str,
) -> HeadWeights:
    """The weights of a model: read where they are among the results, else fitted and written there.

    Args:
        loaded: the model.
        arguments: of influential_tokens.
        lengths: which tokens are predicted, and what they see.
        checkpoint_sha256: of the model's files.
        dtype: what it computes in.

    Raises:
        InputError: there are not enough training tokens, the results folder holds weights that were fitted
            otherwise, or the model cannot be looked into.
    """
    data = TokenizedData.open(arguments.data)
    output = StageOutput(
        arguments.results,
        ATTENTION_HEADS,
        loaded.name,
        settings={
            "short_context_length": lengths.short_context_length,
            "long_context_length": lengths.long_context_length,
            "targets_per_chunk": lengths.targets_per_chunk,
            "learning_chunks": arguments.learning_chunks,
            "ridge": RIDGE,
            "dtype": dtype,
        },
        inputs={"checkpoint": checkpoint_sha256, "training_tokens": data.train_sha256},
        num_shards=1,
    )
    if output.is_done():
        return _read(arguments, loaded.name)
    chunks = training_chunks(data, lengths.long_context_length, arguments.learning_chunks)
    weights = _fitted(loaded, lengths, chunks)
    # Tasks of an array that begin together fit the same weights each, to the same bytes.
    with output.writing(share_of_this_process(arguments).name):
        if not output.is_done():
            columns = {
                "head_index": list(range(len(weights.losses_H))),
                "loss_weight": weights.losses_H.tolist(),
                "divergence_weight": weights.divergences_H.tolist(),
            }
            output.write_shard(0, {ATTENTION_HEADS: columns})
    return weights


def _read(arguments: argparse.Namespace, model: str) -> HeadWeights:
    rows = read_artefact(arguments.results, ATTENTION_HEADS, only={"model": [model]})
    rows = rows.sort_values("head_index")
    return HeadWeights(np.array(rows["loss_weight"]), np.array(rows["divergence_weight"]))


def _fitted(loaded: LoadedModel, lengths: ContextLengths, chunks: Sequence[np.ndarray]) -> HeadWeights:
    measurement = Measurement(loaded.model, lengths, loaded.batching)
    contexts = (
        far_contexts(measurement, chunk_L, chunk_L)[OWN]
        for chunk_L in progress(chunks, f"{LEARNING_RULES[0]} {loaded.name}: training", "chunk")
    )
    return fitted_head_weights(contexts, LEARNING_RULES[0])


@dataclass(frozen=True, eq=False)
class Asked:
    """What the command line of influential_tokens asks for."""

    lengths: ContextLengths
    largest_k: int
    numbers_of_rule: Mapping[str, Sequence[int]]
    """Rule -> the numbers of tokens that it is studied at."""
    unigram: UnigramDistribution | None
    """What left-out tokens are replaced by under `substitute`."""
    num_subsets: int
    kept_fraction: float
    recovery_fraction: float
    minimum_gain: float
    seed: int
    head_weights: dict[str, HeadWeights] = field(default_factory=dict)
    """Model -> what rules learned_attention* need of it."""

    @classmethod
    def of(
        cls, arguments: argparse.Namespace, lengths: ContextLengths, unigram: UnigramDistribution | None
    ) -> "Asked":
        """Of the stage's own flags, checked."""
        smallest = int(lengths.num_far_tokens_T[0])
        numbers = {rule: studied_numbers(rule, arguments.k, smallest) for rule in arguments.rules}
        return cls(
            lengths, max(arguments.k), numbers, unigram, arguments.num_subsets, arguments.kept_fraction,
            arguments.recovery_fraction, arguments.minimum_gain, arguments.seed,
        )  # fmt: skip

    def far_contexts(self, loaded: LoadedModel, chunk: Chunk) -> dict[str, FarContext]:
        """The chunk's own far context and its null, to be measured by a model."""
        seed = self.seed_of(chunk)
        measurement = Measurement(
            loaded.model, self.lengths, loaded.batching,
            num_subsets=self.num_subsets, kept_fraction=self.kept_fraction,
            head_weights=self.head_weights.get(loaded.name), seed=seed,
            where=f"chunk {chunk.chunk_index} of document {chunk.document_id}",
        )  # fmt: skip
        chunk_L, backgrounds = chunk.token_ids_L, chunk.other_token_ids_NL[1:]
        return far_contexts(
            measurement,
            chunk_L,
            chunk.null_token_ids_L,
            substitute_ids_L=None if self.unigram is None else self.unigram.draw(len(chunk_L), [*seed, 1]),
            background_ids_BL=backgrounds if len(backgrounds) else None,
        )

    def seed_of(self, chunk: Chunk) -> tuple[int, ...]:
        """Of all that is drawn for a chunk, whichever model measures it."""
        return (self.seed, int(chunk.document_id, 16), chunk.chunk_index)


Chosen = Mapping[str, Mapping[str, np.ndarray]]
"""Far context -> rule -> positions [T, K], most influential first."""


def measure_chunk(
    loaded: LoadedModel, chunk: Chunk, judges: Sequence[LoadedModel], asked: Asked
) -> dict[str, Columns]:
    """The tokens that a model's rules choose, and losses and divergences with them, its own and the judges'.

    Raises:
        NotFiniteLossError: a model gives what is no number; it is named.
    """
    contexts = asked.far_contexts(loaded, chunk)
    targets_T, seed = asked.lengths.targets_T, asked.seed_of(chunk)
    tables: dict[str, Columns] = {}
    chosen: dict[str, dict[str, np.ndarray]] = {}
    for name, context in contexts.items():
        chosen[name] = {
            rule: selected_positions(context, rule, numbers[-1], seed)
            for rule, numbers in asked.numbers_of_rule.items()
        }
        append_columns(tables, influence_rows(chunk, targets_T, context))
        for rule, positions_TK in chosen[name].items():
            first_TK = positions_TK[:, : asked.largest_k]
            append_columns(tables, selection_rows(chunk, targets_T, find_rule(rule), context, first_TK))
    for judge in (loaded, *judges):
        of_judge = contexts if judge is loaded else asked.far_contexts(judge, chunk)
        try:
            append_columns(tables, _judged(judge.name, chunk, of_judge, chosen, asked))
        except NotFiniteLossError as error:
            error.model_name = judge.name
            raise
    return tables


def _judged(
    judge: str, chunk: Chunk, contexts: Mapping[str, FarContext], chosen: Chosen, asked: Asked
) -> dict[str, Columns]:
    """What the chosen tokens are worth to a model, and the k* of the own ones."""
    own, targets_T = contexts[OWN], asked.lengths.targets_T
    judgement = Judgement(judge, own.short, own.long_losses_T, own.background)
    tables: dict[str, Columns] = {}
    for name, context in contexts.items():
        sparse = sparse_contexts(context, chosen[name], asked.numbers_of_rule)
        for rule, numbers in asked.numbers_of_rule.items():
            rows = sparse_loss_rows(
                chunk, targets_T, find_rule(rule), context, judgement, numbers, sparse[rule]
            )
            append_columns(tables, rows)
        if context is own:
            append_columns(tables, _sparsities(chunk, judgement, sparse, asked))
    return tables


def _sparsities(
    chunk: Chunk,
    judgement: Judgement,
    sparse: Mapping[str, Measured],
    asked: Asked,
) -> dict[str, Columns]:
    """k* of every rule by either criterion, and the measures that stand beside it."""
    tables: dict[str, Columns] = {}
    unknown: list[int | None] = [None] * asked.lengths.targets_per_chunk
    for criterion, (gains_T, recovered_of_rule) in _of_criteria(judgement, sparse).items():
        k_stars = {
            rule: dependency_sparsity(
                gains_T,
                recovered_TJ,
                np.array(asked.numbers_of_rule[rule]),
                recovery_fraction=asked.recovery_fraction,
                minimum_gain=asked.minimum_gain,
            )
            for rule, recovered_TJ in recovered_of_rule.items()
        }
        nearest_T = k_stars["nearest"][0] if "nearest" in k_stars else unknown
        short = asked.lengths.short_context_length
        shortest_T = [None if k_star is None else short + k_star for k_star in nearest_T]
        for rule, (k_star_T, is_censored_T) in k_stars.items():
            sparsity = Sparsity(gains_T, k_star_T, is_censored_T, shortest_T)
            rows = sparsity_rows(
                chunk, asked.lengths.targets_T, find_rule(rule), judgement, criterion, sparsity
            )
            append_columns(tables, rows)
    return tables


def _of_criteria(
    judgement: Judgement, sparse: Mapping[str, Measured]
) -> dict[str, tuple[np.ndarray, dict[str, np.ndarray]]]:
    """By either criterion the gain of each target, [T], and what each rule recovers of it, [T, J].

    By the divergence, which is 0 under the long context, all of it is to be recovered.
    """
    losses_T, divergences_T = judgement.baseline
    of_losses = {rule: losses_T[:, None] - found.losses for rule, found in sparse.items()}
    of_divergences = {rule: divergences_T[:, None] - found.divergences for rule, found in sparse.items()}
    return {
        LOSS: (losses_T - judgement.long_losses_T, of_losses),
        DIVERGENCE: (divergences_T, of_divergences),
    }

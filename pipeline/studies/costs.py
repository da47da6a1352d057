"""What the commands of a study will take, before any of them runs: tokens, FLOPs, hours, memory.

Training on text: training/speed.py. Measuring: token-forwards (tokens run through the network) of a chunk
times chunks times checkpoints. Of a chunk of l tokens with m targets, short context s, and K the studied k:

    loss_differences    m s + l, and in the foreign far context as many; l again with a reference model
    length_losses       4 m l, about: the context lengths double in two steps up to l - m
    influential_tokens  for the own far context and the null's each, the rules' passes (measuring/rules.py)
                        and for every rule and k of K (of a control, every power of two) the sparse contexts,
                        m (s + k), in a background the tokens from the first of the k on; the short
                        contexts, m s, and backgrounds; for every judge all but the passes of the rules again

A token-forward is counted at a third of what training on a token of a sequence of l takes, without the
vocabulary, which is projected on at targets only; of an existing model at two FLOPs a parameter. What
several rules or k share is counted each time. Hours:
of small models, a second of each model's own work is timed. Of others, and for another machine, they are
FLOPs over the peak in the precision of the computation, times an assumed utilization. Of synthetic tasks only
training is counted: 6 N + 12 L D S FLOPs a token of an example of S.
"""

import operator
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from olmo.config import ModelConfig
from olmo.model import OLMo

from pipeline.measuring.contexts import Batching
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.rules import (
    DEFAULT_INTERVENTION,
    DEFAULT_KS,
    RuleCosts,
    screen_of,
    studied_numbers,
)
from pipeline.measuring.sparsity import Request, planned_tokens
from pipeline.measuring.stage import seconds_per_token
from pipeline.models.olmo import OLMoCausalLM
from pipeline.studies.commands import Command, Existing, Measuring, TaskTraining, Training
from pipeline.studies.file import Evaluation, Text, find_study_file
from pipeline.synthetic.config import TaskConfig
from pipeline.synthetic.train import BYTES_PER_PARAMETER, about_num_parameters
from pipeline.text.folder import TokenizedData, read_manifest
from pipeline.text.tokenizer import HubTokenizer, load_tokenizer, parse_tokenizer_name
from pipeline.training.config import AssumedData, DataFacts, PretrainConfig, counts_epochs, load_config
from pipeline.training.speed import (
    GPUS,
    estimate,
    flops_per_token,
    measured_peak_flops,
    seconds_per_trained_token,
)

_MOST_TIMED_FLOPS = 6e7
"""Of training on a token: ten million weights. Larger models would take minutes to plan."""


@dataclass(frozen=True)
class Machine:
    """The device that would run the study, and how fast it is."""

    utilization: float
    """Of the peak, assumed: a fraction."""
    peak_flops: float | None = None
    """FLOPs a second in any dtype. None: those of `gpu`."""
    gpu: str | None = None
    """Of training/speed.py, whose data sheet counts. None: measured."""
    num_jobs: int = 1
    """Commands that run at once."""

    def flops_per_second(self, precision: str | None) -> float:
        """For a training's `precision` or a measuring's --dtype; `auto` is the faster of the two."""
        of_bfloat16 = {"amp_bf16": [True], "bfloat16": [True], "auto": [False, True]}
        return self.utilization * max(map(self._peak, of_bfloat16.get(precision or "", [False])))

    def _peak(self, is_bfloat16: bool) -> float:
        if self.gpu is not None:
            return GPUS[self.gpu].bfloat16 if is_bfloat16 else GPUS[self.gpu].float32
        return self.peak_flops or _measured_peak(torch.bfloat16 if is_bfloat16 else torch.float32)

    def __str__(self) -> str:
        """What the estimates assume."""
        use = f"of which {self.utilization:.0%} are assumed to be used"
        if self.gpu is not None:
            return f"the data sheet of the {self.gpu.upper()}, {use}"
        if self.peak_flops is not None:
            return f"{self.peak_flops / 1e9:,.0f} GFLOP/s, as given, {use}"
        return (
            f"what a second of each small model took here, {self.num_jobs} at once; others: its peak, {use}"
        )

    def is_timed(self, model: ModelConfig) -> bool:
        """Whether a model is small enough for a second of its own work to be timed here."""
        is_here = self.gpu is None and self.peak_flops is None
        return is_here and flops_per_token(model, 1) < _MOST_TIMED_FLOPS


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@cache
def _measured_peak(dtype: torch.dtype) -> float:
    return measured_peak_flops(_device(), dtype)


_timed: dict[str, float] = {}
"""Model, precision and lengths -> seconds."""


def _seconds_per_token(config: PretrainConfig, lengths: ContextLengths | None = None) -> float:
    """Of training a model of this configuration, or of measuring it at these lengths, timed once."""
    model = config.model.asdict()
    of_training = model, config.precision, config.sequence_length
    key = repr(of_training if lengths is None else ({**model, "max_sequence_length": None}, lengths))
    if key not in _timed:
        if lengths is None:
            _timed[key] = seconds_per_trained_token(config, _device())
        else:
            lm = OLMoCausalLM(OLMo(ModelConfig(**{**model, "init_device": str(_device())})))
            _timed[key] = seconds_per_token(lm, Batching.for_model(lm), lengths)
    return _timed[key]


class Cost(NamedTuple):
    """Of one command, or several."""

    train_tokens: int = 0
    token_forwards: int = 0
    flops: float = 0
    seconds: float = 0
    num_unknown: int = 0
    """Commands that are as long as the data, which is not there yet."""

    def __add__(self, other: "Cost") -> "Cost":  # type: ignore[override]
        """Of both."""
        return Cost(*map(operator.add, self, other))

    def __str__(self) -> str:
        """In one line."""
        if self == Cost():
            return "minutes at most"
        words = [
            f"trains on {self.train_tokens / 1e6:,.1f} M tokens" if self.train_tokens else "",
            f"{self.token_forwards / 1e6:,.2f} M token-forwards" if self.token_forwards else "",
            f"{self.flops:.2g} FLOPs, {self.seconds / 3600:,.2f} hours" if self.flops else "",
            f"{self.num_unknown} not counted, as only the data tells how long" if self.num_unknown else "",
        ]
        return ", ".join(filter(None, words))


@dataclass(frozen=True)
class Checked:
    """What is known of a study once its programs have checked it."""

    configs: Mapping[str, Any]
    """The name of a training -> its PretrainConfig or TaskConfig."""
    facts: DataFacts | None = None
    """Of the data that models of text are trained on."""


def cost_of(command: Command, checked: Checked, machine: Machine) -> Cost:
    """Of one command; nothing for those that neither train nor measure."""
    about = command.about
    if isinstance(about, TaskTraining):
        task: TaskConfig = checked.configs[about.name]
        generator = np.random.default_rng(0)
        # All training sizes are as frequent; long examples have more tokens, and more attention a token.
        lengths_E = np.array([task.draw(size, 1, generator).token_ids_BS.shape[1] for size in task.sizes])
        weights, attention = 6 * about_num_parameters(task), 12 * task.model.num_layers * task.model.width
        num_examples = task.num_steps * task.batch_size
        flops = num_examples * float(np.mean(lengths_E * (weights + attention * lengths_E)))
        num_tokens = round(num_examples * float(np.mean(lengths_E)))
        return Cost(train_tokens=num_tokens, flops=flops, seconds=flops / machine.flops_per_second(None))
    if isinstance(about, Training):
        config, facts = checked.configs[about.name], checked.facts
        num_train_tokens = None if facts is None else facts.num_train_tokens
        if counts_epochs(config.max_duration) and num_train_tokens is None:
            return Cost(num_unknown=1)
        run = estimate(config, machine.flops_per_second(config.precision), num_train_tokens)
        is_timed = machine.is_timed(config.model)
        seconds = run.num_tokens * _seconds_per_token(config) if is_timed else run.seconds
        return Cost(train_tokens=run.num_tokens, flops=run.flops, seconds=seconds)
    if not isinstance(about, Measuring):
        return Cost()
    evaluation = about.evaluation
    if (chunks := num_chunks(evaluation, about.data)) is None:
        return Cost(num_unknown=1)
    flops = seconds = 0.0
    of_a_checkpoint = chunks * token_forwards_of_chunk(command.stage, evaluation)
    lengths = ContextLengths(1, evaluation.long_context_length, evaluation.targets_per_chunk)
    for training, num_checkpoints in Counter(about.trainings).items():
        if isinstance(training, Existing):  # its architecture is not known before it is here
            if training.num_parameters is None:
                return Cost(num_unknown=1)
            of_model = of_a_checkpoint * 2 * training.num_parameters
            flops += of_model
            seconds += of_model / machine.flops_per_second(evaluation.dtype)
            continue
        model = checked.configs[training.name].model
        vocabulary = 2 * (model.embedding_size or model.vocab_size) * model.d_model
        of_a_token = flops_per_token(model, evaluation.long_context_length) / 3 - vocabulary
        of_training = num_checkpoints * of_a_checkpoint
        flops += of_training * of_a_token
        if machine.is_timed(model) and evaluation.dtype in (None, "float32"):
            seconds += of_training * _seconds_per_token(checked.configs[training.name], lengths)
        else:
            seconds += of_training * of_a_token / machine.flops_per_second(evaluation.dtype)
    return Cost(token_forwards=of_a_checkpoint * len(about.trainings), flops=flops, seconds=seconds)


def need_of(training: Training, checked: Checked) -> tuple[int, float]:
    """Parameters of a training, and bytes that it holds; a measuring of the same model holds less."""
    config = checked.configs[training.name]
    if isinstance(training, TaskTraining):  # small beside it is what a step's examples take
        num_parameters = about_num_parameters(config)
        return num_parameters, BYTES_PER_PARAMETER * num_parameters
    # However long it lasts, which may be as many epochs as of data that is not there yet.
    run = estimate(config, num_train_tokens=config.tokens_per_step)
    return run.num_parameters, run.memory_bytes


def data_facts(data: Text, folder: Path) -> DataFacts:
    """What training takes from the data: of the folder; where there is none yet, by the tokenizer's name."""
    if read_manifest(folder) is not None:
        return TokenizedData.open(folder)
    size = parse_tokenizer_name(data.tokenizer)
    size = size.fetch() if isinstance(size, HubTokenizer) else size
    return AssumedData(size if isinstance(size, int) else load_tokenizer(size).vocabulary_size)


def token_forwards_of_chunk(stage: str, evaluation: Evaluation) -> int:
    """What a measuring stage runs through the network for one chunk of one checkpoint."""
    s, m = evaluation.short_context_length, evaluation.targets_per_chunk
    length = evaluation.long_context_length
    if stage == "length_losses":
        return 4 * m * length
    if stage == "influential_tokens":
        length = evaluation.last_tokens or length
    intervention = evaluation.intervention or DEFAULT_INTERVENTION
    costs = RuleCosts(s, length, m, 1, intervention, evaluation.num_backgrounds or 1)
    if stage == "loss_differences":
        num_readings = 1 if evaluation.reference_model is None else 2
        total = m * s + num_readings * length + costs.foreign_context()
        if (near := evaluation.near_context_length) is not None:
            foreign = replace(costs, short_context_length=near).foreign_context()
            total += m * near + costs.num_backgrounds * foreign
        return total
    fewest = costs.num_far_tokens[0]
    ks = evaluation.k or [k for k in DEFAULT_KS if k <= fewest]
    null_fraction = 1.0 if evaluation.null_fraction is None else evaluation.null_fraction
    lengths = ContextLengths(s, length, m)
    screen = screen_of(lengths, evaluation.screen, () if evaluation.choices else evaluation.rules)
    request = Request(
        lengths=lengths, screen=screen, largest_k=ks[-1],
        numbers_of_rule={rule: studied_numbers(rule, ks, fewest, screen) for rule in evaluation.rules},
        intervention=intervention, num_backgrounds=costs.num_backgrounds, null_fraction=null_fraction,
        choosers_judge=bool(evaluation.choosers_judge),
        choices=None if evaluation.choices is None else {},
    )  # fmt: skip
    num_choosers = len(evaluation.influential_models) if evaluation.choose_together else 1
    with_null, without = (
        planned_tokens(request, num_choosers, len(evaluation.judge_with), document)
        for document in ("0", "f" * 8)  # IDs are hashes; the least have a null
    )
    return round((null_fraction * with_null + (1 - null_fraction) * without) / num_choosers)


def num_chunks(evaluation: Evaluation, data: Path) -> int | None:
    """Chunks that will be measured: counted where the data is there, else what the limits allow, or None."""
    max_documents, max_chunks = evaluation.max_documents, evaluation.max_chunks_per_document
    if read_manifest(data) is None:
        return None if max_documents is None or max_chunks is None else max_documents * max_chunks
    lengths = TokenizedData.open(data).evaluation_lengths()
    chunks = [num_tokens // evaluation.long_context_length for num_tokens in lengths]
    long_enough = [number for number in chunks if number][:max_documents]
    return sum(number if max_chunks is None else min(number, max_chunks) for number in long_enough)


def lines_of_plan(
    commands: Sequence[Command], finished: Collection[str], checked: Checked, machine: Machine
) -> Iterator[str]:
    """Comments with estimates, a command after each; a shell could run them."""
    total, num_train_tokens = Cost(), None if checked.facts is None else checked.facts.num_train_tokens
    for command in commands:
        cost = cost_of(command, checked, machine)
        if command.name not in finished:
            total += cost._replace(seconds=cost.seconds / machine.num_jobs)
        words = [str(cost)]
        if isinstance(command.about, Training):
            num_parameters, num_bytes = need_of(command.about, checked)
            words.insert(0, f"{num_parameters / 1e6:,.1f} M parameters, {num_bytes / 1e9:,.1f} GB")
            if num_train_tokens and cost.train_tokens > num_train_tokens:
                words.append(f"reads the text {cost.train_tokens / num_train_tokens:,.1f} times")
        words += ["finished before"] if command.name in finished else []
        yield f"# {command.name}: {', '.join(words)}"
        yield str(command)
    yield f"# in all, of what has not finished: {total}; at {machine}"


def need_of_run(path: Path, overrides: Sequence[str], vocabulary_size: int, machine: Machine) -> str:
    """What a training configuration needs, in one line: the words at the head of olmo_configs/*.yaml.

    Chinchilla-optimal are 20 tokens a parameter (Hoffmann et al. 2022, arXiv 2203.15556).
    """
    config = load_config(find_study_file(path), overrides, AssumedData(vocabulary_size))
    run = estimate(config, machine.flops_per_second(config.precision))
    return (
        f"{run.num_parameters / 1e6:,.1f} M parameters, Chinchilla-optimal at"
        f" {20 * run.num_parameters / 1e6:,.0f} M tokens; {run.num_tokens / 1e6:,.0f} M tokens in"
        f" {run.num_steps:,} steps take {run.memory_bytes / 1e9:,.1f} GB and {run.seconds / 3600:,.2f} hours"
        f"; at {machine}"
    )

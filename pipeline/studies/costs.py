"""The device that estimates are made for: its peak, given or measured, and how much of it is used.

What commands take, as numbers and in words.

What a study's commands will take, told before they run: by text_forecast.py and by task_forecast.py.

What the commands of a study of text will take, before any of them runs: tokens, FLOPs, hours.

Training: training/speed.py. Measuring: token-forwards (tokens run through the network) of a chunk times
chunks times checkpoints. Of a chunk of l tokens with m targets, short context s, and K the studied k:

    loss_differences    m s + l, and in the foreign far context as many; l again with a reference model
    length_losses       4 m l, about: the context lengths double in two steps up to l - m
    influential_tokens  for the own far context and the null's each, the rules' passes (rule_costs.py) and for
                        every rule and k of K (of a control, every power of two) the sparse contexts,
                        m (s + k), in a background the tokens from the first of the k on; the short
                        contexts, m s, and backgrounds; for every judge all but the passes of the rules again

A token-forward is counted at a third of what training on a token of a sequence of l takes, without the
vocabulary, which is projected on at targets only. What several rules or k share is counted each time, so it
is rather too much. Hours are FLOPs over the machine's peak, measured in the precision that it would compute
in, times an assumed utilization.

What training and testing models of synthetic tasks takes: tokens and FLOPs, by the tasks' own examples.

A token of an example of S is counted at 6 N + 12 L D S FLOPs in training, as training/speed.py counts
those of OLMo, and at a third of it where a model is only asked. Token-forwards of one test example:

    evaluate_synthetic  S token-forwards: what was read is kept
    found_dependencies  the passes of the rules (rule_costs.py); those that leave a token out run once for
                        `remove`, and for `substitute` once for each substitute

What `study.py --dry-run` prints: every command with what it takes, or what one configuration needs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch

from pipeline.measuring.rules import (
    BACKGROUND,
    DEFAULT_INTERVENTION,
    NUM_SUBSETS,
    SUBSTITUTE,
    RuleCosts,
    find_rule,
)
from pipeline.studies.commands import Command, Measuring, TaskMeasuring, TaskTraining, Training
from pipeline.studies.file import DependencyTest, Evaluation, TaskTest, Text
from pipeline.synthetic.config import TaskConfig
from pipeline.synthetic.evaluation import Cell, cells_of
from pipeline.synthetic.tasks import ExampleBatch, Task, draw_batch
from pipeline.synthetic.train import BYTES_PER_PARAMETER, about_num_parameters
from pipeline.text.folder import TokenizedData, read_manifest
from pipeline.text.tokenizer import load_tokenizer, parse_tokenizer_name
from pipeline.training.checkpoints import RunConfig
from pipeline.training.config import AssumedData, DataFacts, PretrainConfig, counts_epochs, load_config
from pipeline.training.speed import GPUS, Device, estimate, flops_per_token, measured_peak_flops


@dataclass
class Machine:
    """The device that would run the study, and how fast it is."""

    utilization: float
    """Of the peak, assumed: a fraction."""
    peak_flops: float | None = None
    """FLOPs a second in any dtype. None: those of `gpu`."""
    gpu: str | None = None
    """Of training/speed.py, whose data sheet counts. None: measured, when first asked for, a dtype."""
    _measured: dict[torch.dtype, float] = field(default_factory=dict)
    _used: dict[torch.dtype, float] = field(default_factory=dict)
    """Of those, what an estimate took: `auto` measures both and takes one."""

    def device(self, dtype: torch.dtype) -> Device:
        """As training/speed.py takes it."""
        self._used[dtype] = peak = self._peak(dtype)
        return Device(self.gpu or _device_type(), peak, self.utilization)

    def device_in(self, precision: str | None) -> Device:
        """The same for a training's `precision` or a measuring's --dtype; `auto` is the faster of the two."""
        if precision == "auto":
            return self.device(max(torch.float32, torch.bfloat16, key=self._peak))
        return self.device(torch.bfloat16 if precision in ("amp_bf16", "bfloat16") else torch.float32)

    def _peak(self, dtype: torch.dtype) -> float:
        if self.peak_flops is not None:
            return self.peak_flops
        if self.gpu is not None:
            peaks = GPUS[self.gpu]
            return peaks.bfloat16 if dtype == torch.bfloat16 else peaks.float32
        if dtype not in self._measured:
            self._measured[dtype] = measured_peak_flops(torch.device(_device_type()), dtype)
        return self._measured[dtype]

    def __str__(self) -> str:
        """The peaks that were used."""
        use = f"of which {self.utilization:.0%} are assumed to be used"
        if self.peak_flops is not None:
            return f"{self.peak_flops / 1e9:,.0f} GFLOP/s, as given, {use}"
        peaks = [
            f"{peak / 1e9:,.0f} GFLOP/s in {str(dtype).removeprefix('torch.')}"
            for dtype, peak in self._used.items()
        ]
        sheet = "" if self.gpu is None else f" by the data sheet of the {self.gpu.upper()}"
        return f"{' and '.join(peaks)}{sheet}, {use}"


def _device_type() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


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
        return Cost(
            self.train_tokens + other.train_tokens,
            self.token_forwards + other.token_forwards,
            self.flops + other.flops,
            self.seconds + other.seconds,
            self.num_unknown + other.num_unknown,
        )


def in_words(cost: Cost) -> str:
    """One line."""
    if cost == Cost():
        return "minutes at most"
    words = [
        f"trains on {cost.train_tokens / 1e6:,.1f} M tokens" if cost.train_tokens else "",
        f"{cost.token_forwards / 1e6:,.2f} M token-forwards" if cost.token_forwards else "",
        f"{cost.flops:.2g} FLOPs, {cost.seconds / 3600:,.2f} hours" if cost.flops else "",
        f"{cost.num_unknown} not counted, as only the data tells how long" if cost.num_unknown else "",
    ]
    return ", ".join(filter(None, words))


class Need(NamedTuple):
    """What a training holds; a measuring of the same model holds less."""

    num_parameters: int
    memory_bytes: float
    text_passes: float | None = None
    """How often it reads the training text; None: that is not known, or there is none."""


class Forecast(Protocol):
    """Of one study, whose commands were checked."""

    @property
    def configs(self) -> Mapping[str, RunConfig]:
        """The name of a training -> its configuration, complete and checked."""

    def cost_of(self, command: Command, machine: Machine) -> Cost:
        """Of one command; nothing for those that neither train nor measure."""

    def need_of(self, training: Training) -> Need:
        """Of one training."""


Configs = Mapping[str, PretrainConfig]
"""The name of a training -> its configuration."""


def data_facts(data: Text, folder: Path) -> DataFacts:
    """What training takes from the data: of the folder, or where there is none yet, by the tokenizer's name.

    Raises:
        InputError: there is no such tokenizer.
    """
    if read_manifest(folder) is not None:
        return TokenizedData.open(folder)
    path_or_size = parse_tokenizer_name(data.tokenizer)
    if isinstance(path_or_size, int):
        return AssumedData(path_or_size)
    return AssumedData(load_tokenizer(path_or_size).vocabulary_size)


def cost_of(command: Command, configs: Configs, facts: DataFacts, machine: Machine) -> Cost:
    """Of one command; nothing for those that neither train nor measure.

    Args:
        command: of a study.
        configs: of the study's trainings, checked.
        facts: of the study's data.
        machine: where it would run.
    """
    if isinstance(command.about, Training):
        return _training_cost(configs[command.about.name], facts, machine)
    if isinstance(command.about, Measuring):
        return _measuring_cost(command.about, configs, machine)
    return Cost()


@dataclass(frozen=True)
class TextForecast:
    """See `Forecast`."""

    configs: Configs
    facts: DataFacts
    """Of the study's data."""

    def cost_of(self, command: Command, machine: Machine) -> Cost:
        """See `Forecast.cost_of`."""
        return cost_of(command, self.configs, self.facts, machine)

    def need_of(self, training: Training) -> Need:
        """See `Forecast.need_of`."""
        config = self.configs[training.name]
        # However long it lasts, which may be as many epochs as of data that is not there yet.
        run = estimate(config, num_train_tokens=config.tokens_per_step)
        passes = None
        if self.facts.num_train_tokens:
            num_tokens = estimate(config, num_train_tokens=self.facts.num_train_tokens).num_tokens
            passes = num_tokens / self.facts.num_train_tokens
        return Need(run.num_parameters, run.memory_bytes, passes)


def token_forwards_of_chunk(stage: str, evaluation: Evaluation) -> int:
    """What a measuring stage runs through the network for one chunk of one checkpoint."""
    s, m = evaluation.short_context_length, evaluation.targets_per_chunk
    length = evaluation.long_context_length
    costs = RuleCosts(
        s, length, m,
        intervention=evaluation.intervention or DEFAULT_INTERVENTION,
        num_backgrounds=evaluation.num_backgrounds or 1,
        num_subsets=evaluation.num_subsets or NUM_SUBSETS,
    )  # fmt: skip
    if stage == "length_losses":
        return 4 * m * length
    if stage == "loss_differences":
        num_readings = 1 if evaluation.reference_model is None else 2
        return m * s + num_readings * length + costs.foreign_context()
    selecting = 2 * costs.token_forwards_together(evaluation.rules, max(evaluation.k))
    is_background = (evaluation.intervention or DEFAULT_INTERVENTION) == BACKGROUND
    trying = 2 * costs.sparse_contexts(evaluation.rules, evaluation.k) + m * s
    trying += costs.num_backgrounds * costs.foreign_context() if is_background else 0
    return selecting + trying + len(evaluation.judge_with) * (trying + length)


def num_chunks(evaluation: Evaluation, data: Path) -> int | None:
    """Chunks that will be measured: counted where the data is there, else what the limits allow, or None."""
    max_documents, max_chunks = evaluation.max_documents, evaluation.max_chunks_per_document
    if read_manifest(data) is None:
        return None if max_documents is None or max_chunks is None else max_documents * max_chunks
    lengths = TokenizedData.open(data).evaluation_lengths()
    chunks = [num_tokens // evaluation.long_context_length for num_tokens in lengths]
    long_enough = [number for number in chunks if number][:max_documents]
    return sum(number if max_chunks is None else min(number, max_chunks) for number in long_enough)


def _training_cost(config: PretrainConfig, facts: DataFacts, machine: Machine) -> Cost:
    if counts_epochs(config.max_duration) and facts.num_train_tokens is None:
        return Cost(num_unknown=1)
    run = estimate(config, machine.device_in(config.precision), facts.num_train_tokens)
    return Cost(train_tokens=run.num_tokens, flops=run.flops, seconds=run.seconds)


def _measuring_cost(measuring: Measuring, configs: Configs, machine: Machine) -> Cost:
    evaluation = measuring.evaluation
    chunks = num_chunks(evaluation, measuring.data)
    if chunks is None:
        return Cost(num_unknown=1)
    of_a_checkpoint = chunks * token_forwards_of_chunk(measuring.stage, evaluation)
    length = evaluation.long_context_length
    names = {training.name for training in measuring.trainings}
    flops_of = {name: _forward_flops(configs[name], length) for name in names}
    flops = of_a_checkpoint * sum(flops_of[training.name] for training in measuring.trainings)
    device = machine.device_in(evaluation.dtype)
    return Cost(
        token_forwards=of_a_checkpoint * len(measuring.trainings),
        flops=flops,
        seconds=flops / (device.peak_flops * device.utilization),
    )


def _forward_flops(config: PretrainConfig, context_length: int) -> float:
    """Of one token-forward, the vocabulary left out."""
    model = config.model
    vocabulary = 2 * (model.embedding_size or model.vocab_size) * model.d_model
    return flops_per_token(model, context_length) / 3 - vocabulary


TaskConfigs = Mapping[str, TaskConfig]
"""The name of a training -> its configuration."""


@dataclass(frozen=True)
class SyntheticForecast:
    """See `Forecast`."""

    configs: TaskConfigs

    def cost_of(self, command: Command, machine: Machine) -> Cost:
        """See `Forecast.cost_of`."""
        if isinstance(command.about, TaskTraining):
            return training_cost(self.configs[command.about.name], machine)
        if isinstance(command.about, TaskMeasuring):
            return measuring_cost(command.about, self.configs, machine)
        return Cost()

    def need_of(self, training: Training) -> Need:
        """See `Forecast.need_of`; small beside it is what a step's examples take."""
        num_parameters = about_num_parameters(self.configs[training.name])
        return Need(num_parameters, BYTES_PER_PARAMETER * num_parameters)


def training_cost(config: TaskConfig, machine: Machine) -> Cost:
    """Of one run; its examples have the training sizes alike."""
    generator = np.random.default_rng(0)
    distribution = config.distribution
    lengths = [
        distribution.draw_of_size(size, 1, generator).token_ids_BS.shape[1] for size in distribution.sizes
    ]
    num_tokens = round(config.num_steps * config.batch_size * float(np.mean(lengths)))
    # Long examples have the more of the tokens, and the more attention a token.
    flops = config.num_steps * config.batch_size * float(
        np.mean([length * _flops_per_token(config, length) for length in lengths])
    )  # fmt: skip
    return Cost(train_tokens=num_tokens, flops=flops, seconds=_seconds(flops, machine))


def measuring_cost(measuring: TaskMeasuring, configs: TaskConfigs, machine: Machine) -> Cost:
    """Of one stage on all models of a task."""
    test = measuring.test
    task, cells = cells_of(measuring.task, test.sizes, test.sparsities)
    total = Cost()
    for cell in cells:
        batch = _an_example(task, cell)
        forwards = test.num_examples * token_forwards_of_example(batch, test)
        length = batch.token_ids_BS.shape[1]
        for training in measuring.trainings:
            flops = forwards * _flops_per_token(configs[training.name], length) / 3
            total += Cost(token_forwards=forwards, flops=flops, seconds=_seconds(flops, machine))
    return total


def token_forwards_of_example(batch: ExampleBatch, test: TaskTest) -> int:
    """What a stage runs through the network for one example of this length.

    Args:
        batch: an example, or several.
        test: a `DependencyTest`, or any other that is answered by generating.
    """
    num_tokens = batch.token_ids_BS.shape[1]
    if not isinstance(test, DependencyTest):
        return num_tokens
    costs = RuleCosts(test.short_context_length, num_tokens, num_tokens - batch.num_prompt_tokens)
    asked = {name: find_rule(name) for name in test.rules}
    always = [name for name, rule in asked.items() if not rule.knows_interventions]
    total = num_tokens + costs.token_forwards_together(always, test.largest_k)
    for intervention in test.interventions:
        of_it = [
            name for name, rule in asked.items() if name not in always and intervention in rule.interventions
        ]
        under_it = replace(costs, intervention=intervention, num_backgrounds=test.num_substitutes)
        draws = test.num_substitutes if intervention == SUBSTITUTE else 1
        total += draws * under_it.token_forwards_together(of_it, test.largest_k)
    return total


def _an_example(task: Task, cell: Cell) -> ExampleBatch:
    size, sparsity = cell
    return draw_batch(task, size, [sparsity], np.random.default_rng(0))


def _flops_per_token(config: TaskConfig, num_tokens: int) -> int:
    """FLOPs of training on one token of an example of so many."""
    return 6 * about_num_parameters(config) + 12 * config.model.num_layers * config.model.width * num_tokens


def _seconds(flops: float, machine: Machine) -> float:
    device = machine.device_in(None)
    return flops / (device.peak_flops * device.utilization)


def lines_of_plan(
    commands: Sequence[Command],
    to_run: Sequence[Command],
    forecast: Forecast,
    machine: Machine,
) -> Iterator[str]:
    """Comments with estimates, a command after each; a shell could run them.

    Args:
        commands: of the study.
        to_run: those that have not finished.
        forecast: of the study.
        machine: where it would run.
    """
    total = Cost()
    for command in commands:
        cost = forecast.cost_of(command, machine)
        is_finished = command.writes and command not in to_run
        total += Cost() if is_finished else cost
        words = [in_words(cost), "finished before" if is_finished else ""]
        if isinstance(command.about, Training):
            need = forecast.need_of(command.about)
            words.insert(
                0, f"{need.num_parameters / 1e6:,.1f} M parameters, {need.memory_bytes / 1e9:,.1f} GB"
            )
            if need.text_passes is not None and need.text_passes > 1:
                words.append(f"reads the text {need.text_passes:,.1f} times")
        yield f"# {command.name}: {', '.join(filter(None, words))}"
        yield str(command)
    yield f"# in all, of what has not finished: {in_words(total)}; at {machine}"


def need_of_run(path: Path, overrides: Sequence[str], vocabulary_size: int, machine: Machine) -> str:
    """What a training configuration needs, in one line: the words at the head of olmo_configs/*.yaml.

    Raises:
        InputError: it is not valid, or its duration cannot be told without data.
    """
    config = load_config(path, overrides, AssumedData(vocabulary_size))
    run = estimate(config, machine.device_in(config.precision))
    return (
        f"{run.num_parameters / 1e6:,.1f} M parameters, Chinchilla-optimal at"
        f" {run.chinchilla_tokens / 1e6:,.0f} M tokens; {run.num_tokens / 1e6:,.0f} M tokens in"
        f" {run.num_steps:,} steps take {run.memory_bytes / 1e9:,.1f} GB and {run.seconds / 3600:,.2f} hours"
    )

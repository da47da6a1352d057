"""What the commands of a study of text will take, before any of them runs: tokens, FLOPs, hours.

Training: training/estimates.py. Measuring: token-forwards (tokens run through the network) of a chunk times
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
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.influence.rules import BACKGROUND, DEFAULT_INTERVENTION, NUM_SUBSETS, SEARCH_BUDGET
from pipeline.studies.command import Command, Measuring, Training
from pipeline.studies.cost import Cost
from pipeline.studies.forecast import Need
from pipeline.studies.machine import Machine
from pipeline.studies.rule_costs import RuleCosts
from pipeline.studies.study_fields import Evaluation, Text
from pipeline.text.manifest import read_manifest
from pipeline.text.tokenized_data import TokenizedData
from pipeline.text.tokenizer import load_tokenizer, parse_tokenizer_name
from pipeline.training.configuration import PretrainConfig
from pipeline.training.estimates import estimate
from pipeline.training.given_settings import AssumedData, DataFacts
from pipeline.training.schedule import counts_epochs
from pipeline.training.throughput import flops_per_token

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
        s, length, m, SEARCH_BUDGET,
        intervention=evaluation.intervention or DEFAULT_INTERVENTION,
        num_backgrounds=evaluation.num_backgrounds or 1,
        num_subsets=evaluation.num_subsets or NUM_SUBSETS,
        num_candidates=evaluation.num_candidates,
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

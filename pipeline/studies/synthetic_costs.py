"""What training and testing models of synthetic tasks takes: tokens and FLOPs, by the tasks' own examples.

A token of an example of S is counted at 6 N + 12 L D S FLOPs in training, as training/throughput.py counts
those of OLMo, and at a third of it where a model is only asked. Token-forwards of one test example:

    evaluate_synthetic  S token-forwards: what was read is kept
    found_dependencies  the passes of the rules (rule_costs.py); those that leave a token out run once for
                        `remove`, and for `substitute` once for each substitute
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from pipeline.influence.rules import SUBSTITUTE, find_rule
from pipeline.studies.command import Command, TaskMeasuring, TaskTraining, Training
from pipeline.studies.cost import Cost
from pipeline.studies.forecast import Need
from pipeline.studies.machine import Machine
from pipeline.studies.rule_costs import RuleCosts
from pipeline.studies.synthetic_fields import DependencyTest, TaskTest
from pipeline.synthetic.configuration import TaskConfig
from pipeline.synthetic.evaluation import Cell, cells_of
from pipeline.synthetic.memory import BYTES_PER_PARAMETER, about_num_parameters
from pipeline.synthetic.tasks.example_batch import ExampleBatch, draw_batch
from pipeline.synthetic.tasks.registry import Task

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

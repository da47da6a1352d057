"""What the stages of synthetic tasks would refuse when their turn comes, refused before the first command."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import unknown_name
from pipeline.influence.rules import INTERVENTIONS, find_rule
from pipeline.studies.command import Command, TaskMeasuring, TaskTraining
from pipeline.studies.refusals import refuse_unwritable, told_of
from pipeline.studies.synthetic_costs import SyntheticForecast, TaskConfigs
from pipeline.studies.synthetic_fields import DependencyTest, SyntheticStudy
from pipeline.synthetic.evaluation import cells_of, refuse_impossible
from pipeline.synthetic.finding import FINDING_RULES
from pipeline.synthetic.given_configuration import load_task_config
from pipeline.synthetic.room_to_select import of_tokens, refuse_unfit_k


def checked_task_configs(commands: Sequence[Command]) -> TaskConfigs:
    """The configuration of every training, complete and checked.

    Raises:
        InputError: names the training, the field and what would be right.
    """
    configs = {}
    for command in commands:
        training = command.about
        if isinstance(training, TaskTraining):
            with told_of(training.name):
                configs[training.name] = load_task_config(
                    training.config, training.overrides, task=training.task, positions=training.positions
                )
    return configs


def checked_synthetic(
    study: SyntheticStudy, commands: Sequence[Command], to_run: Sequence[Command]
) -> SyntheticForecast:
    """What the study will take, once nothing is left that its stages would refuse.

    Args:
        study: the whole of it.
        commands: all of it.
        to_run: those that are still to run.

    Raises:
        InputError: names the command and what would be right.
    """
    configs = checked_task_configs(commands)
    refuse_unwritable(Path(study.run))
    for command in to_run:
        if isinstance(command.about, TaskMeasuring):
            with told_of(command.name):
                _refuse_impossible_test(command.about, configs)
    return SyntheticForecast(configs)


def _refuse_impossible_test(measuring: TaskMeasuring, configs: TaskConfigs) -> None:
    test = measuring.test
    task, cells = cells_of(measuring.task, test.sizes, test.sparsities)
    for training in measuring.trainings:
        refuse_impossible(training.name, configs[training.name], cells)
    if not isinstance(test, DependencyTest):
        return
    for names, valid in ((test.rules, FINDING_RULES), (test.interventions, INTERVENTIONS)):
        for name in names:
            if name not in valid:
                raise unknown_name("rule" if valid is FINDING_RULES else "intervention", name, valid)
    for rule in test.rules:
        find_rule(rule)
    refuse_unfit_k(
        task, cells, of_tokens, num_examples=test.num_examples, test_seed=test.test_seed,
        largest_k=test.largest_k, short_context_length=test.short_context_length,
    )  # fmt: skip

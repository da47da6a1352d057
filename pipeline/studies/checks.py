"""What the checks of every study share, before its first command runs.

What the stages would refuse when their turn comes, hours later: refused before the first command runs.

Values that a study file alone decides are refused where it is read (study_file.py). Here are those that need
the text, a tokenizer or a training configuration; none needs a model, or more than a look at a file.

What the stages of synthetic tasks would refuse when their turn comes, refused before the first command.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeline.cli import InputError, unknown_name
from pipeline.measuring.flags import DTYPES, ContextLengths
from pipeline.measuring.rules import (
    DEFAULT_INTERVENTION,
    INTERVENTIONS,
    NUM_SUBSETS,
    find_rule,
    refuse_rules,
)
from pipeline.studies.commands import Command, Measuring, TaskMeasuring, TaskTraining, Tokenizing, Training
from pipeline.studies.costs import Configs, SyntheticForecast, TaskConfigs, TextForecast, data_facts
from pipeline.studies.file import DependencyTest, Evaluation, SyntheticStudy, Text, TextStudy
from pipeline.synthetic.config import load_task_config
from pipeline.synthetic.dependencies import FINDING_RULES, of_tokens, refuse_unfit_k
from pipeline.synthetic.evaluation import cells_of, refuse_impossible
from pipeline.text.folder import TokenizationTask
from pipeline.text.sources import open_sources_of_both_parts
from pipeline.text.tokenizer import load_tokenizer, parse_tokenizer_name
from pipeline.training.config import DataFacts, PretrainConfig, Schedule, counts_epochs, load_config
from pipeline.training.metrics import refuse_missing_trackers


@contextmanager
def told_of(name: str) -> Iterator[None]:
    """Put the command's name before a refusal."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def refuse_unwritable(run: Path) -> None:
    """Refuse a run folder that cannot be made or written into.

    Raises:
        InputError: names the nearest folder that is there.
    """
    nearest = next((path for path in (run, *run.absolute().parents) if path.exists()), Path("/"))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"cannot write into {nearest}; choose another folder, as in run=FOLDER")


def checked_configs(commands: Sequence[Command], facts: DataFacts) -> Configs:
    """The configuration of every training, complete and checked as far as it can be before the data is there.

    Raises:
        InputError: names the training, the field and what would be right.
    """
    trainings = [command.about for command in commands if isinstance(command.about, Training)]
    configs = {}
    for training in trainings:
        with told_of(training.name):
            config = load_config(training.config, training.overrides, facts)
            _refuse_durations(config, facts)
            refuse_missing_trackers(config)
            configs[training.name] = config
    return configs


def checked_text(study: TextStudy, commands: Sequence[Command], to_run: Sequence[Command]) -> TextForecast:
    """What the study will take, once nothing is left that its stages would refuse, whatever the text.

    Args:
        study: the whole of it.
        commands: all of it.
        to_run: those that are still to run.

    Raises:
        InputError: names the command and what would be right.
    """
    facts = data_facts(study.data, Path(study.run) / "data")
    configs = checked_configs(commands, facts)
    refuse_unwritable(Path(study.run))
    for command in to_run:
        if isinstance(command.about, Measuring):
            with told_of(command.name):
                _refuse_measuring(command.about.stage, command.about.evaluation)
                _refuse_unknown_dtype(command.about.evaluation.dtype)
                _refuse_unsaved_steps(command.about, configs)
    return TextForecast(configs, facts)


def refuse_missing_text(study: TextStudy, commands: Sequence[Command], num_tasks: int = 1) -> None:
    """Refuse a text whose files are not there, that has no end, or a tokenizer that is not the models'.

    Args:
        study: the whole of it.
        commands: those of it that are still to run.
        num_tasks: in how many the study's own text is tokenized.

    Raises:
        InputError: names the command and what would be right.
    """
    for command in commands:
        if isinstance(command.about, Tokenizing):
            with told_of(command.name):
                _refuse_text(command.about.text, study, num_tasks)


def _refuse_durations(config: PretrainConfig, facts: DataFacts) -> None:
    if counts_epochs(config.max_duration) and facts.num_train_tokens is None:
        return
    Schedule(config, steps_per_epoch=(facts.num_train_tokens or 0) // config.tokens_per_step)


def _refuse_text(text: Text, study: TextStudy, num_tasks: int) -> None:
    is_studys_own = text is study.data
    num_tasks = num_tasks if is_studys_own else 1
    has_end = num_tasks > 1 or text.max_documents is not None or text.max_tokens is not None
    sources, _ = open_sources_of_both_parts(text.source, text.evaluation_source, has_end=has_end)
    written_here = [Path(study.run) / "data" / name for name in ("", "tokenizer.json")]
    if not is_studys_own and Path(text.tokenizer) in written_here:
        return
    path_or_size = parse_tokenizer_name(text.tokenizer)
    if isinstance(path_or_size, Path):
        load_tokenizer(path_or_size)
    elif not is_studys_own:
        raise InputError(
            f"tokenizer {text.tokenizer} would be another one than the models were trained with; use"
            f" {written_here[1]}, as in tokenizer: ${{run}}/data/tokenizer.json"
        )
    elif num_tasks > 1:
        raise InputError(
            f"slurm.tokenize is {num_tasks}, but tokenizer {text.tokenizer} is trained on the whole text;"
            " set slurm.tokenize=1, or name a tokenizer.json"
        )
    TokenizationTask(0, num_tasks).sources_of(sources)


def _refuse_measuring(stage: str, evaluation: Evaluation) -> None:
    """Refuse lengths, rules and k that the stage would refuse."""
    short = 1 if stage == "length_losses" else evaluation.short_context_length
    lengths = ContextLengths(short, evaluation.long_context_length, evaluation.targets_per_chunk)
    if stage != "influential_tokens":
        return
    refuse_rules(
        evaluation.rules,
        intervention=evaluation.intervention or DEFAULT_INTERVENTION,
        largest_k=max(evaluation.k),
        smallest_far_context=int(lengths.num_far_tokens_T[0]),
        num_subsets=evaluation.num_subsets or NUM_SUBSETS,
        num_backgrounds=evaluation.num_backgrounds or 1,
    )


def _refuse_unknown_dtype(dtype: str | None) -> None:
    if dtype is not None and dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)


def _refuse_unsaved_steps(measuring: Measuring, configs: Configs) -> None:
    """A checkpoint along training must be saved, and kept."""
    for step in measuring.evaluation.steps or ():
        for training in dict.fromkeys(measuring.trainings):
            _refuse_step(step, training.name, configs[training.name])


def _refuse_step(step: int, name: str, config: PretrainConfig) -> None:
    interval, num_kept = config.save_interval, config.save_num_unsharded_checkpoints_to_keep
    if not counts_epochs(config.max_duration):
        last = Schedule(config, steps_per_epoch=0).num_steps
        if step > last:
            raise InputError(f"step {step} is to be measured, but {name} is trained for {last} steps only")
        if step == last:
            return
    if not interval or step % interval:
        raise InputError(
            f"step {step} is to be measured, but {name} is saved every {interval} steps; choose multiples of"
            " that, or another save_interval"
        )
    if num_kept is not None and num_kept > 0:
        raise InputError(
            f"step {step} is to be measured, but {name} keeps its last {num_kept} checkpoints only; set"
            " save_num_unsharded_checkpoints_to_keep=null"
        )


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

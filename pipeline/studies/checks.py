"""What the programs of a study say before one runs: which commands are done, and what would be refused."""

import argparse
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pyarrow.parquet import read_metadata

from pipeline.cli import InputError, logger
from pipeline.results.versions import git_commit
from pipeline.studies.commands import Command, Measuring, TaskTraining, Training
from pipeline.studies.file import Study, TextStudy

if TYPE_CHECKING:
    from pipeline.studies.costs import Checked  # which imports torch


def is_stage(command: Command) -> bool:
    """Whether it is not run again; programs of analysis see by themselves what is new."""
    return command.program.startswith("pipeline/")


@contextmanager
def _program(command: Command, *further: str) -> Iterator[tuple[Any, argparse.Namespace]]:
    """A command's module, and its arguments as it reads them; its name stands before what it refuses."""

    def refuse(message: str) -> NoReturn:
        raise InputError(message)

    program = import_module(f"pipeline.{command.stage}")
    parser = program.parser()
    parser.error = refuse
    try:
        yield program, parser.parse_args([*command.arguments, *further])
    except InputError as error:
        raise InputError(f"{command.name}: {error}") from error


def finished_of(commands: Sequence[Command], *, is_plan: bool) -> set[str]:
    """The names of the commands that have nothing left to do, as their programs say.

    Results of other settings or inputs are an InputError; of a plan, a warning.
    """
    finished: set[str] = set()
    logging.disable(logging.INFO)  # what a program says where it finds its work done
    try:
        for command in commands:
            try:
                if is_stage(command) and finished.issuperset(command.needs) and _is_done(command):
                    finished.add(command.name)
            except InputError as error:
                if not is_plan:
                    raise
                logger.warning("%s", error)
    finally:
        logging.disable(logging.NOTSET)
    return finished


def _is_done(command: Command) -> bool:
    if not isinstance(command.about, Measuring):
        with _program(command) as (program, arguments):
            return bool(program.is_done(arguments))
    try:
        with _program(command, "--status") as (program, arguments), redirect_stdout(StringIO()):
            program.main(arguments)
    except SystemExit as ended:
        return not ended.code
    raise AssertionError("--status ends a program")


def check_settings(study: Study, commands: Sequence[Command], to_run: Sequence[Command]) -> "Checked":
    """What is known of a study once nothing is left that its programs would refuse, whatever the text."""
    from pipeline.studies.costs import Checked, data_facts

    facts = data_facts(study.data, Path(study.run) / "data") if isinstance(study, TextStudy) else None
    configs: dict[str, Any] = {}
    for command in commands:
        about = command.about
        if command not in to_run and not isinstance(about, Training):
            continue
        with _program(command) as (program, arguments):
            if isinstance(about, TaskTraining):
                configs[about.name] = program.check(arguments)
            elif isinstance(about, Training):
                configs[about.name] = program.check(arguments, facts)
            elif isinstance(about, Measuring):
                program.check(arguments)
                for training in dict.fromkeys(about.trainings):
                    _refuse_unsaved_steps(training.name, configs[training.name], about.evaluation.steps or ())
            elif isinstance(about, tuple):
                program.check(arguments, {one.name: configs[one.name] for one in about})
    return Checked(configs, facts)


def _refuse_unsaved_steps(name: str, config: Any, steps: Sequence[int]) -> None:
    """A checkpoint along training must be saved, and kept."""
    from pipeline.training.config import counts_epochs, num_training_steps

    interval, num_kept = config.save_interval, config.save_num_unsharded_checkpoints_to_keep
    last = None  # known once the data is there
    if not counts_epochs(config.max_duration):
        last = num_training_steps(config.max_duration, config.tokens_per_step, 0)
    for step in steps:
        is_saved = (
            interval and step % interval == 0 and (num_kept or 0) <= 0 and (last is None or step < last)
        )
        if not is_saved and step != last:
            raise InputError(
                f"step {step} is to be measured, but {name} has {last or 'unknown'} steps, is saved every"
                f" {interval} (save_interval) and at its end, keeping {num_kept or 'all'} checkpoints"
                " (save_num_unsharded_checkpoints_to_keep)"
            )


def check_text(study: Study, to_run: Sequence[Command], *, is_on_slurm: bool) -> None:
    """Refuse a text whose files are not there, that has no end, or a tokenizer that is not the models'."""
    data = Path(study.run) / "data"
    for command in to_run:
        if command.stage != "tokenize_c4":
            continue
        with _program(command) as (program, arguments):
            if not command.needs:  # the study's own text
                arguments.num_tasks = command.num_tasks if is_on_slurm else 1
            elif arguments.tokenizer.startswith("bpe:"):
                raise InputError(
                    f"tokenizer {arguments.tokenizer} would be another one than the models were trained with;"
                    f" use {data}/tokenizer.json, as in tokenizer: ${{run}}/data/tokenizer.json"
                )
            elif Path(arguments.tokenizer) in (data, data / "tokenizer.json"):
                arguments.tokenizer = "olmo"  # stands for the one that is not there yet
            program.check(arguments)


def warn_of_other_code(run: Path) -> None:
    """Say once that what is kept was made by another commit than this."""
    now = git_commit()
    commits = {json.loads(path.read_text())["git_commit"] for path in run.glob("**/data/manifest.json")}
    for file in run.glob("**/results/**/model=*/00000-of-*.parquet"):
        commits.add((read_metadata(file).metadata or {}).get(b"git_commit", b"unknown").decode())
    if now != "unknown" and (others := commits - {now, "unknown"}):
        logger.warning(
            "what is kept in %s was made by commit %s, and this is %s; to make it anew, choose another run"
            " folder, as in run=FOLDER", run, ", ".join(sorted(others)), now,
        )  # fmt: skip

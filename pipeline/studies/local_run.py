"""Running a study on this machine: one at a time in a folder, and none on something that has changed."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.results.folder_lock import FolderLock
from pipeline.studies.changes import Inputs, refuse_changes, say_changed_code
from pipeline.studies.command import Command, Training
from pipeline.studies.finished import Finished
from pipeline.studies.running import run_all
from pipeline.studies.slots import PROCESS_BYTES, Slots, gpus, slots
from pipeline.studies.slurm_chain import logs_of
from pipeline.studies.study_fields import Study

if TYPE_CHECKING:
    from pipeline.studies.forecast import Forecast


def run_here(
    study: Study,
    study_file: Path,
    commands: Sequence[Command],
    forecast: "Forecast | None",
    asked: int | None,
) -> int:
    """Run what has not finished.

    Args:
        study: as it was read.
        study_file: what it was read from.
        commands: the study's.
        forecast: of what it will take; None where everything that is marked has finished.
        asked: commands at once; None: as many as the machine serves best.

    Returns:
        The exit code, as of `run_all`.

    Raises:
        InputError: another study runs in the folder, or something has changed since it ran.
    """

    def training_changes(training: Training) -> list[str]:
        from pipeline.training.run_records import changed_settings  # late: it imports torch

        assert forecast is not None, "a training is asked for only where something is left to run"
        return changed_settings(training.folder, forecast.configs[training.name])

    with FolderLock(Path(study.run), "run folder, as in run=FOLDER"):
        finished = Finished(Path(study.run))
        inputs = Inputs(study_file, commands, finished)
        refuse_changes(commands, commands, finished, training_changes)
        say_changed_code(commands, finished)

        def refuse(command: Command) -> None:
            inputs.refuse_edited(command)
            refuse_changes([command], commands, finished, training_changes)

        places = _slots(study.threads, commands, forecast, asked)
        code = run_all(commands, finished, places, logs_of(study), refuse)
        inputs.say_edited_study()
    return code


def _slots(
    threads: int, commands: Sequence[Command], forecast: "Forecast | None", asked: int | None
) -> Slots:
    """Places for commands, by what the largest training will hold."""
    if forecast is None:  # nothing is left but tables
        return slots(asked, threads)
    trainings = [command.about for command in commands if isinstance(command.about, Training)]
    largest = max(forecast.need_of(training).memory_bytes for training in trainings)
    return slots(asked, threads, PROCESS_BYTES + largest, gpus())

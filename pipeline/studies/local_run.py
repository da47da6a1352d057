"""Running a study on this machine: one at a time in a folder, and none on something that has changed."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.results.folder_lock import FolderLock
from pipeline.studies.changes import Inputs, refuse_changes, say_changed_code
from pipeline.studies.command import Command, Training
from pipeline.studies.finished import Finished
from pipeline.studies.running import run_all
from pipeline.studies.slots import Slots, gpus, slots
from pipeline.studies.slurm_chain import logs_of
from pipeline.studies.study_fields import Study

if TYPE_CHECKING:
    from pipeline.studies.costs import Configs


def run_here(
    study: Study, study_file: Path, commands: Sequence[Command], configs: "Configs", asked: int | None
) -> int:
    """Run what has not finished.

    Args:
        study: as it was read.
        study_file: what it was read from.
        commands: the study's.
        configs: of its trainings; empty where everything that is marked has finished.
        asked: commands at once; None: as many as the machine serves best.

    Returns:
        The exit code, as of `run_all`.

    Raises:
        InputError: another study runs in the folder, or something has changed since it ran.
    """

    def training_changes(training: Training) -> list[str]:
        from pipeline.training.checkpoints import changed_settings  # late: it imports torch

        return changed_settings(training.folder, configs[training.name])

    with FolderLock(Path(study.run), "run folder, as in run=FOLDER"):
        finished = Finished(Path(study.run))
        inputs = Inputs(study_file, commands, finished)
        refuse_changes(commands, commands, finished, training_changes)
        say_changed_code(commands, finished)

        def refuse(command: Command) -> None:
            inputs.refuse_edited(command)
            refuse_changes([command], commands, finished, training_changes)

        places = _slots(study.threads, configs, asked)
        code = run_all(commands, finished, places, logs_of(study), refuse)
        inputs.say_edited_study()
    return code


def _slots(threads: int, configs: "Configs", asked: int | None) -> Slots:
    """Places for commands, by what the largest training will hold."""
    if not configs:  # nothing is left but tables
        return slots(asked, threads)
    from pipeline.studies.costs import training_bytes

    return slots(asked, threads, max(map(training_bytes, configs.values())), gpus())

"""What claims a folder for one way of measuring: its settings file, and to how many tasks it was dealt."""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from pipeline.errors import InputError
from pipeline.results.completeness import refuse_export, refuse_former_name
from pipeline.results.files import write_json
from pipeline.results.made_by import SETTINGS_FILE, differences, made_by_of, read_settings_file
from pipeline.results.marks import damage, read_marks, shard_name
from pipeline.results.parquet import read_footer

logger = logging.getLogger("pipeline.results")


def what_made(results: Path, stage: str, model: str) -> dict[str, Any] | None:
    """What made the results of a stage and model that are here, complete or not; None where there are none.

    Their settings file tells, or the shards where it is gone or damaged, which is mended by `writing`.

    Raises:
        InputError: it is gone or damaged, and no shard tells.
    """
    folder = results / "_stages" / stage / f"model={model}"
    path, marks = folder / SETTINGS_FILE, read_marks(folder)
    try:
        if path.exists():
            return read_settings_file(folder)
    except InputError as error:
        if not marks:
            advice = f"remove {path}, for no shard is complete beside it"
            raise InputError(f"{path} is damaged; {advice}") from error
    for mark in marks:
        for artefact, record in mark.files.items():
            name = f"{shard_name(mark.shard_index, mark.num_shards)}.parquet"
            file = results / artefact / folder.name / name
            if damage(file, record) is None:
                return made_by_of(read_footer(file).metadata)
    if marks:
        raise InputError(
            f"{path} is missing or damaged, and so are all shards of model '{model}' that could tell what"
            f" made them; remove {folder}, and {stage} measures it anew"
        )
    return None


class Claim:
    """What says that results of a stage and model are made in one way, and refuses any other."""

    def __init__(
        self, results: Path, stage: str, model: str, made_by: Mapping[str, Any], num_tasks: int | None
    ) -> None:
        """Nothing is written yet.

        Args:
            results: the results folder.
            stage, model: names.
            made_by: schema version, stage, settings and inputs, as the settings file tells them.
            num_tasks: to how many tasks the shards are dealt; None for one that takes whatever is missing.
        """
        self._results, self._stage, self._model = results, stage, model
        self._marks = results / "_stages" / stage / f"model={model}"
        self._made_by, self._num_tasks = made_by, num_tasks

    def refuse_others(self) -> None:
        """Refuse what is claimed otherwise.

        Raises:
            InputError: the folder holds results of other settings, inputs or schema, of another number of
                tasks, or of an earlier version under another name; or it is an export. Says which.
        """
        refuse_export(self._results)
        refuse_former_name(self._results, self._stage)
        self._refuse_another_configuration()
        self._refuse_another_deal()

    def _refuse_another_configuration(self) -> None:
        earlier = what_made(self._results, self._stage, self._model)
        if earlier is not None and (changes := differences(earlier, self._made_by)):
            raise InputError(
                f"{self._results} holds {self._stage} of model '{self._model}' made with other settings:"
                f" {'; '.join(changes)}; choose another --results folder, or repeat the earlier settings"
            )

    @property
    def dealt_to(self) -> int | None:
        """To how many tasks the shards were dealt; None where no task of several has written one."""
        return next((int(mark.name.split("-")[2]) for mark in self._marks.glob("dealt-to-*-tasks")), None)

    def _refuse_another_deal(self) -> None:
        # Task 3 of 4 and task 3 of 8 are different documents: whoever starts one for the other would think
        # that the result is whole.
        if self._num_tasks is not None and self.dealt_to not in (None, self._num_tasks):
            raise InputError(
                f"{self._results} holds {self._stage} of model '{self._model}' begun with --num-tasks"
                f" {self.dealt_to}, now {self._num_tasks}; repeat --num-tasks {self.dealt_to}, or leave out"
                " --task-index and --num-tasks to measure all that is missing in one task"
            )

    def lay(self) -> None:
        """Leave what refuses others; at the first shard, for a run that fails at once claims nothing.

        Raises:
            InputError: what `refuse_others` raises, of a task that was started at the same moment.
        """
        self.refuse_others()
        self._marks.mkdir(parents=True, exist_ok=True)
        if self._num_tasks is not None:
            (self._marks / f"dealt-to-{self._num_tasks}-tasks").touch()
        self.mend()

    def mend(self) -> None:
        """Write the settings file where it is absent or damaged.

        Raises:
            InputError: another task wrote it first, with other settings.
        """
        if self.is_settings_file_whole():
            return
        path = self._marks / SETTINGS_FILE
        if read_marks(self._marks):
            logger.warning("%s was missing or damaged; it is written anew from what the shards tell", path)
        path.unlink(missing_ok=True)
        # Tasks of one start may be here together: of two that differ, the second must find the first's.
        own = self._marks / f"settings-{uuid4().hex}.json"
        write_json(own, dict(self._made_by))
        with suppress(FileExistsError):
            os.link(own, path)
        own.unlink()
        self._refuse_another_configuration()

    def is_settings_file_whole(self) -> bool:
        """Whether the settings file is there and can be read."""
        try:
            return bool(read_settings_file(self._marks))
        except InputError:
            return False

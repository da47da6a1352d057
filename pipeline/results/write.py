"""What claims a folder for one way of measuring: its settings file, and to how many tasks it was dealt.

Writing a results folder: one stage, one model, shard by shard, each whole or absent, never mixed.

<results>/<artefact>/model=<model>/00003-of-00008.parquet      the data
<results>/_stages/<stage>/model=<model>/settings.json          what made it, written before the first shard
<results>/_stages/<stage>/model=<model>/00003-of-00008.done    this shard is complete, written last
<results>/_stages/<stage>/model=<model>/dealt-to-4-tasks       to several tasks, at the first's first shard
<results>/_stages/<stage>/model=<model>/lock.json              somebody is writing; gone when he is

A shard whose files are missing or damaged counts as not measured, and is measured anew.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from pipeline.cli import InputError
from pipeline.results.files import (
    SETTINGS_FILE,
    FileRecord,
    FolderLock,
    Mark,
    as_ranges,
    damage,
    differences,
    made_by_of,
    read_footer,
    read_marks,
    read_settings_file,
    refuse_folder,
    remove_leftovers,
    sha256_of_settings,
    shard_name,
    why_foreign,
    write_json,
    write_parquet,
)
from pipeline.results.read import refuse_export, refuse_former_name
from pipeline.results.schemas import SCHEMA_VERSION, SCHEMAS
from pipeline.results.versions import git_commit, package_versions

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


class StageOutput:
    """Where one stage writes the results of one model, shard by shard."""

    def __init__(
        self,
        results: Path,
        stage: str,
        model: str,
        *,
        settings: Mapping[str, Any],
        inputs: Mapping[str, str],
        num_shards: int,
        num_tasks: int | None = None,
    ) -> None:
        """Open the output, or refuse it where it holds results of another configuration.

        Args:
            results: the results folder.
            stage: the stage's name.
            model: the model's name, the `model=` of the paths.
            settings: everything that decides the numbers, JSON values only; no paths.
            inputs: name -> SHA-256 of every input.
            num_shards: shards of the complete result.
            num_tasks: to how many tasks these shards are dealt, which is no setting and moves no byte; None
                for a run that takes whatever is missing.

        Raises:
            InputError: the folder holds results of other settings, inputs or schema, or of another number
                of tasks; says which.
        """
        self._results, self._stage, self._model, self._num_shards = results, stage, model, num_shards
        self._marks = results / "_stages" / stage / f"model={model}"
        made_by = {
            "schema_version": SCHEMA_VERSION,
            "stage": stage,
            "settings": {**settings, "num_shards": num_shards},
            "inputs": dict(inputs),
        }
        self._made_by: dict[str, Any] = json.loads(json.dumps(made_by))
        self._claim = Claim(results, stage, model, self._made_by, num_tasks)
        self._is_locked = False
        self._told: set[str] = set()
        self._claim.refuse_others()

    @contextmanager
    def writing(self, part: str | None = None) -> Iterator[None]:
        """Hold what is to be written: a second program with the same part, or with all of it, is refused.

        Args:
            part: which of several processes this is that deal the shards among themselves, such as
                "task-1-of-4"; None for one that takes whatever is missing.

        Raises:
            InputError: another program is writing it; or what `__init__` raises, of one that just ended.
        """
        with FolderLock(self._marks, "--results", part):
            self._claim.refuse_others()
            if read_marks(self._marks):
                self._claim.mend()
            self._is_locked = True
            try:
                yield
            finally:
                self._is_locked = False

    def _file(self, artefact: str, shard_index: int) -> Path:
        name = f"{shard_name(shard_index, self._num_shards)}.parquet"
        return self._results / artefact / f"model={self._model}" / name

    def pending_shards(self, among: Sequence[int] | None = None) -> list[int]:
        """Those of the indices `among`, of all where None, whose shards are not complete or no longer whole.

        Raises:
            InputError: a file of a complete shard was put there by another run.
        """
        asked = range(self._num_shards) if among is None else among
        marks = {
            mark.shard_index: mark for mark in read_marks(self._marks) if mark.num_shards == self._num_shards
        }
        return [shard for shard in asked if shard not in marks or self._is_damaged(marks[shard])]

    def is_done(self, among: Sequence[int] | None = None) -> bool:
        """Whether of these shards, all where None, there is nothing to measure and nothing to mend."""
        return not self.pending_shards(among) and self._claim.is_settings_file_whole()

    def _is_damaged(self, mark: Mark) -> bool:
        wrongs = []
        for artefact, record in mark.files.items():
            path = self._file(artefact, mark.shard_index)
            if wrong := damage(path, record):
                refuse_folder(path)
                self._refuse_foreign(path)
                wrongs.append(wrong)
        for wrong in wrongs:
            self._tell_once(f"{wrong}; the shard counts as not measured")
        return bool(wrongs)

    def _refuse_foreign(self, path: Path) -> None:
        """Raise where a file that is not the marked one was made with other settings."""
        if changes := why_foreign(path, self._made_by):
            raise InputError(
                f"{path} was not written by this run but by one with other settings: {changes}; move it away,"
                " and the same command measures that shard anew"
            )

    def _tell_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            logger.warning("%s", line)

    def state(self, of_shards: Sequence[int] | None = None) -> str:
        """A line that says whether the result is complete; if not, which shards are missing, and whose.

        Args:
            of_shards: ask for these shards only; for all where None.
        """
        missing = self.pending_shards(of_shards)
        what = f"{self._stage} of model '{self._model}'"
        if not missing:
            whole = "is complete" if of_shards is None else "has all shards that were asked for"
            return f"{what} {whole} in {self._results}"
        state = f"{what} misses {len(missing)} of {self._num_shards} shards in {self._results}:"
        state += f" {as_ranges(missing)}"
        if (dealt_to := self._claim.dealt_to) is None:
            return state
        tasks = {shard % dealt_to for shard in missing}
        return f"{state}, of --task-index {as_ranges(tasks)} --num-tasks {dealt_to}"

    def write_shard(
        self,
        shard_index: int,
        tables: Mapping[str, Mapping[str, Sequence[Any]]],
        model_facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the columns of each artefact of one shard, then mark the shard complete.

        Args:
            shard_index: which shard.
            tables: artefact -> column -> values, as `SCHEMAS` names and types them; a column that may be null
                and is not given is null.
            model_facts: what is known of the model, JSON values; told by the files, never compared.

        Raises:
            InputError: outside of `writing`, what that raises.
        """
        with nullcontext() if self._is_locked else self.writing():
            self._claim.lay()
            name = shard_name(shard_index, self._num_shards)
            remove_leftovers(self._marks, f".{name}.*.part", f".{SETTINGS_FILE}.*.part")
            # Damaged files are replaced one by one: until all are, no mark may say that they are whole.
            (self._marks / f"{name}.done").unlink(missing_ok=True)
            records = {}
            for artefact, columns in tables.items():
                schema = SCHEMAS[artefact].with_metadata(self._metadata(model_facts))
                table = pa.Table.from_pydict(_with_nulls(columns, schema), schema=schema)
                path = self._file(artefact, shard_index)
                remove_leftovers(path.parent, f".{path.name}.*.part")
                write_parquet(path, table)
                records[artefact] = FileRecord.of(path, table.num_rows)
            of_settings = sha256_of_settings(read_settings_file(self._marks))
            mark = Mark(self._stage, shard_index, self._num_shards, records, of_settings)
            mark.write(self._marks / f"{name}.done")

    def _metadata(self, model_facts: Mapping[str, Any] | None) -> dict[str, str]:
        provenance = self._made_by | {"git_commit": git_commit(), "packages": package_versions()}
        provenance["model_facts"] = dict(model_facts or {})
        return {
            key: value if isinstance(value, str) else json.dumps(value) for key, value in provenance.items()
        }


def _with_nulls(columns: Mapping[str, Sequence[Any]], schema: pa.Schema) -> dict[str, Sequence[Any]]:
    num_rows = len(next(iter(columns.values()), ()))
    absent = [field.name for field in schema if field.nullable and field.name not in columns]
    return {**columns, **{name: [None] * num_rows for name in absent}}

"""Writing a results folder: one stage, one model, shard by shard, each whole or absent, never mixed.

<results>/<artefact>/model=<model>/00003-of-00008.parquet      the data
<results>/_stages/<stage>/model=<model>/settings.json          what made it, written before the first shard
<results>/_stages/<stage>/model=<model>/00003-of-00008.done    this shard is complete, written last
<results>/_stages/<stage>/model=<model>/dealt-to-4-tasks       to several tasks, at the first's first shard
<results>/_stages/<stage>/model=<model>/lock.json              somebody is writing; gone when he is

A shard whose files are missing or damaged counts as not measured, and is measured anew.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.errors import InputError
from pipeline.results.claim import Claim
from pipeline.results.files import refuse_folder, remove_leftovers
from pipeline.results.folder_lock import FolderLock
from pipeline.results.made_by import (
    SETTINGS_FILE,
    read_settings_file,
    sha256_of_settings,
    why_foreign,
)
from pipeline.results.marks import FileRecord, Mark, damage, read_marks, shard_name
from pipeline.results.missing import as_ranges
from pipeline.results.parquet import write_parquet
from pipeline.results.provenance import git_commit, package_versions
from pipeline.results.schemas import SCHEMA_VERSION, SCHEMAS

logger = logging.getLogger("pipeline.results")


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

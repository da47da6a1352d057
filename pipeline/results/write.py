"""Writing a results folder: one stage, one model, shard by shard, each whole or absent, never mixed.

<results>/<artefact>/model=<model>/00003-of-00008.parquet      the data, and in its metadata what made it
<results>/_stages/<stage>/model=<model>/00003-of-00008.done    its record (results/files.py), written last

A shard whose files are missing or damaged counts as not measured, and is measured anew.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cli import InputError
from pipeline.results.files import (
    LOCK_FILE,
    MANIFEST,
    as_ranges,
    damage,
    describe_files,
    folder_lock,
    locked,
    read_marks,
    refuse_changes,
    shard_path,
    whole_or_absent,
    write_json,
)
from pipeline.results.read import warn_once, what_made
from pipeline.results.schemas import SCHEMA_VERSION, SCHEMAS
from pipeline.results.versions import git_commit, package_versions

logger = logging.getLogger("pipeline.results")


class StageOutput:
    """Output of one stage for one model, written shard by shard."""

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
        """Open the output; an InputError where it holds results of another configuration, which it names.

        Args:
            results, stage, model: the folder, and the names in its paths; model/evaluator=<name> of one that
                tries what the model chose.
            settings: everything that decides the numbers, JSON values only; no paths.
            inputs: name -> SHA-256 of every input.
            num_shards: shards of the complete result.
            num_tasks: among how many tasks the shards are split, which is no setting and moves no number;
                None for a run that takes whatever is missing.
        """
        self._results = results
        self._stage = stage
        self._model = model
        self._num_shards = num_shards
        self._num_tasks = num_tasks
        self._called = model.replace("/evaluator=", "' by '")
        self._marks = results / "_stages" / stage / f"model={model}"
        made_by = {
            "schema_version": SCHEMA_VERSION,
            "stage": stage,
            "settings": {**settings, "num_shards": num_shards},
            "inputs": dict(inputs),
        }
        self._made_by: dict[str, Any] = json.loads(json.dumps(made_by))
        self._refuse_others()

    def _refuse_others(self) -> None:
        if (self._results / MANIFEST).exists():
            raise InputError(
                f"{self._results} is an export of results ({MANIFEST}); choose another --results folder"
            )
        held = f"{self._results} holds {self._stage} of model '{self._called}'"
        earlier = what_made(self._results, self._stage, self._model)
        if earlier is not None:
            refuse_changes(held, earlier, self._made_by, "--results folder")
        # Task 3 of 4 and task 3 of 8 are different documents: whoever starts one for the other would think
        # that the result is whole.
        if self._num_tasks is not None and self._earlier_num_tasks not in (None, self._num_tasks):
            raise InputError(
                f"{held} begun with --num-tasks {self._earlier_num_tasks}, now {self._num_tasks}; repeat"
                f" --num-tasks {self._earlier_num_tasks}, or leave out --task-index and --num-tasks to"
                " measure all that is missing in one task"
            )

    @property
    def _earlier_num_tasks(self) -> int | None:
        """Among how many tasks the shards were split; None where no task of several has written one."""
        marks = read_marks(self._results, self._stage, self._model)
        return next((mark.num_tasks for mark in marks if mark.num_tasks is not None), None)

    def writing(self, part: str | None = None) -> AbstractContextManager[None]:
        """Hold what is to be written: a second program with the same part, or with all of it, is refused.

        `part` names one of several processes that split the shards, such as "task-1-of-4"; None takes
        whatever is missing.
        """
        return folder_lock(self._marks, "--results", part)

    def pending_shards(self, among: Sequence[int] | None = None) -> list[int]:
        """Indices, among those given or all, whose shards are not complete or no longer whole."""
        whole = set()
        for mark in read_marks(self._results, self._stage, self._model):
            wrongs = [damage(mark.path(self._results, name), record) for name, record in mark.files.items()]
            if found := list(filter(None, wrongs)):
                warn_once(f"{found[0]}; the shard counts as not measured")
            elif mark.num_shards == self._num_shards:
                whole.add(mark.shard_index)
        shards = range(self._num_shards) if among is None else among
        return [shard for shard in shards if shard not in whole]

    def is_done(self, among: Sequence[int] | None = None) -> bool:
        """Whether of these shards, or of all, there is nothing to measure."""
        return not self.pending_shards(among)

    def state(self, of_shards: Sequence[int] | None = None) -> str:
        """A line that says whether the result is complete; if not, which of these shards are missing."""
        missing = self.pending_shards(of_shards)
        what = f"{self._stage} of model '{self._called}'"
        if not missing:
            whole = "is complete" if of_shards is None else "has all shards that were asked for"
            return f"{what} {whole} in {self._results}"
        state = f"{what} misses {len(missing)} of {self._num_shards} shards in {self._results}:"
        state += f" {as_ranges(missing)}"
        if (num_tasks := self._earlier_num_tasks) is None:
            return state
        tasks = {shard % num_tasks for shard in missing}
        return f"{state}, of --task-index {as_ranges(tasks)} --num-tasks {num_tasks}"

    def write_shard(
        self,
        shard_index: int,
        tables: Mapping[str, Mapping[str, Sequence[Any]]],
        model_facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Write artefact -> column -> values of one shard, then mark the shard complete; inside `writing`.

        The columns are those of `SCHEMAS`; one that may be null and is not given is null. `model_facts` are
        recorded in the files, and never compared. An InputError where another task has meanwhile written a
        shard with other settings, or another division.
        """
        versions = {"git_commit": git_commit(), "packages": package_versions()}
        provenance = {**self._made_by, **versions, "model_facts": dict(model_facts or {})}
        metadata = {
            key: value if isinstance(value, str) else json.dumps(value) for key, value in provenance.items()
        }
        records = {}
        with ExitStack() as files:
            for artefact, columns in tables.items():
                schema = SCHEMAS[artefact].with_metadata(metadata)
                num_rows = len(next(iter(columns.values()), ()))
                nulls = {field.name: [None] * num_rows for field in schema if field.nullable}
                table = pa.Table.from_pydict(nulls | dict(columns), schema=schema)
                path = shard_path(self._results, artefact, self._model, shard_index, self._num_shards)
                temporary = files.enter_context(whole_or_absent(path))
                pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
                (records[artefact],) = describe_files(temporary.parent, [temporary]).values()
            mark = self._marks / f"{shard_index:05d}-of-{self._num_shards:05d}.done"
            with locked(self._marks / f"{LOCK_FILE}-writing", "--results", waits=True):
                self._refuse_others()
                mark.unlink(missing_ok=True)  # of damaged files, which are replaced one by one
                files.close()
                write_json(mark, {"files": records, "num_tasks": self._num_tasks})

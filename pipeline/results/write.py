"""Writing a results folder (results/read.py): one stage, one model, shard by shard, whole or absent.

A shard whose files are missing or damaged counts as not measured, and is measured anew.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pipeline.cli import InputError
from pipeline.results.files import (
    MANIFEST,
    damage,
    describe_files,
    folder_lock,
    refuse_changes,
    write_json,
    write_parquet,
)
from pipeline.results.read import read_marks, warn_once, what_made
from pipeline.results.schemas import SCHEMA_VERSION, SCHEMAS
from pipeline.results.versions import git_commit, package_versions


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
    ) -> None:
        """Open the output; an InputError where it holds results of another configuration, which it names.

        Args:
            results, stage, model: the folder, and the names in its paths; model/evaluator=<name> of one that
                tries what the model chose.
            settings: everything that decides the numbers, JSON values only; no paths.
            inputs: name -> SHA-256 of every input.
            num_shards: shards of the complete result.
        """
        self._results = results
        self._stage = stage
        self._model = model
        self._num_shards = num_shards
        made_by = {
            "schema_version": SCHEMA_VERSION,
            "stage": stage,
            "settings": {**settings, "num_shards": num_shards},
            "inputs": dict(inputs),
        }
        # As files give it back, where tuples are lists: what is compared must be alike.
        self._made_by: dict[str, Any] = json.loads(json.dumps(made_by))
        self._refuse_others()

    def _refuse_others(self) -> None:
        if (self._results / MANIFEST).exists():
            raise InputError(
                f"{self._results} is an export of results ({MANIFEST}); choose another --results folder"
            )
        earlier = what_made(self._results, self._stage, self._model)
        if earlier is not None:
            what = f"{self._results} holds {self._stage} of model '{self._model}'"
            refuse_changes(what, earlier, self._made_by, "--results folder")

    def _path(self, kind: str, shard_index: int, ending: str = "parquet") -> Path:
        name = f"{shard_index:05d}-of-{self._num_shards:05d}.{ending}"
        return self._results / kind / f"model={self._model}" / name

    def writing(self, part: str | None = None) -> AbstractContextManager[None]:
        """Hold what is to be written: a second program with the same part, or with all of it, is refused.

        `part` names one of several processes that split the shards, such as "task-1-of-4"; None takes
        whatever is missing.
        """
        # A lock a model: other models of the stage may be measured at the same time.
        marks = self._results / "_stages" / self._stage / f"model={self._model}"
        return folder_lock(marks, "--results", part)

    def pending_shards(self, among: Sequence[int] | None = None) -> list[int]:
        """Indices, among those given or all, whose shards are not complete or no longer whole."""
        whole = set()
        for mark in read_marks(self._results, self._stage, self._model):
            faults = filter(None, (damage(*file) for file in mark.files.values()))
            if fault := next(faults, None):
                warn_once(f"{fault}; the shard counts as not measured")
            else:
                whole.add(mark.shard_index)
        shards = range(self._num_shards) if among is None else among
        return [shard for shard in shards if shard not in whole]

    def state(self, of_shards: Sequence[int] | None = None) -> str:
        """A line that says how many shards, of these or of all, are there."""
        shards = range(self._num_shards) if of_shards is None else of_shards
        counts = f"{len(shards) - len(self.pending_shards(shards))} of {len(shards)} shards"
        return f"{self._stage} of model '{self._model}' has {counts} in {self._results}"

    def write_shard(
        self,
        shard_index: int,
        tables: Mapping[str, Mapping[str, Sequence[Any]]],
        model_facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Write artefact -> column -> values of one shard, then mark the shard complete; inside `writing`.

        The columns are those of `SCHEMAS`; one that may be null and is not given is null. `model_facts` are
        recorded in the files, and never compared. An InputError where another task has meanwhile written a
        shard with other settings.
        """
        # Again: another task may have begun with other settings since this output was opened.
        self._refuse_others()
        provenance = {
            **self._made_by,
            "git_commit": git_commit(),
            "packages": package_versions(),
            "model_facts": dict(model_facts or {}),
        }
        metadata = {
            key: value if isinstance(value, str) else json.dumps(value) for key, value in provenance.items()
        }
        files = {}
        for artefact, columns in tables.items():
            schema = SCHEMAS[artefact].with_metadata(metadata)
            # A table holds all columns of its schema, so that every reader finds them.
            num_rows = len(next(iter(columns.values()), ()))
            nulls = {field.name: [None] * num_rows for field in schema if field.nullable}
            path = self._path(artefact, shard_index)
            write_parquet(path, nulls | dict(columns), schema)
            files[artefact] = describe_files(path.parent, [path])[path.name]
        # Last: a kill before it leaves a shard that is not there, whatever was written of it.
        write_json(self._path(f"_stages/{self._stage}", shard_index, "done"), {"files": files})

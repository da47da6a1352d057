"""Writing a results folder (results/read.py): one stage, one model, shard by shard, whole or absent.

A shard whose files are missing or damaged counts as not measured, and is measured anew.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pipeline.cli import InputError
from pipeline.results.files import (
    MANIFEST,
    WHOLE,
    Task,
    damage,
    describe_files,
    folder_lock,
    read_metadata,
    refuse_changes,
    write_json,
    write_parquet,
)
from pipeline.results.read import Mark, made_by_of, read_marks, warn_once
from pipeline.results.schemas import SCHEMA_VERSION, SCHEMAS
from pipeline.results.versions import provenance


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
        task: Task = WHOLE,
    ) -> None:
        """Open the output; an InputError where it holds results of another configuration, which it names.

        Args:
            results, stage, model: the folder, and the names in its paths; model/evaluator=<name> of one that
                tries what the model chose.
            settings: everything that decides the numbers, JSON values only; no paths.
            inputs: name -> SHA-256 of every input.
            num_shards: shards of the complete result.
            task: does some of them, taking turns: 0, 2, 4, … for the first of two.
        """
        self._results = results
        self._stage = stage
        self._model = model
        self._num_shards = num_shards
        self._task = task
        self._shards = range(task.index, num_shards, task.num_tasks)
        made_by = {
            "schema_version": SCHEMA_VERSION,
            "stage": stage,
            "settings": {**settings, "num_shards": num_shards},
            "inputs": dict(inputs),
        }
        # As files give it back, where tuples are lists: what is compared must be alike.
        self._made_by: dict[str, Any] = json.loads(json.dumps(made_by))
        if (results / MANIFEST).exists():
            raise InputError(
                f"{results} is an export of results ({MANIFEST}); choose another --results folder"
            )
        # The first whole file speaks for all: each was compared when its writer began.
        files = (path for mark in self._whole() for path, _ in mark.files.values())
        if first := next(files, None):
            refuse_changes(
                f"{results} holds {stage} of model '{model}'",
                made_by_of(read_metadata(first)),
                self._made_by,
                "--results folder",
            )

    def _whole(self) -> Iterator[Mark]:
        """The marks of shards that are whole; the log names what is damaged."""
        for mark in read_marks(self._results, self._stage, self._model):
            if faults := [fault for file in mark.files.values() if (fault := damage(*file))]:
                warn_once(f"{'; '.join(faults)}; the shard counts as not measured")
            else:
                yield mark

    def _path(self, kind: str, shard_index: int, ending: str = "parquet") -> Path:
        name = f"{shard_index:05d}-of-{self._num_shards:05d}.{ending}"
        return self._results / kind / f"model={self._model}" / name

    def writing(self) -> AbstractContextManager[None]:
        """Hold what is to be written: a second program that is the same task, or does all, is refused."""
        # A lock a model: other models of the stage may be measured at the same time.
        return folder_lock(self._path(f"_stages/{self._stage}", 0).parent, "--results", self._task)

    def pending_shards(self) -> list[int]:
        """Indices of the task's shards that are not complete or no longer whole."""
        whole = {mark.shard_index for mark in self._whole()}
        return [shard for shard in self._shards if shard not in whole]

    def state(self) -> str:
        """A line that says how many of the task's shards are there."""
        counts = f"{len(self._shards) - len(self.pending_shards())} of {len(self._shards)} shards"
        return f"{self._stage} of model '{self._model}' has {counts} in {self._results}"

    def write_shard(
        self,
        shard_index: int,
        tables: Mapping[str, Mapping[str, Sequence[Any]]],
        model_facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Write artefact -> column -> values of one shard, then mark the shard complete; inside `writing`.

        The columns are those of `SCHEMAS`; one that may be null and is not given is null. `model_facts` are
        recorded in the files, and never compared.
        """
        made = {**self._made_by, **provenance(), "model_facts": dict(model_facts or {})}
        metadata = {
            key: value if isinstance(value, str) else json.dumps(value) for key, value in made.items()
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

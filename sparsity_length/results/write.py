"""Writing a results folder (results/read.py): one stage, one model, shard by shard, whole or absent.

A shard whose files are missing or damaged counts as not measured, and is measured anew.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparsity_length.cli import InputError, logger
from sparsity_length.results.files import (
    MANIFEST,
    WHOLE,
    Task,
    damage,
    describe_files,
    folder_lock,
    refuse_changes,
    table_of,
    whole_or_absent,
    write_json,
    write_parquet,
)
from sparsity_length.results.read import MADE_BY, Mark, folder_name, made_by_of, read_marks, warn_once
from sparsity_length.results.schemas import SCHEMA_VERSION, SCHEMAS, Columns
from sparsity_length.results.versions import provenance


def tables_of(rows: Iterable[tuple[str, Columns]]) -> dict[str, pa.Table]:
    """Rows of several tables, joined by table, with the types of `SCHEMAS`."""
    parts: dict[str, list[pa.Table]] = {}
    for table, columns in rows:
        parts.setdefault(table, []).append(table_of(columns, SCHEMAS[table]))
    return {table: pa.concat_tables(of_table).combine_chunks() for table, of_table in parts.items()}


class StageOutput:
    """Output of one stage for one model, written shard by shard."""

    def __init__(
        self,
        results: Path,
        stage: str,
        model: str,
        *,
        evaluator: str | None = None,
        settings: Mapping[str, Any],
        inputs: Mapping[str, str],
        num_shards: int,
        task: Task = WHOLE,
    ) -> None:
        """Open the output; an InputError if it holds results of another configuration, which it names.

        Args:
            results, stage, model: the folder, and whose results these are.
            evaluator: who tries what the model chose, if another stage than the one that chose does.
            settings: everything that decides the numbers, JSON values only; no paths.
            inputs: name -> SHA-256 of every input.
            num_shards: shards of the complete result.
            task: does some of them, taking turns: 0, 2, 4, … for the first of two.
        """
        self._results = results
        self._stage = stage
        self._models = (model,) if evaluator is None else (model, evaluator)
        self._folder = "/".join(map(folder_name, self._models))
        self._num_shards = num_shards
        self._task = task
        self._shards = range(task.index, num_shards, task.num_tasks)
        made_by = {
            "schema_version": SCHEMA_VERSION,
            "stage": stage,
            "settings": {**settings, "num_shards": num_shards},
            "inputs": dict(inputs),
        }
        # As files give it back, in which tuples are lists: what is compared must be alike.
        self._made_by: dict[str, Any] = json.loads(json.dumps(made_by))
        if (results / MANIFEST).exists():
            raise InputError(
                f"{results} is an export of results ({MANIFEST}); choose another --results folder"
            )
        # The first whole file speaks for all: each was compared when its writer began.
        files = (path for mark in self._whole() for path, _ in mark.files.values())
        if first := next(files, None):
            earlier = made_by_of(first).get(model, {})
            refuse_changes(
                f"{results} holds {stage} of model '{' evaluated by '.join(self._models)}'",
                {name: earlier.get(name) for name in self._made_by},
                self._made_by,
                "--results folder",
            )

    def _whole(self) -> Iterator[Mark]:
        """The marks of shards that are whole; the log names what is damaged."""
        for mark in read_marks(self._results, self._stage, self._folder):
            if faults := [fault for file in mark.files.values() if (fault := damage(*file))]:
                warn_once(f"{'; '.join(faults)}; the shard counts as not measured")
            else:
                yield mark

    def _path(self, kind: str, shard_index: int, ending: str = "parquet") -> Path:
        name = f"{shard_index:05d}-of-{self._num_shards:05d}.{ending}"
        return self._results / kind / self._folder / name

    def writing(self) -> AbstractContextManager[None]:
        """Hold what is to be written: a second program that is the same task, or does all, is refused."""
        # One lock per model: other models of the stage may be measured at the same time.
        return folder_lock(self._path(f"_stages/{self._stage}", 0).parent, "--results", self._task)

    def pending_shards(self) -> list[int]:
        """Indices of the task's shards that are not complete or no longer whole."""
        whole = {mark.shard_index for mark in self._whole()}
        return [shard for shard in self._shards if shard not in whole]

    def fill(self, measure: Callable[[], object]) -> None:
        """Have `measure` write the shards that are missing, if any are, and log what is there then."""
        if self.pending_shards():
            with self.writing():
                measure()
        logger.info(self.state())

    def state(self) -> str:
        """A line that says how many of the task's shards are there."""
        counts = f"{len(self._shards) - len(self.pending_shards())} of {len(self._shards)} shards"
        return (
            f"{self._stage} of model '{' evaluated by '.join(self._models)}' has {counts} in {self._results}"
        )

    def write_shard(
        self,
        shard_index: int,
        rows: Iterable[tuple[str, Columns]],
        model_facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Write rows of tables, one shard of them, then mark the shard complete; inside `writing`.

        The columns are those of `SCHEMAS`; `model` and `evaluator` are filled in, and one that may be null
        and is not given is null. `model_facts` are recorded in the files, and never compared.
        """
        made_by = {**self._made_by, **provenance(), "model_facts": model_facts or {}}
        metadata = {MADE_BY: json.dumps({self._models[0]: made_by})}
        stage = f"_stages/{self._stage}"
        named = {"model": self._models[0], "evaluator": self._models[-1]}
        tables = tables_of((table, {**named, **columns}) for table, columns in rows)
        # Renamed into their folders all at once, at the end: most readers know of no marks, and must find no
        # part of a shard that a kill left.
        with ExitStack() as renaming:
            for table, of_table in tables.items():
                part = self._path(stage, shard_index, f"{table}.part")
                temporary = renaming.enter_context(whole_or_absent(self._path(table, shard_index), part))
                write_parquet(temporary, of_table.replace_schema_metadata(metadata))
        paths = [self._path(table, shard_index) for table in tables]
        # Last: a kill before it leaves a shard that is not there, whatever was written of it.
        write_json(self._path(stage, shard_index, "done"), {"files": describe_files(self._results, paths)})

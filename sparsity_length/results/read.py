"""Reading a results folder: what it holds, what made it, and the rows of its tables.

<results>/<table>/<model>/00003-of-00008.parquet            the data, and in its metadata what made it
<results>/_stages/<stage>/<model>/00003-of-00008.done       its mark (results/files.py), written last

If another model evaluated what <model> selected, its folder is below: <model>/<evaluator>/ (`folder_name`).
Columns say who both are, so any reader of Parquet opens <results>/<table> with all that it holds.

Here only files that are marked as complete, and whole, are read; a warning counts the shards that are
missing. Files of one model that were made with different settings are refused; models measured in two ways
are read with a warning: an average over such a folder would be an average over nothing.

An export has one mark for all its files, `exported.json`: one file per table, whose metadata says what made
each model's rows.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pandas as pd
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from sparsity_length.cli import InputError, logger, path_of
from sparsity_length.results.files import MANIFEST, damage, differences, read_record
from sparsity_length.results.schemas import SCHEMA_VERSION, SCHEMAS

MADE_BY = "made_by"
"""Key of a file's metadata: model -> what made its rows, as JSON."""
_NOT_OF_THE_RESULT = {"num_shards", "documents_per_shard", "tokens_per_batch", "evaluator"}
"""Settings and inputs in which files of one model may differ: how the work was cut, and who evaluates."""
_IN_THE_ROWS = {
    "rules",
    "k",
    "context_lengths",
    "checkpoint",
    "choices",
    "task",
    "sizes",
    "sparsities",
    "seeds",
}
"""Settings in which two models may differ: columns have them, or they are what makes them two."""
_SPLITS = "train|training|validation|valid|dev|val|test|testing|eval|evaluation"
"""Words in the names of folders that `datasets` takes for splits, leaving out all folders without one."""
_ESCAPED = re.compile(rf"[^\w.+@-]|^[._]|(?<![^\W\d_])(?:{_SPLITS})(?![^\W\d_])")
"""What stands in no folder's name: separators, what globs take for their own, `=`, by which readers make
columns of folders, and the beginning of a hidden file."""


def folder_name(name: str) -> str:
    """The name of a model's folder: percent-encoded if readers would take it for something else."""
    return _ESCAPED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)


@dataclass(frozen=True)
class Mark:
    """The record of one shard of a stage's results, or of an export: it is whole, in all its tables."""

    stage: str
    models: tuple[str, ...]
    """The model whose results these are, and who tried what it chose, if another did; none of an export."""
    shard_index: int
    num_shards: int
    files: Mapping[str, tuple[Path, Mapping[str, Any]]]
    """Table -> its file, and the size and SHA-256 of that."""


def read_marks(results: Path, stage: str, folder: str) -> Iterator[Mark]:
    """The marks of a stage in a folder of models, both as a glob takes them; InputError if one is damaged."""
    stages = results / "_stages"
    if old := next(stages.glob("*/model=*"), None):
        raise _other_version(old, 3)
    for path in stages.glob(f"{stage}/{folder}/*.done"):
        of_stage, *folders, _ = path.relative_to(stages).parts
        shard_index, num_shards = map(int, path.stem.split("-of-"))
        yield Mark(of_stage, tuple(map(unquote, folders)), shard_index, num_shards, _marked(results, path))


def _marked(results: Path, record: Path) -> dict[str, tuple[Path, Mapping[str, Any]]]:
    """Files of a record by table: length_losses/a/00000-of-00001.parquet, or length_losses.parquet."""
    files = (read_record(record) or {"files": {}})["files"]
    return {Path(Path(name).parts[0]).stem: (results / name, file) for name, file in files.items()}


def _other_version(path: Path, version: object) -> InputError:
    return InputError(
        f"{path} is of schema version {version}, and this code reads {SCHEMA_VERSION}; measure it again into"
        " another --results folder"
    )


def made_by_of(path: Path) -> dict[str, dict[str, Any]]:
    """What made the rows of a file, by model: "stage", "settings", "inputs" (SHA-256), "model_facts".

    InputError if the file is of another schema version.
    """
    found = pq.read_schema(path).metadata.get(MADE_BY.encode())
    # Files of version 3 have none.
    made_by: dict[str, dict[str, Any]] = json.loads(found or '{"": {"schema_version": 3}}')
    for of_model in made_by.values():
        if of_model["schema_version"] != SCHEMA_VERSION:
            raise _other_version(path, of_model["schema_version"])
    return made_by


@dataclass(frozen=True)
class Source:
    """One model's rows in one file of a table, and what the file says of how they were made."""

    path: Path
    model: str
    made_by: dict[str, Any]


class Results:
    """A results folder or an export: its marks are read once, and files only when they are asked for.

    InputError if a mark is damaged, or of another version; and, when they are asked for, if files are
    missing, damaged or of another version, or if those of one model were made with different settings.
    """

    def __init__(self, folder: Path | str) -> None:
        folder = self.folder = path_of(folder)
        # Not `**`, which enters no linked folder before Python 3.13.
        marks = [*read_marks(folder, "*", "*"), *read_marks(folder, "*", "*/*")]
        # By models, then shards, whichever stage wrote them: who tried a choice comes behind who made it.
        self._marks = sorted(marks, key=attrgetter("models", "stage", "shard_index"))
        if exported := _marked(folder, folder / MANIFEST):
            self._marks.append(Mark("export", (), 0, 1, exported))
        named = {table for mark in self._marks for table in mark.files}
        self.tables = [name for name in SCHEMAS if name in named]
        """Names of the tables that the folder holds."""

    def refuse_empty(self) -> None:
        """InputError if no results are found."""
        if not self.tables:
            raise InputError(
                f"--results {self.folder} holds no results, or not their marks in {self.folder / '_stages'};"
                " name a folder that a stage wrote to, and copy it whole"
            )

    def sources(
        self, table: str, models: Collection[str] | None = None, *, must_be_complete: bool = False
    ) -> list[Source]:
        """The sources of a table, of these models or all, by models and shards; no row is read.

        A warning counts the shards that are missing; if the result `must_be_complete`, an InputError does.
        """
        marks = [mark for mark in self._marks if models is None or {*mark.models[:1]} <= {*models}]
        # All shards of these stages count, as one whose documents gave no row of the table is there, too.
        stages = {mark.stage for mark in marks if table in mark.files}
        marks = [mark for mark in marks if mark.stage in stages]
        for (names, stage), shards in groupby(marks, attrgetter("models", "stage")):
            counts = [mark.num_shards for mark in shards]
            if set(counts) != {len(counts)}:
                sentence = (
                    f"{self.folder} holds {len(counts)} of {counts[0]} shards of {table} of model"
                    f" '{' evaluated by '.join(names)}'; run {stage} again with the flags it was run with"
                )
                # Shards of 2 beside shards of 3 are two results, which hold the same documents.
                if must_be_complete or len(set(counts)) > 1:
                    raise InputError(sentence)
                warn_once(sentence)
        found = []
        for path, record in (mark.files[table] for mark in marks if table in mark.files):
            if wrong := damage(path, record):
                raise InputError(f"{wrong}; run {' and '.join(sorted(stages))} again, which makes it anew")
            # An export holds the rows of many models.
            found += [Source(path, model, made_by) for model, made_by in made_by_of(path).items()]
        return [file for file in found if models is None or file.model in models]

    def made_by(self, stage: str) -> dict[str, dict[str, Any]]:
        """What made a stage's results, by model, as of `made_by_of`."""
        # One by one, as sources are hashed: the first table that the stage wrote has all its models.
        for table in self.tables:
            made_by = {file.model: file.made_by for file in self.sources(table)}
            if found := {name: made for name, made in made_by.items() if made["stage"] == stage}:
                return found
        return {}

    def settings(self, stage: str) -> dict[str, dict[str, Any]]:
        """Settings that a stage was run with, by model.

        If chosen tokens were only tried, the settings of influential_tokens are those of evaluate_tokens.
        """
        made = self.made_by(stage)
        if stage == "influential_tokens":
            made = self.made_by("evaluate_tokens") | made
        return {model: made_by["settings"] for model, made_by in made.items()}

    def facts(self, table: str) -> dict[str, dict[str, Any]]:
        """Size and training of each model in a table, as far as they are known."""
        return {file.model: file.made_by["model_facts"] for file in self.sources(table)}

    def frame(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        only: Mapping[str, Sequence[str]] | None = None,
    ) -> pd.DataFrame:
        """All models' rows of one table, a name of `SCHEMAS`.

        With `columns` these and `model` alone; `only` is column -> the values wanted: other rows are left out
        while reading. InputError if the folder has no such table; it lists those present.
        """
        # A model without rows is an answer; a table that is not there is a wrong folder.
        if table not in self.tables:
            held = ", ".join(self.tables) or "nothing that has its marks in _stages"
            raise InputError(f"{self.folder} holds no rows of '{table}'; it holds {held}")
        wanted = [(column, "in", list(values)) for column, values in (only or {}).items()]
        rows = self.dataset(table, (only or {}).get("model")).to_table(
            columns=None if columns is None else [*dict.fromkeys(["model", *columns])],
            filter=pq.filters_to_expression(wanted) if wanted else None,
        )
        return rows.to_pandas()

    def dataset(self, table: str, models: Collection[str] | None = None) -> ds.Dataset:
        """A table's rows, of these models or all; none is read. Models measured in two ways are warned of."""
        files = self.sources(table, models)
        _refuse_mixture(self.folder, files)
        # An export's file is the source of each of its models.
        paths = list(dict.fromkeys(str(file.path) for file in files))
        return ds.dataset(paths, schema=SCHEMAS[table], format="parquet")


@lru_cache(maxsize=1000)
def warn_once(sentence: str) -> None:
    """Log a warning, once a process."""
    logger.warning("%s", sentence)


def _refuse_mixture(folder: Path, files: Sequence[Source]) -> None:
    """Refuse files of one model made with different settings; warn of models measured in two ways."""
    firsts: dict[str, dict[str, Any]] = {}
    for file in files:
        facts = {
            name: value
            for name, value in {**file.made_by["settings"], **file.made_by["inputs"]}.items()
            if name not in _NOT_OF_THE_RESULT
        }
        first = firsts.setdefault(file.model, facts)
        # Who made a choice names none; all who tried it must have tried the same.
        first["choices"] = first.get("choices") or facts.get("choices")
        facts["choices"] = facts.get("choices") or first["choices"]
        if changes := differences(first, facts):
            raise InputError(f"{'; '.join(changes)} in '{file.model}' of {file.path}; keep both apart")
    shown = [
        {name: value for name, value in facts.items() if name not in _IN_THE_ROWS}
        for facts in firsts.values()
    ]
    for model, facts in zip(firsts, shown, strict=True):
        if changes := differences(shown[0], facts):
            warn_once(f"models of {folder} were measured in two ways: {'; '.join(changes)} in '{model}'")

"""Reading a results folder: what it holds, what made it, and the rows of its artefacts.

Only files that are marked as complete, and whole, are read; a warning counts the shards that are missing.
Files of one model that were made with different settings are refused; models measured in two ways are read
with a warning: an average over such a folder would be an average over nothing.

An export is one file an artefact, with the column `model`; its metadata says what made each model's rows.
"""

import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import groupby
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline.cli import InputError
from pipeline.results.files import (
    MANIFEST,
    Mark,
    as_ranges,
    damage,
    differences,
    made_by_of,
    read_marks,
    read_metadata,
    read_record,
)
from pipeline.results.schemas import SCHEMA_VERSION, SCHEMAS

if TYPE_CHECKING:
    import pandas as pd
    from pyarrow.dataset import Dataset

MODELS = "models"
"""Key of an export's metadata: model -> the metadata that its files had, as JSON."""
_HOW_THE_WORK_WAS_CUT = {"num_shards", "documents_per_shard", "tokens_per_batch"}
_IN_THE_ROWS = {"rules", "k", "context_lengths", "checkpoint", "task", "sizes", "sparsities", "seeds"}
"""Settings in which two models may differ: columns have them, or they are what makes them two."""
logger = logging.getLogger("pipeline.results")


def _exported(results: Path) -> dict[str, Any]:
    """File -> record of an export; none if the folder is no export."""
    return (read_record(results / MANIFEST) or {"files": {}})["files"]


def artefacts_in(results: Path) -> list[str]:
    """Names of the artefacts that a results folder holds, by its marks or, of an export, its manifest."""
    named = {name.removesuffix(".parquet") for name in _exported(results)}
    named |= {artefact for mark in read_marks(results) for artefact in mark.files}
    return [name for name in SCHEMAS if name in named]


def no_results(results: Path) -> InputError:
    """The error for a folder in which no results are found."""
    return InputError(
        f"--results {results} holds no results, or not their marks in {results / '_stages'}; name a folder"
        " that a stage wrote to, and copy it whole"
    )


@dataclass(frozen=True)
class Source:
    """One model's rows in one file of an artefact, and what the file says of how they were made."""

    path: Path
    model: str
    metadata: Mapping[str, str]
    folder: Path
    """The artefact's, in which a shard is below model=<name>; an export is beside it."""


def sources(
    results: Path, artefact: str, models: Collection[str] | None = None, *, must_be_complete: bool = False
) -> list[Source]:
    """The sources of an artefact, of these models or all, by models and shards; no row is read.

    A warning counts the shards that are missing; if the result `must_be_complete`, an InputError does. An
    InputError names a file that is missing, damaged or of another schema version.
    """
    found = []
    folder = results / artefact
    for path in _whole_files(results, artefact, models, must_be_complete):
        metadata = read_metadata(path)
        if MODELS in metadata:
            of_models = json.loads(metadata[MODELS])
        else:
            of_models = {path.relative_to(folder).parts[0].removeprefix("model="): metadata}
        for model, of_model in of_models.items():
            version = json.loads(of_model.get("schema_version", "null"))
            if version != SCHEMA_VERSION:
                raise InputError(
                    f"{path} is of schema version {version}, and this code reads {SCHEMA_VERSION}; measure it"
                    " again into another --results folder"
                )
            if models is None or model in models:
                found.append(Source(path, model, of_model, folder))
    return found


def _whole_files(
    results: Path, artefact: str, models: Collection[str] | None, must_be_complete: bool
) -> list[Path]:
    """The Parquet files, each found to be what its mark says; of an export one file with all models."""
    exported = results / f"{artefact}.parquet"
    if (record := _exported(results).get(exported.name)) is not None:
        if wrong := damage(exported, record):
            raise InputError(f"{wrong}; copy the folder that {MANIFEST} is of again")
        return [exported]
    marks = [mark for mark in read_marks(results) if models is None or mark.model in models]
    stages = {mark.stage for mark in marks if artefact in mark.files}
    marks = [mark for mark in marks if mark.stage in stages]
    for (_, place), of_place in groupby(marks, lambda mark: (mark.stage, mark.place)):
        _count_missing(results, artefact, place, list(of_place), must_be_complete)
    records = {mark.path(results, artefact): mark.files[artefact] for mark in marks if artefact in mark.files}
    with ThreadPoolExecutor() as pool:  # hashing leaves the interpreter free
        for wrong in filter(None, pool.map(damage, records, records.values())):
            raise InputError(f"{wrong}; run {' and '.join(sorted(stages))} again, which measures it anew")
    return sorted(records)


def _count_missing(
    results: Path, artefact: str, place: str, marks: Sequence[Mark], must_be_complete: bool
) -> None:
    model = place.replace("/evaluator=", "' by '")
    num_shards = marks[0].num_shards
    if any(mark.num_shards != num_shards for mark in marks):
        raise InputError(
            f"{results} holds {artefact} of model '{model}' in {num_shards} and in"
            f" {marks[-1].num_shards} shards: two results; keep one of them"
        )
    if missing := set(range(num_shards)) - {mark.shard_index for mark in marks}:
        sentence = (
            f"{results} holds {len(marks)} of {num_shards} shards of {artefact} of model '{model}' (without"
            f" {as_ranges(missing)}); run {marks[0].stage} again with the flags it was run with"
        )
        if must_be_complete:
            raise InputError(sentence)
        warn_once(sentence)


@lru_cache(maxsize=1000)
def warn_once(sentence: str) -> None:
    """Log a warning, once a process."""
    logger.warning("%s", sentence)


def differences_within_models(files: Sequence[Source]) -> list[str]:
    """A phrase for each fact in which files of one model disagree."""
    of_models = groupby(files, lambda file: file.model)
    return [phrase for _, of_model in of_models for phrase in _differences(list(of_model), set())]


def differences_between_models(files: Sequence[Source]) -> list[str]:
    """A phrase for each fact in which two models' files disagree and that no column of theirs says."""
    firsts = [next(of_model) for _, of_model in groupby(files, lambda file: file.model)]
    return _differences(firsts, _IN_THE_ROWS)


def _differences(files: Sequence[Source], ignored: set[str]) -> list[str]:
    """Each against the first."""
    ignored = ignored | _HOW_THE_WORK_WAS_CUT
    seen: dict[str, Any] = {}
    phrases: dict[str, str] = {}  # thousands of files say the same
    for file in files:
        made_by = made_by_of(file.metadata)
        of_file = made_by["settings"] | made_by["inputs"]
        of_file = {name: value for name, value in of_file.items() if name not in ignored}
        # Who tries a choice differs from who made it.
        optional = {name for name in seen.keys() ^ of_file.keys() if re.match("choices$|evaluator ", name)}
        earlier, now = (
            {n: v for n, v in one.items() if n not in optional} for one in (seen or of_file, of_file)
        )
        for phrase in differences(earlier, now):
            phrases.setdefault(phrase, f"{phrase} in model={file.model} of {file.path.name}")
        seen = of_file | seen
    return list(phrases.values())


def what_made(results: Path, stage: str, model: str) -> dict[str, Any] | None:
    """Provenance of the first whole shard of a stage and model; None if there is no whole shard."""
    for mark in read_marks(results, stage, model):
        for artefact, record in mark.files.items():
            path = mark.path(results, artefact)
            if damage(path, record) is None:
                return made_by_of(read_metadata(path))
    return None


def read_made_by(results: Path, stage: str) -> dict[str, dict[str, Any]]:
    """Provenance of a stage's results, by model: its "settings", "inputs" (SHA-256), "schema_version"."""
    found: dict[str, dict[str, Any]] = {}
    for artefact in artefacts_in(results):
        for file in sources(results, artefact):
            if file.metadata["stage"] == stage:
                found.setdefault(file.model, made_by_of(file.metadata))
        if found:  # one artefact has all of a stage's models
            break
    return found


def read_settings(results: Path, stage: str) -> dict[str, dict[str, Any]]:
    """Settings that a stage was run with, by model, as its results have them.

    If chosen tokens were only tried, the settings of influential_tokens are those of evaluate_tokens.
    """
    made = read_made_by(results, stage)
    if stage == "influential_tokens":
        made = read_made_by(results, "evaluate_tokens") | made
    return {model: made_by["settings"] for model, made_by in made.items()}


def read_model_facts(results: Path, artefact: str) -> dict[str, dict[str, Any]]:
    """Size and training of each model in the files of one artefact; empty if these are older."""
    facts: dict[str, dict[str, Any]] = {}
    for file in sources(results, artefact):
        facts.setdefault(file.model, json.loads(file.metadata.get("model_facts", "{}")))
    return facts


def read_artefact(
    results: Path,
    artefact: str,
    columns: Sequence[str] | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
) -> "pd.DataFrame":
    """All models' rows of one artefact, a name of `SCHEMAS`, with the column `model` first.

    Of `columns` where these are given; `only` is column, or `model`, -> the values wanted: other rows are
    left out while reading. Models measured in two ways are read, with a warning. InputError where the folder
    has no such artefact (it lists those present), no rows of it, or files of one model of two configurations;
    or as `sources` raises it.
    """
    import pyarrow.dataset as ds  # late: it loads pandas, which few need

    models = (only or {}).get("model")
    files = sources(results, artefact, models)
    if not files and models is None:
        present = ", ".join(artefacts_in(results)) or "nothing that has its marks in _stages"
        raise InputError(f"{results} holds no '{artefact}' results; it holds {present}")
    if mixture := differences_within_models(files):
        raise InputError(
            f"{results / artefact} mixes results: {'; '.join(mixture)}; keep them in two folders"
        )
    if mixture := differences_between_models(files):
        logger.warning("the models of %s were measured in two ways: %s", artefact, "; ".join(mixture))
    chosen = [ds.field(column).isin(list(values)) for column, values in (only or {}).items()]
    rows = dataset_of(files, artefact).to_table(
        columns=["model", *(SCHEMAS[artefact].names if columns is None else columns)],
        filter=reduce(and_, chosen) if chosen else None,
    )
    if rows.num_rows == 0 and not only:
        raise InputError(f"{results} holds '{artefact}' files but no row in them: no target was measured")
    return rows.to_pandas()


def dataset_of(files: Sequence[Source], artefact: str) -> "Dataset":
    """An artefact's files, all shards or all exports, as one table, with the column `model` first.

    The model is that of the folder's name as it stands there, and no name=value above is a column.
    """
    import pyarrow.dataset as ds

    model = pa.field("model", pa.string())
    of_folders: dict[str, Any] = {}
    if files and files[0].folder in files[0].path.parents:  # no export
        of_folders = {
            "partitioning": ds.HivePartitioning(pa.schema([model]), segment_encoding="none"),
            "partition_base_dir": str(files[0].folder),
        }
    paths = list(dict.fromkeys(str(file.path) for file in files))
    return ds.dataset(paths, schema=pa.schema([model, *SCHEMAS[artefact]]), format="parquet", **of_folders)

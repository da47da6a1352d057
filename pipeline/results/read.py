"""Reading a results folder: what it holds, what made it, and the rows of its artefacts.

<results>/<artefact>/model=<model>/00003-of-00008.parquet      the data, and in its metadata what made it
<results>/_stages/<stage>/model=<model>/00003-of-00008.done    its mark (results/files.py), written last

Only files that are marked as complete, and whole, are read; a warning counts the shards that are missing.
Files of one model that were made with different settings are refused; models measured in two ways are read
with a warning: an average over such a folder would be an average over nothing.

An export has one mark for all its files, `exported.json`: one an artefact, with the column `model`, whose
metadata says what made each model's rows.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from glob import escape
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from pipeline.cli import InputError, logger
from pipeline.results.files import MANIFEST, damage, differences, read_metadata, read_record
from pipeline.results.schemas import SCHEMA_VERSION, SCHEMAS

MODELS = "models"
"""Key of an export's metadata: model -> the metadata that its files had, as JSON."""
_HOW_THE_WORK_WAS_CUT = {"num_shards", "documents_per_shard", "tokens_per_batch"}
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


@dataclass(frozen=True)
class Mark:
    """The record of one shard of a stage's results, or of an export: it is whole, in all its artefacts."""

    stage: str
    place: str
    """The model, or model/evaluator=<name> where another tried what it chose; "" of an export."""
    shard_index: int
    num_shards: int
    files: Mapping[str, tuple[Path, Mapping[str, Any]]]
    """Artefact -> its file, and the size and SHA-256 of that."""

    @property
    def model(self) -> str:
        """The model whose results these are; of what another tried, that which chose it."""
        return self.place.partition("/")[0]


def read_marks(results: Path, stage: str = "*", place: str | None = None) -> Iterator[Mark]:
    """The marks of a results folder, in order; an InputError if one is damaged."""
    if place is None and (record := read_record(results / MANIFEST)) is not None:
        exported = {Path(name).stem: (results / name, file) for name, file in record["files"].items()}
        yield Mark("export", "", 0, 1, exported)
    stages = results / "_stages"
    # Not `**`, which enters no linked folder before Python 3.13.
    # Escaped, as a model's name may hold what a glob takes for its own: a[1].
    folders = ("model=*", "model=*/evaluator=*") if place is None else (f"model={escape(place)}",)
    for path in sorted(path for below in folders for path in stages.glob(f"{stage}/{below}/*.done")):
        if (record := read_record(path)) is not None:
            # The data lies as its mark does: <artefact>/model=a/00003-of-00008.parquet.
            of_stage, *folder, _ = path.relative_to(stages).parts
            files = {
                artefact: (results.joinpath(artefact, *folder, f"{path.stem}.parquet"), file)
                for artefact, file in record["files"].items()
            }
            shard_index, num_shards = map(int, path.stem.split("-of-"))
            yield Mark(of_stage, "/".join(folder).removeprefix("model="), shard_index, num_shards, files)


def made_by_of(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Provenance in a shard's metadata: "schema_version", "stage", "settings", "inputs" (SHA-256)."""
    of_json = ("schema_version", "settings", "inputs")
    return {"stage": metadata["stage"], **{name: json.loads(metadata[name]) for name in of_json}}


def artefacts_in(results: Path) -> list[str]:
    """Names of the artefacts that a results folder holds, by its marks."""
    named = {artefact for mark in read_marks(results) for artefact in mark.files}
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


def sources(
    results: Path, artefact: str, models: Collection[str] | None = None, *, must_be_complete: bool = False
) -> list[Source]:
    """The sources of an artefact, of these models or all, by models and shards; no row is read.

    A warning counts the shards that are missing; if the result `must_be_complete`, an InputError does. An
    InputError names a file that is missing, damaged or of another schema version.
    """
    marks = [mark for mark in read_marks(results) if models is None or mark.model in ("", *models)]
    # All shards of these stages count, as one whose documents gave no row of the artefact is there, too.
    stages = {mark.stage for mark in marks if artefact in mark.files}
    marks = [mark for mark in marks if mark.stage in stages]
    for (stage, place), of_place in groupby(marks, attrgetter("stage", "place")):
        counts = [mark.num_shards for mark in of_place]
        if set(counts) != {len(counts)}:
            sentence = (
                f"{results} holds {len(counts)} of {counts[0]} shards of {artefact} of model '{place}'; run"
                f" {stage} again with the flags it was run with"
            )
            # Shards of 2 beside shards of 3 are two results, which hold the same documents.
            if must_be_complete or len(set(counts)) > 1:
                raise InputError(sentence)
            warn_once(sentence)
    found = []
    named = [mark for mark in marks if artefact in mark.files]
    # By models, then shards, whichever stage wrote them: who tried a choice comes behind who made it.
    for mark in sorted(named, key=lambda mark: mark.files[artefact][0]):
        path, record = mark.files[artefact]
        if wrong := damage(path, record):
            raise InputError(f"{wrong}; run {' and '.join(sorted(stages))} again, which makes it anew")
        metadata = read_metadata(path)
        # An export holds the rows of many models, and what made each.
        of_models = json.loads(metadata[MODELS]) if MODELS in metadata else {mark.model: metadata}
        for model, of_model in of_models.items():
            if (version := of_model.get("schema_version")) != str(SCHEMA_VERSION):
                raise InputError(
                    f"{path} is of schema version {version}, and this code reads {SCHEMA_VERSION}; measure it"
                    " again into another --results folder"
                )
            if is_of_one_swap(json.loads(of_model["settings"])):
                raise InputError(
                    f"{path} is of the same swap: choices were tried in the swapped context that chose them,"
                    " which flatters them; measure it again into another --results folder"
                )
            if models is None or model in models:
                found.append(Source(path, model, of_model))
    return found


def is_of_one_swap(settings: Mapping[str, Any]) -> bool:
    """Whether choices were made and tried in the same swapped context, as was done to 2026-11-29."""
    return settings.get("ablation") == "swap" and "search_swaps" not in settings


@lru_cache(maxsize=1000)
def warn_once(sentence: str) -> None:
    """Log a warning, once a process."""
    logger.warning("%s", sentence)


def _refuse_mixture(files: Sequence[Source]) -> None:
    """Refuse files of one model made with different settings; warn of models measured in two ways."""
    firsts: dict[str, dict[str, Any]] = {}
    for file in files:
        made_by = made_by_of(file.metadata)
        facts = {
            name: value
            for name, value in {**made_by["settings"], **made_by["inputs"]}.items()
            # What files of one result share, whoever evaluates it.
            if name not in _HOW_THE_WORK_WAS_CUT and not name.startswith("evaluator ")
        }
        first = firsts.setdefault(file.model, facts)
        # Who made a choice names none; all who tried it must have tried the same.
        first["choices"] = first.get("choices") or facts.get("choices")
        facts["choices"] = facts.get("choices") or first["choices"]
        if changes := differences(first, facts):
            raise InputError(f"{'; '.join(changes)} in model={file.model} of {file.path}; keep both apart")
    shown = [
        {name: value for name, value in facts.items() if name not in _IN_THE_ROWS}
        for facts in firsts.values()
    ]
    for model, facts in zip(firsts, shown, strict=True):
        if changes := differences(shown[0], facts):
            warn_once(
                f"models of {files[0].path.parent.parent} were measured in two ways: {'; '.join(changes)} in"
                f" model={model}"
            )


def read_made_by(results: Path, stage: str) -> dict[str, dict[str, Any]]:
    """Provenance of a stage's results, by model: its "settings", "inputs" (SHA-256), "schema_version"."""
    for artefact in artefacts_in(results):
        # Sources are hashed: those of further artefacts stay unread.
        files = [file for file in sources(results, artefact) if file.metadata["stage"] == stage]
        if files:  # one artefact has all of a stage's models
            return {file.model: made_by_of(file.metadata) for file in files}
    return {}


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
    return {
        file.model: json.loads(file.metadata.get("model_facts", "{}")) for file in sources(results, artefact)
    }


def read_artefact(
    results: Path,
    artefact: str,
    columns: Sequence[str] | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
) -> pd.DataFrame:
    """All models' rows of one artefact, a name of `SCHEMAS`, with the column `model` first.

    Of `columns` where these are given; `only` is column, or `model`, -> the values wanted: other rows are
    left out while reading. InputError where the folder has no such artefact (it lists those present); or as
    `dataset_of` raises it.
    """
    # A model without rows is an answer; an artefact that is not there is a wrong folder.
    present = artefacts_in(results)
    if artefact not in present:
        held = ", ".join(present) or "nothing that has its marks in _stages"
        raise InputError(f"{results} holds no rows of '{artefact}'; it holds {held}")
    wanted = [(column, "in", list(values)) for column, values in (only or {}).items()]
    rows = dataset_of(results, artefact, (only or {}).get("model")).to_table(
        columns=["model", *(SCHEMAS[artefact].names if columns is None else columns)],
        filter=pq.filters_to_expression(wanted) if wanted else None,
    )
    return rows.to_pandas()


def dataset_of(results: Path, artefact: str, models: Collection[str] | None = None) -> ds.Dataset:
    """An artefact's rows, of these models or all, with the column `model` first; none is read.

    Models measured in two ways are warned of. InputError as `sources` raises it, or where files of one model
    were made with different settings.
    """
    files = sources(results, artefact, models)
    _refuse_mixture(files)
    model = pa.schema([pa.field("model", pa.string())])
    return ds.dataset(
        # An export's file is the source of each of its models.
        list(dict.fromkeys(str(file.path) for file in files)),
        schema=pa.schema([*model, *SCHEMAS[artefact]]),
        format="parquet",
        # As the folder's name stands there: no %20 becomes a space, and lr=1 above `results` is no column.
        partitioning=ds.HivePartitioning(model, segment_encoding="none"),
        partition_base_dir=str(results),
    )

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
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, reduce
from glob import escape
from itertools import groupby
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline.cli import InputError
from pipeline.results.files import MANIFEST, damage, differences, read_metadata, read_record
from pipeline.results.schemas import SCHEMA_VERSION, SCHEMAS

if TYPE_CHECKING:
    import pandas as pd
    from pyarrow.dataset import Dataset

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
logger = logging.getLogger("pipeline.results")


@dataclass(frozen=True)
class Mark:
    """The record of one shard of a stage's results, or of an export: it is whole, in all its artefacts."""

    stage: str
    place: str
    """The model, or model/evaluator=<name> where another tried what it chose; "" of an export."""
    shard_index: int
    num_shards: int
    files: Mapping[str, Mapping[str, Any]]
    """Artefact -> size and SHA-256 of its file."""

    @property
    def model(self) -> str:
        """Whose results these are; of what another tried, who chose it."""
        return self.place.partition("/")[0]

    def path(self, results: Path, artefact: str) -> Path:
        """The file of an artefact."""
        if not self.place:
            return results / f"{artefact}.parquet"
        return shard_path(results, artefact, self.place, self.shard_index, self.num_shards)


def shard_path(
    results: Path, artefact: str, place: str, index: int, num_shards: int, ending: str = "parquet"
) -> Path:
    """File with the rows of one shard."""
    return results / artefact / f"model={place}" / f"{index:05d}-of-{num_shards:05d}.{ending}"


def read_marks(results: Path, stage: str = "*", place: str | None = None) -> Iterator[Mark]:
    """The marks of a results folder, in order; an InputError if one is damaged."""
    if place is None and (record := read_record(results / MANIFEST)) is not None:
        files = {name.removesuffix(".parquet"): file for name, file in record["files"].items()}
        yield Mark("export", "", 0, 1, files)
    stages = results / "_stages"
    # Not `**`, which enters no linked folder before Python 3.13.
    folders = ("model=*", "model=*/evaluator=*") if place is None else (f"model={escape(place)}",)
    for path in sorted(path for below in folders for path in stages.glob(f"{stage}/{below}/*.done")):
        if (record := read_record(path)) is not None:
            shard_index, num_shards = map(int, path.stem.split("-of-"))
            of_stage, _, name = path.parent.relative_to(stages).as_posix().partition("/model=")
            yield Mark(of_stage, name, shard_index, num_shards, record["files"])


def made_by_of(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Provenance in a shard's metadata: "schema_version", "stage", "settings", "inputs" (SHA-256)."""
    content = {name: json.loads(metadata[name]) for name in ("schema_version", "settings", "inputs")}
    return {**content, "stage": metadata["stage"]}


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
    found = []
    for path, owner in _whole_files(results, artefact, models, must_be_complete):
        metadata = read_metadata(path)
        of_models = json.loads(metadata[MODELS]) if MODELS in metadata else {owner: metadata}
        for model, of_model in of_models.items():
            version = json.loads(of_model.get("schema_version", "null"))
            if version != SCHEMA_VERSION:
                raise InputError(
                    f"{path} is of schema version {version}, and this code reads {SCHEMA_VERSION}; measure it"
                    " again into another --results folder"
                )
            if models is None or model in models:
                found.append(Source(path, model, of_model))
    return found


def _whole_files(
    results: Path, artefact: str, models: Collection[str] | None, must_be_complete: bool
) -> list[tuple[Path, str]]:
    """The Parquet files, each found to be what its mark says, and whose they are."""
    marks = [mark for mark in read_marks(results) if models is None or mark.model in ("", *models)]
    stages = {mark.stage for mark in marks if artefact in mark.files}
    marks = [mark for mark in marks if mark.stage in stages]
    for (stage, place), of_place in groupby(marks, lambda mark: (mark.stage, mark.place)):
        counts = [mark.num_shards for mark in of_place]
        what = f"of {artefact} of model '{place}'"
        if max(counts) > min(counts):
            raise InputError(f"{results} holds shards {what} of two results; keep one of them")
        if len(counts) < counts[0]:
            sentence = (
                f"{results} holds {len(counts)} of {counts[0]} shards {what}; run {stage} again with the"
                " flags it was run with"
            )
            if must_be_complete:
                raise InputError(sentence)
            warn_once(sentence)
    files = {mark.path(results, artefact): mark for mark in marks if artefact in mark.files}
    records = [mark.files[artefact] for mark in files.values()]
    with ThreadPoolExecutor() as pool:  # hashing leaves the interpreter free
        for wrong in filter(None, pool.map(damage, files, records)):
            raise InputError(f"{wrong}; run {' and '.join(sorted(stages))} again, which makes it anew")
    return [(path, files[path].model) for path in sorted(files)]


@lru_cache(maxsize=1000)
def warn_once(sentence: str) -> None:
    """Log a warning, once a process."""
    logger.warning("%s", sentence)


def _refuse_mixture(files: Sequence[Source]) -> None:
    """Refuse files of one model made with different settings; warn of models measured in two ways."""
    firsts: dict[str, dict[str, Any]] = {}
    for file in files:
        now = _facts(file)
        first = firsts.setdefault(file.model, now)
        # Who made a choice names none; all who tried it must have tried the same.
        if "choices" in now:
            first.setdefault("choices", now["choices"])
        if "choices" in first:
            now.setdefault("choices", first["choices"])
        if changes := differences(first, now):
            raise InputError(f"{'; '.join(changes)} in model={file.model} of {file.path}; keep both apart")
    for model, facts in firsts.items():
        one, other = (
            {name: value for name, value in of.items() if name not in _IN_THE_ROWS}
            for of in (firsts[files[0].model], facts)
        )
        if changes := differences(one, other):
            said = f"{'; '.join(changes)} in model={model}"
            warn_once(f"models of {files[0].path.parent.parent} were measured in two ways: {said}")


def _facts(file: Source) -> dict[str, Any]:
    """Settings and inputs that files of one result share, whoever evaluates it."""
    made_by = made_by_of(file.metadata)
    return {
        name: value
        for name, value in (made_by["settings"] | made_by["inputs"]).items()
        if name not in _HOW_THE_WORK_WAS_CUT and not name.startswith("evaluator ")
    }


def what_made(results: Path, stage: str, place: str) -> dict[str, Any] | None:
    """Provenance of the first whole shard of a stage and place; None if there is no whole shard."""
    for mark in read_marks(results, stage, place):
        for artefact, record in mark.files.items():
            path = mark.path(results, artefact)
            if damage(path, record) is None:
                return made_by_of(read_metadata(path))
    return None


def read_made_by(results: Path, stage: str) -> dict[str, dict[str, Any]]:
    """Provenance of a stage's results, by model: its "settings", "inputs" (SHA-256), "schema_version"."""
    for artefact in artefacts_in(results):
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
    files = sources(results, artefact)
    return {file.model: json.loads(file.metadata.get("model_facts", "{}")) for file in files}


def read_artefact(
    results: Path,
    artefact: str,
    columns: Sequence[str] | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
) -> "pd.DataFrame":
    """All models' rows of one artefact, a name of `SCHEMAS`, with the column `model` first.

    Of `columns` where these are given; `only` is column, or `model`, -> the values wanted: other rows are
    left out while reading. InputError where the folder has no such artefact (it lists those present), or no
    rows of it; or as `dataset_of` raises it.
    """
    import pyarrow.dataset as ds  # late: it loads pandas, which few need

    models = (only or {}).get("model")
    chosen = [ds.field(column).isin(list(values)) for column, values in (only or {}).items()]
    rows = dataset_of(results, artefact, models).to_table(
        columns=["model", *(SCHEMAS[artefact].names if columns is None else columns)],
        filter=reduce(and_, chosen) if chosen else None,
    )
    # A model without rows is an answer; an artefact that is not there is a wrong folder.
    is_absent = models is None and artefact not in artefacts_in(results)
    if rows.num_rows == 0 and (is_absent or not only):
        present = ", ".join(artefacts_in(results)) or "nothing that has its marks in _stages"
        raise InputError(f"{results} holds no rows of '{artefact}'; it holds {present}")
    return rows.to_pandas()


def dataset_of(results: Path, artefact: str, models: Collection[str] | None = None) -> "Dataset":
    """An artefact's rows, of these models or all, with the column `model` first; none is read.

    The model is that of the folder's name as it stands there, and no name=value above is a column. Models
    measured in two ways are warned of. InputError as `sources` raises it, or where files of one model were
    made with different settings.
    """
    import pyarrow.dataset as ds

    files = sources(results, artefact, models)
    _refuse_mixture(files)
    model = pa.schema([pa.field("model", pa.string())])
    return ds.dataset(
        list(dict.fromkeys(str(file.path) for file in files)),
        schema=pa.schema([*model, *SCHEMAS[artefact]]),
        format="parquet",
        partitioning=ds.HivePartitioning(model, segment_encoding="none"),
        partition_base_dir=str(results),
    )

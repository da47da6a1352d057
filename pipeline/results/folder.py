"""Reading a results folder: what it holds, what made it, and the rows of its artefacts.

<results>/<artefact>/model=<model>/00003-of-00008.parquet      the data, written by `stage_output`
<results>/_stages/<stage>/model=<model>/settings.json          what made it
<results>/_stages/<stage>/model=<model>/00003-of-00008.done    this shard is complete (`marks`)

or, of an export (`exported`), one file an artefact with the column `model`, and what made it in its metadata:

<results>/<artefact>.parquet, <results>/exported.json

Nothing is read that is not marked, whole and, unless partial results are allowed, complete (`completeness`).
"""

import json
import logging
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import groupby
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import InputError
from pipeline.results.completeness import whole_files
from pipeline.results.made_by import SETTINGS_FILE, made_by_of, read_settings_file
from pipeline.results.marks import exported_name, read_manifest, read_marks
from pipeline.results.mixture import (
    FileOrigin,
    differences_between_models,
    differences_within_models,
    origins,
)
from pipeline.results.names import EARLIER_RULES
from pipeline.results.parquet import read_parquet
from pipeline.results.partial import partial_note
from pipeline.results.schemas import SCHEMAS

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger("pipeline.results")


def artefacts_in(results: Path) -> list[str]:
    """Names of the artefacts that a results folder holds, or should hold by its marks."""
    told = {path.split("/")[0].removesuffix(".parquet") for path in read_manifest(results)}
    for folder in (results / "_stages").glob("*/model=*"):
        told |= {artefact for mark in read_marks(folder)[:1] for artefact in mark.files}
    return [name for name in SCHEMAS if name in told or any((results / name).rglob("*.parquet"))]


def read_made_by(results: Path, stage: str) -> dict[str, dict[str, Any]]:
    """What made a stage's results, for each model: "settings", "inputs" (SHA-256), "schema_version".

    Raises:
        InputError: a settings file is damaged, or missing where shards are marked as complete.
    """
    of_stage = results / "_stages" / stage
    folders = {path.parent for name in (SETTINGS_FILE, "*.done") for path in of_stage.glob(f"model=*/{name}")}
    by_files = {folder.name.removeprefix("model="): read_settings_file(folder) for folder in sorted(folders)}
    return _made_by_of_export(results, stage) | by_files


def _made_by_of_export(results: Path, stage: str) -> dict[str, dict[str, Any]]:
    exported = [artefact for artefact in SCHEMAS if exported_name(artefact) in read_manifest(results)]
    made_by = {
        file.model: made_by_of(file.metadata)
        for artefact in exported
        for file in origins(whole_files(results, artefact), artefact)
        if file.metadata[b"stage"].decode() == stage
    }
    return dict(sorted(made_by.items()))


def read_settings(results: Path, stage: str) -> dict[str, dict[str, Any]]:
    """What a stage was run with, for each model that it has results of, as those say it."""
    return {model: made_by["settings"] for model, made_by in read_made_by(results, stage).items()}


def read_settings_of(results: Path, stage: str, model: str) -> dict[str, Any]:
    """What a stage was run with for one model.

    Raises:
        InputError: the folder does not tell, as where Parquet files were copied without it.
    """
    settings = read_settings(results, stage)
    if model not in settings:
        raise InputError(
            f"{results / '_stages' / stage} does not tell how '{model}' was measured; copy a results folder"
            " with its _stages"
        )
    return settings[model]


def read_model_facts(results: Path, artefact: str) -> dict[str, dict[str, Any]]:
    """What the files of one artefact tell of each model, its size and training; empty where they are older.

    Raises:
        InputError: the artefact's files are damaged or not complete.
    """
    facts: dict[str, dict[str, Any]] = {}
    for file in origins(whole_files(results, artefact), artefact):
        facts.setdefault(file.model, json.loads(file.metadata.get(b"model_facts", b"{}")))
    return facts


def missing_artefact(results: Path, artefact: str) -> InputError:
    """The error for an artefact that a results folder lacks; lists those it holds."""
    present = ", ".join(artefacts_in(results)) or "nothing"
    return InputError(f"{results} holds no '{artefact}' results; it holds {present}")


def read_artefact(
    results: Path,
    artefact: str,
    columns: Sequence[str] | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
) -> "pd.DataFrame":
    """All models' rows of one artefact, with the column `model` first.

    Args:
        results: the results folder.
        artefact: a name of `SCHEMAS`.
        columns: the columns wanted; all where None.
        only: column, or `model`, -> the values wanted; other rows are left out while reading.

    Raises:
        InputError: the folder has no such artefact (the message lists those present), no rows of it, or
            files that one stage cannot have written: of two schema versions, or one model's of two
            configurations; a file that is damaged, unmarked or foreign, or a result that is not complete (see
            `whole_files`). Models measured in two ways are read, with a warning.
    """
    only = dict(only or {})
    models = only.pop("model", None)
    files = origins(whole_files(results, artefact, models), artefact, models)
    if not files and models is None:
        if partial_note():
            raise InputError(f"{results} has no complete shard of {artefact}")
        raise missing_artefact(results, artefact)
    if mixture := differences_within_models(files):
        raise InputError(
            f"{results / artefact} mixes results: {'; '.join(mixture)}; keep them in two folders"
        )
    if mixture := differences_between_models(files):
        logger.warning("the models of %s were measured in two ways: %s", artefact, "; ".join(mixture))
    rows = rows_of_files(files, artefact, columns, only)
    if rows.num_rows == 0 and not only and models is None:
        raise InputError(f"{results} holds '{artefact}' files but no row in them: no target was measured")
    return rows.to_pandas()


def rows_of_files(
    files: Sequence[FileOrigin],
    artefact: str,
    columns: Sequence[str] | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
) -> pa.Table:
    """The rows of an artefact's files, which are in the order of models, with the column `model` first.

    Args:
        files: of `origins`.
        artefact, columns, only: as `read_artefact` takes them, without `model`.
    """
    # The model is that of the folder's name, as it stands there: Arrow's partitioning would decode it, and
    # would take every other name=value of the path for a column.
    import pyarrow.dataset as ds  # late: it loads pandas, which few need

    schema, with_model = SCHEMAS[artefact], SCHEMAS[artefact].append(pa.field("model", pa.string()))
    wanted = schema.names if columns is None else list(columns)
    earlier = {present: name for name, present in EARLIER_RULES.items()}
    chosen = [
        ds.field(column).isin([*values, *(earlier[value] for value in values if value in earlier)])
        for column, values in (only or {}).items()
    ]
    checked = ds.ParquetFileFormat(
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    )
    tables = []
    for (model, is_shared), of_model in groupby(files, lambda file: (file.model, file.is_shared)):
        paths = [file.path for file in of_model]
        dataset = ds.dataset([str(path) for path in paths], schema=with_model, format=checked)
        that_one = [*chosen, ds.field("model") == model] if is_shared else chosen
        try:
            rows = dataset.to_table(columns=wanted, filter=reduce(and_, that_one) if that_one else None)
        except (pa.ArrowException, OSError):
            for path in paths:  # Arrow does not tell which of them
                read_parquet(path)
            raise
        if "rule" in rows.column_names:
            rows = _by_present_names(rows)
        tables.append(rows.add_column(0, "model", pa.array([model] * rows.num_rows, pa.string())))
    if not tables:
        names = [pa.field("model", pa.string()), *map(schema.field, wanted)]
        return pa.schema(names).empty_table()
    return pa.concat_tables(tables)


def _by_present_names(rows: pa.Table) -> pa.Table:
    """The rows with rules by the names that they have now."""
    rules = rows["rule"]
    for earlier, present in EARLIER_RULES.items():
        rules = pc.if_else(pc.equal(rules, earlier), present, rules)
    return rows.set_column(rows.column_names.index("rule"), rows.schema.field("rule"), rules)

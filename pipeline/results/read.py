"""Whether the files of an artefact are all there, marked and whole; what is not is refused by name.

Whether the files of one artefact were made alike, as the metadata that each of them carries tells.

A stage refuses to add to results of another configuration; files that were copied together by hand, or
models measured apart, it never sees. An average over such a folder would be an average over nothing.

Reading a results folder: what it holds, what made it, and the rows of its artefacts.

<results>/<artefact>/model=<model>/00003-of-00008.parquet      the data, written by `stage_output`
<results>/_stages/<stage>/model=<model>/settings.json          what made it
<results>/_stages/<stage>/model=<model>/00003-of-00008.done    this shard is complete (`marks`)

or, of an export (`exported`), one file an artefact with the column `model`, and what made it in its metadata:

<results>/<artefact>.parquet, <results>/exported.json

Nothing is read that is not marked, whole and, unless partial results are allowed, complete (`completeness`).
"""

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.cli import RENAMED, InputError
from pipeline.results.files import (
    ADVICE,
    MANIFEST,
    SETTINGS_FILE,
    FileRecord,
    Mark,
    add_note,
    as_ranges,
    damage,
    exported_name,
    is_allowed,
    made_by_of,
    partial_note,
    read_footer,
    read_manifest,
    read_marks,
    read_parquet,
    read_settings_file,
    shard_name,
    shard_of_name,
    why_foreign,
)
from pipeline.results.schemas import AS_IN_VERSION_1, ATTENTION_HEADS, EARLIER_RULES, SCHEMA_VERSION, SCHEMAS

if TYPE_CHECKING:
    import pandas as pd


_MODEL = "model="


@dataclass
class ModelFiles:
    """The files of one model's results of one artefact, as marks or a manifest tell them."""

    folder: Path
    stage: str | None
    """None of an exported folder."""
    num_shards: int
    marked: dict[Path, FileRecord] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    """Shards without a completion mark."""
    foreign: list[Path] = field(default_factory=list)
    """Parquet files that no shard of this result is called."""

    @property
    def model(self) -> str:
        """Its name."""
        return self.folder.name.removeprefix(_MODEL)

    @property
    def extent(self) -> str:
        """Such as "3 of 4 shards of loss_differences of model 'a'"."""
        num_there = self.num_shards - len(self.missing)
        return f"{num_there} of {self.num_shards} shards of {self.folder.parent.name} of model '{self.model}'"


def run_again(stage: str | None) -> str:
    """What gets the shards that are not there, or were damaged since; of an exported folder where None."""
    if stage is None:
        return f"copy the folder that {MANIFEST} is of again"
    program = "influential_tokens" if stage == ATTENTION_HEADS else stage
    return f"run python pipeline/{program}.py again with the flags it was run with"


def whole_files(results: Path, artefact: str, models: Collection[str] | None = None) -> list[Path]:
    """The Parquet files of an artefact, all of them marked, and each found to be what its mark says.

    Of an export that is one file with all models, also where only some are asked for. Where partial results
    are allowed (`pipeline.results.files`), those of the shards that are complete.

    Args:
        results: the results folder.
        artefact: a name of `SCHEMAS`.
        models: look at these only; at all where None.

    Raises:
        InputError: names a file that is missing, damaged or foreign, or the result that is not complete.
    """
    refuse_former_name(results, artefact)
    if (exported := _exported_file(results, artefact)) is not None:
        return [exported]
    _refuse_other_folders(results / artefact)
    files_of_path: dict[Path, ModelFiles] = {}
    for files in files_of(results, artefact, models):
        _refuse_foreign(files)
        if files.missing:
            _refuse_incomplete(results, files)
        files_of_path |= dict.fromkeys(files.marked, files)
    with ThreadPoolExecutor() as pool:  # hashing leaves the interpreter free
        records = [files.marked[path] for path, files in files_of_path.items()]
        wrongs = list(pool.map(damage, files_of_path, records))
    for (path, files), wrong in zip(files_of_path.items(), wrongs, strict=True):
        if wrong is not None:
            raise _damaged(results, path, files, wrong)
    return sorted(files_of_path)


def _exported_file(results: Path, artefact: str) -> Path | None:
    """The file of an export that holds all models' rows of an artefact; None where there is no such file.

    Raises:
        InputError: it is damaged, not listed as part of the export, or not all that is here of the artefact.
    """
    path = results / exported_name(artefact)
    record = read_manifest(results).get(path.name)
    if record is None:
        if path.exists():
            raise InputError(
                f"{path} is not listed in {results / MANIFEST}; move it away, or vouch for what is there"
                f" with: python -m pipeline.results.export {results}"
            )
        return None
    if any((results / artefact).rglob("*.parquet")):
        raise InputError(f"{path} and {results / artefact} both hold {artefact}; keep one of them")
    if wrong := damage(path, record):
        raise InputError(f"{wrong}; {run_again(None)}")
    return path


def refuse_export(results: Path) -> None:
    """Refuse to measure into an export, whose manifest says that it holds all that there is.

    Raises:
        InputError: it is one.
    """
    if any("/" not in path for path in read_manifest(results)):
        raise InputError(f"{results} is an export of results ({MANIFEST}); choose another --results folder")


def refuse_former_name(results: Path, artefact: str) -> None:
    """Refuse results that an earlier version wrote of this artefact, under the name it then had.

    Raises:
        InputError: says what they are called now.
    """
    for former, now in RENAMED.items():
        if now == artefact and (results / former).is_dir():
            raise InputError(
                f"{results / former} is of an earlier version; {former} is called {now} now: measure it again"
                f" into another --results folder, with python pipeline/{now}.py"
            )


def _damaged(results: Path, path: Path, files: ModelFiles, wrong: str) -> InputError:
    if files.stage is not None:
        made_by = read_settings_file(results / "_stages" / files.stage / files.folder.name)
        if changes := why_foreign(path, made_by):
            return InputError(
                f"{path} was written by another run, with other settings: {changes}; move it away, then"
                f" {run_again(files.stage)}"
            )
    return InputError(f"{wrong}; {run_again(files.stage)}{', which measures it anew' if files.stage else ''}")


def _refuse_other_folders(folder: Path) -> None:
    for path in sorted(folder.rglob("*.parquet")):
        if path.parent.parent != folder or not path.parent.name.startswith(_MODEL):
            raise InputError(
                f"{path} lies in no folder {folder}/model=NAME, so it is not known whose it is; move it"
                " there, or out of the results"
            )


def _refuse_foreign(files: ModelFiles) -> None:
    if files.foreign:
        raise InputError(
            f"{files.foreign[0]} is none of the {files.num_shards} shards of model '{files.model}'; it came"
            " there by hand or of another run: move it away"
        )


def _refuse_incomplete(results: Path, files: ModelFiles) -> None:
    if is_allowed():
        add_note(files.extent)
        return
    if len(files.missing) == files.num_shards and any(files.folder.glob("*.parquet")):
        raise InputError(
            f"{files.folder} holds Parquet files, and {results / '_stages'} no completion mark of them: they"
            f" may be a part; copy the whole results folder, {run_again(files.stage)}, {ADVICE}; or vouch for"
            f" what is there with: python -m pipeline.results.export {results}"
        )
    raise InputError(
        f"{results} holds {files.extent} (without {as_ranges(files.missing)}); {run_again(files.stage)},"
        f" {ADVICE}"
    )


def files_of(results: Path, artefact: str, models: Collection[str] | None = None) -> Iterator[ModelFiles]:
    """The files of each model's results of an artefact, also of a model that lacks all of them."""
    manifest = read_manifest(results)
    stages = _stages_that_write(results, artefact)
    folders = {folder.name for folder in (results / artefact).glob(f"{_MODEL}*") if folder.is_dir()}
    begun = {
        path.parent.name: path.parent.parent.name
        for stage in stages
        for path in (results / "_stages" / stage).glob(f"{_MODEL}*/*")
        if path.suffix == ".done"
        or path.name == SETTINGS_FILE
        and path.relative_to(results).as_posix() not in manifest
    }
    for name in sorted(folders | begun.keys()):
        if models is not None and name.removeprefix(_MODEL) not in models:
            continue
        folder = results / artefact / name
        stage = begun.get(name, artefact)
        marks = read_marks(results / "_stages" / stage / name)
        of_manifest = {
            results / path: record
            for path, record in manifest.items()
            if path.startswith(f"{artefact}/{name}/")
        }
        if marks:
            yield _by_marks(folder, artefact, marks)
        elif of_manifest:
            yield _by_manifest(folder, of_manifest)
        else:
            yield _unmarked(folder, stage)


def _stages_that_write(results: Path, artefact: str) -> list[str]:
    """The stages whose marks tell of the artefact, and the one of its name."""
    stages = [artefact]
    for folder in sorted((results / "_stages").glob("*")):
        # The marks of one model are alike.
        marks = (next(iter(read_marks(of_model)), None) for of_model in folder.glob(f"{_MODEL}*"))
        if folder.name != artefact and any(mark and artefact in mark.files for mark in marks):
            stages.append(folder.name)
    return stages


def _by_marks(folder: Path, artefact: str, marks: Sequence[Mark]) -> ModelFiles:
    num_shards = marks[0].num_shards
    files = ModelFiles(folder, marks[0].stage, num_shards)
    for mark in marks:
        if artefact in mark.files:
            path = folder / f"{shard_name(mark.shard_index, mark.num_shards)}.parquet"
            files.marked[path] = mark.files[artefact]
    files.missing = sorted(set(range(num_shards)) - {mark.shard_index for mark in marks})
    # Of a shard without a mark the file may be there: its stage is writing it, or was killed.
    unmarked = {folder / f"{shard_name(index, num_shards)}.parquet" for index in files.missing}
    of_other_deals = {path for path in files.marked if not path.stem.endswith(f"-of-{num_shards:05d}")}
    files.foreign = sorted({*folder.glob("*.parquet")} - files.marked.keys() - unmarked | of_other_deals)
    return files


def _by_manifest(folder: Path, marked: dict[Path, FileRecord]) -> ModelFiles:
    shards = [shard for path in marked if (shard := shard_of_name(path.stem)) is not None]
    num_shards = max((count for _, count in shards), default=len(marked))
    missing = sorted(set(range(num_shards)) - {index for index, _ in shards})
    foreign = sorted(set(folder.glob("*.parquet")) - marked.keys())
    return ModelFiles(folder, None, num_shards, marked, missing, foreign)


def _unmarked(folder: Path, stage: str) -> ModelFiles:
    shards = [shard for path in folder.glob("*.parquet") if (shard := shard_of_name(path.stem)) is not None]
    num_shards = max((count for _, count in shards), default=1)
    return ModelFiles(folder, stage, num_shards, missing=list(range(num_shards)))


MODELS = b"models"
"""Of an export's file: model -> the metadata that each of its files had, as JSON."""

_OTHER_VERSION = "it is of another version, or was changed; measure it again into another --results folder"
_HOW_THE_WORK_WAS_CUT = frozenset({"num_shards", "documents_per_shard", "tokens_per_batch"})
# What two models may differ in: a column tells it of every row, or it is what makes them two.
_TOLD_BY_THE_ROWS = frozenset(
    {"rules", "k", "context_lengths", "checkpoint", "task", "sizes", "sparsities", "seeds"}
)


@dataclass(frozen=True)
class FileOrigin:
    """What one file of an artefact says of how one model's rows in it were made."""

    path: Path
    artefact: str
    model: str
    columns: tuple[str, ...]
    metadata: Mapping[bytes, bytes]
    is_shared: bool = False
    """Whether the file holds other models' rows too: those of an export, told apart by its column `model`."""

    @property
    def place(self) -> str:
        """Where in the artefact these rows are, in words."""
        within = f"model={self.model}"
        return f"{within} of {self.path.name}" if self.is_shared else f"{within}/{self.path.name}"

    @property
    def configuration(self) -> tuple[bytes, ...]:
        """Schema version, settings and inputs, as the file spells them."""
        return tuple(self.metadata.get(key, b"") for key in (b"schema_version", b"settings", b"inputs"))

    def facts(self) -> dict[str, Any]:
        """Name -> value of everything that two files which are read together should agree in."""
        version, settings, inputs = (json.loads(text or "null") for text in self.configuration)
        if version == 1 and self.artefact in AS_IN_VERSION_1:
            version = SCHEMA_VERSION
        facts = {"schema_version": version, **(settings or {}), **(inputs or {})}
        return {name: value for name, value in facts.items() if name not in _HOW_THE_WORK_WAS_CUT}


def origins(paths: Iterable[Path], artefact: str, models: Collection[str] | None = None) -> list[FileOrigin]:
    """The origin of each model's rows in these files of one artefact, from the footers; no row is read.

    Args:
        paths: as `pipeline.results.read.whole_files` returns them.
        artefact: a name of `SCHEMAS`.
        models: of these only; of all where None.

    Raises:
        InputError: a file is not Parquet, or lacks a column that the artefact's rows cannot be without.
    """
    of_files = (origin for path in paths for origin in _origins(path, artefact))
    return [origin for origin in of_files if models is None or origin.model in models]


def _origins(path: Path, artefact: str) -> list[FileOrigin]:
    footer = read_footer(path)
    for column in SCHEMAS[artefact]:
        index = footer.schema.get_field_index(column.name)
        # A column that may be null came later than the oldest results: it is null there.
        if index < 0 and not column.nullable:
            raise InputError(f"{path} lacks the column {column.name} of {artefact}; {_OTHER_VERSION}")
        if index >= 0 and footer.schema.field(index).type != column.type:
            raise InputError(
                f"{path} has {column.name} as {footer.schema.field(index).type}, not {column.type};"
                f" {_OTHER_VERSION}"
            )
    columns = tuple(footer.schema.names)
    if path.name != exported_name(artefact):
        return [FileOrigin(path, artefact, path.parent.name.removeprefix("model="), columns, footer.metadata)]
    return [
        FileOrigin(path, artefact, model, columns, metadata, is_shared=True)
        for model, metadata in _told_of_models(path, footer.metadata).items()
    ]


def _told_of_models(path: Path, metadata: Mapping[bytes, bytes]) -> dict[str, dict[bytes, bytes]]:
    try:
        told = json.loads(metadata[MODELS])
        return {model: {k.encode(): v.encode() for k, v in of_one.items()} for model, of_one in told.items()}
    except (KeyError, ValueError, AttributeError) as error:
        raise InputError(f"{path} does not tell of its models: no export made it") from error


def metadata_of_models(files: Iterable[FileOrigin]) -> dict[bytes, bytes]:
    """The metadata of an export's file: what the files of each model told, for `origins` to read."""
    of_models: dict[str, dict[str, str]] = {}
    for file in files:
        told = {key.decode(): value.decode() for key, value in file.metadata.items()}
        of_models.setdefault(file.model, told)
    return {MODELS: json.dumps(of_models).encode()}


def differences_within_models(files: Sequence[FileOrigin]) -> list[str]:
    """A phrase for each fact in which files of one model disagree, and for the schema version in any two."""
    by_model: dict[str, dict[tuple[bytes, ...], FileOrigin]] = {}
    for file in files:
        by_model.setdefault(file.model, {}).setdefault(file.configuration, file)
    one_of_each = [file for of_model in by_model.values() for file in of_model.values()]
    phrases = _differences(one_of_each, ["schema_version"])
    for of_model in by_model.values():
        names = _names(of_model.values()) - {"schema_version"}
        phrases += _differences(of_model.values(), sorted(names))
    return phrases


def differences_between_models(files: Sequence[FileOrigin]) -> list[str]:
    """A phrase for each fact in which two models' files disagree and that no column of theirs tells."""
    first_of_model: dict[str, FileOrigin] = {}
    for file in files:
        first_of_model.setdefault(file.model, file)
    names = _names(first_of_model.values()) - _TOLD_BY_THE_ROWS - {"schema_version"}
    return _differences(first_of_model.values(), sorted(names))


def _names(files: Iterable[FileOrigin]) -> set[str]:
    return {name for file in files for name in file.facts()}


def _differences(files: Iterable[FileOrigin], names: Sequence[str]) -> list[str]:
    facts = [(file.place, file.facts()) for file in files]
    phrases = []
    for name in names:
        first_with: dict[str, str] = {}
        for path, of_file in facts:
            # An absent fact is a null one: a setting that came later was off before.
            first_with.setdefault(json.dumps(of_file.get(name)), path)
        if len(first_with) > 1:
            places = " and ".join(f"{_short(value)} in {path}" for value, path in [*first_with.items()][:2])
            phrases.append(f"{name} is {places}")
    return phrases


def _short(value_as_json: str) -> str:
    """Of a SHA-256, as much as tells it from another."""
    is_hash = len(value_as_json) == 66 and value_as_json[1:-1].isalnum()
    return f"{value_as_json[1:9]}…" if is_hash else value_as_json


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

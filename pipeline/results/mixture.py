"""Whether the files of one artefact were made alike, as the metadata that each of them carries tells.

A stage refuses to add to results of another configuration; files that were copied together by hand, or
models measured apart, it never sees. An average over such a folder would be an average over nothing.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import InputError
from pipeline.results.marks import exported_name
from pipeline.results.parquet import read_footer
from pipeline.results.schemas import AS_IN_VERSION_1, SCHEMA_VERSION, SCHEMAS

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
        paths: as `pipeline.results.completeness.whole_files` returns them.
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

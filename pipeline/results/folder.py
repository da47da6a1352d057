"""A results folder: one stage writes one model's shards, each whole or absent, resumable, never mixed.

<results>/<artefact>/model=<model>/00003-of-00008.parquet      the data
<results>/_stages/<stage>/model=<model>/settings.json          what made it, written before the first shard
<results>/_stages/<stage>/model=<model>/00003-of-00008.done    this shard is complete, written last
"""

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from pipeline.errors import InputError
from pipeline.results.files import write_json, write_parquet
from pipeline.results.provenance import git_commit, package_versions
from pipeline.results.schemas import SCHEMA_VERSION, SCHEMAS


class StageOutput:
    """Where one stage writes the results of one model, shard by shard."""

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
        """Open the output, or refuse it where it holds results of another configuration.

        Args:
            results: the results folder.
            stage: the stage's name.
            model: the model's name, the `model=` of the paths.
            settings: everything that decides the numbers, JSON values only; no paths.
            inputs: name -> SHA-256 of every input.
            num_shards: shards of the complete result.

        Raises:
            InputError: the folder holds results of other settings, inputs or schema; says which.
        """
        self._results, self._stage, self._model, self._num_shards = results, stage, model, num_shards
        self._marks = results / "_stages" / stage / f"model={model}"
        self._settings_path = self._marks / "settings.json"
        self._made_by = {
            "schema_version": SCHEMA_VERSION,
            "stage": stage,
            "settings": {**settings, "num_shards": num_shards},
            "inputs": dict(inputs),
        }
        self._refuse_another_configuration()

    def _refuse_another_configuration(self) -> None:
        if not self._settings_path.exists():
            return
        earlier = json.loads(self._settings_path.read_text(encoding="utf-8"))
        changes = _differences(earlier, json.loads(json.dumps(self._made_by)))
        if changes:
            raise InputError(
                f"{self._results} holds {self._stage} of model '{self._model}' made with other settings:"
                f" {'; '.join(changes)}; choose another --results folder, or repeat the earlier settings"
            )

    def _shard_name(self, shard_index: int) -> str:
        return f"{shard_index:05d}-of-{self._num_shards:05d}"

    def _mark(self, shard_index: int) -> Path:
        return self._marks / f"{self._shard_name(shard_index)}.done"

    def pending_shards(self) -> list[int]:
        """Indices of the shards that are not complete yet."""
        return [i for i in range(self._num_shards) if not self._mark(i).exists()]

    def write_shard(self, shard_index: int, tables: Mapping[str, Mapping[str, Sequence[Any]]]) -> None:
        """Write the columns of each artefact of one shard, then mark the shard complete.

        Args:
            shard_index: which shard.
            tables: artefact -> column -> values, as `SCHEMAS` names and types them.
        """
        # Not before there is something to write: a run that fails at once must not claim the folder.
        if not self._settings_path.exists():
            write_json(self._settings_path, self._made_by)
        provenance = self._made_by | {"git_commit": git_commit(), "packages": package_versions()}
        metadata = {
            key: value if isinstance(value, str) else json.dumps(value) for key, value in provenance.items()
        }
        rows = {}
        for artefact, columns in tables.items():
            schema = SCHEMAS[artefact].with_metadata(metadata)
            table = pa.Table.from_pydict(dict(columns), schema=schema)
            folder = self._results / artefact / f"model={self._model}"
            write_parquet(folder / f"{self._shard_name(shard_index)}.parquet", table)
            rows[artefact] = table.num_rows
        write_json(self._mark(shard_index), {"rows": rows})


def _differences(earlier: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """One phrase for every leaf in which two nested mappings differ."""
    changes = []
    for key in sorted(earlier.keys() | now.keys()):
        old, new = earlier.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changes += _differences(old, new, f"{key} " if prefix == "" and key == "inputs" else prefix)
        elif old != new:
            name = f"{prefix}{key}"
            changes.append(f"{name} differs" if prefix else f"{name} was {old!r}, now {new!r}")
    return changes


def artefacts_in(results: Path) -> list[str]:
    """Names of the artefacts that a results folder holds."""
    return [name for name in SCHEMAS if any((results / name).glob("model=*/*.parquet"))]


def stage_settings(results: Path, stage: str, model: str) -> dict[str, Any] | None:
    """What made a stage's results of one model: its "settings", "inputs" and "schema_version".

    None where the folder does not say, as where only its Parquet files were copied.
    """
    path = results / "_stages" / stage / f"model={model}" / "settings.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def read_artefact(
    results: Path,
    artefact: str,
    columns: Sequence[str] | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
) -> pd.DataFrame:
    """All models' rows of one artefact, with the column `model` first.

    Args:
        results: the results folder.
        artefact: a name of `SCHEMAS`.
        columns: the columns wanted; all where None.
        only: column, or `model`, -> the values wanted; other rows are left out while reading.

    Raises:
        InputError: the folder has no such artefact; the message lists those present.
    """
    files = sorted(str(path) for path in (results / artefact).glob("model=*/*.parquet"))
    if not files:
        present = ", ".join(artefacts_in(results)) or "nothing"
        raise InputError(f"{results} holds no '{artefact}' results; it holds {present}")
    partitioning = ds.partitioning(pa.schema([("model", pa.string())]), flavor="hive")
    schema = SCHEMAS[artefact].append(pa.field("model", pa.string()))
    dataset = ds.dataset(files, schema=schema, partitioning=partitioning)
    wanted = [field.name for field in SCHEMAS[artefact]] if columns is None else list(columns)
    chosen = [ds.field(column).isin(list(values)) for column, values in (only or {}).items()]
    rows = dataset.to_table(columns=["model", *wanted], filter=reduce(and_, chosen) if chosen else None)
    return rows.to_pandas()

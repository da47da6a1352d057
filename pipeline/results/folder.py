"""A results folder: one stage writes one model's shards, each whole or absent, resumable, never mixed.

<results>/<artefact>/model=<model>/00003-of-00008.parquet      the data
<results>/_stages/<stage>/model=<model>/settings.json          what made it, written before the first shard
<results>/_stages/<stage>/model=<model>/00003-of-00008.done    this shard is complete, written last
<results>/_stages/<stage>/model=<model>/dealt-to-4-tasks       to several tasks, at the first's first shard
"""

import json
import logging
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any
from uuid import uuid4

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from pipeline.errors import InputError
from pipeline.results.files import write_json
from pipeline.results.missing import as_ranges
from pipeline.results.mixture import differences_between_models, differences_within_models, origins
from pipeline.results.parquet import write_parquet
from pipeline.results.provenance import git_commit, package_versions
from pipeline.results.schemas import SCHEMA_VERSION, SCHEMAS

logger = logging.getLogger("pipeline.results")


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
        num_tasks: int | None = None,
    ) -> None:
        """Open the output, or refuse it where it holds results of another configuration.

        Args:
            results: the results folder.
            stage: the stage's name.
            model: the model's name, the `model=` of the paths.
            settings: everything that decides the numbers, JSON values only; no paths.
            inputs: name -> SHA-256 of every input.
            num_shards: shards of the complete result.
            num_tasks: to how many tasks these shards are dealt, which is no setting and moves no byte; None
                for a run that takes whatever is missing.

        Raises:
            InputError: the folder holds results of other settings, inputs or schema, or of another number
                of tasks; says which.
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
        self._num_tasks = num_tasks
        self._refuse_another_configuration()
        self._refuse_another_deal()

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

    @property
    def dealt_to(self) -> int | None:
        """To how many tasks the shards were dealt; None where no task of several has written one."""
        return next((int(mark.name.split("-")[2]) for mark in self._marks.glob("dealt-to-*-tasks")), None)

    def _refuse_another_deal(self) -> None:
        # Task 3 of 4 and task 3 of 8 are different documents: whoever starts one for the other would think
        # that the result is whole.
        if self._num_tasks is not None and self.dealt_to not in (None, self._num_tasks):
            raise InputError(
                f"{self._results} holds {self._stage} of model '{self._model}' begun with --num-shards"
                f" {self.dealt_to}, now {self._num_tasks}; repeat --num-shards {self.dealt_to}, or leave out"
                " --shard-index and --num-shards to measure all that is missing in one task"
            )

    def _shard_name(self, shard_index: int) -> str:
        return f"{shard_index:05d}-of-{self._num_shards:05d}"

    def _mark(self, shard_index: int) -> Path:
        return self._marks / f"{self._shard_name(shard_index)}.done"

    def pending_shards(self, among: Sequence[int] | None = None) -> list[int]:
        """Those of the indices `among`, of all where None, whose shards are not complete yet."""
        asked = range(self._num_shards) if among is None else among
        return [shard for shard in asked if not self._mark(shard).exists()]

    def state(self, of_shards: Sequence[int] | None = None) -> str:
        """A line that says whether the result is complete; if not, which shards are missing, and whose.

        Args:
            of_shards: ask for these shards only; for all where None.
        """
        missing = self.pending_shards(of_shards)
        what = f"{self._stage} of model '{self._model}'"
        if not missing:
            whole = "is complete" if of_shards is None else "has all shards that were asked for"
            return f"{what} {whole} in {self._results}"
        state = f"{what} misses {len(missing)} of {self._num_shards} shards in {self._results}:"
        state += f" {as_ranges(missing)}"
        if self.dealt_to is None:
            return state
        tasks = {shard % self.dealt_to for shard in missing}
        return f"{state}, of --shard-index {as_ranges(tasks)} --num-shards {self.dealt_to}"

    def write_shard(
        self,
        shard_index: int,
        tables: Mapping[str, Mapping[str, Sequence[Any]]],
        model_facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the columns of each artefact of one shard, then mark the shard complete.

        Args:
            shard_index: which shard.
            tables: artefact -> column -> values, as `SCHEMAS` names and types them.
            model_facts: what is known of the model, JSON values; told by the files, never compared.
        """
        self._claim_folder()
        provenance = self._made_by | {"git_commit": git_commit(), "packages": package_versions()}
        provenance["model_facts"] = dict(model_facts or {})
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

    def _claim_folder(self) -> None:
        """Leave what refuses another configuration; only now, for a run that fails at once claims nothing."""
        self._refuse_another_configuration()  # of a task that was started at the same moment
        self._refuse_another_deal()
        self._marks.mkdir(parents=True, exist_ok=True)
        if self._num_tasks is not None:
            (self._marks / f"dealt-to-{self._num_tasks}-tasks").touch()
        if not self._settings_path.exists():
            # Tasks of one start may be here together: each writes a file of its own and renames that.
            own = self._marks / f"settings-{uuid4().hex}.json"
            write_json(own, self._made_by)
            own.replace(self._settings_path)


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


def read_made_by(results: Path, stage: str) -> dict[str, dict[str, Any]]:
    """What made a stage's results, for each model: "settings", "inputs" (SHA-256), "schema_version"."""
    paths = sorted((results / "_stages" / stage).glob("model=*/settings.json"))
    return {
        path.parent.name.removeprefix("model="): json.loads(path.read_text(encoding="utf-8"))
        for path in paths
    }


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
        InputError: a file is not Parquet, or not all of it.
    """
    facts: dict[str, dict[str, Any]] = {}
    for file in origins(results, artefact):
        model = file.path.parent.name.removeprefix("model=")
        facts.setdefault(model, json.loads(file.metadata.get(b"model_facts", b"{}")))
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
) -> pd.DataFrame:
    """All models' rows of one artefact, with the column `model` first.

    Args:
        results: the results folder.
        artefact: a name of `SCHEMAS`.
        columns: the columns wanted; all where None.
        only: column, or `model`, -> the values wanted; other rows are left out while reading.

    Raises:
        InputError: the folder has no such artefact (the message lists those present), no rows of it, or
            files that one stage cannot have written: of two schema versions, or one model's of two
            configurations. Models measured in two ways are read, with a warning.
    """
    files = origins(results, artefact)
    if not files:
        raise missing_artefact(results, artefact)
    if mixture := differences_within_models(files):
        raise InputError(
            f"{results / artefact} mixes results: {'; '.join(mixture)}; keep them in two folders"
        )
    if mixture := differences_between_models(files):
        logger.warning("the models of %s were measured in two ways: %s", artefact, "; ".join(mixture))
    partitioning = ds.partitioning(pa.schema([("model", pa.string())]), flavor="hive")
    schema = SCHEMAS[artefact].append(pa.field("model", pa.string()))
    dataset = ds.dataset([str(file.path) for file in files], schema=schema, partitioning=partitioning)
    wanted = [field.name for field in SCHEMAS[artefact]] if columns is None else list(columns)
    chosen = [ds.field(column).isin(list(values)) for column, values in (only or {}).items()]
    rows = dataset.to_table(columns=["model", *wanted], filter=reduce(and_, chosen) if chosen else None)
    if rows.num_rows == 0 and not chosen:
        raise InputError(f"{results} holds '{artefact}' files but no row in them: no target was measured")
    return rows.to_pandas()

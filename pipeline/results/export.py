"""Exports: the results of several folders in one file an artefact, for others to read.

    python -m pipeline.results.export RESULTS ... --out FOLDER

FOLDER gets the rows of all models of all these results folders, with the column `model` first, in the order
of models and then of shards. A file's metadata holds, for each model, that of the files its rows are from.
`exported.json`, written last, holds the SHA-256 of the files: readers refuse one that is missing or changed.
What lies below analysis/reference was made so.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.cli import InputError, folder_path, run_stage, stage_parser
from pipeline.results.files import MANIFEST, describe_files, refuse_replacing, whole_or_absent, write_json
from pipeline.results.read import (
    MODELS,
    Source,
    artefacts_in,
    dataset_of,
    differences_within_models,
    no_results,
    sources,
)
from pipeline.results.schemas import SCHEMAS

COUNTS = ("num_asked", "num_without_gain")  # facts of a shard; in an export those of all of it together


def export(folders: Sequence[Path], out: Path) -> Path:
    """Write the results of these folders as an export, manifest last; the manifest's path.

    InputError where `out` holds results, a folder holds none or some that are not complete and whole, or a
    model of an artefact is in two of them.
    """
    refuse_replacing([out], folders)
    if artefacts_in(out):
        raise InputError(f"--out {out} holds results; name another folder, or move it away")
    for folder in folders:
        if not artefacts_in(folder):
            raise no_results(folder)
    # All are checked before the first is written.
    files = {artefact: _files_to_export(folders, artefact) for artefact in SCHEMAS}
    records: dict[str, dict[str, Any]] = {}
    for artefact, of_artefact in files.items():
        if not of_artefact:
            continue
        parts = []
        metadata = {}
        for model, of_model in groupby(of_artefact, lambda file: file.model):
            shards = list(of_model)
            parts.append(dataset_of(shards, artefact).to_table(filter=pc.field("model") == model))
            of_shards = [json.loads(file.metadata.get("model_facts", "{}")) for file in shards]
            counts = {name: sum(of[name] for of in of_shards) for name in COUNTS if name in of_shards[0]}
            facts = {"model_facts": json.dumps(of_shards[0] | counts)}
            metadata[model] = {**shards[0].metadata, **facts}
        columns = [pa.field("model", pa.string()), *SCHEMAS[artefact]]
        schema = pa.schema(columns, metadata={MODELS: json.dumps(metadata)})
        path = out / f"{artefact}.parquet"
        rows = pa.concat_tables(parts).cast(schema)
        # For version control: two thirds of the bytes or fewer, more slowly.
        floats = [field.name for field in schema if pa.types.is_floating(field.type)]
        others = [name for name in schema.names if name not in floats]
        with whole_or_absent(path) as temporary:
            pq.write_table(
                rows,
                temporary,
                compression="zstd",
                compression_level=19,
                write_page_checksum=True,
                use_byte_stream_split=floats,
                use_dictionary=others,
            )
        records |= describe_files(out, [path])
    write_json(out / MANIFEST, {"files": records})
    return out / MANIFEST


def _files_to_export(folders: Sequence[Path], artefact: str) -> list[Source]:
    """Those of all folders, in the order that they would be read in from one."""
    files: list[Source] = []
    for folder in folders:
        of_folder = sources(folder, artefact, must_be_complete=True)
        if twice := {file.model for file in of_folder} & {file.model for file in files}:
            raise InputError(
                f"{folder} and an earlier folder hold {artefact} of model '{min(twice)}'; export them apart"
            )
        files += of_folder
    if mixture := differences_within_models(files):
        raise InputError(f"{artefact} mixes results: {'; '.join(mixture)}; export them apart")
    return sorted(files, key=lambda file: f"model={file.model}")


def main(arguments: argparse.Namespace) -> None:
    """Export what the command line names."""
    export(arguments.results, arguments.out)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    program = stage_parser(__doc__)
    program.prog = "python -m pipeline.results.export"
    add = program.add_argument
    add("results", type=folder_path, nargs="+", help="results folders")
    add("--out", type=folder_path, required=True, help="write one file an artefact into this folder")
    return program


if __name__ == "__main__":
    run_stage(parser(), main)

"""Exports: the results of a folder in one file an artefact, for others to read.

    python -m pipeline.results.export RESULTS --out FOLDER

FOLDER gets the rows of all models, with the column `model` first, in the order of models and then of shards.
A file's metadata holds, for each model, that of the files its rows are from.
`exported.json`, written last, holds the SHA-256 of the files: readers refuse one that is missing or changed.
What lies below analysis/reference was made so.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import pyarrow as pa
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

COUNTS = ("num_asked", "num_without_gain")  # facts of a shard; in an export those of all of it together


def export(results: Path, out: Path) -> Path:
    """Write the results of a folder as an export, manifest last; the manifest's path.

    InputError if `out` holds results already, or if `results` has none, or incomplete, damaged or mixed ones.
    """
    refuse_replacing([out], [results])
    if artefacts_in(out):
        raise InputError(f"--out {out} holds results; name another folder, or move it away")
    # All are checked before the first is written.
    files = {
        artefact: sources(results, artefact, must_be_complete=True) for artefact in artefacts_in(results)
    }
    if not files:
        raise no_results(results)
    for artefact, of_artefact in files.items():
        if mixture := differences_within_models(of_artefact):
            raise InputError(f"{artefact} mixes results: {'; '.join(mixture)}; export them apart")
    paths = [_write(out / f"{artefact}.parquet", artefact, files[artefact]) for artefact in files]
    write_json(out / MANIFEST, {"files": describe_files(out, paths)})
    return out / MANIFEST


def _write(path: Path, artefact: str, files: Sequence[Source]) -> Path:
    """Write the rows of all files, and in the metadata what each model's say of how they were made."""
    metadata = {}
    for model, of_model in groupby(files, lambda file: file.model):
        shards = list(of_model)
        of_shards = [json.loads(file.metadata.get("model_facts", "{}")) for file in shards]
        counts = {name: sum(of[name] for of in of_shards) for name in COUNTS if name in of_shards[0]}
        metadata[model] = {**shards[0].metadata, "model_facts": json.dumps(of_shards[0] | counts)}
    dataset = dataset_of(files, artefact)
    # For version control: two thirds of the bytes or fewer, more slowly.
    floats = [field.name for field in dataset.schema if pa.types.is_floating(field.type)]
    with whole_or_absent(path) as temporary:
        pq.write_table(
            dataset.to_table().replace_schema_metadata({MODELS: json.dumps(metadata)}),
            temporary,
            compression="zstd",
            compression_level=19,
            write_page_checksum=True,
            use_byte_stream_split=floats,
            use_dictionary=[name for name in dataset.schema.names if name not in floats],
        )
    return path


def main(arguments: argparse.Namespace) -> None:
    """Export what the command line names."""
    export(arguments.results, arguments.out)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    program = stage_parser(__doc__)
    program.prog = "python -m pipeline.results.export"
    add = program.add_argument
    add("results", type=folder_path, help="a results folder")
    add("--out", type=folder_path, required=True, help="write one file an artefact into this folder")
    return program


if __name__ == "__main__":
    run_stage(parser(), main)

"""Exports: the results of several folders in one file an artefact, for others to read.

    python -m pipeline.results.export RESULTS ... --out FOLDER [--artefacts NAME ...]

FOLDER gets the rows of all models of all these results folders, with the column `model` first, in the order
of models and then of shards. A file's metadata holds, for each model, that of the files its rows are from.
`README.md` is a dataset card, for the Hugging Face hub; one that is there is kept. `exported.json`, written
last, holds the SHA-256 of the files: readers refuse one that is missing or changed. What lies below
analysis/reference was made so, before there were cards.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from pipeline.cli import InputError, folder_path, run_stage, stage_parser, unknown_name
from pipeline.results.files import MANIFEST, file_record, write_json, write_small_parquet
from pipeline.results.read import (
    MODELS,
    Source,
    artefacts_in,
    differences_within_models,
    missing_artefact,
    rows_of_files,
    sources,
    whole_files,
)
from pipeline.results.schemas import SCHEMAS

COUNTS = ("num_asked", "num_without_gain")
"""Facts of a shard that are of all of it together in an export."""


def export(folders: Sequence[Path], out: Path, artefacts: Sequence[str] | None = None) -> Path:
    """Write the results of these folders as an export, manifest last; the manifest's path.

    Args:
        folders: results folders, complete; no model of an artefact in two of them.
        out: holds no results; made where it does not exist.
        artefacts: names of `SCHEMAS`; all that the folders hold where None.

    Raises:
        InputError: a folder holds no results, or some that are not complete and whole; the same model's rows
            are in two; `out` holds results; an artefact is in none of the folders.
    """
    if artefacts_in(out):
        raise InputError(f"--out {out} holds results; name another folder, or move it away")
    present = {folder: artefacts_in(folder) for folder in folders}
    for folder, of_folder in present.items():
        if not of_folder:
            raise InputError(f"{folder} holds no results")
    files = {}
    for artefact in artefacts or SCHEMAS:
        holding = [folder for folder in folders if artefact in present[folder]]
        if holding:
            files[artefact] = _files_to_export(holding, artefact)
        elif artefacts:
            raise missing_artefact(folders[0], artefact)
    records = {}
    for artefact, of_artefact in files.items():
        parts, metadata = [], {}
        for model, of_model in groupby(of_artefact, lambda file: file.model):
            first, *_ = of_this_model = list(of_model)
            parts.append(rows_of_files(of_this_model, artefact, only={"model": [model]}))
            metadata[model] = {key.decode(): value.decode() for key, value in first.metadata.items()}
            of_shards = [json.loads(file.metadata.get(b"model_facts", b"{}")) for file in of_this_model]
            counts = {name: sum(of[name] for of in of_shards) for name in COUNTS if name in of_shards[0]}
            metadata[model]["model_facts"] = json.dumps(of_shards[0] | counts)
        schema = pa.schema(
            [pa.field("model", pa.string()), *SCHEMAS[artefact]], metadata={MODELS: json.dumps(metadata)}
        )
        path = out / f"{artefact}.parquet"
        rows = pa.concat_tables(parts).cast(schema)
        write_small_parquet(path, rows)
        records[path.name] = file_record(path, rows.num_rows)
    if not (out / "README.md").exists():
        (out / "README.md").write_text(_card(out.resolve().name, files, records), encoding="utf-8")
    write_json(out / MANIFEST, {"files": records})
    return out / MANIFEST


def _card(
    name: str, files: Mapping[str, Sequence[Source]], records: Mapping[str, Mapping[str, object]]
) -> str:
    """A dataset card: the hub's settings, by which its viewer shows each table, and what is in them."""
    configs = [f"- config_name: {one}\n  data_files: {one}.parquet" for one in files]
    rows = []
    for artefact, of_artefact in files.items():
        models = sorted({file.model for file in of_artefact})
        num_rows = records[f"{artefact}.parquet"]["rows"]
        rows.append(f"| `{artefact}` | {num_rows:,} | {', '.join(models)} |")
    return "\n".join([
        "---", "configs:", *configs, "tags: [length-generalization]", "---", f"# {name}", "",
        "Measurements of language models, token by token: which far tokens a prediction depends on, and what"
        " is lost without them. Losses, gains and divergences are in nats.", "",
        "| table | rows | models |", "|---|---|---|", *rows, "",
        "Each file's metadata (key `models`) holds, for each model, the settings, the SHA-256 of the inputs,"
        " the commit and the library versions that made its rows. `exported.json` holds the files' SHA-256."
        " The columns are explained in pipeline/RESULTS.md of the repository that measured them.", "",
    ])  # fmt: skip


def _files_to_export(folders: Sequence[Path], artefact: str) -> list[Source]:
    """Those of all folders, in the order that they would be read in from one."""
    files: list[Source] = []
    folder_of_model: dict[str, Path] = {}
    for folder in folders:
        of_folder = sources(whole_files(folder, artefact))
        for model in {file.model for file in of_folder}:
            earlier = folder_of_model.setdefault(model, folder)
            if earlier is not folder:
                raise InputError(
                    f"{earlier} and {folder} both hold {artefact} of model '{model}'; export them apart"
                )
        files += of_folder
    if mixture := differences_within_models(files):
        raise InputError(f"{artefact} mixes results: {'; '.join(mixture)}; export them apart")
    return sorted(files, key=lambda file: f"model={file.model}")


def main(arguments: argparse.Namespace) -> None:
    """Export what the command line names."""
    for name in arguments.artefacts or ():
        if name not in SCHEMAS:
            raise unknown_name("artefact", name, SCHEMAS)
    export(arguments.results, arguments.out, arguments.artefacts)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    program = stage_parser(__doc__)
    program.prog = "python -m pipeline.results.export"
    add = program.add_argument
    add("results", type=folder_path, nargs="+", help="results folders")
    add("--out", type=folder_path, required=True, help="write one file an artefact into this folder")
    add("--artefacts", nargs="+", metavar="NAME", help="of these only; all that are there if not given")
    return program


if __name__ == "__main__":
    run_stage(parser(), main)

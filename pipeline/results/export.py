"""Exports: results put together for others to read, which one manifest, exported.json, vouches for.

    python -m pipeline.results.export RESULTS ... --out FOLDER [--artefacts NAME ...]
    python -m pipeline.results.export RESULTS ...

The first writes one Parquet file an artefact into FOLDER: the rows of all models of all these results
folders, with the column `model` first, in the order of models and then of shards. The file's metadata holds,
for each model, that of the files which its rows are from. What lies below analysis/reference was made so.
The second lists the files of folders that were put together by hand, as they lie there.

Whoever calls it says that the folder holds all that there is: readers then refuse it once a file is missing,
changed or added.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from pipeline.cli import InputError, unknown_name
from pipeline.results.files import (
    MANIFEST,
    SETTINGS_FILE,
    FileRecord,
    exported_name,
    read_footer,
    signed,
    write_json,
    write_small_parquet,
)
from pipeline.results.read import (
    FileOrigin,
    artefacts_in,
    differences_within_models,
    metadata_of_models,
    missing_artefact,
    origins,
    rows_of_files,
    whole_files,
)
from pipeline.results.schemas import SCHEMAS


def export(folders: Sequence[Path], out: Path, artefacts: Sequence[str] | None = None) -> Path:
    """Write the results of these folders as an export, manifest last; the manifest's path.

    Args:
        folders: results folders, complete; no model of an artefact in two of them.
        out: holds no results; made where it does not exist.
        artefacts: names of `SCHEMAS`; all that the folders hold where None.

    Raises:
        InputError: a folder holds no results, or some that are not complete, whole and of one schema version;
            the same model's rows are in two; `out` holds results; an artefact is in none of the folders.
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
    for artefact, of_artefact in files.items():
        fields = [pa.field("model", pa.string()), *SCHEMAS[artefact]]
        schema = pa.schema(fields, metadata=metadata_of_models(of_artefact))
        write_small_parquet(out / exported_name(artefact), rows_of_files(of_artefact, artefact).cast(schema))
    return write_manifest(out)


def _files_to_export(folders: Sequence[Path], artefact: str) -> list[FileOrigin]:
    """Those of all folders, in the order that they would be read in from one."""
    files: list[FileOrigin] = []
    folder_of_model: dict[str, Path] = {}
    for folder in folders:
        of_folder = origins(whole_files(folder, artefact), artefact)
        for model in {file.model for file in of_folder}:
            earlier = folder_of_model.setdefault(model, folder)
            if earlier is not folder:
                raise InputError(
                    f"{earlier} and {folder} both hold {artefact} of model '{model}'; export them apart"
                )
        files += of_folder
    if mixture := differences_within_models(files):
        raise InputError(f"{artefact} mixes results: {'; '.join(mixture)}; export them apart")
    return sorted(files, key=_model_folder)


def _model_folder(file: FileOrigin) -> str:
    return f"model={file.model}"


def write_manifest(results: Path) -> Path:
    """Write `exported.json` of all artefacts and settings files of a folder; its path.

    Raises:
        InputError: the folder holds no artefact, a stage's completion marks, or a file that is not Parquet.
    """
    if any(results.glob("_stages/*/model=*/*.done")):
        raise InputError(f"{results} has the completion marks of its stages: they say what is complete")
    files = {}
    for artefact in SCHEMAS:
        parts = sorted((results / artefact).glob("model=*/*.parquet"))
        for path in (*results.glob(exported_name(artefact)), *parts):
            files[path.relative_to(results).as_posix()] = FileRecord.of(path, read_footer(path).num_rows)
    if not files:
        raise InputError(f"{results} holds no results")
    for path in sorted(results.glob(f"_stages/*/model=*/{SETTINGS_FILE}")):
        files[path.relative_to(results).as_posix()] = FileRecord.of(path)
    listed = {name: record.as_json() for name, record in files.items()}
    write_json(results / MANIFEST, signed({"files": listed}))
    return results / MANIFEST


def main(arguments: argparse.Namespace) -> None:
    """Export, or vouch for what is there.

    Raises:
        InputError: of what it is to export or to vouch for.
    """
    for name in arguments.artefacts or ():
        if name not in SCHEMAS:
            raise unknown_name("artefact", name, SCHEMAS)
    if arguments.out is not None:
        export(arguments.results, arguments.out, arguments.artefacts)
        return
    if arguments.artefacts is not None:
        raise InputError("--artefacts chooses what goes into --out, which is not given")
    for folder in arguments.results:
        write_manifest(folder)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    program = argparse.ArgumentParser(
        "python -m pipeline.results.export",
        None,
        __doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = program.add_argument
    add("results", type=Path, nargs="+", help="results folders")
    add(
        "--out", type=Path, help="write one file an artefact into this folder; list the files where not given"
    )
    add("--artefacts", nargs="+", metavar="NAME", help="of these only; all that are there if not given")
    return program


if __name__ == "__main__":
    try:
        main(parser().parse_args())
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)

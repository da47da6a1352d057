"""Vouch for a results folder that was put together by hand: its files are listed in exported.json.

    python -m pipeline.results.exported FOLDER ...

For what is copied without a stage's completion marks, or merged from several shards. Whoever calls it says
that the folder holds all that there is: readers then refuse it once a file is missing, changed or added.
"""

import sys
from pathlib import Path

from pipeline.errors import InputError
from pipeline.results.files import write_json
from pipeline.results.made_by import SETTINGS_FILE
from pipeline.results.marks import MANIFEST, FileRecord, signed
from pipeline.results.parquet import read_footer
from pipeline.results.schemas import SCHEMAS


def write_manifest(results: Path) -> Path:
    """Write `exported.json` of all artefacts and settings files of a folder; its path.

    Raises:
        InputError: the folder holds no artefact, a stage's completion marks, or a file that is not Parquet.
    """
    if any(results.glob("_stages/*/model=*/*.done")):
        raise InputError(f"{results} has the completion marks of its stages: they say what is complete")
    files = {}
    for artefact in SCHEMAS:
        for path in sorted((results / artefact).glob("model=*/*.parquet")):
            files[path.relative_to(results).as_posix()] = FileRecord.of(path, read_footer(path).num_rows)
    if not files:
        raise InputError(f"{results} holds no results")
    for path in sorted(results.glob(f"_stages/*/model=*/{SETTINGS_FILE}")):
        files[path.relative_to(results).as_posix()] = FileRecord.of(path)
    listed = {name: record.as_json() for name, record in files.items()}
    write_json(results / MANIFEST, signed({"files": listed}))
    return results / MANIFEST


if __name__ == "__main__":
    try:
        for folder in sys.argv[1:]:
            write_manifest(Path(folder))
    except InputError as error:
        sys.exit(f"error: {error}")

"""Numbers of one tiny run, commands of every study file, published tables: they are what they were."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from golden_run import COMMAND, GOLDEN_PATH, moved, run


def test_no_number_has_moved(tmp_path: Path) -> None:
    changes = moved(json.loads(GOLDEN_PATH.read_text(encoding="utf-8")), run(tmp_path))
    assert not changes, (
        "these columns moved:\n  " + "\n  ".join(changes) + f"\nif that is meant, run `{COMMAND}` and say why"
    )


ROOT = Path(__file__).resolve().parents[2]
from sparsity_length.cli import stage_of
from sparsity_length.results.read import Results
from sparsity_length.studies.commands import MEASURING, commands_of
from sparsity_length.studies.file import load_study

COMMANDS = Path(__file__).with_name("study_commands.json")
TABLES = Path(__file__).with_name("published_tables.json")
STUDIES = sorted((ROOT / "olmo_configs" / "studies").glob("*.yaml"))
REFERENCE = ROOT / "analysis" / "reference"
VARIABLES = {"C4": "C4", "TEXT": "TEXT", "MODEL": "MODEL", "SCRATCH": "SCRATCH"}


def commands(study: Path) -> list[str]:
    """The commands of a study, as they are typed in the repository's root, which is where this must run."""
    return [str(command).replace(str(ROOT), ".") for command in commands_of(load_study(study, []))]


def tables() -> dict[str, dict[str, str]]:
    """Table -> column -> hash of its values in the order of the rows; all of analysis/reference."""
    frames = {
        f"{manifest.parent.relative_to(REFERENCE)}/{artefact}": Results(manifest.parent).frame(artefact)
        for manifest in sorted(REFERENCE.rglob("exported.json"))
        for artefact in Results(manifest.parent).tables
    }
    derived = [
        path for path in sorted(REFERENCE.rglob("*.parquet")) if not (path.parent / "exported.json").exists()
    ]
    frames |= {str(path.relative_to(REFERENCE)): pd.read_parquet(path) for path in derived}
    return {
        name: {column: _hash(frame[column]) for column in sorted(frame.columns)}
        for name, frame in frames.items()
    }


def _hash(values: pd.Series) -> str:
    """Length and hash, whether held as numbers with a mask, strings or categories; null and NaN are one."""
    digest = hashlib.sha256(_bytes(pa.array(values, from_pandas=True))).hexdigest()
    return f"{len(values)}-{digest[:16]}"


def _bytes(array: pa.Array) -> bytes:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _bytes(array.value_lengths()) + _bytes(array.flatten())
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return repr(array.to_pylist()).encode()
    numbers = np.array(array.to_pandas(), dtype="float64")
    numbers[np.isnan(numbers)] = np.nan  # of one kind
    return numbers.tobytes()


@pytest.fixture
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("in_the_root")
@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.stem)
def test_the_commands_of_a_study_are_what_they_were(study: Path) -> None:
    assert commands(study) == json.loads(COMMANDS.read_text(encoding="utf-8"))[study.stem]


@pytest.mark.usefixtures("in_the_root")
@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.stem)
def test_each_measurement_of_a_study_is_one_that_its_program_takes(study: Path) -> None:
    for command in commands_of(load_study(study, [])):
        if command.stage in MEASURING:
            stage = stage_of(command.stage)
            stage.settings(stage.parse(command.arguments), [])


def test_the_published_tables_are_what_they_were() -> None:
    assert tables() == json.loads(TABLES.read_text(encoding="utf-8"))

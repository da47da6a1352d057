"""Programs that write refuse an output that is one of their inputs, and leave it as it is."""

import importlib
import json
from pathlib import Path

import pytest
from written_results import write_length_losses

from sparsity_length.cli import (
    InputError,
)

SHARD = "length_losses/a/00000-of-00001.parquet"
EVALUATION = "evaluation_documents/00000-of-00001.parquet"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Results, texts and tables, each under a name that some program writes."""
    write_length_losses(tmp_path, "a", [1.0])
    for name in ("texts.jsonl", "manifest.json"):
        (tmp_path / name).write_text(json.dumps({"text": "a text", "url": "u"}))
    for name in ("outcomes.parquet", EVALUATION):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((tmp_path / SHARD).read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sparsity_length.programs.query", "--results {folder} --out {folder}"),
        ("sparsity_length.programs.query", "SELECT --results {folder} --out {folder}/" + SHARD),
        ("sparsity_length.programs.query", "SELECT --results {folder} --out {folder}/link/" + SHARD),
        (
            "sparsity_length.programs.tokenize_c4",
            "--source {folder}/texts.jsonl {folder}/manifest.json --tokenizer bpe:300 --out {folder}",
        ),
        (
            "sparsity_length.programs.tokenize_c4",
            "--source {folder}/texts.jsonl {folder}/"
            + EVALUATION
            + " --tokenizer olmo --num-tasks 2 --task-index 0 --out {folder}",
        ),
        ("sparsity_length.analysis.explorer", "{folder} --out {folder}/" + SHARD),
        (
            "sparsity_length.analysis.reference.choose_texts",
            "--source web={folder}/*.jsonl --out {folder}/texts.jsonl",
        ),
    ],
)
def test_an_output_onto_an_input_is_refused(name: str, words: str, folder: Path) -> None:
    (folder / "link").symlink_to(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    program = importlib.import_module(name)
    with pytest.raises(InputError, match="is an input, which the output would replace"):
        program.STAGE(words.format(folder=folder).split())
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before

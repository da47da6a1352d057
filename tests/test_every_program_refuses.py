"""Every program, walked with generic damages of its command line: one sentence, exit code 2, nothing begun.

The damages are derived from each program's own parser, so a new program or flag is walked unasked.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.notebooks import execute_all
from pipeline.cli import (
    PROGRAMS,
    InputError,
    file_path,
    finite_float,
    folder_path,
    fraction,
    positive_float,
    positive_fraction,
    run_stage,
)
from pipeline.results.write import StageOutput

NO_NUMBERS = ("nan", "one")
NO_WHOLE_NUMBERS = (*NO_NUMBERS, "-1", "1.5")
"""None is a size, a count or a seed in any program."""
FLOATS = (finite_float, positive_float, positive_fraction, fraction)


def paths(folder: Path) -> dict[object, list[str]]:
    """Paths that no program can take, by what they are wrong for."""
    (folder / "file").write_text("x")
    (folder / "folder").mkdir()
    return {folder_path: ["", str(folder / "file")], file_path: ["", str(folder / "folder")]}


def damages(parser: argparse.ArgumentParser, bad_paths: dict[object, list[str]]) -> Iterator[list[str]]:
    """Command lines, each with one flag that is wrong."""
    yield ["--no-such-flag"]
    if any(action.required for action in parser._actions):
        yield []
    for action in parser._actions:
        assert action.type not in (int, float, Path), f"{action.dest} takes a number or a path as it comes"
        flag, kind = action.option_strings[:1], getattr(action.type, "__name__", "")
        if action.choices is not None:
            yield [*flag, "no such choice"]
        if action.type in bad_paths:
            yield from ([*flag, path] for path in bad_paths[action.type])
        elif action.type is not None and kind not in ("str", "_model_and_length"):
            for number in NO_NUMBERS if action.type in FLOATS else NO_WHOLE_NUMBERS:
                yield [f"{flag[0]}={number}"] if flag else [number]  # "=": -inf alone would be read as a flag


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_damaged_command_line_is_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, typed = importlib.import_module(name), f"{name.rpartition('.')[2]}.py"
    bad_paths = paths(tmp_path)
    before = sorted(tmp_path.rglob("*"))

    def main(arguments: argparse.Namespace) -> None:
        raise AssertionError(f"accepted: {arguments}")

    monkeypatch.setattr(sys, "argv", [typed])
    for words in damages(program.parser(), bad_paths):
        monkeypatch.setattr(sys, "argv", [typed, *words])
        with pytest.raises(SystemExit) as stopped:
            run_stage(program.parser(), main)
        said = capsys.readouterr()
        assert (stopped.value.code, said.out) == (2, ""), words
        (sentence,) = said.err.splitlines()
        assert sentence.startswith(f"{typed}: error: "), words
        # the flag that is wrong is named first: a type is looked at before what is missing
        if words and words[0].startswith("--") and words[0] != "--no-such-flag":
            assert words[0].partition("=")[0] in sentence, sentence
    assert sorted(tmp_path.rglob("*")) == before


SHARD = "length_losses/model=a/00000-of-00001.parquet"
EVALUATION = "evaluation_documents/00000-of-00001.parquet"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Results, texts and tables, each under a name that some program writes."""
    row = {"document_id": ["d"], "chunk_index": [0], "context_length": [9], "num_targets": [1]}
    output = StageOutput(tmp_path, "length_losses", "a", settings={}, inputs={}, num_shards=1)
    output.write_shard(0, {"length_losses": row | {"mean_loss": [1.0]}})
    for name in ("texts.jsonl", "manifest.json"):
        (tmp_path / name).write_text(json.dumps({"text": "a text", "url": "u"}))
    for name in ("outcomes.parquet", EVALUATION):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((tmp_path / SHARD).read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pipeline.results.export", "{folder} --out {folder}"),
        ("pipeline.query", "SELECT --results {folder} --format parquet --out {folder}/" + SHARD),
        ("pipeline.query", "SELECT --results {folder} --format csv --out {folder}/link/" + SHARD),
        ("pipeline.tokenize_c4", "--source {folder}/texts.jsonl {folder}/manifest.json --tokenizer bpe:300"
         " --out {folder}"),
        ("pipeline.tokenize_c4", "--source {folder}/texts.jsonl {folder}/" + EVALUATION
         + " --tokenizer olmo --num-tasks 2 --task-index 0 --out {folder}"),
        ("analysis.explorer", "{folder} --out {folder}/" + SHARD),
        ("analysis.choose_texts", "--source web={folder}/*.jsonl --out {folder}/texts.jsonl"),
    ],
)  # fmt: skip
def test_an_output_onto_an_input_is_refused(name: str, words: str, folder: Path) -> None:
    (folder / "link").symlink_to(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    program = importlib.import_module(name)
    with pytest.raises(InputError, match="is an input, which the output would replace"):
        program.main(program.parser().parse_args(words.format(folder=folder).split()))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_notebook_is_not_executed_onto_itself(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is an input, which the output would replace"):
        next(execute_all([tmp_path / "a.ipynb"], tmp_path / "elsewhere" / "..", {}))

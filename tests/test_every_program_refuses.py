"""Every program, walked with generic damages of its command line: one sentence, exit code 2, nothing begun.

The damages are derived from each program's own parser, so a new program or flag is walked unasked.
"""

import argparse
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.cli import (
    PROGRAMS,
    file_path,
    finite_float,
    folder_path,
    fraction,
    positive_float,
    positive_fraction,
    run_stage,
)

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

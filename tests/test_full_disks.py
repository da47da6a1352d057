"""Every program that writes, on a file system that is full or read-only: a sentence, and nothing is lost.

A small tmpfs is mounted for it, which only root may do; elsewhere these tests are skipped, and say so.
"""

import dataclasses
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from measured_documents import contents
from test_damaged_contents import WALKS, WITH_TIMES, copied, different, inputs, run, whole

from pipeline import query
from pipeline.cli import InputError
from pipeline.results.write import StageOutput

__all__ = ["inputs", "whole"]  # fixtures
KIBIBYTES = (4, 24, 64, 160)
"""So that there is room for nothing but a lock, for some files, for more."""
AT_EVERY_RUN = ("tokenize_c4", "loss_differences", "sparse_functional_attention")
IN_THE_SLOW_TIER = tuple(name for name, walk in WALKS.items() if walk.writes and name not in AT_EVERY_RUN)
EVERY_WRITER = [*AT_EVERY_RUN, *(pytest.param(name, marks=pytest.mark.slow) for name in IN_THE_SLOW_TIER)]
Mount = Callable[[str], None]
"""Given options, mounts a tmpfs as the folder `small`, or mounts it anew."""


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    folder = tmp_path / "small"
    folder.mkdir()

    def mounted(options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")

    yield mounted
    while os.path.ismount(folder):
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def prepare(name: str, whole: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a program write below `small` of `folder`, and read copies of the whole files there."""
    walk = WALKS[name]
    (written,) = walk.writes
    copied(whole, folder / "files", walk)
    for path in (folder / "files").iterdir():
        if path.name != written:
            path.rename(folder / path.name)
    words = [f"small/{word}" if word == written else word for word in walk.words]
    monkeypatch.setitem(WALKS, name, dataclasses.replace(walk, words=words))
    monkeypatch.chdir(folder)


def refusal(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The sentence that a program ends with, exit code 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        run(name)
    said = capsys.readouterr().err
    assert stopped.value.code == 2, said
    (sentence,) = [line for line in said.splitlines() if ": error: " in line]
    assert said.endswith(f"{sentence}\n")
    return sentence


@pytest.mark.parametrize("name", EVERY_WRITER)
def test_a_full_disk_is_a_sentence_and_with_room_the_same_command_goes_on(
    name: str,
    whole: Path,
    tmp_path: Path,
    mount: Mount,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare(name, whole, tmp_path, monkeypatch)
    mount("size=64m")
    run(name)
    expected = contents_but_times(tmp_path / "small")
    num_kibibytes = sum(map(len, contents(tmp_path / "small").values())) / 1024
    mount("size=4k")
    for size in [size for size in KIBIBYTES if size < num_kibibytes]:
        mount(f"remount,size={size}k")
        assert "no space left" in refusal(name, capsys), size
        assert not [path for path in contents(tmp_path / "small") if is_half_written(path)], size
    mount("remount,size=64m")
    run(name)
    assert different(contents_but_times(tmp_path / "small"), expected) == set()


@pytest.mark.parametrize("file_format", ["csv", "json", "parquet"])
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("size=4k", "no space left on the device while writing small/rows; free some"),
        ("ro,size=1m", "small/rows lies on a read-only file system; name another path"),
    ],
)
def test_the_rows_of_a_query(
    tmp_path: Path,
    mount: Mount,
    options: str,
    sentence: str,
    file_format: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns = {
        "document_id": ["a"], "chunk_index": [0], "context_length": [16],
        "num_targets": [4], "mean_loss": [2.0],
    }  # fmt: skip
    output = StageOutput(tmp_path / "results", "length_losses", "m", settings={}, inputs={}, num_shards=1)
    output.write_shard(0, {"length_losses": columns})
    sql = "SELECT random(), * FROM length_losses, range(5000)"
    mount(options)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=sentence):
        query.export(query.connect(Path("results"), sql), sql, file_format, Path("small/rows"))
    assert contents(tmp_path / "small") == {}


def contents_but_times(folder: Path) -> dict[str, bytes]:
    return {path: content for path, content in contents(folder).items() if not path.endswith(WITH_TIMES)}


def is_half_written(path: str) -> bool:
    return re.search(r"\.part\b|\.tmp\b", path) is not None


@pytest.mark.parametrize("name", EVERY_WRITER)
def test_a_read_only_file_system_is_a_sentence(
    name: str,
    whole: Path,
    tmp_path: Path,
    mount: Mount,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare(name, whole, tmp_path, monkeypatch)
    mount("ro,size=1m")
    said = refusal(name, capsys)
    assert "lies on a read-only file system; name another path" in said or "cannot write into small" in said

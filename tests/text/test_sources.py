"""Sources by name, and each way in which a name can be wrong."""

import gzip
from pathlib import Path

import pytest

from pipeline.cli import InputError
from pipeline.text.sources import json_lines, open_sources


def test_a_glob_stands_for_its_files_in_order(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "c.json.gz"):
        (tmp_path / name).write_bytes(b"")
    sources = open_sources([str(tmp_path / "*.jsonl"), str(tmp_path / "c.json.gz")], c4_split="train")
    assert [source.files[0].name for source in sources] == ["a.jsonl", "b.jsonl", "c.json.gz"]


def test_a_file_whose_name_looks_like_a_glob(tmp_path: Path) -> None:
    (tmp_path / "part[1].jsonl").write_bytes(b"x\n")
    (source,) = open_sources([str(tmp_path / "part[1].jsonl")], c4_split="train")
    assert list(source.read()) == [b"x\n"]


def test_a_source_can_be_read_again(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.jsonl.gz", "wb") as file:
        file.write(b"1\n2\n")
    (source,) = open_sources([str(tmp_path / "a.jsonl.gz")], c4_split="train")
    assert list(source.read()) == list(source.read()) == [b"1\n", b"2\n"]


def test_c4_is_opened_without_touching_the_network() -> None:
    sources = open_sources(["c4"], c4_split="validation")
    assert [source.name for source in sources] == [
        f"c4 en/c4-validation.0000{index}-of-00008.json.gz" for index in range(8)
    ]
    assert {source.files for source in sources} == {()}
    assert open_sources(["c4"], c4_split="train")[1023].name == "c4 en/c4-train.01023-of-01024.json.gz"


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("embeded", "unknown source 'embeded'; did you mean 'embedded'?"),
        ("{}/missing.jsonl", "cannot read {}/missing.jsonl: No such file or directory"),
        ("{}/*.jsonl", "no file matches --source '{}/*.jsonl'"),
        ("{}/notes.txt", "{}/notes.txt is none of the kinds of file"),
        ("{}/folder.json", "cannot read {}/folder.json: Is a directory"),
    ],
)
def test_a_wrong_name_is_refused_with_a_sentence(tmp_path: Path, name: str, fault: str) -> None:
    (tmp_path / "notes.txt").write_text("text")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(InputError) as error:
        open_sources([name.format(tmp_path)], c4_split="train")
    assert str(error.value).startswith(fault.format(tmp_path))


@pytest.mark.parametrize("content", [gzip.compress(b'{"text": "a"}\n' * 9, mtime=0)[:-9], b'{"text": "a"}\n'])
def test_a_gz_file_cut_off_or_not_packed_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.jsonl\.gz cannot be read to its end"):
        list(json_lines(tmp_path / "a.jsonl.gz"))

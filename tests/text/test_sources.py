"""Documents from every source: what is taken, what is counted, and what a bad name or record leads to."""

import gzip
from pathlib import Path

import pytest

from pipeline.cli import InputError
from pipeline.text import sources
from pipeline.text.sources import (
    Source,
    documents_or_reasons,
    open_sources,
    read_documents,
)

LONG = " ".join(f"word{number}" for number in range(100))


def texts_of(*records: sources.Record, skip_malformed: bool = False) -> list[str]:
    """The texts, and what stands for a record that is left out."""
    found = documents_or_reasons([Source("corpus.jsonl", lambda: records)], skip_malformed=skip_malformed)
    return [item if isinstance(item, str) else item.text for item in found]


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        (b'{"text": "cut', "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'{"text": "\xff"}', "is not valid JSON in UTF-8"),
        (b'["text"]', "has no 'text'"),
        (b'{"text": null}', "has no 'text'"),
        (b'{"text": "\\ud800"}', "has a 'text' that is not valid Unicode"),
    ],
)
def test_a_malformed_record_is_named_by_file_and_line_or_counted(record: bytes, fault: str) -> None:
    lines = (b'{"text": "a"}', b"", record, b'{"text": "b"}')
    with pytest.raises(InputError, match=rf"^corpus\.jsonl, record 3 {fault}"):
        texts_of(*lines)
    assert texts_of(*lines, skip_malformed=True) == ["a", "malformed", "b"]


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.ndjson", b'{"text": "a"}\n{"text": "b"}\n', ["a", "b"]),
        ("a.JSONL", b'{"text": "a"}', ["a"]),
        (
            "a.JSON.GZ",
            gzip.compress(b'\xef\xbb\xbf{"text": "a"}\n{"text": "\xef\xbb\xbfb"}', mtime=0),
            ["a", "\ufeffb"],
        ),
        ("a.jsonl", b'\xef\xbb\xbf{"text": "a"}\n', ["a"]),
        ("a.TXT", "\ufeffHällo\n\nworld".encode(), ["Hällo\n\nworld"]),
    ],
)
def test_names_and_marks_of_files(name: str, content: bytes, texts: list[str], tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    sources = open_sources([str(tmp_path / name)], c4_split="train")
    assert [document.text for document in read_documents(sources)] == texts

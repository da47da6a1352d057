"""Documents from every source: what is taken, what is counted, and what a bad name or record leads to."""

import gzip
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.cli import InputError
from pipeline.text import sources
from pipeline.text.sources import (
    Document,
    Source,
    c4_revision,
    documents_or_reasons,
    embedded_records,
    open_sources,
    read_documents,
    stream_c4,
)

LONG = " ".join(f"word{number}" for number in range(100))


def texts_of(*records: sources.Record, skip_malformed: bool = False) -> list[str]:
    """The texts, and what stands for a record that is left out."""
    found = documents_or_reasons([Source("corpus.jsonl", lambda: records)], skip_malformed=skip_malformed)
    return [item if isinstance(item, str) else item.text for item in found]


def test_a_documents_id_is_the_hash_of_its_text() -> None:
    document = Document.from_record('{"text": "né", "url": "https://a.org"}'.encode())
    assert document == Document(sha256("né".encode()).hexdigest()[:16], "né", "https://a.org")
    assert Document.from_record({"text": "né", "url": None}).document_id == document.document_id


def test_empty_texts_are_counted_and_blank_lines_are_nothing() -> None:
    assert texts_of(b'{"text": "a"}\n', b"\n", b'{"text": " \\n"}\n', {"text": ""}) == ["a", "empty", "empty"]


@pytest.mark.parametrize(
    "record",
    [
        b'{"text": "cut',
        b"[" * 100_000,
        b'{"text": "\xff"}',
        b'["text"]',
        b'{"text": null}',
        b'{"text": "\\ud800"}',
    ],
)
def test_a_malformed_record_is_named_by_file_and_line_or_counted(record: bytes) -> None:
    lines = (b'{"text": "a"}', b"", record, b'{"text": "b"}')
    with pytest.raises(InputError, match=r"^corpus\.jsonl, record 3 is malformed: "):
        texts_of(*lines)
    assert texts_of(*lines, skip_malformed=True) == ["a", "malformed", "b"]


def test_a_glob_stands_for_its_files_in_order_unless_it_is_a_name(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "c.json.gz", "part[1].json"):
        (tmp_path / name).write_bytes(b"x\n")
    names = [str(tmp_path / name) for name in ("*.jsonl", "c.json.gz", "part[1].json")]
    found = open_sources(names, c4_split="train")
    assert [source.files[0].name for source in found] == ["a.jsonl", "b.jsonl", "c.json.gz", "part[1].json"]
    assert list(found[-1].read()) == list(found[-1].read()) == [b"x\n"]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("embeded", "cannot read embeded: No such file or directory; a --source is c4, embedded, or"),
        ("{}/missing.jsonl", "cannot read {}/missing.jsonl: No such file or directory"),
        ("{}/*.jsonl", "no file matches --source '{}/*.jsonl'"),
        ("{}/notes.doc", "--source {}/notes.doc ends in none of .jsonl, "),
    ],
)
def test_a_wrong_name_is_refused_with_a_sentence(tmp_path: Path, name: str, fault: str) -> None:
    (tmp_path / "notes.doc").write_bytes(b"")
    with pytest.raises(InputError) as error:
        open_sources([name.format(tmp_path)], c4_split="train")
    assert str(error.value).startswith(fault.format(tmp_path))


@pytest.mark.parametrize("content", [gzip.compress(b'{"text": "a"}\n' * 9, mtime=0)[:-9], b'{"text": "a"}\n'])
def test_a_gz_file_cut_off_or_not_packed_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(content)
    (source,) = open_sources([str(tmp_path / "a.jsonl.gz")], c4_split="train")
    with pytest.raises(InputError, match=r"a\.jsonl\.gz cannot be read to its end"):
        list(source.records())


def test_parquet_rows_under_a_name_that_looks_like_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "part[0]*.parquet"
    pq.write_table(pa.table({"text": ["a", None], "n": [1, 2]}), path)
    (source,) = open_sources([str(path)], c4_split="train")
    assert list(source.records()) == [{"text": "a", "n": 1}, {"text": None, "n": 2}]
    with pytest.raises(InputError, match="record 2 is malformed: no 'text'"):
        list(read_documents([source]))
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=r"parquet cannot be read to its end"):
        list(source.records())


def test_c4_is_streamed_at_the_commit_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [source.name for source in open_sources(["c4"], c4_split="train")]  # asks nobody
    assert (len(names), names[1023]) == (1024, "c4 en/c4-train.01023-of-01024.json.gz")
    calls = []

    def load_dataset(*args: str, **options: object) -> list[dict[str, str]]:
        calls.append((args, options))
        return [{"text": "a", "url": "u", "timestamp": "t"}]

    hub = SimpleNamespace(dataset_info=lambda name, timeout: SimpleNamespace(sha="c0ffee"))
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: hub)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    c4_revision.cache_clear()
    assert [record["text"] for record in stream_c4("en/x.json.gz") if not isinstance(record, bytes)] == ["a"]
    expected = {"data_files": ["en/x.json.gz"], "split": "train", "streaming": True, "revision": "c0ffee"}
    assert calls == [(("allenai/c4",), expected)]
    c4_revision.cache_clear()


def test_the_corpus_is_real_text_of_known_size() -> None:
    texts = [record["text"] for record in embedded_records() if not isinstance(record, bytes)]
    assert len(texts) == len(set(texts)) == 11_360
    assert sum(len(text.split()) for text in texts) == 1_215_990
    assert texts[0].startswith("Persian language -- Persian")
    assert not any("\nQuestion:" in text for text in texts)


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

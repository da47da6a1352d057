"""Reading documents: what is taken, what is counted, and what a malformed record is told."""

from collections import Counter
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.cli import InputError
from pipeline.text import sources as documents
from pipeline.text.sources import (
    Document,
    Source,
    c4_revision,
    parquet_records,
    read_documents,
    record_batches,
    stream_c4,
)


def source_of(*records: documents.Record) -> Source:
    return Source("corpus.jsonl", lambda: records)


def texts_of(*records: documents.Record, skip_malformed: bool = False) -> tuple[list[str], dict[str, int]]:
    tally: Counter[str] = Counter()
    found = read_documents([source_of(*records)], tally, skip_malformed=skip_malformed)
    return [document.text for document in found], dict(tally)


def test_a_documents_id_is_the_hash_of_its_text() -> None:
    document = Document.from_record('{"text": "né", "url": "https://a.org"}'.encode())
    assert document == Document(sha256("né".encode()).hexdigest()[:16], "né", "https://a.org")
    assert Document.from_record({"text": "né", "url": None}).document_id == document.document_id


def test_empty_texts_are_counted_and_blank_lines_are_nothing() -> None:
    assert texts_of(b'{"text": "a"}\n', b"\n", b'{"text": " \\n"}\n', {"text": ""}) == (["a"], {"empty": 2})


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        (b'{"text": "cut', "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'{"text": "\xff"}', "is not UTF-8"),
        (b'["text"]', "is not a JSON object"),
        (b'{"txt": "a"}', "has no 'text'"),
        (b'{"text": null}', "has no 'text'"),
        (b'{"text": "\\ud800"}', "has a 'text' that is not valid Unicode"),
    ],
)
def test_a_malformed_record_is_named_by_file_and_line_or_counted(record: bytes, fault: str) -> None:
    lines = (b'{"text": "a"}', b"", record, b'{"text": "b"}')
    with pytest.raises(InputError, match=rf"^corpus\.jsonl, line 3 {fault}.*--skip-malformed"):
        texts_of(*lines)
    assert texts_of(*lines, skip_malformed=True) == (["a", "b"], {"malformed": 1})


def test_batches_end_with_their_source_by_number_and_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_RECORDS_PER_BATCH", 3)
    monkeypatch.setattr(documents, "_CHARACTERS_PER_BATCH", 10)
    short, long = b"1234", {"text": "1234567890"}
    sources = [source_of(short, short, long, short, short, short, short), source_of(long), source_of()]
    batches = [(batch.first_number, batch.records) for batch in record_batches(sources)]
    assert batches == [(1, [short, short, long]), (4, [short] * 3), (7, [short]), (1, [long])]


def test_parquet_rows_under_a_name_that_looks_like_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "part[0]*.parquet"
    pq.write_table(pa.table({"text": ["a", None], "n": [1, 2]}), path)
    assert list(parquet_records(path)) == [{"text": "a", "n": 1}, {"text": None, "n": 2}]
    source = Source(str(path), lambda: parquet_records(path), record_word="row")
    with pytest.raises(InputError, match="row 2 has no 'text'"):
        list(read_documents([source], Counter()))


def test_a_broken_parquet_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=r"broken\.parquet is not a readable Parquet file"):
        list(parquet_records(path))


def test_c4_is_streamed_at_the_commit_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load_dataset(*args: str, **options: object) -> list[dict[str, str]]:
        calls.append((args, options))
        return [{"text": "a", "url": "u", "timestamp": "t"}]

    hub = SimpleNamespace(dataset_info=lambda name: SimpleNamespace(sha="c0ffee"))
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: hub)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    c4_revision.cache_clear()
    assert [record["text"] for record in stream_c4("en/x.json.gz") if not isinstance(record, bytes)] == ["a"]
    expected = {"data_files": ["en/x.json.gz"], "split": "train", "streaming": True, "revision": "c0ffee"}
    assert calls == [(("allenai/c4",), expected)]
    c4_revision.cache_clear()


def test_without_the_hub_the_other_sources_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable() -> None:
        raise ConnectionError("no route to host\nand more lines")

    monkeypatch.setattr("huggingface_hub.HfApi", unreachable)
    c4_revision.cache_clear()
    with pytest.raises(InputError, match=r"\(no route to host\).*--source 'PATH/.*--source embedded$"):
        next(stream_c4("en/x.json.gz"))


def test_a_stream_that_breaks_off_asks_to_be_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: str, **__: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(documents, "c4_revision", lambda: "c0ffee")
    monkeypatch.setattr("datasets.load_dataset", broken)
    with pytest.raises(InputError, match=r"en/x\.json\.gz broke off \(timed out\)"):
        next(stream_c4("en/x.json.gz"))

"""Documents from every source, and what tokenize_c4 left of them: what is taken, counted, refused."""

import gzip
import json
import re
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from measured_documents import flip, write_data

from sparsity_length.cli import InputError, file_path, folder_path
from sparsity_length.results.files import describe_files
from sparsity_length.text.chunks import chunks_of, long_enough_documents
from sparsity_length.text.folder import (
    EVALUATION_FILE,
    EvaluationDocument,
    TokenizedData,
    training_token_counts,
)
from sparsity_length.text.sources import (
    C4_REVISION,
    Document,
    Source,
    embedded_records,
    json_lines,
    open_sources,
    read_documents,
    stream_c4,
)

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
LONG = " ".join(f"word{number}" for number in range(100))


def texts_of(path: Path, *lines: bytes) -> list[str]:
    path.write_bytes(b"\n".join(lines))
    return [document.text for document in read_documents([Source(path.name, lambda: json_lines(path))])]


def test_a_documents_id_is_the_hash_of_its_text() -> None:
    document = Document.from_record({"text": "né", "url": "https://a.org"})
    assert document == Document(sha256("né".encode()).hexdigest()[:16], "né", "https://a.org")
    assert Document.from_record({"text": "né", "url": None}).document_id == document.document_id


def test_blank_texts_and_blank_lines_are_nothing(tmp_path: Path) -> None:
    assert texts_of(tmp_path / "a", b'{"text": "a"}', b"", b'{"text": " \\n"}', b'{"text": ""}') == ["a"]


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
def test_a_malformed_record_is_named_by_file_and_number(record: bytes, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^corpus\.jsonl, record 3 cannot be read \("):
        texts_of(tmp_path / "corpus.jsonl", b'{"text": "a"}', b'{"text": " "}', record, b'{"text": "b"}')


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-16"])
def test_a_text_of_another_encoding_is_refused(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("plain words".encode(encoding))
    with pytest.raises(InputError, match=r"a\.txt holds NUL characters: is it UTF-16"):
        list(read_documents(open_sources([str(tmp_path / "a.txt")], c4_split="train")))


def test_a_glob_stands_for_its_files_in_order_unless_it_is_a_name(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "c.json.gz", "part[1].json"):
        (tmp_path / name).write_bytes(b'{"text": "x"}\n')
    names = [str(tmp_path / name) for name in ("*.jsonl", "c.json.gz", "part[1].json")]
    found = open_sources(names, c4_split="train")
    assert [source.files[0].name for source in found] == ["a.jsonl", "b.jsonl", "c.json.gz", "part[1].json"]
    assert list(found[-1].read()) == list(found[-1].read()) == [{"text": "x"}]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("embeded", "cannot read embeded: No such file; a --source is c4, embedded, or"),
        ("{}/*.jsonl", "cannot read {}/*.jsonl: No such file"),
        ("{}/notes.doc", "--source {}/notes.doc ends in none of .jsonl, "),
    ],
)
def test_a_wrong_name_is_refused_with_a_sentence(tmp_path: Path, name: str, fault: str) -> None:
    (tmp_path / "notes.doc").write_bytes(b"")
    with pytest.raises(InputError, match=f"^{re.escape(fault.format(tmp_path))}"):
        open_sources([name.format(tmp_path)], c4_split="train")


@pytest.mark.parametrize("content", [gzip.compress(b'{"text": "a"}\n' * 9, mtime=0)[:-9], b'{"text": "a"}\n'])
def test_a_gz_file_cut_off_or_not_packed_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(content)
    (source,) = open_sources([str(tmp_path / "a.jsonl.gz")], c4_split="train")
    with pytest.raises(InputError, match=r"a\.jsonl\.gz, record \d+ cannot be read"):
        list(source.documents())


def test_parquet_rows_under_a_name_that_looks_like_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "part[0]*.parquet"
    # No Python datetime is as late as this.
    times = pa.array([2**62, 0], pa.timestamp("us"))
    pq.write_table(pa.table({"text": ["a", None], "url": ["b", "c"], "when": times}), path)
    (source,) = open_sources([str(path)], c4_split="train")
    assert list(source.read()) == [{"text": "a", "url": "b"}, {"text": None, "url": "c"}]
    with pytest.raises(InputError, match=r"record 2 cannot be read \(no 'text'"):
        list(source.documents())
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=r"parquet, record 1 cannot be read"):
        list(source.documents())


def test_c4_is_streamed_at_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [source.name for source in open_sources(["c4"], c4_split="train")]  # asks nobody
    assert (len(names), names[1023]) == (1024, f"c4@{C4_REVISION[:8]} en/c4-train.01023-of-01024.json.gz")
    calls = []

    def load_dataset(*args: str, **options: object) -> list[dict[str, str]]:
        calls.append((args, options))
        return [{"text": "a", "url": "u", "timestamp": "t"}]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    assert [record["text"] for record in stream_c4("en/x.json.gz")] == ["a"]
    expected = {"data_files": ["en/x.json.gz"], "split": "train", "streaming": True, "revision": C4_REVISION}
    assert calls == [(("allenai/c4",), expected)]


@pytest.mark.slow
def test_the_corpus_is_real_text_of_known_size() -> None:
    texts = [record["text"] for record in embedded_records()]
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


def test_a_text_in_another_field(tmp_path: Path) -> None:
    pq.write_table(pa.table({"content": ["a"], "id": [1]}), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_bytes(b'{"content": "b", "url": "u", "text": "c"}')
    (tmp_path / "c.txt").write_bytes(b"d")
    names = [str(tmp_path / name) for name in ("a.parquet", "b.jsonl", "c.txt")]
    sources = open_sources(names, c4_split="train", text_field="content")
    found = [(document.text, document.url) for document in read_documents(sources)]
    assert found == [("a", None), ("b", "u"), ("d", None)]
    for name, lacking, fields in (
        ("a.parquet", None, "content, id"),
        ("b.jsonl", "body", "content, url, text"),
        ("a.parquet", "id", "id"),
    ):
        (source,) = open_sources([str(tmp_path / name)], c4_split="train", text_field=lacking)
        with pytest.raises(InputError, match=rf"no '{lacking or 'text'}' .*: --text-field .* of {fields}\)"):
            list(source.documents())


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.txt"])
def test_a_pointer_of_git_lfs_is_no_text(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(POINTER)
    with pytest.raises(InputError, match=f"{name} is a Git LFS pointer"):
        open_sources([str(tmp_path / name)], c4_split="train")


def test_a_home_folder_is_found_without_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}')
    for name in ("~/a.jsonl", "~/*.jsonl"):
        assert open_sources([name], c4_split="train")[0].files == (tmp_path / "a.jsonl",)
    assert folder_path("~/new") == tmp_path / "new" and file_path("~/a.jsonl") == tmp_path / "a.jsonl"
    assert folder_path("~nobody at all") == Path("~nobody at all")


PARTS = [[1, 2, 0], [3, 0]]


def change_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_evaluation_documents_and_a_tokenizer_of_another_content_are_refused(tmp_path: Path) -> None:
    (write_data(tmp_path, train_token_ids=PARTS) / "tokenizer.json").write_text("{}")
    files = json.loads((tmp_path / "manifest.json").read_text())["files"]
    change_manifest(tmp_path, files=files | describe_files(tmp_path, [tmp_path / "tokenizer.json"]))
    data = TokenizedData.open(tmp_path)
    flip(tmp_path / EVALUATION_FILE)
    with pytest.raises(InputError, match="has not the SHA-256 of its manifest"):
        data.evaluation_documents()
    flip(tmp_path / "tokenizer.json")
    with pytest.raises(InputError, match="tokenizer.json has not the SHA-256 of its manifest"):
        data.tokenizer()


def test_no_document_is_its_own_null_or_swap() -> None:
    """Four documents of 4 to 9 tokens in chunks of 4: each with the next three, in turn, and no fewer."""
    documents = [EvaluationDocument(f"{size:016x}", np.arange(size) + 10 * size) for size in (9, 4, 3, 8, 5)]
    data = SimpleNamespace(evaluation_documents=lambda: documents, folder="here")
    usable = long_enough_documents(data, 4, None, 3)
    assert [len(document.token_ids) for document in usable] == [9, 4, 8, 5]
    for most, num_others in ((None, 4), (3, 3), (1, 1), (2, 3)):
        with pytest.raises(InputError, match=f"{num_others + 1} are needed"):
            long_enough_documents(data, 4, most, num_others)
    first, second = chunks_of(usable, 2, 4, None, 3)
    assert first.token_ids_L.tolist() == [80, 81, 82, 83] and (first.start, second.start) == (0, 4)
    assert second.token_ids_L.tolist() == [84, 85, 86, 87]
    assert first.other_token_ids_NL[:, 0].tolist() == [50, 90, 40]
    assert second.other_token_ids_NL[:, 0].tolist() == [50, 94, 40]
    assert len([*chunks_of(usable, 0, 4, 1)]) == 1


def test_training_tokens_are_counted(tmp_path: Path) -> None:
    folder = write_data(tmp_path / "some", train_token_ids=[[5, 6, 0, 5, 0], [47, 5, 0]])
    counted_V = training_token_counts(TokenizedData.open(folder))
    found = np.flatnonzero(counted_V)
    assert (found.tolist(), counted_V[found].tolist()) == ([5, 6, 47], [3, 1, 1])

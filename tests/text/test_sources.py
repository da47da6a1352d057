"""Documents from every source, and what tokenize_c4 left of them: what is taken, counted, refused."""

import gzip
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from measured_documents import flip, write_data

from sparsity_length.cli import InputError, file_path, folder_path
from sparsity_length.text.chunks import chunks_of, long_enough_documents
from sparsity_length.text.folder import (
    EVALUATION_FILE,
    EvaluationDocument,
    TokenizedData,
)
from sparsity_length.text.sources import (
    C4_REVISION,
    Document,
    distinct_passages,
    embedded_records,
    open_sources,
    read_documents,
    stream_c4,
)


def texts_of(path: Path, content: bytes) -> list[str]:
    path.write_bytes(content)
    return [document.text for document in read_documents(open_sources([str(path)], c4_split="train"))]


@pytest.mark.parametrize("url", ["https://a.org", None])
def test_a_documents_id_is_the_hash_of_its_text(url: str | None) -> None:
    expected = Document(sha256("né".encode()).hexdigest()[:16], "né", url)
    assert Document.from_record({"text": "né", "url": url}) == expected


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
        ("blanks.jsonl", b'{"text": "a"}\n\n{"text": " \\n"}\n{"text": ""}', ["a"]),
    ],
)
def test_names_marks_and_blanks_of_files(name: str, content: bytes, texts: list[str], tmp_path: Path) -> None:
    assert texts_of(tmp_path / name, content) == texts


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        *(
            (
                "a.jsonl",
                b'{"text": "a"}\n\n{"text": " "}\n' + record,
                r"^a\.jsonl, record 4 cannot be read \(",
            )
            for record in (
                b'{"text": "cut',
                b"[" * 100_000,
                b'{"text": "\xff"}',
                b'["text"]',
                b'{"text": null}',
                b'{"text": "\\ud800"}',
            )
        ),
        *(
            ("a.txt", "words".encode(code), r"a\.txt holds NUL characters: is it UTF-16")
            for code in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-16")
        ),
        ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 9, mtime=0)[:-9], r"record \d+ cannot be read"),
        ("a.jsonl.gz", b'{"text": "a"}\n', r"a\.jsonl\.gz, record 1 cannot be read"),
        ("a.parquet", b"PAR1 and no more", r"a\.parquet, record 1 cannot be read"),
        *(
            (
                name,
                b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n",
                f"{name} is a Git LFS pointer",
            )
            for name in ("a.jsonl", "a.jsonl.gz", "a.parquet", "a.txt")
        ),
        ("notes.doc", b"", r"notes\.doc ends in none of \.jsonl, "),
    ],
)
def test_what_cannot_be_read_is_named(name: str, content: bytes, fault: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=fault):
        texts_of(tmp_path / name, content)


def test_a_glob_stands_for_its_files_in_order_unless_it_is_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the home folder, which is found without a shell."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("b.jsonl", "a.jsonl", "c.json.gz", "part[1].json"):
        (tmp_path / name).write_bytes(b'{"text": "x"}\n')
    found = open_sources(["~/*.jsonl", "~/c.json.gz", "~/part[1].json"], c4_split="train")
    assert [source.files for source in found] == [
        (tmp_path / name,) for name in ("a.jsonl", "b.jsonl", "c.json.gz", "part[1].json")
    ]
    assert list(found[-1].read()) == list(found[-1].read()) == [{"text": "x"}]
    assert folder_path("~/new") == tmp_path / "new" and file_path("~/a.jsonl") == tmp_path / "a.jsonl"
    assert folder_path("~nobody at all") == Path("~nobody at all")
    with pytest.raises(InputError, match=r"no such/\*\.jsonl: No such file; a --source is c4"):
        open_sources(["no such/*.jsonl"], c4_split="train")


def test_parquet_rows_under_a_name_that_looks_like_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "part[0]*.parquet"
    times = pa.array([2**62, 0], pa.timestamp("us"))  # no Python datetime is as late
    pq.write_table(pa.table({"text": ["a", None], "url": ["b", "c"], "when": times}), path)
    (source,) = open_sources([str(path)], c4_split="train")
    assert list(source.read()) == [{"text": "a", "url": "b"}, {"text": None, "url": "c"}]
    with pytest.raises(InputError, match=r"record 2 cannot be read \(no 'text'"):
        list(source.documents())


def test_c4_is_streamed_at_one_commit() -> None:
    names = [source.name for source in open_sources(["c4"], c4_split="train")]  # asks nobody
    assert (len(names), names[1023]) == (1024, f"c4@{C4_REVISION[:8]} en/c4-train.01023-of-01024.json.gz")
    with patch("datasets.load_dataset", return_value=[{"text": "a", "url": "u", "timestamp": "t"}]) as asked:
        assert [record["text"] for record in stream_c4("en/x.json.gz")] == ["a"]
    asked.assert_called_once_with(
        "allenai/c4", data_files=["en/x.json.gz"], split="train", streaming=True, revision=C4_REVISION
    )


@pytest.mark.slow
def test_the_corpus_is_real_text_of_known_size() -> None:
    texts = [record["text"] for record in embedded_records()]
    assert len(texts) == len(set(texts)) == 11_360
    assert sum(len(text.split()) for text in texts) == 1_215_990
    assert texts[0].startswith("Persian language -- Persian")
    assert not any("\nQuestion:" in text for text in texts)


def test_near_copies_are_those_that_share_over_half_of_their_13_word_runs() -> None:
    """A text of 40 words has 28 runs, of which 15 lie within its first 27 words, and 14 within 26."""
    words = [f"w{number}" for number in range(200)]
    first, copied, half, like_copied = (
        " ".join(part)
        for part in (
            words[:40],
            [word.upper() for word in words[:27]] + words[100:113],
            words[:26] + words[120:134],
            words[20:27] + words[100:113] + words[140:160],  # its runs are the copy's, which is left out
        )
    )
    passages = [first, copied, half, like_copied, "short", "Short!"]
    assert [*distinct_passages(passages)] == [first, half, like_copied, "short"]


def test_a_text_in_another_field(tmp_path: Path) -> None:
    pq.write_table(pa.table({"content": ["a"], "id": [1]}), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_bytes(b'{"content": "b", "url": "u", "text": "c"}')
    (tmp_path / "c.txt").write_bytes(b"d")
    names = [str(tmp_path / name) for name in ("a.parquet", "b.jsonl", "c.txt")]
    documents = read_documents(open_sources(names, c4_split="train", text_field="content"))
    assert [(one.text, one.url) for one in documents] == [("a", None), ("b", "u"), ("d", None)]
    for name, lacking, fields in (
        ("a.parquet", None, "content, id"),
        ("b.jsonl", "body", "content, url, text"),
        ("a.parquet", "id", "id"),
    ):
        (source,) = open_sources([str(tmp_path / name)], c4_split="train", text_field=lacking)
        with pytest.raises(InputError, match=rf"no '{lacking or 'text'}' .*: --text-field .* of {fields}\)"):
            list(source.documents())


@pytest.mark.parametrize(
    ("name", "read"),
    [(EVALUATION_FILE, TokenizedData.evaluation_documents), ("tokenizer.json", TokenizedData.tokenizer)],
)
def test_documents_and_a_tokenizer_of_another_content_are_refused(
    name: str, read: Callable[[TokenizedData], object], tmp_path: Path
) -> None:
    data = TokenizedData.open(write_data(tmp_path, train_token_ids=[[1, 2, 0], [3, 0]]))
    flip(tmp_path / name)
    with pytest.raises(InputError, match=f"{name} has not the SHA-256 of its manifest"):
        read(data)


def test_no_document_is_its_own_null_or_swap() -> None:
    """Four documents of 4 to 9 tokens in chunks of 4: each with the next three, in turn, and no fewer."""
    documents = [EvaluationDocument(f"{size:016x}", np.arange(size) + 10 * size) for size in (9, 4, 3, 8, 5)]
    data = SimpleNamespace(evaluation_documents=lambda: documents, folder="here")
    usable = long_enough_documents(data, 4, None, 3)
    assert [len(document.token_ids) for document in usable] == [9, 4, 8, 5]
    for most, num_others in ((None, 4), (3, 3), (1, 1), (2, 3)):
        with pytest.raises(InputError, match=f"{num_others + 1} are needed"):
            long_enough_documents(data, 4, most, num_others)
    assert [
        (chunk.start, chunk.token_ids_L.tolist(), chunk.other_token_ids_NL[:, 0].tolist())
        for chunk in chunks_of(usable, 2, 4, None, 3)
    ] == [(0, [80, 81, 82, 83], [50, 90, 40]), (4, [84, 85, 86, 87], [50, 94, 40])]
    assert len([*chunks_of(usable, 0, 4, 1)]) == 1

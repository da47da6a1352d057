"""Reading what tokenize_c4 left, and refusing what is not whole."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.cli import InputError
from pipeline.text.folder import (
    EVALUATION_FILE,
    EvaluationDocument,
    TokenizedData,
    changed_settings,
    read_evaluation_documents,
    write_evaluation_documents,
)
from pipeline.training.data import refuse_damaged_tokens


def make_folder(folder: Path) -> Path:
    """Two parts, 1 2 0 and 3 0, and two evaluation documents."""
    (folder / "train").mkdir(parents=True)
    np.array([1, 2, 0], dtype="<u2").tofile(folder / "train/part-00000.npy")
    np.array([3, 0], dtype="<u2").tofile(folder / "train/part-00001.npy")
    documents = [
        EvaluationDocument("bb", np.array([3, 2], dtype=np.int32)),
        EvaluationDocument("aa", np.array([1], dtype=np.int32), "https://a.org"),
    ]
    write_evaluation_documents(folder / EVALUATION_FILE, documents)
    names = ["train/part-00000.npy", "train/part-00001.npy", EVALUATION_FILE]
    contents = {name: (folder / name).read_bytes() for name in names}
    manifest = {
        "stage": "tokenize_c4",
        "token_dtype": "uint16",
        "vocabulary_size": 4,
        "eos_token_id": 0,
        "counts": {"train_tokens": 5},
        "files": {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in contents.items()
        },
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_the_folder_says_all_that_stages_need(tmp_path: Path) -> None:
    data = TokenizedData.open(make_folder(tmp_path / "data"))
    assert [path.name for path in data.train_paths] == ["part-00000.npy", "part-00001.npy"]
    assert (data.token_dtype, data.vocabulary_size, data.eos_token_id) == (np.uint16, 4, 0)
    assert data.num_train_tokens == 5
    tokens = np.concatenate([np.memmap(path, dtype=data.token_dtype, mode="r") for path in data.train_paths])
    assert tokens.tolist() == [1, 2, 0, 3, 0]


def test_evaluation_documents_come_in_order_of_their_ids(tmp_path: Path) -> None:
    documents = TokenizedData.open(make_folder(tmp_path)).evaluation_documents()
    assert [(d.document_id, d.token_ids.tolist(), d.url) for d in documents] == [
        ("aa", [1], "https://a.org"),
        ("bb", [3, 2], None),
    ]
    assert all(d.token_ids.dtype == np.int32 and d.token_ids.flags.writeable for d in documents)


def test_urls_may_all_be_absent(tmp_path: Path) -> None:
    write_evaluation_documents(
        tmp_path / "a.parquet", [EvaluationDocument("aa", np.array([1], dtype=np.int32))]
    )
    assert read_evaluation_documents(tmp_path / "a.parquet")[0].url is None


def test_fingerprints_follow_the_contents(tmp_path: Path) -> None:
    data = TokenizedData.open(make_folder(tmp_path / "one"))
    same = TokenizedData.open(make_folder(tmp_path / "two"))
    assert (data.train_sha256, data.evaluation_sha256) == (same.train_sha256, same.evaluation_sha256)
    manifest_path = tmp_path / "two" / "manifest.json"
    manifest = json.loads(manifest_path.read_text())
    manifest["files"]["train/part-00001.npy"]["sha256"] = "0" * 64
    manifest_path.write_text(json.dumps(manifest))
    assert TokenizedData.open(tmp_path / "two").train_sha256 != data.train_sha256


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(
        InputError, match=rf"^no tokenized data in {tmp_path}; run pipeline/tokenize_c4.py --out"
    ):
        TokenizedData.open(tmp_path)


def test_a_manifest_of_another_program_is_refused(tmp_path: Path) -> None:
    for content in (b"{}", b"[]", b"not json", b"", b"\xff\xfe", b"[" * 100_000):
        (tmp_path / "manifest.json").write_bytes(content)
        with pytest.raises(InputError, match="is not a manifest that tokenize_c4 or .* or plant_signs wrote"):
            TokenizedData.open(tmp_path)


def test_a_shortened_or_missing_file_is_refused(tmp_path: Path) -> None:
    part = make_folder(tmp_path) / "train/part-00001.npy"
    part.write_bytes(b"\x03\x00")
    with pytest.raises(InputError, match=r"part-00001\.npy has 2 bytes, not 4"):
        TokenizedData.open(tmp_path)
    part.unlink()
    with pytest.raises(InputError, match=r"part-00001\.npy is missing"):
        TokenizedData.open(tmp_path)


def flip(path: Path) -> None:
    """Another byte, so that the size stays."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_training_files_are_read_by_their_content_each_by_one_rank(tmp_path: Path) -> None:
    data = TokenizedData.open(make_folder(tmp_path))
    refuse_damaged_tokens(data)
    flip(tmp_path / "train/part-00001.npy")
    assert TokenizedData.open(tmp_path) == data  # by size
    refuse_damaged_tokens(data, rank=0, num_ranks=2)
    for rank, num_ranks in ((0, 1), (1, 2)):
        with pytest.raises(
            InputError, match=r"part-00001.npy has not the SHA-256 .* run pipeline/tokenize_c4"
        ):
            refuse_damaged_tokens(data, rank, num_ranks)
    flip(tmp_path / "train/part-00000.npy")
    with pytest.raises(InputError, match=r"part-00000.npy has not the SHA-256 .* \(and 1 more files\)"):
        refuse_damaged_tokens(data)


def test_a_tokenizer_of_another_content_is_refused(tmp_path: Path) -> None:
    (make_folder(tmp_path) / "tokenizer.json").write_text("{}")
    files = json.loads((tmp_path / "manifest.json").read_text())["files"]
    described = {"bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    change_manifest(tmp_path, files={**files, "tokenizer.json": described})
    TokenizedData.open(tmp_path)
    flip(tmp_path / "tokenizer.json")
    with pytest.raises(InputError, match="tokenizer.json has not the SHA-256 of its manifest"):
        TokenizedData.open(tmp_path)


def test_each_change_is_named() -> None:
    def manifest(seed: int, *digests: str) -> dict[str, dict[str, object]]:
        source = [{"file": f"{digest}.jsonl", "sha256": digest} for digest in digests]
        return {"settings": {"seed": seed}, "inputs": {"source": source}}

    assert changed_settings(manifest(0, "x", "y"), manifest(0, "x", "y")) == []
    assert changed_settings(manifest(0, "x"), manifest(1, "x")) == ["seed was 0, now 1"]
    assert changed_settings(manifest(0, "x"), manifest(0, "y", "z")) == [
        "source y.jsonl and 1 more is new or has changed"
    ]
    assert changed_settings(manifest(0, "x", "y"), manifest(0, "y")) == [
        "source has fewer files, or another order of them"
    ]


def test_a_vocabulary_that_is_too_small_for_the_documents_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path)
    change_manifest(tmp_path, vocabulary_size=3)
    data = TokenizedData.open(tmp_path)
    with pytest.raises(InputError, match="has the token 3 in document bb, and its manifest a"):
        data.evaluation_documents()


def change_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"schema_version": 99}, "schema_version is 99, and this program reads up to"),
        ({"schema_version": "one"}, "schema_version is 'one', not a whole number"),
        ({"token_dtype": "float32"}, "token_dtype is 'float32', neither of uint16 and uint32"),
        ({"token_dtype": None}, "token_dtype is None"),
        ({"vocabulary_size": "many"}, "vocabulary_size is 'many', not a whole number of at least 1"),
        ({"vocabulary_size": 0}, "vocabulary_size is 0"),
        ({"vocabulary_size": True}, "vocabulary_size is True"),
        ({"eos_token_id": 4}, "eos_token_id is 4, not a token of 4"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
        ({"counts": 5}, "counts is 5"),
        ({"counts": {"train_tokens": "five"}}, "train_tokens is 'five', not a whole number"),
        ({"counts": {"train_tokens": 5, "empty": -1}}, "empty is -1"),
        ({"counts": {"train_tokens": 6}}, "have 10 bytes, and its train_tokens take 12"),
        ({"files": []}, r"files is \[\]"),
        ({"files": {"../x.npy": {"bytes": 1, "sha256": "0" * 64}}}, "is no file of this folder"),
        ({"files": {"/x.npy": {"bytes": 1, "sha256": "0" * 64}}}, "is no file of this folder"),
        ({"files": {"a.npy": {"bytes": "ten", "sha256": "0" * 64}}}, "a.npy has no size"),
        ({"files": {"a.npy": {"bytes": 10, "sha256": "short"}}}, "a.npy has no SHA-256"),
        ({"settings": 3}, "settings is 3"),
    ],
)
def test_a_damaged_manifest_is_refused_by_what_is_wrong(
    tmp_path: Path, changes: dict[str, object], fault: str
) -> None:
    make_folder(tmp_path)
    change_manifest(tmp_path, **changes)
    with pytest.raises(InputError, match=rf"manifest\.json is damaged or of a newer version: .*{fault}"):
        TokenizedData.open(tmp_path)


def test_a_manifest_without_evaluation_documents_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path)
    change_manifest(tmp_path, files={}, counts={"train_tokens": 0})
    with pytest.raises(InputError, match="names no evaluation_documents"):
        TokenizedData.open(tmp_path)

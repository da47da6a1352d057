"""The stage tokenize_c4: its files, its split, its refusals, and running it again."""

import errno
import gzip
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from pipeline import tokenize_c4
from pipeline.cli import InputError
from pipeline.results.files import read_parquet
from pipeline.results.schemas import SCHEMAS
from pipeline.text import folder as manifest
from pipeline.text import sources
from pipeline.text.encode import PackedShardWriter
from pipeline.text.folder import TokenizedData
from pipeline.text.sources import Document
from pipeline.text.split import is_evaluation_document

STAGE = Path(tokenize_c4.__file__)
WORDS = ["<|endoftext|>", "<unk>", *"abcdefgh"]  # so a is 2, b is 3, …


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with train.jsonl, evaluation.jsonl and words.json, a tokenizer of single letters."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "words.json"))
    write_lines(tmp_path / "train.jsonl", ["a b", "c", "d e f", "", "c", "g"])
    write_lines(tmp_path / "evaluation.jsonl", ["h h", "c", "a a a", "h h"])
    return tmp_path


def write_lines(path: Path, texts: list[str]) -> None:
    lines = "".join(
        json.dumps({"text": text, "url": f"https://{i}.org"}) + "\n" for i, text in enumerate(texts)
    )
    path.write_text(lines, encoding="utf-8")


def tokenize(folder: Path, *flags: str, out: str = "data", evaluation: bool = True) -> TokenizedData:
    """Run the stage in this process, on the files of `folder`."""
    command = ["--out", f"{folder}/{out}"]
    if "--source" not in flags:
        command += ["--source", f"{folder}/train.jsonl"]
    if evaluation and "--evaluation-source" not in flags:
        command += ["--evaluation-source", f"{folder}/evaluation.jsonl"]
    if "--tokenizer" not in flags:
        command += ["--tokenizer", f"{folder}/words.json"]
    tokenize_c4.main(tokenize_c4.parser().parse_args([*command, *flags]))
    return TokenizedData.open(folder / out)


def training_tokens(data: TokenizedData) -> list[list[int]]:
    return [np.fromfile(path, dtype=data.token_dtype).tolist() for path in data.train_paths]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_integer_of_a_small_corpus(folder: Path) -> None:
    data = tokenize(folder)
    # "c" evaluates and so does not train; the empty document is skipped
    assert training_tokens(data) == [[2, 3, 0, 5, 6, 7, 0, 8, 0]]
    evaluation = {document.document_id: document for document in data.evaluation_documents()}
    assert list(evaluation) == sorted(evaluation)
    expected = {"h h": [9, 9], "c": [4], "a a a": [2, 2, 2]}
    for number, (text, token_ids) in enumerate(expected.items()):
        document = evaluation.pop(Document.from_record({"text": text}).document_id)
        assert (document.token_ids.tolist(), document.url) == (token_ids, f"https://{number}.org")
    assert not evaluation
    assert (data.num_train_tokens, data.vocabulary_size, data.eos_token_id) == (9, 10, 0)
    assert Tokenizer.from_file(str(folder / "data/tokenizer.json")).token_to_id("a") == 2


def test_the_manifest_counts_everything(folder: Path) -> None:
    tokenize(folder)
    written = json.loads((folder / "data/manifest.json").read_text())
    assert written["counts"] == {
        "train_documents": 3, "train_tokens": 9, "evaluation_documents": 3, "evaluation_tokens": 6,
        "duplicate": 2, "empty": 1, "malformed": 0, "in_evaluation_source": 1,
        "beyond_max_evaluation_documents": 0,
    }  # fmt: skip
    assert [entry["file"] for entry in written["inputs"]["source"]] == ["train.jsonl"]
    assert set(written["files"]) == set(contents(folder / "data")) - {"manifest.json"}


def test_evaluation_documents_have_the_published_schema(folder: Path) -> None:
    tokenize(folder)
    schema = SCHEMAS["evaluation_documents"]
    table = read_parquet(folder / "data/evaluation_documents/00000-of-00001.parquet", schema.names)
    assert table.schema.equals(schema)
    assert sorted(table["num_tokens"].to_pylist()) == [1, 2, 3]


def test_a_split_by_content_leaves_no_text_in_both_parts(folder: Path) -> None:
    texts = [" ".join(WORDS[2 + int(digit)] for digit in f"{number:03o}") for number in range(200)]
    write_lines(folder / "train.jsonl", texts)
    data = tokenize(folder, "--evaluation-fraction", "0.3", "--seed", "5", evaluation=False)
    evaluation = {tuple(document.token_ids.tolist()) for document in data.evaluation_documents()}
    tokens = np.array(training_tokens(data)[0]).reshape(-1, 4)
    training = {tuple(row) for row in tokens[:, :3].tolist()}
    assert len(training) + len(evaluation) == len(training | evaluation) == 200
    expected = sum(
        is_evaluation_document(Document.from_record({"text": t}).document_id, 0.3, 5) for t in texts
    )
    assert len(evaluation) == expected


def test_limits(folder: Path) -> None:
    assert training_tokens(tokenize(folder, "--max-documents", "1", out="a")) == [[2, 3, 0]]
    # 7 tokens are "a b" and "d e f" with their EOS; 6 would divide the second
    assert training_tokens(tokenize(folder, "--max-tokens", "7", out="b")) == [[2, 3, 0, 5, 6, 7, 0]]
    assert training_tokens(tokenize(folder, "--max-tokens", "6", out="c")) == [[2, 3, 0]]
    data = tokenize(folder, "--max-evaluation-documents", "1", out="d")
    assert [document.token_ids.tolist() for document in data.evaluation_documents()] == [[9, 9]]


def test_several_parts(folder: Path) -> None:
    assert training_tokens(tokenize(folder, "--tokens-per-part", "4")) == [[2, 3, 0, 5, 6, 7, 0], [8, 0]]


def test_eos_written_in_a_text_does_not_end_the_document(folder: Path) -> None:
    write_lines(folder / "train.jsonl", ["say <|endoftext|> here"])
    (tokens,) = training_tokens(tokenize(folder, "--tokenizer", "olmo"))
    assert tokens.count(50_279) == 1
    assert tokens[-1] == 50_279


def test_bpe_is_trained_on_the_training_part_only(folder: Path) -> None:
    write_lines(folder / "train.jsonl", ["abab abab", "zqzq zqzq"])
    write_lines(folder / "evaluation.jsonl", ["zqzq zqzq"])
    tokenize(folder, "--tokenizer", "bpe:300")
    tokenizer = Tokenizer.from_file(str(folder / "data/tokenizer.json"))
    assert len(tokenizer.encode("abab").ids) == 1
    assert len(tokenizer.encode("zqzq").ids) == 4


def test_gz_parquet_and_glob_give_the_same_tokens(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = (folder / "train.jsonl").read_bytes()
    with gzip.open(folder / "shard-0.json.gz", "wb") as file:
        file.write(lines)
    pq.write_table(
        pa.Table.from_pylist([json.loads(line) for line in lines.splitlines()]), folder / "t.parquet"
    )
    expected = training_tokens(tokenize(folder))
    assert training_tokens(tokenize(folder, "--source", f"{folder}/shard-*.json.gz", out="gz")) == expected
    assert training_tokens(tokenize(folder, "--source", f"{folder}/t.parquet", out="parquet")) == expected


def test_c4_evaluates_on_its_own_validation_split(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"train-0": ["a", "b", "c"], "train-1": ["d"], "validation-0": ["b", "e", "f"]}

    def stream(name: str) -> Iterator[dict[str, str]]:
        yield from ({"text": text} for text in files[name])

    monkeypatch.setattr(
        sources, "C4_FILES", {"train": ["train-0", "train-1"], "validation": ["validation-0"]}
    )
    monkeypatch.setattr(sources, "stream_c4", stream)
    monkeypatch.setattr(manifest, "c4_revision", lambda: "c0ffee")
    flags = ("--source", "c4", "--max-documents", "3", "--max-evaluation-documents", "2")
    data = tokenize(folder, *flags, evaluation=False)
    assert training_tokens(data) == [[2, 0, 4, 0, 5, 0]]
    assert {tuple(document.token_ids.tolist()) for document in data.evaluation_documents()} == {(3,), (6,)}
    written = json.loads((folder / "data/manifest.json").read_text())
    assert written["c4_revision"] == "c0ffee"
    assert [entry["file"] for entry in written["inputs"]["source"]] == ["c4 train-0", "c4 train-1"]


def test_complete_data_is_left_alone(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenize(folder)
    before = {path: path.stat().st_mtime_ns for path in (folder / "data").rglob("*")}
    caplog.set_level("INFO", logger="pipeline")
    (folder / "moved").mkdir()
    (folder / "train.jsonl").rename(folder / "moved/train.jsonl")
    tokenize(folder, "--source", f"{folder}/moved/train.jsonl")
    assert "is complete, nothing to do" in caplog.text
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "data").rglob("*")}


def test_another_configuration_is_refused_by_name(folder: Path) -> None:
    tokenize(folder)
    with pytest.raises(InputError, match=r"holds data made otherwise: max_tokens was None, now 7; choose"):
        tokenize(folder, "--max-tokens", "7")
    write_lines(folder / "train.jsonl", ["a b", "something else"])
    with pytest.raises(InputError, match=r"source train\.jsonl is new or has changed"):
        tokenize(folder)


def test_an_interrupted_run_ends_with_the_same_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize(folder, "--tokens-per-part", "3", out="whole")
    add = PackedShardWriter.add

    def interrupt_third_document(writer: PackedShardWriter, token_ids: np.ndarray) -> None:
        if len(writer.paths) == 2:
            raise KeyboardInterrupt
        add(writer, token_ids)

    with monkeypatch.context() as patch:
        patch.setattr(PackedShardWriter, "add", interrupt_third_document)
        with pytest.raises(KeyboardInterrupt):
            tokenize(folder, "--tokens-per-part", "3", out="interrupted")
    parts = {"train/part-00000.npy", "train/part-00001.npy"}
    assert set(contents(folder / "interrupted")) == parts | {"unfinished.json", "tokenizer.json"}
    # what a kill, rather than an interrupt, may leave besides
    (folder / "interrupted/train/part-00007.npy").write_bytes(b"of a longer run")
    (folder / "interrupted/train/.part-00001.npy.part").write_bytes(b"half")
    with pytest.raises(InputError, match="no tokenized data"):
        TokenizedData.open(folder / "interrupted")
    tokenize(folder, "--tokens-per-part", "3", out="interrupted")
    assert contents(folder / "interrupted") == contents(folder / "whole")


def test_a_full_disk_leaves_no_half_part_and_the_run_can_be_repeated(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenize(folder, out="whole")
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(full))
        with pytest.raises(OSError, match="No space left"):
            tokenize(folder)
    assert not contents(folder / "data")
    tokenize(folder)
    assert contents(folder / "data") == contents(folder / "whole")


@pytest.mark.parametrize(
    ("lines", "flags", "fault"),
    [
        ('{"text": "a"}\n{"text": \n', [], r"train\.jsonl, line 2 is not valid JSON"),
        ('{"text": "a"}\n{"txt": "b"}\n', ["--tokens-per-part", "1"], r"train\.jsonl, line 2 has no 'text'"),
        ('{"text": "a"}\n{"text": "\udce9"}\n', [], r"train\.jsonl, line 2 is not UTF-8"),
        ("", [], r"no training documents in .*train\.jsonl \(left out: 0 empty"),
        ('{"text": "c"}\n', [], r"no training documents .*1 that evaluate"),
        ('{"text": "a a a b"}\n', ["--max-tokens", "4"], r"no training documents .*--max-tokens 4"),
    ],
)
def test_bad_documents_leave_nothing_behind(folder: Path, lines: str, flags: list[str], fault: str) -> None:
    (folder / "train.jsonl").write_text(lines, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(InputError, match=fault):
        tokenize(folder, *flags)
    assert not contents(folder / "data")


def test_malformed_records_are_counted_where_the_user_allows_it(folder: Path) -> None:
    (folder / "train.jsonl").write_text('{"text": "a"}\n{"text": \n{"text": "b"}\n')
    assert training_tokens(tokenize(folder, "--skip-malformed")) == [[2, 0, 3, 0]]
    assert json.loads((folder / "data/manifest.json").read_text())["counts"]["malformed"] == 1


def test_no_evaluation_documents(folder: Path) -> None:
    with pytest.raises(InputError, match="no evaluation documents: none of .*--evaluation-fraction 0.0"):
        tokenize(folder, "--evaluation-fraction", "0", evaluation=False)
    (folder / "evaluation.jsonl").write_text("\n")
    with pytest.raises(InputError, match=r"no evaluation documents: .*evaluation\.jsonl holds no text"):
        tokenize(folder)


def test_a_run_without_a_source_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="say what to tokenize with --source"):
        tokenize_c4.main(tokenize_c4.parser().parse_args(["--out", f"{folder}/data"]))


def test_the_evaluation_fraction_has_two_names() -> None:
    flags = ["--out", "o", "--validation-fraction", "0.25"]
    assert tokenize_c4.parser().parse_args(flags).evaluation_fraction == 0.25


def test_c4_without_a_limit_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="--max-tokens or --max-documents"):
        tokenize(folder, "--source", "c4")


def run_stage(
    *flags: str, folder: Path, command: tuple[str, ...] = (str(STAGE),), offline: str = "1"
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HF_HUB_OFFLINE": offline}
    environment.pop("PYTHONPATH", None)
    return subprocess.run(
        [sys.executable, *command, *flags],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_from_any_folder(folder: Path) -> None:
    flags = ["--out", "data", "--source", "train.jsonl", "--evaluation-source", "evaluation.jsonl"]
    flags += ["--tokenizer", "words.json"]
    first = run_stage(*flags, folder=folder)
    assert first.returncode == 0, first.stderr
    assert training_tokens(TokenizedData.open(folder / "data")) == [[2, 3, 0, 5, 6, 7, 0, 8, 0]]
    again = run_stage(*flags, folder=folder)
    assert (again.returncode, "complete, nothing to do" in again.stderr) == (0, True)
    other = run_stage(*flags, "--max-documents", "1", folder=folder)
    assert (other.returncode, other.stderr.count("\n")) == (2, 1)
    assert "max_documents was None, now 1" in other.stderr


def test_c4_offline_is_one_sentence_at_once(folder: Path) -> None:
    result = run_stage("--out", "data", "--source", "c4", "--max-tokens", "1000", folder=folder)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "cannot reach allenai/c4" in result.stderr
    assert "--source embedded" in result.stderr
    assert not (folder / "data").exists()


def test_a_hub_that_never_answers_is_one_sentence_within_seconds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()
        result = run_stage("--out", "data", "--source", "c4", "--max-tokens", "9", folder=folder, offline="0")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "cannot reach allenai/c4" in result.stderr
    assert time.monotonic() - started < 40  # ten, on a machine that does nothing else
    assert not (folder / "data").exists()


def test_help_as_a_module() -> None:
    result = run_stage("--help", folder=STAGE.parent.parent, command=("-m", "pipeline.tokenize_c4"))
    assert result.returncode == 0
    assert "--source embedded --tokenizer bpe:4096" in result.stdout

"""tokenize_c4 interrupted and gone on with, its data damaged and made whole, its folder already taken."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from pipeline import tokenize_c4
from pipeline.cli import InputError
from pipeline.results.files import FolderLock
from pipeline.text import encode as encoding
from pipeline.text import sources as documents
from pipeline.text.encode import PackedShardWriter
from pipeline.text.folder import TokenizedData
from pipeline.text.tokenizer import DocumentTokenizer

WORDS = ["<|endoftext|>", "<unk>", *"abcdefghij"]  # EOS as a text has no tokens


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of 120 numbers in letters, some twice, some blank, some without tokens, read five at a time."""
    monkeypatch.setattr(documents, "_RECORDS_PER_BATCH", 5)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "words.json"))
    for name, numbers in {"a": range(50), "b": range(40, 120)}.items():
        texts = [text for n in numbers for text in (text_of(n), *([" "] if n % 11 == 0 else []))]
        texts[7:7] = [text_of(3), "<|endoftext|>" + " <|endoftext|>" * len(numbers)]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    return tmp_path


def text_of(number: int) -> str:
    return " ".join("abcdefghij"[int(digit)] for digit in f"{number:03d}" * (1 + number % 3))


FLAGS = ("--evaluation-fraction", "0.3", "--tokens-per-part", "60")


def tokenize(
    folder: Path, *flags: str, out: str = "data", files: Sequence[str] = ("a", "b")
) -> TokenizedData:
    source = [str(folder / f"{name}.jsonl") for name in files]
    tokenizer = [] if "--tokenizer" in flags else ["--tokenizer", str(folder / "words.json")]
    words = ["--out", str(folder / out), "--source", *source, *tokenizer, *FLAGS, *flags]
    tokenize_c4.main(tokenize_c4.parser().parse_args(words))
    return TokenizedData.open(folder / out)


def run(folder: Path, *flags: str) -> None:
    """`tokenize` of a task, which is read only once it is merged."""
    try:
        tokenize(folder, *flags)
    except InputError as error:
        assert "its tasks are not merged" in str(error)  # noqa: PT017


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def interrupt_at_document(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """As Ctrl-C would, once so many documents of this run have been written."""
    add, num_left = PackedShardWriter.add, [number]

    def add_or_stop(writer: PackedShardWriter, token_ids: np.ndarray) -> None:
        if not num_left[0]:
            raise KeyboardInterrupt
        num_left[0] -= 1
        add(writer, token_ids)

    monkeypatch.setattr(PackedShardWriter, "add", add_or_stop)


@pytest.mark.parametrize("flags", [(), ("--max-documents", "60"), ("--max-tokens", "500")])
def test_interrupted_again_and_again_the_bytes_are_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    whole = tokenize(folder, *flags, out="whole")
    assert len(whole.train_paths) > 4
    num_runs = 0
    while not (folder / "data/manifest.json").exists():
        num_runs += 1
        assert num_runs < 30
        with monkeypatch.context() as patch:
            interrupt_at_document(patch, 17)
            try:
                tokenize(folder, *flags)
            except KeyboardInterrupt:
                continue
    assert num_runs > 3
    assert contents(folder / "data") == contents(folder / "whole")


def test_another_number_of_workers_goes_on_to_the_same_bytes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenize(folder, out="whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at_document(patch, 40)
        tokenize(folder)
    tokenize(folder, "--num-workers", "2")
    assert contents(folder / "data") == contents(folder / "whole")


def test_what_was_written_is_not_encoded_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at_document(patch, 60)
        tokenize(folder)
    encoded: list[str] = []
    encode = DocumentTokenizer.encode

    def note(tokenizer: DocumentTokenizer, texts: Sequence[str], advance: Callable[[int], object]) -> object:
        encoded.extend(filter(None, texts))
        return encode(tokenizer, texts, advance)

    monkeypatch.setattr(DocumentTokenizer, "encode", note)
    data = tokenize(folder)
    num_evaluation = len(data.evaluation_documents())
    assert num_evaluation < len(encoded) < num_evaluation + 60


def test_a_bpe_is_trained_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize(folder, "--tokenizer", "bpe:260", out="whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at_document(patch, 30)
        tokenize(folder, "--tokenizer", "bpe:260")
    monkeypatch.delattr(tokenize_c4, "train_bpe_apart")
    tokenize(folder, "--tokenizer", "bpe:260")
    assert contents(folder / "data") == contents(folder / "whole")


def test_a_lost_worker_leaves_what_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: object) -> None:
        raise encoding.UnfinishedError("a worker process was ended")

    with monkeypatch.context() as patch:
        add, num_left = PackedShardWriter.add, iter(range(30))
        patch.setattr(
            PackedShardWriter, "add", lambda writer, ids: add(writer, ids) if next(num_left) < 29 else lose()
        )
        with pytest.raises(InputError):
            tokenize(folder)
    assert list((folder / "data/train").glob("part-*"))


def test_unfinished_data_of_other_settings_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at_document(patch, 40)
        tokenize(folder)
    before = contents(folder / "data")
    with pytest.raises(InputError, match="holds unfinished data made otherwise: max_tokens was None, now"):
        tokenize(folder, "--max-tokens", "90")
    assert contents(folder / "data") == before


@pytest.mark.parametrize("garbage", ["", "{}", "[1]", '{"written": {"files": 3}}'])
def test_damaged_unfinished_data_starts_at_the_beginning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, garbage: str
) -> None:
    tokenize(folder, out="whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at_document(patch, 40)
        tokenize(folder)
    (folder / "data/unfinished.json").write_text(garbage)
    tokenize(folder)
    assert contents(folder / "data") == contents(folder / "whole")


def test_a_damaged_part_of_unfinished_data_starts_at_the_beginning(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenize(folder, out="whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at_document(patch, 40)
        tokenize(folder)
    flip_a_bit(folder / "data/train/part-00000.npy")
    tokenize(folder)
    assert contents(folder / "data") == contents(folder / "whole")


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_two_runs_on_one_folder_the_second_is_refused(folder: Path) -> None:
    with FolderLock(folder / "data", "--out"), pytest.raises(InputError, match="is in use by process"):
        tokenize(folder)
    # The tasks of one array share the folder, a task only one of them.
    with FolderLock(folder / "data", "--out", "00000-of-00002"):
        run(folder, "--task-index", "1", "--num-tasks", "2")
        with pytest.raises(InputError, match="is in use by process"):
            tokenize(folder, "--task-index", "0", "--num-tasks", "2")


def test_two_texts_as_shards_of_one_folder_are_refused_while_the_first_is_unfinished(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = ("--num-tasks", "2", "--task-index")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at_document(patch, 5)
        tokenize(folder, *task, "0")
    with pytest.raises(InputError, match="holds data made otherwise: seed was 0, now 1"):
        tokenize(folder, *task, "1", "--seed", "1")


def test_the_folder_of_a_model_is_left_alone(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data/tokenizer.json").write_text("a model's")
    (folder / "data/config.json").write_text("{}")
    before = contents(folder / "data")
    for flags in ((), ("--tokenizer", "bpe:300")):
        with pytest.raises(InputError, match=r"tokenizer\.json that is not of tokenized data"):
            tokenize(folder, *flags)
        assert contents(folder / "data") == before


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"  ")


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (Path.unlink, "is missing"),
    (shorten, "it is cut off"),
    (lengthen, "it is another file"),
]


@pytest.mark.parametrize(("damage", "phrase"), DAMAGES)
@pytest.mark.parametrize(
    "name",
    ["train/part-00001.npy", "evaluation_documents/00000-of-00001.parquet", "train_token_counts.bin"],
)
def test_damaged_data_is_told_and_made_whole_by_running_again(
    folder: Path, caplog: pytest.LogCaptureFixture, name: str, damage: Callable[[Path], None], phrase: str
) -> None:
    tokenize(folder)
    before = contents(folder / "data")
    damage(folder / "data" / name)
    with pytest.raises(InputError, match=phrase):
        TokenizedData.open(folder / "data")
    tokenize(folder)
    assert f"{name} " in caplog.text and phrase in caplog.text
    assert contents(folder / "data") == before


@pytest.mark.parametrize("name", ["train/part-00001.npy", "evaluation_documents/00000-of-00001.parquet"])
def test_a_flipped_bit_is_found_by_verify(folder: Path, name: str) -> None:
    data = tokenize(folder)
    before = contents(folder / "data")
    flip_a_bit(folder / "data" / name)
    alone = tokenize_c4.parser().parse_args(["--out", str(folder / "data"), "--verify"])
    with pytest.raises(InputError, match=rf"{name} has not the SHA-256"):
        tokenize_c4.main(alone)
    if "evaluation" in name:  # whose SHA-256 stands in results
        with pytest.raises(InputError, match="has not the SHA-256"):
            data.evaluation_documents()
    tokenize(folder, "--verify")
    assert contents(folder / "data") == before
    tokenize_c4.main(alone)


def test_a_damaged_shard_is_named_by_the_merge_and_made_whole(folder: Path) -> None:
    task = ("--num-tasks", "2", "--task-index")
    merge = tokenize_c4.parser().parse_args(["--out", str(folder / "data"), "--merge", "--verify"])
    for index in ("0", "1"):
        run(folder, *task, index)
    tokenize_c4.main(merge)
    before = contents(folder / "data")
    flip_a_bit(folder / "data/tasks/00001-of-00002/train/part-00000.npy")
    with pytest.raises(InputError, match=r"00001-of-00002/train/part-00000\.npy has not the SHA-256"):
        tokenize_c4.main(merge)
    run(folder, *task, "1", "--verify")
    tokenize_c4.main(merge)
    assert contents(folder / "data") == before


@pytest.mark.parametrize("out", ["words.json", "words.json/data", "loop", "loop/data"])
def test_an_output_folder_that_cannot_be_is_refused(
    folder: Path, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "loop").symlink_to(folder / "loop")
    before = contents(folder)
    with pytest.raises(SystemExit, match="2"):
        tokenize(folder, out=out)
    assert f"error: argument --out: {folder / out} " in capsys.readouterr().err
    assert contents(folder) == before


def test_complete_data_is_read_where_nothing_can_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tokenize(folder)
    monkeypatch.setattr(tokenize_c4, "_is_writable", lambda folder: False)
    caplog.set_level("INFO", logger="pipeline")
    tokenize(folder)
    assert "nothing to do" in caplog.text
    with pytest.raises(InputError, match="cannot write into"):
        tokenize(folder, out="elsewhere")
    shutil.rmtree(folder / "data/train")
    with pytest.raises(InputError, match="cannot write into"):
        tokenize(folder)


def test_a_file_name_that_is_not_ascii(folder: Path) -> None:
    (folder / "a.jsonl").rename(folder / "naïve 你好.jsonl")
    (folder / "words.json").rename(folder / "wörter.json")
    data = tokenize(folder, "--tokenizer", str(folder / "wörter.json"), out="dätä", files=("naïve 你好", "b"))
    written = json.loads((data.folder / "manifest.json").read_text(encoding="utf-8"))
    assert [entry["file"] for entry in written["inputs"]["source"]] == ["naïve 你好.jsonl", "b.jsonl"]

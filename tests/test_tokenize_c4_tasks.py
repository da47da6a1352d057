"""tokenize_c4 at scale: worker processes, tasks and their merge, against one process and one piece."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from pipeline import tokenize_c4
from pipeline.cli import InputError
from pipeline.text import sources as documents
from pipeline.text.folder import TokenizedData

STAGE = Path(tokenize_c4.__file__)
LETTERS = ["<|endoftext|>", "<unk>", *"abcdefghij"]  # a number's digits: 0 is a, 1 is b, …
NUM_DOCUMENTS = 400  # in five files
SHARED = 8  # trains, under the seed below
WHOLE = (
    "--tokenizer",
    "words.json",
    "--evaluation-fraction",
    "0.2",
    "--seed",
    "1",
    "--tokens-per-part",
    "300",
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five files of the numbers 0 … 399 in letters, of different lengths, and a tokenizer of single letters.

    Each file repeats one of its own numbers; SHARED, of the first file, comes again at the end of the last.
    """
    folder = tmp_path_factory.mktemp("corpus")
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(LETTERS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "words.json"))
    for index, numbers in enumerate(np.split(np.arange(NUM_DOCUMENTS), [30, 100, 101, 250])):
        again = [numbers[0]] + ([SHARED] if index == 4 else [])
        lines = (json.dumps({"text": text_of(int(number))}) + "\n" for number in [*numbers, *again])
        (folder / f"file-{index}.jsonl").write_text("".join(lines))
    return folder


def text_of(number: int) -> str:
    return " ".join("abcdefghij"[int(digit)] for digit in f"{number:03d}" * (1 + number % 3))


def tokenize(corpus: Path, out: Path, *flags: str) -> None:
    command = ["--out", str(out), "--source", f"{corpus}/file-?.jsonl", *WHOLE, *flags]
    words = [f"{corpus}/words.json" if word == "words.json" else word for word in command]
    tokenize_c4.main(tokenize_c4.parser().parse_args(words))


def merge(out: Path) -> TokenizedData:
    tokenize_c4.main(tokenize_c4.parser().parse_args(["--out", str(out), "--merge"]))
    return TokenizedData.open(out)


def tokenize_in_tasks(corpus: Path, out: Path, num_tasks: int, *flags: str) -> TokenizedData:
    for index in reversed(range(num_tasks)):  # the order in which tasks run does not matter
        tokenize(corpus, out, "--task-index", str(index), "--num-tasks", str(num_tasks), *flags)
    return merge(out)


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def training_documents(data: TokenizedData) -> list[tuple[int, ...]]:
    """All documents that train, in order."""
    tokens = np.concatenate([np.fromfile(path, dtype=data.token_dtype) for path in data.train_paths])
    ends = np.flatnonzero(tokens == data.eos_token_id)
    return [tuple(document[:-1].tolist()) for document in np.split(tokens, ends + 1)[:-1]]


def evaluation_rows(data: TokenizedData) -> list[tuple[str, tuple[int, ...]]]:
    return [(row.document_id, tuple(row.token_ids.tolist())) for row in data.evaluation_documents()]


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> TokenizedData:
    """The corpus in one piece."""
    out = tmp_path_factory.mktemp("whole") / "data"
    tokenize(corpus, out)
    return TokenizedData.open(out)


def test_the_piece_to_compare_with_is_the_corpus(whole: TokenizedData) -> None:
    found = training_documents(whole) + [token_ids for _, token_ids in evaluation_rows(whole)]
    assert len(whole.train_paths) > 3
    assert Counter(found) == Counter(
        tuple(LETTERS.index(letter) for letter in text_of(number).split()) for number in range(NUM_DOCUMENTS)
    )


@pytest.mark.parametrize("num_workers", [2, 3])
def test_bytes_do_not_depend_on_the_number_of_workers(
    corpus: Path, whole: TokenizedData, tmp_path: Path, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        documents, "_RECORDS_PER_BATCH", 7
    )  # many batches, so that workers overtake each other
    tokenize(corpus, tmp_path / "data", "--num-workers", str(num_workers))
    assert digests(tmp_path / "data") == digests(whole.folder)


@pytest.mark.parametrize("num_tasks", [2, 3, 5])
def test_shards_together_are_the_corpus(
    corpus: Path, whole: TokenizedData, tmp_path: Path, num_tasks: int
) -> None:
    data = tokenize_in_tasks(corpus, tmp_path, num_tasks)
    assert evaluation_rows(data) == evaluation_rows(whole)
    documents_of_shards, documents_of_whole = training_documents(data), training_documents(whole)
    # Shards know nothing of each other: the text at the end of the last file is that of the first file again.
    shared = tuple(LETTERS.index(letter) for letter in text_of(SHARED).split())
    assert documents_of_shards.pop() == shared
    assert shared in documents_of_whole
    assert documents_of_shards == documents_of_whole
    written = json.loads((tmp_path / "manifest.json").read_text())
    assert (
        written["counts"]["train_tokens"]
        == data.num_train_tokens
        == sum(len(d) + 1 for d in training_documents(data))
    )
    assert [entry["file"] for entry in written["inputs"]["source"]] == [f"file-{i}.jsonl" for i in range(5)]
    named = {name: entry["sha256"] for name, entry in written["files"].items()}
    assert named == {name: digest for name, digest in digests(tmp_path).items() if name in named}
    assert len(named) == len(data.train_paths) + 3


def test_evaluation_documents_and_training_documents_share_none(corpus: Path, tmp_path: Path) -> None:
    data = tokenize_in_tasks(corpus, tmp_path, 5, "--max-evaluation-documents", "20")
    kept = {token_ids for _, token_ids in evaluation_rows(data)}
    assert len(kept) == 20
    assert not kept & set(training_documents(data))


def test_the_limit_on_evaluation_documents_does_not_depend_on_shards(corpus: Path, tmp_path: Path) -> None:
    flags = ("--max-evaluation-documents", "20")
    tokenize(corpus, tmp_path / "whole", *flags)
    whole = TokenizedData.open(tmp_path / "whole")
    data = tokenize_in_tasks(corpus, tmp_path / "tasks", 3, *flags)
    assert evaluation_rows(data) == evaluation_rows(whole)


def test_an_evaluation_source_is_left_out_by_every_shard(corpus: Path, tmp_path: Path) -> None:
    flags = ("--evaluation-source", f"{corpus}/file-3.jsonl")
    tokenize(corpus, tmp_path / "whole", *flags)
    whole = TokenizedData.open(tmp_path / "whole")
    data = tokenize_in_tasks(corpus, tmp_path / "tasks", 4, *flags)
    assert evaluation_rows(data) == evaluation_rows(whole)
    assert len(evaluation_rows(data)) == 149
    assert not {ids for _, ids in evaluation_rows(data)} & set(training_documents(data))


def test_limits_are_shared_by_the_shards(corpus: Path, tmp_path: Path) -> None:
    data = tokenize_in_tasks(corpus, tmp_path / "documents", 2, "--max-documents", "9")
    assert len(training_documents(data)) == 9
    data = tokenize_in_tasks(corpus, tmp_path / "tokens", 2, "--max-tokens", "101")
    assert 101 - 2 * 10 < data.num_train_tokens <= 101


def test_a_finished_shard_is_skipped_and_a_merge_done_once(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenize_in_tasks(corpus, tmp_path, 2)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    caplog.set_level("INFO", logger="pipeline")
    tokenize_in_tasks(corpus, tmp_path, 2)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert caplog.text.count("is complete, nothing to do") == 3


def test_missing_shards_are_listed(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no tasks in .*--num-tasks first"):
        merge(tmp_path)
    tokenize(corpus, tmp_path, "--task-index", "1", "--num-tasks", "5")
    with pytest.raises(InputError, match=r"misses 4 of 5 tasks: --task-index 0,2-4; run these"):
        merge(tmp_path)
    with pytest.raises(InputError, match=r"its tasks are not merged: run .* --merge first"):
        TokenizedData.open(tmp_path)


def test_shards_made_otherwise_are_refused(corpus: Path, tmp_path: Path) -> None:
    tokenize(corpus, tmp_path, "--task-index", "0", "--num-tasks", "2")
    other = ("--task-index", "1", "--num-tasks", "2")
    with pytest.raises(
        InputError, match=r"holds data made otherwise: tokenizer was 'words\.json', now 'olmo'"
    ):
        tokenize(corpus, tmp_path, *other, "--tokenizer", "olmo")
    with pytest.raises(InputError, match="holds tasks of --num-tasks 2, now 3"):
        tokenize(corpus, tmp_path, "--task-index", "1", "--num-tasks", "3")
    with pytest.raises(InputError, match="holds tasks of --num-tasks 2, now 1"):
        tokenize(corpus, tmp_path)
    with pytest.raises(InputError, match="all_files was '5 files, .*', now '2 files"):
        tokenize(corpus, tmp_path, *other, "--source", f"{corpus}/file-0.jsonl", f"{corpus}/file-1.jsonl")
    with pytest.raises(
        InputError, match=r"bpe:300 would train another tokenizer in every task; train one first"
    ):
        tokenize(corpus, tmp_path, *other, "--tokenizer", "bpe:300")


def test_a_merge_refuses_shards_of_two_tokenizers(corpus: Path, tmp_path: Path) -> None:
    tokenize(corpus, tmp_path, "--task-index", "0", "--num-tasks", "2")
    tokenize(corpus, tmp_path / "b", "--task-index", "1", "--num-tasks", "2", "--tokenizer", "olmo")
    (tmp_path / "b/tasks/00001-of-00002").rename(tmp_path / "tasks/00001-of-00002")
    with pytest.raises(
        InputError, match=r"task 1 was made otherwise than task 0: tokenizer was 'words\.json'"
    ):
        merge(tmp_path)
    assert not (tmp_path / "manifest.json").exists()


def test_a_malformed_line_met_by_a_worker_is_named(corpus: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(InputError, match=r"bad\.jsonl, line 2 is not valid JSON"):
        tokenize(corpus, tmp_path / "data", "--source", str(bad), "--num-workers", "2")
    assert digests(tmp_path / "data") == {}


SLOW_READING = """
import sys, time
sys.path.insert(0, {root!r})
from pipeline import tokenize_c4
from pipeline.text import documents, sources

def slow_lines(path, lines=sources.json_lines):
    for number, line in enumerate(lines(path)):
        time.sleep(1.0 * (number > 40))
        yield line

if __name__ == "__main__":
    documents._RECORDS_PER_BATCH, sources.json_lines = 5, slow_lines
    tokenize_c4.main(tokenize_c4.parser().parse_args(sys.argv[1:]))
"""


def test_a_shard_killed_in_the_middle_is_redone_to_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    task = ("--task-index", "0", "--num-tasks", "2")
    tokenize(corpus, tmp_path / "expected", *task)
    (tmp_path / "slow.py").write_text(SLOW_READING.format(root=str(STAGE.parent.parent)))
    words = ["--out", str(tmp_path / "data"), "--source", f"{corpus}/file-?.jsonl", *WHOLE, *task]
    words = [f"{corpus}/words.json" if word == "words.json" else word for word in words]
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "slow.py"), *words, "--num-workers", "2"], stderr=subprocess.DEVNULL
    )
    folder = tmp_path / "data/tasks/00000-of-00002"
    try:
        wait_for(lambda: any(folder.glob("train/*part-*")))
        workers = psutil.Process(process.pid).children(recursive=True)
        assert len(workers) >= 2
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (folder / "manifest.json").exists()
    wait_for(lambda: not any(is_alive(worker) for worker in workers))  # none outlives its parent
    tokenize(corpus, tmp_path / "data", *task)
    assert digests(tmp_path / "data") == digests(tmp_path / "expected")


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def wait_for(condition: Callable[[], bool]) -> None:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < 120
        time.sleep(0.02)

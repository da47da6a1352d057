"""Data folders: what tokenize_c4 writes, killed, in tasks, refused; needles planted in them."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import DEFAULT, Mock, patch

import numpy as np
import pyarrow.parquet as pq
import pytest
from measured_documents import contents, run, word_level, write_texts
from olmo.data import MemMapDataset
from sparsity_length.programs import plant_needles, tokenize_c4
from tokenizers import Tokenizer, models, normalizers

from sparsity_length.cli import InputError
from sparsity_length.text import tokenizing
from sparsity_length.text.folder import TokenizedData, training_token_counts
from sparsity_length.text.needles import DEPTHS, NEEDLES_FILE
from sparsity_length.text.sources import Document
from sparsity_length.text.tokenizer import load_tokenizer, train_bpe
from sparsity_length.text.tokenizing import evaluates

WORDS = ["<|endoftext|>", "<unk>", *"abcdefghij"]  # so a is 2, b is 3, …; of a number's digits 0 is a, 1 is b
SHARED = 8  # trains, with the flags below
TASKS = "--evaluation-fraction 0.2 --seed 1 --tokens-per-part 300"
EVALUATION = "--evaluation-source {}/evaluation.jsonl"


def write_tokenizer(path: Path) -> None:
    """A tokenizer of single letters, which drops ~."""
    tokenizer = word_level(*WORDS)
    tokenizer.normalizer = normalizers.Replace("~", "")
    tokenizer.save(str(path))


def write_lines(path: Path, texts: Sequence[str]) -> None:
    records = ({"text": text, "url": f"https://{number}.org"} for number, text in enumerate(texts))
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def text_of(number: int) -> str:
    return " ".join("abcdefghij"[int(digit)] for digit in f"{number:03d}" * (1 + number % 3))


def tokens_of(number: int) -> tuple[int, ...]:
    return tuple(map(WORDS.index, text_of(number).split()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with train.jsonl, evaluation.jsonl and words.json."""
    write_tokenizer(tmp_path / "words.json")
    write_lines(tmp_path / "train.jsonl", ["b b", "c", "d 好 f", "", "c", "g"])
    write_lines(tmp_path / "evaluation.jsonl", ["h h", "c", "a 你 a", "h h"])
    return tmp_path


def tokenize(folder: Path, flags: str = EVALUATION) -> TokenizedData:
    """Run the stage in this process, on train.jsonl of `folder`, which the flags call {}."""
    words = f"--out {{}}/data --source {{}}/train.jsonl --tokenizer {{}}/words.json {flags}"
    run(tokenize_c4, *words.replace("{}", str(folder)).split())
    return TokenizedData.open(folder / "data")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five files of the numbers 0 … 399 in letters; the first begins with a blank text and two odd ones.

    Each file repeats one of its own numbers; SHARED, of the first file, comes again at the end of the last.
    """
    folder = tmp_path_factory.mktemp("corpus")
    write_tokenizer(folder / "words.json")
    write_tokenizer(folder / "others.json")
    for index, some in enumerate(np.split(np.arange(400), [30, 100, 101, 250])):
        numbers = [*some, some[0], *([SHARED] if index == 4 else [])]
        odd = [" ", "~ ~", "a unknown b"] if index == 0 else []
        write_lines(folder / f"file-{index}.jsonl", [*odd, *map(text_of, numbers)])
    return folder


def tokenize_task(corpus: Path, out: Path, num_tasks: int, index: int, flags: str = "") -> None:
    """Run the stage for one task, on all files of the corpus, which the flags call {}."""
    words = (
        f"--source {{}}/file-?.jsonl --tokenizer {{}}/words.json {TASKS} {flags}"
        f" --num-tasks {num_tasks} --task-index {index}"
    )
    run(tokenize_c4, "--out", out, *words.replace("{}", str(corpus)).split())


def tokenize_corpus(corpus: Path, out: Path, flags: str = "", num_tasks: int = 1) -> TokenizedData:
    for index in reversed(range(num_tasks)):  # the order in which tasks run does not matter
        tokenize_task(corpus, out, num_tasks, index, flags)
    if num_tasks > 1:
        run(tokenize_c4, "--out", out, "--merge")
    return TokenizedData.open(out)


def training_documents(data: TokenizedData) -> list[tuple[int, ...]]:
    """All documents that train, in order."""
    tokens = np.concatenate([np.fromfile(path, data.token_dtype) for path in data.train_paths])
    ends = np.flatnonzero(tokens == data.eos_token_id)
    return [tuple(document[:-1].tolist()) for document in np.split(tokens, ends + 1)[:-1]]


def evaluation_rows(data: TokenizedData) -> list[tuple[str, tuple[int, ...]]]:
    return [(row.document_id, tuple(row.token_ids.tolist())) for row in data.evaluation_documents()]


@pytest.mark.parametrize(("largest_id", "dtype"), [(65_534, np.uint16), (65_535, np.uint32)])
def test_every_integer_of_a_small_corpus_as_olmo_reads_it(
    largest_id: int, dtype: type, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = folder / "words.json"
    words.write_text(words.read_text().replace('"g": 8', f'"g": {largest_id}'))
    data = tokenize(folder, f"{EVALUATION} --tokens-per-part 5")
    # "c" evaluates and so does not train; the empty document is skipped
    parts = [np.fromfile(path, np.dtype(dtype).newbyteorder("<")).tolist() for path in data.train_paths]
    assert parts == [[3, 3, 0, 5, 1, 7, 0], [largest_id, 0]]
    # OLMo takes whole chunks of 2 from each part.
    chunks = MemMapDataset(*data.train_paths, chunk_size=2, memmap_dtype=dtype)
    assert [chunk["input_ids"].tolist() for chunk in chunks] == [[3, 3], [0, 5], [1, 7], [largest_id, 0]]
    expected = [
        (Document.from_record({"text": text}).document_id, f"https://{number}.org", token_ids)
        for number, (text, token_ids) in enumerate({"h h": [9, 9], "c": [4], "a 你 a": [2, 1, 2]}.items())
    ]
    assert sorted(expected) == [
        (one.document_id, one.url, one.token_ids.tolist()) for one in data.evaluation_documents()
    ]
    assert (data.vocabulary_size, data.eos_token_id) == (largest_id + 1, 0)
    assert [*training_token_counts(data)[[0, 1, 2, 3, 5, 7, largest_id]]] == [0, 1, 0, 2, 1, 1, 1]
    assert data.manifest["counts"] == {
        "train_documents": 3,
        "train_tokens": 9,
        "train_unknown": 1,
        "evaluation_documents": 3,
        "evaluation_tokens": 6,
        "evaluation_unknown": 1,
        "blank": 1,
        "duplicate": 2,
        "in_evaluation_source": 1,
    }
    assert "13.3% of the tokens stand for what is unknown" in caplog.text  # 2 of 15, three EOS among them
    write_lines(folder / "train.jsonl", ["a b", "something else"])
    with pytest.raises(InputError, match=r"inputs\.source\.0 was"):
        tokenize(folder, f"{EVALUATION} --tokens-per-part 5")


@pytest.mark.parametrize(
    ("fraction", "seed", "decision"),
    # sha256("0:00000000000000aa") begins with 0381, sha256("1:00000000000000aa") with e750
    [(0, 0, False), (0, 1, False), (0.5, 0, True), (0.5, 1, False), (1, 0, True), (1, 1, True)],
)
def test_the_decision_is_fixed_by_seed_and_content(fraction: float, seed: int, decision: bool) -> None:
    assert evaluates("00000000000000aa", fraction, seed) == decision


def test_bpe_is_trained_on_the_training_part_only(folder: Path) -> None:
    write_lines(folder / "train.jsonl", ["abab abab", "zqzq zqzq"])
    write_lines(folder / "evaluation.jsonl", ["zqzq zqzq"])
    tokenizer = tokenize(folder, f"{EVALUATION} --tokenizer bpe:300").tokenizer()
    assert [len(token_ids) for token_ids in tokenizer.encode(["abab", "zqzq"])] == [1, 4]


@pytest.mark.parametrize(
    ("lines", "flags", "fault"),
    [
        ('{"text": "a"}\n{"txt": 1}\n', "--tokens-per-part 1", r"train\.jsonl, record 2 .* \(no 'text'"),
        ('{"text": "a"}\n{"text": "\udce9"}\n', "--tokenizer bpe:300", "record 2 cannot be read"),
        (
            '{"text": "c"}\n',
            EVALUATION,
            r"0 documents train \(1 of --source are .* and 3 evaluate",
        ),
        ('{"text": "a"}\n', "--evaluation-source {}/blank.jsonl", r"blank\.jsonl holds no text"),
        ('{"text": "a"}\n', "--evaluation-fraction 0", "1 documents train and 0 evaluate"),
        ('{"text": "a"}\n', "--source c4", "where to stop with --max-documents"),
        ('{"text": "a"}\n', "--tokenizer bpe:300 --num-tasks 2", "another tokenizer in every task"),
    ],
)
def test_bad_input_is_a_sentence_and_leaves_no_data(folder: Path, lines: str, flags: str, fault: str) -> None:
    (folder / "train.jsonl").write_text(lines, encoding="utf-8", errors="surrogateescape")
    (folder / "blank.jsonl").write_text("\n")
    with pytest.raises(InputError, match=fault):
        tokenize(folder, flags)
    assert "data/manifest.json" not in contents(folder)


@pytest.mark.parametrize("flags", ["", "--max-documents 150"])
def test_killed_again_and_again_the_bytes_are_the_same(
    flags: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run records one part, and ends between the next part and its record."""
    monkeypatch.setattr(tokenizing, "DOCUMENTS_PER_BATCH", 5)
    whole = tokenize_corpus(corpus, tmp_path / "whole", flags)
    assert len(whole.train_paths) > 3
    for _ in whole.train_paths[2:]:
        killed = Mock(wraps=tokenizing.write_json, side_effect=[DEFAULT, KeyboardInterrupt])
        with patch.object(tokenizing, "write_json", killed), pytest.raises(KeyboardInterrupt):
            tokenize_corpus(corpus, tmp_path / "data", flags)
    (tmp_path / f"data/train/.{whole.train_paths[-1].name}.part").write_bytes(b"half")
    tokenize_corpus(corpus, tmp_path / "data", flags)
    assert contents(tmp_path / "data") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("num_tasks", "flags", "num_all", "num_evaluation"),
    [
        (2, "", 403, 76),
        (5, "", 403, 76),
        (3, "--max-evaluation-documents 20", 347, 20),
        (3, "--evaluation-source {}/file-3.jsonl", 403, 149),
    ],
)
def test_tasks_together_are_the_corpus(
    num_tasks: int, flags: str, num_all: int, num_evaluation: int, corpus: Path, tmp_path: Path
) -> None:
    whole = tokenize_corpus(corpus, tmp_path / "whole", flags)
    data = tokenize_corpus(corpus, tmp_path / "tasks", flags, num_tasks)
    assert evaluation_rows(data) == evaluation_rows(whole)
    documents = training_documents(data)
    # Tasks know nothing of each other: the text at the end of the last file is that of the first file again.
    assert documents == [*training_documents(whole), tokens_of(SHARED)]
    found = Counter([*documents, *(token_ids for _, token_ids in evaluation_rows(data))])
    assert found <= Counter([(), (2, 1, 3), *map(tokens_of, [*range(400), SHARED])])
    assert (found.total(), len(evaluation_rows(data))) == (num_all, num_evaluation)
    assert data.manifest["counts"]["train_tokens"] == sum(len(document) + 1 for document in documents)


def test_finished_tasks_are_skipped_and_a_damaged_one_is_named_by_the_merge(
    corpus: Path, tmp_path: Path
) -> None:
    tokenize_corpus(corpus, tmp_path, num_tasks=2)
    assert not tokenize_c4.STAGE.left(tokenize_c4.STAGE.parse(["--out", str(tmp_path), "--merge"]))
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "tasks").rglob("[!.]*")}
    tokenize_corpus(corpus, tmp_path, num_tasks=2)
    assert times == {path: path.stat().st_mtime_ns for path in times}
    (tmp_path / "tasks/00001-of-00002/train/part-00000.npy").unlink()
    with pytest.raises(InputError, match=r"00001-of-00002/train/part-00000\.npy is missing"):
        run(tokenize_c4, "--out", tmp_path, "--merge")


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        ("--seed 7", "seed was 1, now 7"),
        ("--tokenizer {}/others.json", r"tokenizer was 'words\.json', now 'others\.json'"),
        ("--source {}/file-[01].jsonl", "all_files was '5 files, .*', now '2 files"),
    ],
)
def test_tasks_made_otherwise_are_refused_and_not_merged(
    corpus: Path, tmp_path: Path, flags: str, fault: str
) -> None:
    tokenize_task(corpus, tmp_path, 2, 0)
    with pytest.raises(InputError, match=fault):
        tokenize_task(corpus, tmp_path, 2, 0, flags)
    tokenize_task(corpus, tmp_path, 2, 1, flags)
    with pytest.raises(InputError, match=fault):
        run(tokenize_c4, "--out", tmp_path, "--merge")


def test_a_merge_needs_all_tasks_of_one_division(corpus: Path, tmp_path: Path) -> None:
    for fault, num_tasks in (
        ("holds tasks of --num-tasks no number", 2),
        ("misses 1 of 2 tasks: --task-index 0;", 3),
        ("holds tasks of --num-tasks 2 and 3", 2),
    ):
        with pytest.raises(InputError, match=fault):
            run(tokenize_c4, "--out", tmp_path, "--merge")
        tokenize_task(corpus, tmp_path, num_tasks, 1)  # for the next fault


TEXTS = [
    " ".join(f"The {word} river runs past an old café😀 and the {word} hill." for word in words)
    for words in (
        ["long", "green", "cold"] * 5,
        ["wide", "blue", "warm", "slow"] * 4,
        ["short", "red"] * 8,
        ["tiny"],
    )
]
NEEDLES = {
    "0000000000000010": ("Cairo", "72557"),
    "0000000000000011": ("Athens", "35878"),
    "0000000000000012": ("Havana", "98124"),
}
"""Of each text that is long enough: the city that is asked for, and its number, at every depth and length."""


def plant(folder: Path, *flags: object) -> None:
    run(
        plant_needles,
        *f"--data {folder}/data --out {folder}/out --document-lengths 90 150".split(),
        *flags,
    )


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with four texts in data/, of which the last is too short, and in out/ three with needles."""
    folder = tmp_path_factory.mktemp("planted")
    template = " What is the magic number of Oslo? The magic number of Paris is 1."
    tokenizer = train_bpe([*TEXTS, *[template] * 9], 360)
    write_texts(folder / "data", TEXTS, tokenizer, first_id=16)
    plant(folder)
    return folder


@pytest.mark.parametrize("length", [90, 150])
def test_needle_question_and_answer_are_where_the_truth_says(planted: Path, length: int) -> None:
    """A text's beginning with the needle in it, up to the given depth and not within a word; the question."""
    opened = TokenizedData.open(planted / f"out/length-{length}/data")
    tokenizer = opened.tokenizer()
    documents = dict(evaluation_rows(opened))
    sources = dict(evaluation_rows(TokenizedData.open(planted / "data")))
    rows = pq.read_table(opened.folder / NEEDLES_FILE).to_pylist()
    assert sorted(documents) == sorted(row["document_id"] for row in rows)
    assert [(row["source_document_id"], row["depth"]) for row in rows] == [
        (source, depth) for source in NEEDLES for depth in (None, *DEPTHS)
    ]
    for row in rows:
        city, answer = NEEDLES[row["source_document_id"]]
        statement = f" The magic number of {city} is {answer}"
        is_control = row["depth"] is None
        needle, question = tokenizer.encode(
            ["" if is_control else f"{statement}.", f" What is the magic number of {city}?{statement}"]
        )
        num_hay = length - len(needle) - len(question)
        hay = sources[row["source_document_id"]][:num_hay]
        place = row["needle_position"] or 0
        ids = documents[row["document_id"]]
        assert [*ids] == [*hay[:place], *needle, *hay[place:], *question]
        # Up to 15 tokens before the depth, where a word starts.
        assert 0 <= round((row["depth"] or 0) * num_hay) - place <= 15
        assert place in (0, num_hay) or tokenizer.pieces(hay[place:])[0][0] == " "
        spans = ids[row["answer_position"] :], [ids[place] for place in row["needle_answer_positions"]]
        answers = ["".join(tokenizer.pieces(span)) for span in spans]
        assert answers == [f" {answer}", "" if is_control else f" {answer}"]
        assert (row["answer"], row["num_needle_tokens"]) == (answer, len(needle))
        assert (row["needle_position"] is None) == is_control
        assert row["context_length"] == row["answer_position"] + row["num_answer_tokens"] == length


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (["--seed", 1], "seed was .*, now 1"),
        (["--depths", 0.9], "depths was None, now"),
        (["--document-lengths", 20], "no room for"),
        (["--document-lengths", 5000], "no evaluation document has 5000 tokens"),
    ],
)
def test_the_same_again_and_refusals_change_no_byte(planted: Path, flags: list[object], fault: str) -> None:
    before = contents(planted)
    plant(planted)
    with pytest.raises(InputError, match=fault):
        plant(planted, *flags)
    assert contents(planted) == before


def test_a_haystack_has_a_token_or_more(planted: Path) -> None:
    length = 20
    for _ in range(3):  # question and answer, with the needle, and these without a haystack
        with pytest.raises(InputError, match="no room for a haystack") as refused:
            plant(planted, "--document-lengths", length)
        needed = int(re.search(r"answer take (\d+)", str(refused.value))[1])
        length = needed + (length == 20)
    assert length == needed


@pytest.mark.parametrize("unk_token", ["<unk>", None])  # without one, what cannot be spelled is dropped
def test_a_needle_that_the_tokenizer_cannot_spell(unk_token: str | None, tmp_path: Path) -> None:
    known = {one: number for number, one in enumerate(["</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz .?"])}
    letters = Tokenizer(models.BPE(known, [], unk_token=unk_token))
    letters.normalizer = normalizers.Lowercase()
    tokenizer = load_tokenizer(letters)
    write_texts(tmp_path / "data", ["a river runs past " * 40], tokenizer)
    with pytest.raises(InputError, match=r"spell “The magic number of \w+ is \d{5}.”, which becomes “t h e "):
        plant(tmp_path, "--document-lengths", 200)
    # Both depths fall on one place.
    plant(tmp_path, "--templates", "word", "--document-lengths", 200, "--depths", 0.2, 0.201)
    out = tmp_path / "out/length-200/data"
    assert len(evaluation_rows(TokenizedData.open(out))) == pq.read_table(out / NEEDLES_FILE).num_rows == 2


def test_a_study_is_told_of_text_that_changed(folder: Path) -> None:
    words = (
        f"--out {folder}/data --source {folder}/train.jsonl --evaluation-source {folder}/evaluation.jsonl"
        f" --tokenizer {folder}/words.json"
    )
    run(tokenize_c4, *words.split())
    asked = tokenize_c4.STAGE.parse(words.split())
    assert not tokenize_c4.STAGE.left(asked)
    write_lines(folder / "evaluation.jsonl", ["h h", "b"])
    with pytest.raises(InputError, match="other settings: inputs.evaluation source"):
        tokenize_c4.STAGE.left(asked)

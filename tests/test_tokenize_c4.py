"""Data folders: what tokenize_c4 writes, interrupted, in tasks, refused; needles planted in them."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from measured_documents import contents, run, word_level, write_folder
from sparsity_length.programs import plant_needles, tokenize_c4
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from sparsity_length.cli import InputError
from sparsity_length.text import tokenizing
from sparsity_length.text.folder import TOKENIZER_FILE, EvaluationDocument, TokenizedData
from sparsity_length.text.needles import CITIES, DEPTHS, NEEDLES_FILE, PEOPLE
from sparsity_length.text.needles import WORDS as NEEDLE_WORDS
from sparsity_length.text.sources import Document
from sparsity_length.text.tokenizer import DocumentTokenizer, load_tokenizer, train_bpe
from sparsity_length.text.tokenizing import Sorted, evaluates

WORDS = ["<|endoftext|>", "<unk>", *"abcdefghij"]  # so a is 2, b is 3, …; of a number's digits 0 is a, 1 is b
SHARED = 8  # trains, with the flags below
TASKS = ("--evaluation-fraction", "0.2", "--seed", "1", "--tokens-per-part", "300")
PARTS = ("--evaluation-fraction", "0.3", "--tokens-per-part", "60")


def write_tokenizer(folder: Path, words: Sequence[str] = WORDS) -> None:
    tokenizer = word_level(*words)
    tokenizer.normalizer = normalizers.Replace("~", "")
    tokenizer.save(str(folder / "words.json"))


def write_lines(path: Path, texts: Sequence[str]) -> None:
    records = ({"text": text, "url": f"https://{number}.org"} for number, text in enumerate(texts))
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def text_of(number: int) -> str:
    return " ".join("abcdefghij"[int(digit)] for digit in f"{number:03d}" * (1 + number % 3))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with train.jsonl, evaluation.jsonl and words.json, a tokenizer of single letters."""
    write_tokenizer(tmp_path)
    write_lines(tmp_path / "train.jsonl", ["a b", "c", "d e f", "", "c", "g"])
    write_lines(tmp_path / "evaluation.jsonl", ["h h", "c", "a a a", "h h"])
    return tmp_path


@pytest.fixture
def numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of 120 numbers in letters, some twice, some blank, some without tokens, read five at a time."""
    monkeypatch.setattr(tokenizing, "DOCUMENTS_PER_BATCH", 5)
    write_tokenizer(tmp_path)
    for name, some in {"a": range(50), "b": range(40, 120)}.items():
        texts = [text for n in some for text in (text_of(n), *([" "] if n % 11 == 0 else []))]
        texts[7:7] = [text_of(3), "~" + " ~" * len(some), f"a unknown {name} <|endoftext|> b"]
        write_lines(tmp_path / f"{name}.jsonl", texts)
    return tmp_path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five files of the numbers 0 … 399 in letters.

    Each file repeats one of its own numbers; SHARED, of the first file, comes again at the end of the last.
    """
    folder = tmp_path_factory.mktemp("corpus")
    write_tokenizer(folder)
    for index, some in enumerate(np.split(np.arange(400), [30, 100, 101, 250])):
        again = [some[0]] + ([SHARED] if index == 4 else [])
        write_lines(folder / f"file-{index}.jsonl", [text_of(int(number)) for number in [*some, *again]])
    return folder


def tokenize(folder: Path, *flags: str, out: str = "data", evaluation: bool = True) -> TokenizedData:
    """Run the stage in this process, on train.jsonl and evaluation.jsonl of `folder`."""
    words = ["--source", f"{folder}/train.jsonl", "--tokenizer", f"{folder}/words.json"]
    words += ["--evaluation-source", f"{folder}/evaluation.jsonl"] if evaluation else []
    run(tokenize_c4, "--out", folder / out, *words, *flags)  # the last of a flag counts
    return TokenizedData.open(folder / out)


def tokenize_numbers(folder: Path, *flags: str, out: str = "data") -> TokenizedData:
    words = ["--source", f"{folder}/a.jsonl", f"{folder}/b.jsonl", *PARTS, *flags]
    return tokenize(folder, *words, out=out, evaluation=False)


def tokenize_task(corpus: Path, out: Path, *flags: str | int) -> None:
    here = ("--source", f"{corpus}/file-?.jsonl", "--tokenizer", f"{corpus}/words.json")
    run(tokenize_c4, "--out", out, *here, *TASKS, *flags)


def tokenize_in_tasks(corpus: Path, out: Path, num_tasks: int, *flags: str) -> TokenizedData:
    for index in reversed(range(num_tasks)):  # the order in which tasks run does not matter
        tokenize_task(corpus, out, "--task-index", index, "--num-tasks", num_tasks, *flags)
    run(tokenize_c4, "--out", out, "--merge")
    return TokenizedData.open(out)


def training_tokens(data: TokenizedData) -> list[list[int]]:
    return [np.fromfile(path, dtype=data.token_dtype).tolist() for path in data.train_paths]


def training_documents(data: TokenizedData) -> list[tuple[int, ...]]:
    """All documents that train, in order."""
    tokens = np.concatenate([np.array(part) for part in training_tokens(data)])
    ends = np.flatnonzero(tokens == data.eos_token_id)
    return [tuple(document[:-1].tolist()) for document in np.split(tokens, ends + 1)[:-1]]


def evaluation_rows(data: TokenizedData) -> list[tuple[str, tuple[int, ...]]]:
    return [(row.document_id, tuple(row.token_ids.tolist())) for row in data.evaluation_documents()]


def test_every_integer_of_a_small_corpus(folder: Path) -> None:
    data = tokenize(folder)
    # "c" evaluates and so does not train; the empty document is skipped
    assert training_tokens(data) == [[2, 3, 0, 5, 6, 7, 0, 8, 0]]
    expected = [
        (Document.from_record({"text": text}).document_id, f"https://{number}.org", token_ids)
        for number, (text, token_ids) in enumerate({"h h": [9, 9], "c": [4], "a a a": [2, 2, 2]}.items())
    ]
    evaluation = data.evaluation_documents()
    found = [(document.document_id, document.url, document.token_ids.tolist()) for document in evaluation]
    assert found == sorted(expected)
    assert (data.vocabulary_size, data.eos_token_id) == (12, 0)
    written = json.loads((folder / "data/manifest.json").read_text())
    assert written["counts"] == {
        "train_documents": 3,
        "train_tokens": 9,
        "train_unknown": 0,
        "evaluation_documents": 3,
        "evaluation_tokens": 6,
        "evaluation_unknown": 0,
        "duplicate": 2,
        "in_evaluation_source": 1,
    }


@pytest.mark.parametrize(
    "model",
    [
        models.BPE({"</s>": 0, "<unk>": 1, "a": 2, "b": 3}, [], unk_token="<unk>"),
        models.WordLevel({"</s>": 0, "<unk>": 1, "a": 2, "b": 3}, unk_token="<unk>"),
        models.WordPiece({"</s>": 0, "[UNK]": 1, "a": 2, "b": 3}, unk_token="[UNK]"),
        models.Unigram([("</s>", 0.0), ("<unk>", 0.0), ("a", -1.0), ("b", -1.0)], unk_id=1),
    ],
)
def test_unknown_tokens_are_counted_and_told(
    model: models.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "words.json"))
    write_lines(tmp_path / "evaluation.jsonl", ["b 好"])
    write_lines(tmp_path / "train.jsonl", ["a 你 b 你", "a"])
    counts = tokenize(tmp_path).manifest["counts"]
    assert (counts["train_unknown"], counts["evaluation_unknown"]) == (2, 1)
    assert "33.3% of the tokens stand for what is unknown" in caplog.text  # 3 of 9, two EOS among them
    caplog.clear()
    write_lines(tmp_path / "train.jsonl", ["a b " * 200])
    assert tokenize(tmp_path, out="few").manifest["counts"]["evaluation_unknown"] == 1
    assert "unknown to it" not in caplog.text


@pytest.mark.parametrize(("largest_id", "dtype"), [(258, np.uint16), (65_536, np.uint32)])
def test_olmo_reads_the_same_integers(tmp_path: Path, largest_id: int, dtype: type) -> None:
    memory_maps = pytest.importorskip("olmo.data")
    unused = (f"unused {token_id}" for token_id in range(11, largest_id))
    write_tokenizer(tmp_path, ["<|endoftext|>", "<unk>", *"hijbcdefg", *unused, "a"])
    write_lines(tmp_path / "train.jsonl", ["b c", "d", "e f a", "g"])
    write_lines(tmp_path / "evaluation.jsonl", ["b"])
    data = tokenize(tmp_path, "--tokens-per-part", "5")
    parts = [[5, 6, 0, 7, 0], [8, 9, largest_id, 0, 10, 0]]
    raw = [path.read_bytes() for path in data.train_paths]
    assert raw == [np.array(part, np.dtype(dtype).newbyteorder("<")).tobytes() for part in parts]
    # OLMo takes whole chunks of 2 from each part.
    chunks = memory_maps.MemMapDataset(*data.train_paths, chunk_size=2, memmap_dtype=dtype)
    found = [chunk["input_ids"].tolist() for chunk in chunks]
    assert found == [[5, 6], [0, 7], [8, 9], [largest_id, 0], [10, 0]]


def test_the_decision_is_fixed_by_seed_and_content() -> None:
    # sha256("0:00000000000000aa") begins with 0381, sha256("1:00000000000000aa") with e750
    decisions = [evaluates("00000000000000aa", fraction, seed) for fraction in (0, 0.5, 1) for seed in (0, 1)]
    assert decisions == [False, False, True, False, True, True]


def test_bpe_is_trained_on_the_training_part_only(folder: Path) -> None:
    write_lines(folder / "train.jsonl", ["abab abab", "zqzq zqzq"])
    write_lines(folder / "evaluation.jsonl", ["zqzq zqzq"])
    tokenize(folder, "--tokenizer", "bpe:300")
    tokenizer = Tokenizer.from_file(str(folder / "data/tokenizer.json"))
    assert len(tokenizer.encode("abab").ids) == 1
    assert len(tokenizer.encode("zqzq").ids) == 4


def test_complete_data_is_left_alone_and_another_configuration_refused(folder: Path) -> None:
    tokenize(folder)
    before = {path: path.stat().st_mtime_ns for path in (folder / "data").rglob("[!.]*")}
    tokenize(folder)
    write_lines(folder / "train.jsonl", ["a b", "something else"])
    with pytest.raises(InputError, match=r"inputs\.source\.0 was"):
        tokenize(folder)
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "data").rglob("[!.]*")}


@pytest.mark.parametrize(
    ("lines", "flags", "fault"),
    [
        (
            '{"text": "a"}\n{"txt": 1}\n',
            "--tokens-per-part 1",
            r"train\.jsonl, record 2 cannot be read \(no 'text'",
        ),
        ('{"text": "a"}\n{"text": "\udce9"}\n', "--tokenizer bpe:300", "record 2 cannot be read"),
        ('{"text": "c"}\n', "", "0 documents train and 3 evaluate"),
        ('{"text": "a"}\n', "--evaluation-source {}/blank.jsonl", r"blank\.jsonl holds no text"),
        ('{"text": "a"}\n', "--evaluation-fraction 0", "1 documents train and 0 evaluate"),
        ('{"text": "a"}\n', "--source c4", "where to stop with --max-documents"),
    ],
)
def test_bad_input_is_a_sentence_and_leaves_no_data(folder: Path, lines: str, flags: str, fault: str) -> None:
    (folder / "train.jsonl").write_text(lines, encoding="utf-8", errors="surrogateescape")
    (folder / "blank.jsonl").write_text("\n")
    words = flags.format(folder).split()
    with pytest.raises(InputError, match=fault):
        tokenize(folder, *words, evaluation="--evaluation" not in flags)
    assert "data/manifest.json" not in contents(folder)


def interrupt_at_document(patch: pytest.MonkeyPatch, number: int) -> None:
    """Interrupt as Ctrl-C would, once so many documents of this run have been encoded for training."""
    encoded = tokenizing.encoded

    def encoded_or_stop(
        tokenizer: DocumentTokenizer, items: Iterator[Sorted]
    ) -> Iterator[tuple[Sorted, np.ndarray]]:
        num_left = number
        for item in encoded(tokenizer, items):
            if not num_left:
                raise KeyboardInterrupt
            num_left -= item[0][1] == tokenizing.TRAINS
            yield item

    patch.setattr(tokenizing, "encoded", encoded_or_stop)


@pytest.mark.parametrize("flags", [(), ("--max-documents", "60")])
def test_interrupted_again_and_again_the_bytes_are_the_same(
    numbers: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    whole = tokenize_numbers(numbers, *flags, out="whole")
    assert len(whole.train_paths) > 4
    num_runs = 0
    while not (numbers / "data/manifest.json").exists():
        num_runs += 1
        assert num_runs < 30
        with monkeypatch.context() as patch:
            interrupt_at_document(patch, 17)
            try:
                tokenize_numbers(numbers, *flags)
            except KeyboardInterrupt:
                if num_runs == 1:  # what a kill, rather than an interrupt, may leave besides
                    (numbers / "data/train/.part-00002.npy.part").write_bytes(b"half")
    assert num_runs > 3
    assert contents(numbers / "data") == contents(numbers / "whole")


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> TokenizedData:
    """The corpus in one piece."""
    out = tmp_path_factory.mktemp("whole") / "data"
    tokenize_task(corpus, out)
    data = TokenizedData.open(out)
    found = training_documents(data) + [token_ids for _, token_ids in evaluation_rows(data)]
    assert len(data.train_paths) > 3
    assert Counter(found) == Counter(
        tuple(WORDS.index(letter) for letter in text_of(number).split()) for number in range(400)
    )
    return data


@pytest.mark.parametrize("num_tasks", [2, 5])
def test_tasks_together_are_the_corpus(
    corpus: Path, whole: TokenizedData, tmp_path: Path, num_tasks: int
) -> None:
    data = tokenize_in_tasks(corpus, tmp_path, num_tasks)
    assert evaluation_rows(data) == evaluation_rows(whole)
    documents_of_tasks = training_documents(data)
    documents_of_whole = training_documents(whole)
    # Tasks know nothing of each other: the text at the end of the last file is that of the first file again.
    shared = tuple(WORDS.index(letter) for letter in text_of(SHARED).split())
    assert documents_of_tasks.pop() == shared
    assert shared in documents_of_whole
    assert documents_of_tasks == documents_of_whole
    num_tokens = sum(len(document) + 1 for document in training_documents(data))
    assert data.manifest["counts"]["train_tokens"] == num_tokens


@pytest.mark.parametrize(
    ("limit", "num_evaluation"),
    [(("--max-evaluation-documents", "20"), 20), (("--evaluation-source", "{}/file-3.jsonl"), 149)],
)
def test_what_evaluates_does_not_depend_on_tasks(
    corpus: Path, tmp_path: Path, limit: tuple[str, str], num_evaluation: int
) -> None:
    flags = [flag.format(corpus) for flag in limit]
    tokenize_task(corpus, tmp_path / "whole", *flags)
    data = tokenize_in_tasks(corpus, tmp_path / "tasks", 3, *flags)
    assert evaluation_rows(data) == evaluation_rows(TokenizedData.open(tmp_path / "whole"))
    kept = {token_ids for _, token_ids in evaluation_rows(data)}
    assert len(kept) == num_evaluation and not kept & set(training_documents(data))


def test_a_finished_task_is_skipped_and_a_damaged_one_named_by_the_merge(
    corpus: Path, tmp_path: Path
) -> None:
    tokenize_in_tasks(corpus, tmp_path, 2)
    before = contents(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "tasks").rglob("[!.]*")}
    tokenize_in_tasks(corpus, tmp_path, 2)
    assert contents(tmp_path) == before
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "tasks").rglob("[!.]*")}
    (tmp_path / "tasks/00001-of-00002/train/part-00000.npy").unlink()
    with pytest.raises(InputError, match=r"00001-of-00002/train/part-00000\.npy is missing"):
        run(tokenize_c4, "--out", tmp_path, "--merge")


def test_tasks_made_otherwise_are_refused(corpus: Path, tmp_path: Path) -> None:
    two = ("--num-tasks", 2, "--task-index")
    few = ("--source", f"{corpus}/file-0.jsonl", f"{corpus}/file-1.jsonl")
    with pytest.raises(InputError, match="holds tasks of --num-tasks no number"):
        run(tokenize_c4, "--out", tmp_path, "--merge")
    with pytest.raises(InputError, match="would train another tokenizer in every task"):
        tokenize_task(corpus, tmp_path, *two, 0, "--tokenizer", "bpe:300")
    tokenize_task(corpus, tmp_path, *two, 0)
    for flags, fault in (
        (("--seed", 7), "seed was 1, now 7"),
        (("--tokenizer", "olmo"), r"tokenizer was 'words\.json', now 'olmo'"),
        (few, "all_files was '5 files, .*', now '2 files"),
    ):
        with pytest.raises(InputError, match=fault):
            tokenize_task(corpus, tmp_path, *two, 0, *flags)
        tokenize_task(corpus, tmp_path, *two, 1, *flags)
        with pytest.raises(InputError, match=fault):
            run(tokenize_c4, "--out", tmp_path, "--merge")
        shutil.rmtree(tmp_path / "tasks/00001-of-00002")
    tokenize_task(corpus, tmp_path, "--num-tasks", 3)
    with pytest.raises(InputError, match="holds tasks of --num-tasks 2 and 3"):
        run(tokenize_c4, "--out", tmp_path, "--merge")


TEXTS = [
    " ".join(f"The {word} river runs past an old café😀 and the {word} hill." for word in words)
    for words in (
        ["long", "green", "cold"] * 5,
        ["wide", "blue", "warm", "slow"] * 4,
        ["short", "red"] * 8,
        ["tiny"],
    )
]
LENGTHS = [90, 150]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("haystacks")
    template = " What is the magic number of Oslo? The magic number of Paris is 1."
    tokenizer = train_bpe([*TEXTS, *[template] * 9], 360)
    documents = [
        EvaluationDocument(f"{index:016x}", token_ids, f"http://example.org/{index}")
        for index, token_ids in enumerate(tokenizer.encode(TEXTS), start=16)
    ]
    assert [len(document.token_ids) >= LENGTHS[1] for document in documents] == [True, True, True, False]
    return write_folder(folder, documents, tokenizer)


def plant(data: Path, out: Path, *flags: object) -> None:
    run(plant_needles, "--data", data, "--out", out, "--document-lengths", *LENGTHS, *flags)


def documents_of(data: TokenizedData) -> dict[str, np.ndarray]:
    return {document.document_id: document.token_ids for document in data.evaluation_documents()}


@pytest.fixture(scope="module")
def planted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("needles") / "out"
    plant(data, out)
    return out


@pytest.mark.parametrize("length", LENGTHS)
def test_needle_question_and_answer_are_where_the_truth_says(data: Path, planted: Path, length: int) -> None:
    opened = TokenizedData.open(planted / f"length-{length}" / "data")
    tokenizer = load_tokenizer(opened.folder / TOKENIZER_FILE)
    documents = documents_of(opened)
    sources = documents_of(TokenizedData.open(data))
    rows = pq.read_table(opened.folder / NEEDLES_FILE).to_pylist()
    assert len(rows) == len(documents) == 3 * (1 + len(DEPTHS))
    needles = [(row["source_document_id"], row["answer"]) for row in rows]
    # A text keeps its needle at every depth, and at every length.
    assert sorted(set(needles)) == [
        ("0000000000000010", "72557"),
        ("0000000000000011", "35878"),
        ("0000000000000012", "98124"),
    ]
    other = pq.read_table(planted / f"length-{sum(LENGTHS) - length}" / "data" / NEEDLES_FILE).to_pylist()
    assert set(needles) == {(row["source_document_id"], row["answer"]) for row in other}

    def text(token_ids: np.ndarray) -> str:
        return "".join(tokenizer.pieces(token_ids.tolist()))

    for row in rows:
        ids = documents[row["document_id"]]
        source = sources[row["source_document_id"]]
        assert len(ids) == length == row["context_length"]
        assert row["answer_position"] + row["num_answer_tokens"] == length
        assert text(ids[row["answer_position"] :]) == f" {row['answer']}"
        key = text(ids).rpartition("number of ")[2].partition(" is")[0]
        assert text(ids[: row["answer_position"]]).endswith(f"? The magic number of {key} is")
        if row["depth"] is None:
            assert row["needle_position"] is None and row["needle_answer_positions"] == []
            assert text(ids).count(row["answer"]) == 1
            hay = ids[: row["answer_position"]]
            shared = next(i for i in range(len(hay) + 1) if i == len(hay) or hay[i] != source[i])
            assert text(hay[shared:]).startswith(" What is the magic number of")
            continue
        start = row["needle_position"]
        end = row["needle_position"] + row["num_needle_tokens"]
        assert text(ids[start:end]) == f" The magic number of {key} is {row['answer']}."
        answer_ids = ids[row["needle_answer_positions"]]
        assert answer_ids.tolist() == ids[row["answer_position"] :].tolist()
        assert text(ids).count(row["answer"]) == 2
        # Without the needle, what is left before the question is the source's own beginning.
        hay = np.concatenate([ids[:start], ids[end : row["answer_position"]]])
        num_hay = length - row["num_needle_tokens"] - row["num_answer_tokens"]
        assert len(hay) == num_hay and text(hay).startswith(text(source[:start]))
        assert text(source).startswith(text(hay)[: text(hay).rindex(" What is")])
        assert start <= row["depth"] * num_hay


def test_the_same_again_changes_no_byte_and_other_settings_are_refused(data: Path, planted: Path) -> None:
    before = contents(planted)
    plant(data, planted)
    for flags, sentence in (
        (["--seed", 1], "seed was .*, now 1"),
        (["--depths", 0.9], "depths was None, now"),
    ):
        with pytest.raises(InputError, match=sentence):
            plant(data, planted, *flags)
    assert contents(planted) == before


@pytest.mark.parametrize(("length", "sentence"), [("20", "no room for"), ("5000", "no evaluation document")])
def test_what_cannot_be_planted_is_refused(data: Path, tmp_path: Path, length: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        plant(data, tmp_path / "out", "--document-lengths", length)
    assert not list(tmp_path.rglob("manifest.json"))


@pytest.mark.parametrize("unk_token", ["<unk>", None])  # without one, what cannot be spelled is dropped
def test_a_needle_that_the_tokenizer_cannot_spell(unk_token: str | None, tmp_path: Path) -> None:
    letters = Tokenizer(models.BPE(unk_token=unk_token))
    letters.normalizer = normalizers.Lowercase()
    trainer = trainers.BpeTrainer(special_tokens=["</s>", "<unk>"], initial_alphabet=list("jqxz?"))
    letters.train_from_iterator([text.lower() for text in [*TEXTS, *CITIES, *NEEDLE_WORDS, *PEOPLE]], trainer)
    tokenizer = load_tokenizer(letters)
    documents = [EvaluationDocument("0" * 16, tokenizer.encode(["a river runs past " * 40])[0])]
    write_folder(tmp_path / "data", documents, tokenizer)
    unspelled = r"cannot spell “The magic number of \w+ is \d{5}.”, which becomes “the"
    with pytest.raises(InputError, match=unspelled):
        plant(tmp_path / "data", tmp_path / "out", "--document-lengths", 90)
    assert not list(tmp_path.rglob("out/**/manifest.json"))
    plant(tmp_path / "data", tmp_path / "words", "--templates", "word", "--document-lengths", 90)

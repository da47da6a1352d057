"""Needles: their places by decoding, bad input refused in a sentence, and found by a model that copies."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from measured_documents import contents
from sparsity_length.programs import plant_needles
from tokenizers import Tokenizer, models, normalizers, trainers

from sparsity_length.cli import InputError
from sparsity_length.text.folder import TOKENIZER_FILE, EvaluationDocument, TokenizedData, write_data_folder
from sparsity_length.text.needles import CITIES, DEPTHS, NEEDLES_FILE, PEOPLE, WORDS
from sparsity_length.text.tokenizer import load_tokenizer, train_bpe

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
        for index, token_ids in enumerate(tokenizer.encode(TEXTS))
    ]
    assert [len(document.token_ids) >= LENGTHS[1] for document in documents] == [True, True, True, False]
    write_data_folder(folder, documents, {}, tokenizer, {"settings": {}, "inputs": {}}, {}, "tokenize_c4")
    return folder


def plant(data: Path, out: Path, *flags: str) -> None:
    words = ["--data", data, "--out", out, "--document-lengths", *LENGTHS, *flags]
    plant_needles.STAGE(list(map(str, words)))


@pytest.fixture(scope="module")
def planted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("needles") / "out"
    plant(data, out)
    return out


@pytest.mark.parametrize("length", LENGTHS)
def test_needle_question_and_answer_are_where_the_truth_says(data: Path, planted: Path, length: int) -> None:
    opened = TokenizedData.open(planted / f"length-{length}" / "data")
    tokenizer = load_tokenizer(opened.folder / TOKENIZER_FILE)
    documents = {document.document_id: document.token_ids for document in opened.evaluation_documents()}
    haystacks = TokenizedData.open(data).evaluation_documents()
    sources = {document.document_id: document.token_ids for document in haystacks}
    rows = pq.read_table(opened.folder / NEEDLES_FILE).to_pylist()
    assert len(rows) == len(documents) == 3 * (1 + len(DEPTHS))
    needles = [(row["source_document_id"], row["answer"]) for row in rows]
    assert len(set(needles)) == 3  # a text keeps its needle at every depth, and at every length
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
        assert text(answer_ids) == f" {row['answer']}"
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
    with pytest.raises(InputError, match="seed was .*, now 1"):
        plant(data, planted, "--seed", "1")
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
    letters.train_from_iterator([text.lower() for text in [*TEXTS, *CITIES, *WORDS, *PEOPLE]], trainer)
    tokenizer = load_tokenizer(letters)
    documents = [EvaluationDocument("0" * 16, tokenizer.encode(["a river runs past " * 40])[0])]
    made_by = {"settings": {}, "inputs": {}}
    write_data_folder(tmp_path / "data", documents, {}, tokenizer, made_by, {}, "tokenize_c4")
    lengths = ["--document-lengths", "90"]
    with pytest.raises(
        InputError, match=r"cannot spell “The magic number of \w+ is \d{5}.”, which becomes “the"
    ):
        plant(tmp_path / "data", tmp_path / "out", *lengths)
    assert not list(tmp_path.rglob("out/**/manifest.json"))
    plant(tmp_path / "data", tmp_path / "words", "--templates", "word", *lengths)

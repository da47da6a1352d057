"""Planted signs: where the truth says, told by nothing else, in text that is otherwise unchanged."""

import json
from pathlib import Path

import numpy as np
import pytest
from measured_documents import contents

from pipeline import plant_signs, tokenize_c4
from pipeline.cli import InputError
from pipeline.text.folder import TokenizedData, training_token_counts
from pipeline.text.planting import Signs, question_ids, read_planted
from pipeline.text.planting import plant_signs as plant_in

LENGTH, SHORT = 64, 6
WORDS = "the river runs past a long green hill and we walk down it in sun"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(WORDS.split(), size=90)) + f" {index}." for index in range(60)]
    lines = [json.dumps({"text": text, "url": f"http://example.org/{i}"}) for i, text in enumerate(texts)]
    (folder / "c4.jsonl").write_text("\n".join(lines))
    words = ["--out", folder / "data", "--source", folder / "c4.jsonl", "--evaluation-fraction", "0.3"]
    tokenize_c4.main(tokenize_c4.parser().parse_args([*map(str, words), "--tokenizer", "bpe:320"]))
    return folder / "data"


def plant(data: Path, out: Path, *flags: str) -> None:
    words = ["--data", data, "--out", out, "--context-length", LENGTH, "--short-context-length", SHORT]
    plant_signs.main(plant_signs.parser().parse_args([*map(str, words), "--max-copies", "2", *flags]))


@pytest.fixture(scope="module")
def planted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("signs") / "out"
    plant(data, out)
    return out


def signs_of(data: Path) -> Signs:
    opened = TokenizedData.open(data)
    return Signs.rarest(training_token_counts(opened), opened.eos_token_id, [1, 2, 4], 16)


def test_the_answer_is_told_by_the_signs_and_the_rest_is_the_text(data: Path, planted: Path) -> None:
    signs, opened = signs_of(data), TokenizedData.open(planted / "planted" / "data")
    sources = [doc.token_ids for doc in TokenizedData.open(data).evaluation_documents()]
    documents = {doc.document_id: doc.token_ids for doc in opened.evaluation_documents()}
    rows = read_planted(opened.folder)
    assert {row["num_planted"] for row in rows} == {1, 2, 4}
    assert len(documents) > len(rows)  # some plant nothing
    for row in rows:
        tokens, k = documents[row["document_id"]], row["num_planted"]
        places = row["planted_positions"]
        assert len(tokens) == LENGTH == row["target_position"] + 1
        assert len(set(places)) == k
        assert max(places) < LENGTH - 2 - SHORT
        # By hand: each place of signs contributes a digit, whatever stands first in the text.
        base, index = round(16 ** (1 / k)), 0
        for choices in signs.sign_ids[k]:
            (digit,) = [list(choices).index(token) for token in tokens[places] if token in choices]
            index = index * base + digit
        assert tokens[-2:].tolist() == [signs.question_ids[k], signs.answer_ids[index]]
        kept = np.setdiff1d(np.arange(LENGTH - 2), places)
        assert any((tokens[kept] == source[kept]).all() for source in sources if len(source) >= LENGTH)


def test_the_questions_are_known_from_the_folder(data: Path, planted: Path) -> None:
    questions = question_ids(TokenizedData.open(planted / "planted" / "data"))
    assert questions == sorted(signs_of(data).question_ids.values())
    with pytest.raises(InputError, match="says of no planted answers; leave answer_loss_weight out"):
        question_ids(TokenizedData.open(data))


def test_training_text_is_whole_pieces_whose_answers_their_signs_tell(data: Path, planted: Path) -> None:
    signs, opened = signs_of(data), TokenizedData.open(planted / "planted" / "data")
    tokens = np.concatenate([np.fromfile(path, dtype=opened.token_dtype) for path in opened.train_paths])
    assert len(tokens) == opened.num_train_tokens
    pieces = tokens.reshape(-1, LENGTH).astype(np.int64)
    assert (pieces[:, -1] == opened.eos_token_id).all()
    questions = {token: k for k, token in signs.question_ids.items()}
    for piece in pieces:
        asked = [questions[token] for token in piece[LENGTH - 7 : LENGTH - 1 : 2]]
        assert sorted(asked) == [1, 2, 4]
        for k, answer in zip(asked, piece[LENGTH - 6 :: 2], strict=False):
            choices = [int(np.isin(of_place, piece).nonzero()[0].item()) for of_place in signs.sign_ids[k]]
            assert signs.answer_of(choices) == answer


def test_foreign_documents_end_with_their_own_tokens_only(data: Path, planted: Path) -> None:
    every = [document.token_ids for document in TokenizedData.open(data).evaluation_documents()]
    sources = [token_ids for token_ids in every if len(token_ids) >= LENGTH]
    length = LENGTH - 8  # three questions with their answers, and EOS with what it leaves of a pair
    far = length - 1 - SHORT
    expected = {
        (*sources[index - 1][:far].tolist(), *source[far:length].tolist())
        for index, source in enumerate(sources)
    }
    opened = TokenizedData.open(planted / "foreign" / "data")
    assert (training_token_counts(opened) == training_token_counts(TokenizedData.open(data))).all()
    found = opened.evaluation_documents()
    assert {tuple(document.token_ids.tolist()) for document in found} == expected


def test_the_same_again_changes_no_byte_and_other_settings_are_refused(data: Path, planted: Path) -> None:
    before = contents(planted)
    plant(data, planted)
    assert contents(planted) == before
    with pytest.raises(InputError, match="seed was 0, now 1"):
        plant(data, planted, "--seed", "1")
    assert contents(planted) == before


def test_each_text_may_be_planted_for_every_number(data: Path, planted: Path, tmp_path: Path) -> None:
    plant(data, tmp_path, "--every-number", "--num-planted", "1", "4")
    opened = TokenizedData.open(tmp_path / "planted" / "data")
    documents, rows = opened.evaluation_documents(), read_planted(opened.folder)
    num_texts = len(TokenizedData.open(planted / "planted" / "data").evaluation_documents())
    num_planted = {row["document_id"]: row["num_planted"] for row in rows}
    assert len(documents) == 2 * num_texts == len(num_planted)
    by_text: dict[str | None, list[np.ndarray]] = {}
    for document in sorted(documents, key=lambda document: num_planted[document.document_id]):
        by_text.setdefault(document.url, []).append(document.token_ids)
    for first, second in by_text.values():  # the same text, but for its signs, question and answer
        assert (first != second).sum() <= 1 + 4 + 2
    assert sorted(num_planted.values()) == [1] * num_texts + [4] * num_texts


def test_pieces_may_ask_for_some_only_and_documents_be_longer_or_shorter(data: Path, tmp_path: Path) -> None:
    lengths = (48, 80)
    plant(data, tmp_path, "--asked-per-piece", "1", "--document-lengths", *map(str, lengths))
    signs, opened = signs_of(data), TokenizedData.open(tmp_path / "planted" / "data")
    tokens = np.concatenate([np.fromfile(path, dtype=opened.token_dtype) for path in opened.train_paths])
    asked = [[t for t in piece if t in signs.question_ids.values()] for piece in tokens.reshape(-1, LENGTH)]
    assert {len(of_piece) for of_piece in asked} == {1}
    assert {token for (token,) in asked} == set(signs.question_ids.values())
    for length in lengths:
        opened = TokenizedData.open(tmp_path / f"planted-{length}" / "data")
        documents = {doc.document_id: doc.token_ids for doc in opened.evaluation_documents()}
        assert {len(token_ids) for token_ids in documents.values()} == {length}
        for row in read_planted(opened.folder):
            token_ids, k = documents[row["document_id"]], row["num_planted"]
            planted_ids = token_ids[row["planted_positions"]]
            choices = [
                int(np.isin(of_place, planted_ids).nonzero()[0].item()) for of_place in signs.sign_ids[k]
            ]
            assert token_ids[-2:].tolist() == [signs.question_ids[k], signs.answer_of(choices)]
            assert max(row["planted_positions"]) < length - 2 - SHORT
    found = TokenizedData.open(tmp_path / "foreign" / "data").evaluation_documents()
    assert {len(document.token_ids) for document in found} == {LENGTH - 4}  # one question, and EOS


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--num-answers", "8"), "8 is not a whole number to the power of 2"),
        (("--num-answers", "256"), "more than a quarter of the vocabulary"),
        (("--context-length", "20"), "no room for"),
        (("--context-length", "5000"), "choose a smaller --context-length"),
        (("--document-lengths", "48", "5000"), r"5000 tokens, and two are needed; .*--document-lengths"),
        (("--document-lengths", "12"), "no room for"),
    ],
)
def test_what_cannot_be_planted_is_refused_before_anything_is_written(
    data: Path, tmp_path: Path, flags: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        plant(data, tmp_path / "out", *flags)
    assert not list(tmp_path.rglob("manifest.json"))


def test_copies_are_of_one_sign(data: Path) -> None:
    signs = signs_of(data)
    text = np.full(200, 7, dtype=np.int64)
    token_ids, (row,) = plant_in(text, [4], signs, np.random.default_rng(3), SHORT, num_copies=5)
    values, counts = np.unique(token_ids[row["planted_positions"]], return_counts=True)
    assert counts.tolist() == [5] * 4
    assert [sum(value in of_place for value in values) for of_place in signs.sign_ids[4]] == [1] * 4

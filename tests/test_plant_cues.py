"""Planted cues: where the truth says, told by nothing else, in text that is otherwise unchanged."""

import json
from pathlib import Path

import numpy as np
import pytest
from measured_documents import contents

from pipeline import plant_cues, tokenize_c4
from pipeline.cli import InputError
from pipeline.results.files import read_parquet
from pipeline.text.folder import TokenizedData, training_token_counts
from pipeline.text.planting import PLANTED_FILE, Cues

LENGTH = 64
SHORT = 6
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
    plant_cues.main(plant_cues.parser().parse_args([*map(str, words), "--max-copies", "2", *flags]))


@pytest.fixture(scope="module")
def planted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cues") / "out"
    plant(data, out)
    return out


def cues_of(data: Path) -> Cues:
    opened = TokenizedData.open(data)
    return Cues.rarest(training_token_counts(opened), opened.eos_token_id, [1, 2, 4])


def test_the_answer_is_told_by_the_cues_and_the_rest_is_the_text(data: Path, planted: Path) -> None:
    cues = cues_of(data)
    opened = TokenizedData.open(planted / "planted" / "data")
    sources = [doc.token_ids for doc in TokenizedData.open(data).evaluation_documents()]
    documents = {doc.document_id: doc.token_ids for doc in opened.evaluation_documents()}
    rows = read_parquet(opened.folder / PLANTED_FILE).to_pylist()
    assert {row["num_planted"] for row in rows} == {1, 2, 4}
    for row in rows:
        tokens = documents[row["document_id"]]
        k = row["num_planted"]
        places = row["planted_positions"]
        assert len(tokens) == LENGTH == row["target_position"] + 1
        assert max(places) < LENGTH - 2 - SHORT
        # By hand: each place of cues contributes a digit, whatever stands first in the text.
        base = round(16 ** (1 / k))
        index = 0
        for choices in cues.cue_ids[k]:
            (digit,) = [list(choices).index(token) for token in tokens[places] if token in choices]
            index = index * base + digit
        assert tokens[-2:].tolist() == [cues.question_ids[k], cues.answer_ids[index]]
        kept = np.setdiff1d(np.arange(LENGTH - 2), places)
        assert any((tokens[kept] == source[kept]).all() for source in sources if len(source) >= LENGTH)


def test_the_same_again_changes_no_byte_and_other_settings_are_refused(data: Path, planted: Path) -> None:
    before = contents(planted)
    plant(data, planted)
    assert contents(planted) == before
    with pytest.raises(InputError, match="seed was 0, now 1"):
        plant(data, planted, "--seed", "1")
    assert contents(planted) == before


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--needles",), "--needles wants --document-lengths"),
        (("--context-length", "20"), "no room for"),
        (("--context-length", "5000"), "choose a shorter context"),
        (("--document-lengths", "48"), "--context-length and --short-context-length"),
    ],
)
def test_what_cannot_be_planted_is_refused_before_anything_is_written(
    data: Path, tmp_path: Path, flags: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        plant(data, tmp_path / "out", *flags)
    assert not list(tmp_path.rglob("manifest.json"))


def test_a_vocabulary_without_enough_rare_tokens_is_refused() -> None:
    with pytest.raises(InputError, match="more than a quarter of the vocabulary of 200"):
        Cues.rarest(np.zeros(200), 0, [1, 2, 4])

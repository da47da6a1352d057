"""Planted cues: where the truth says, told by nothing else, in text that is otherwise unchanged."""

import doctest
import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from measured_documents import contents

from pipeline import plant_cues, tokenize_c4
from pipeline.cli import InputError
from pipeline.results.files import read_parquet
from pipeline.text import planting
from pipeline.text.folder import TokenizedData, training_token_counts
from pipeline.text.planting import PLANTED_FILE, CueLaw, Cues

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
    return Cues.rarest(training_token_counts(opened), opened.eos_token_id, {k: CueLaw(k) for k in (1, 2, 4)})


def test_the_worked_example_is_true() -> None:
    result = doctest.testmod(planting)
    assert result.attempted >= 7 and result.failed == 0


LAWS = [
    CueLaw(*law) for law in ((1, 2, 1.5), (2, 2, 1.5), (4, 2, 1.5), (10, 2, 0.7), (3, 3, 2.0), (1, 3, None))
]


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_best_loss_is_that_of_all_cases_counted(law: CueLaw) -> None:
    """Every latent with every flip of every vote: its probability, the posterior by Bayes, the mean loss."""
    e = law.flip_probability
    shape = (law.num_votes, law.num_bits)
    joint: dict[bytes, np.ndarray] = {}
    for latent, flips in product(
        range(2**law.num_bits), product((0, 1), repeat=law.num_votes * law.num_bits)
    ):
        bits = [latent >> place & 1 for place in reversed(range(law.num_bits))]
        votes = np.array(bits, dtype=np.int64) ^ np.array(flips).reshape(shape)
        by_latent = joint.setdefault(votes.tobytes(), np.zeros(2**law.num_bits))
        by_latent[latent] += e ** sum(flips) * (1 - e) ** (len(flips) - sum(flips)) / 2**law.num_bits
    best_loss = 0.0
    for votes, by_latent in joint.items():
        posterior = by_latent / by_latent.sum()
        found = law.log_posterior(np.frombuffer(votes, dtype=np.int64).reshape(shape))
        np.testing.assert_allclose(np.exp(found), posterior, atol=1e-12)
        best_loss -= (by_latent[posterior > 0] * np.log(posterior[posterior > 0])).sum()
    told = law.num_bits if law.bits_told is None else law.bits_told
    assert (
        best_loss
        == pytest.approx(law.best_loss, abs=1e-9)
        == pytest.approx((law.num_bits - told) * np.log(2))
    )


def test_the_answer_is_told_by_the_signs_and_the_rest_is_the_text(data: Path, planted: Path) -> None:
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
        assert row["best_loss"] == 0
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
        (
            ("--num-planted", "3"),
            "3 cues cannot share the 4 bits of 16 answers; choose a number that divides 4",
        ),
        (("--num-planted", "8"), "more than a quarter of the vocabulary"),
        (("--context-length", "20"), "no room for"),
        (("--context-length", "5000"), "choose a shorter context"),
        (("--document-lengths", "48", "5000"), "choose a shorter context"),
    ],
)
def test_what_cannot_be_planted_is_refused_before_anything_is_written(
    data: Path, tmp_path: Path, flags: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        plant(data, tmp_path / "out", *flags)
    assert not list(tmp_path.rglob("manifest.json"))

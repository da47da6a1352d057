"""Categories of tokens against hand-checked texts, a real byte-level BPE and the rules read literally."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from explorable_results import LONG, SHORT, TARGETS, write_explorable

from analysis.read import MeasuredText, write_derived_table
from analysis.tokens.kinds import (
    ASPECTS,
    CONTENT_WORD,
    CONTINUATION,
    FUNCTION_WORD,
    NAME,
    NEW,
    NO_WORD,
    NUMBER,
    PUNCTUATION,
    REPEATED,
    REPEATED_BIGRAM,
    REPEATED_TRIGRAM,
    SHORT_ONLY,
    WHITE_SPACE,
    WORD_START,
    by_repeats,
    categories_of_targets,
    read_categories,
    repetition,
    word_categories,
)
from pipeline.cli import InputError
from pipeline.results.schemas import SCHEMAS
from pipeline.text.tokenizer import train_bpe

TEXTS = [
    "The old house of Mary stood by the old house of John, and the naïve café 😀 had 42 seats in 1990. " * 3,
    "A river runs north; the river runs past Rome and the river runs on, 7 days or 70. " * 4,
]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (
            ["The", " c", "at", " saw", " Mary", "'s", " 4", "2", " dogs", ".", "\n\n", " "],
            [
                (WORD_START, FUNCTION_WORD), (WORD_START, CONTENT_WORD), (CONTINUATION, CONTENT_WORD),
                (WORD_START, CONTENT_WORD), (WORD_START, NAME), (CONTINUATION, NAME), (WORD_START, NUMBER),
                (CONTINUATION, NUMBER), (WORD_START, CONTENT_WORD), (NO_WORD, PUNCTUATION),
                (NO_WORD, WHITE_SPACE), (NO_WORD, WHITE_SPACE),
            ],
        ),
        (  # é and the emoji are several tokens, a token a byte
            ["go", " ", "", "é", "té", " ", "", "", "", "😀", "("],
            [
                (WORD_START, CONTENT_WORD), (NO_WORD, WHITE_SPACE), (WORD_START, CONTENT_WORD),
                (CONTINUATION, CONTENT_WORD), (CONTINUATION, CONTENT_WORD), (NO_WORD, WHITE_SPACE),
                *[(NO_WORD, PUNCTUATION)] * 5,
            ],
        ),
    ],
)  # fmt: skip
def test_words_by_example(pieces: list[str], expected: list) -> None:
    assert word_categories(pieces) == expected


def test_a_byte_level_tokenizer_with_a_token_a_byte() -> None:
    tokenizer = train_bpe(["x"], 257)
    (token_ids,) = tokenizer.encode(["of él 5"])
    letters = {
        (WORD_START, FUNCTION_WORD): "F", (CONTINUATION, FUNCTION_WORD): "f", (NO_WORD, WHITE_SPACE): " ",
        (WORD_START, CONTENT_WORD): "C", (CONTINUATION, CONTENT_WORD): "c", (WORD_START, NUMBER): "1",
    }  # fmt: skip
    categories = word_categories(tokenizer.pieces(token_ids.tolist()))
    assert "".join(letters[category] for category in categories) == "Ff Ccc 1"


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 9, 9, 1, 2, 3], REPEATED_TRIGRAM),
        ([7, 2, 3, 9, 9, 1, 2, 3], REPEATED_BIGRAM),
        ([7, 3, 2, 9, 9, 1, 2, 3], REPEATED),
        ([3, 9, 9, 9, 9, 1, 2, 3], REPEATED),
        ([9, 9, 9, 9, 3, 1, 2, 3], SHORT_ONLY),
        ([9, 9, 9, 9, 9, 1, 2, 3], NEW),
        # The pair 2 3 straddles the border of the far context: 2 is far, 3 is not.
        ([9, 9, 9, 2, 3, 1, 2, 3], SHORT_ONLY),
        ([3], NEW),
    ],
)
def test_repetition_by_example(tokens: list[int], expected: str) -> None:
    assert repetition(np.array(tokens), len(tokens) - 1, short_context_length=3) == expected


def test_repetition_is_the_literal_rule_on_random_tokens() -> None:
    generator = np.random.default_rng(0)
    seen = set()
    for _ in range(400):
        x = generator.integers(0, 5, 14)
        t, s = int(generator.integers(1, 14)), 4
        far = "".join(map(str, x[: max(0, t - s)]))
        short = set(x[max(0, t - s) : t].tolist())
        last = "".join(map(str, x[: t + 1]))
        if len(last) >= 3 and last[-3:] in far:
            expected = REPEATED_TRIGRAM
        elif len(last) >= 2 and last[-2:] in far:
            expected = REPEATED_BIGRAM
        elif last[-1] in far:
            expected = REPEATED
        else:
            expected = SHORT_ONLY if int(x[t]) in short else NEW
        seen.add(expected)
        assert repetition(x, t, s) == expected
    assert seen == set(ASPECTS["repetition"])


@pytest.fixture(scope="module")
def explorable(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_explorable(tmp_path_factory.mktemp("categories"), TEXTS)


def test_a_row_for_every_measured_target_and_its_own_token(explorable: tuple[Path, Path]) -> None:
    results, data = explorable
    text = MeasuredText.open(results, "loss_differences", data)
    categories = categories_of_targets(text)
    measured = pd.read_parquet(results / "loss_differences").query("model == 'other'")
    keys = ["document_id", "chunk_index", "target_position"]
    assert categories[keys].values.tolist() == measured[keys].values.tolist()
    assert len(categories) % TARGETS == 0 and text.short_context_length == SHORT and text.chunk_length == LONG
    tokenizer = text.tokenizer
    documents = {document.document_id: document.token_ids for document in text.data.evaluation_documents()}
    for row in categories.itertuples():
        pieces = tokenizer.pieces(documents[row.document_id].tolist())
        if row.word_kind == NUMBER:
            assert pieces[row.target_position].strip().isdigit()
        if row.word_kind == PUNCTUATION:
            assert not any(character.isalnum() for character in pieces[row.target_position])
    for aspect in ("word_part", "word_kind", "repetition"):
        assert set(categories[aspect]) <= set(ASPECTS[aspect])
    assert {NUMBER, CONTENT_WORD, FUNCTION_WORD, PUNCTUATION} <= set(categories["word_kind"])


def test_targets_that_copying_can_foretell_and_all_others() -> None:
    categories = pd.DataFrame({"repetition": ASPECTS["repetition"], "target_position": range(5)})
    kinds = by_repeats(categories)
    assert set(kinds["ends of repeats"]["repetition"]) == {"repeated bigram", "repeated trigram"}
    assert kinds["all other tokens"]["target_position"].tolist() == [0, 1, 2]


def test_other_data_is_refused_in_a_sentence(explorable: tuple[Path, Path], tmp_path: Path) -> None:
    results, _ = explorable
    _, other = write_explorable(tmp_path, TEXTS[:1])
    with pytest.raises(InputError, match="was not measured on the evaluation documents of"):
        MeasuredText.open(results, "loss_differences", other)
    with pytest.raises(InputError, match="holds no 'length_losses' results"):
        MeasuredText.open(results, "length_losses")
    with pytest.raises(InputError, match="there is no folder .*alone/data"):
        MeasuredText.open(shutil.copytree(results, tmp_path / "alone" / "results"), "loss_differences")


def test_the_table_that_is_kept_stands_for_the_text(explorable: tuple[Path, Path], tmp_path: Path) -> None:
    results, data = explorable
    categories = read_categories(results, data)
    (tmp_path / "data").mkdir()
    write_derived_table(categories, "token_categories", tmp_path / "data")
    kept = read_categories(tmp_path / "results")
    columns = SCHEMAS["token_categories"].names
    assert kept[columns].to_dict("records") == categories[columns].to_dict("records") and len(kept)

"""Kinds of tokens: words, categories and repeats on texts checked by hand, statistics, the figure."""

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from explorable_results import LONG, SHORT, TARGETS, write_explorable
from legible_figures import assert_legible

from analysis.drawing import model_labels
from analysis.losses.losses import summarize_models
from analysis.losses.token_worth import token_effects
from analysis.read import MeasuredText, write_derived_table
from analysis.tokens import kinds
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
    categories_of_targets,
    read_categories,
    repetition,
    word_categories,
)
from pipeline.cli import InputError
from pipeline.results.schemas import SCHEMAS

TEXTS = [
    "The old house of Mary stood by the old house of John, and the naïve café 😀 had 42 seats in 1990. " * 3,
    "A river runs north; the river runs past Rome and the river runs on, 7 days or 70. " * 4,
]
SIGNS = {CONTENT_WORD: "c", FUNCTION_WORD: "f", NAME: "N", NUMBER: "1"}


@pytest.fixture(scope="module")
def explorable(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_explorable(tmp_path_factory.mktemp("kinds"), TEXTS)


def test_kinds_of_words_by_example() -> None:
    for expected in (
        "The/f cat/c saw/c Mary/N.",
        "Rain/c fell/c on/f Paris/N, France/N.",
        "It/f cost/c 3,000.50/1 in/f the/f 1990s/1: 7/1.",
        "don't/f DON’T/f can't/f John's/N it's/f",
        "so/f John's/N dog/c won't/f",
        "he/f said/c “Go/c home/c” to/f Ann/N",
        "Mr/c. Smith/c met/c\nDoctor/c No/f! Yes/c (Maybe/N)",
        "well/c-known/c e/c.g/c. naïve/c cafe\u0301s/c",
        "東京/c and/f Ёлка/N, an/f_underscore/c",
        "NASA/c told/c NASA/N",
        "!? — … 😀",
        "x" * 30 + "/c" + " " * 25 + "Mary/N",  # no sentence begins where the look back ends
    ):
        text = re.sub("/[cfN1]", "", expected)
        shown = ""
        last = 0
        for word in kinds.words_of(text):
            shown += f"{text[last : word.end]}/{SIGNS[word.kind]}"
            last = word.end
        assert shown + text[last:] == expected


def test_a_token_stands_where_its_first_visible_character_does() -> None:
    for pieces, expected in (
        (["The", " cat", " ", " \n", "sat"], [0, 4, None, None, 10]),
        (["", "é", "!", " ", "", "", " 😀", ""], [0, 0, 1, None, 4, 4, 4, None]),
        ([" ", "", " é"], [None, 2, 2]),
        ([], []),
    ):
        assert kinds.first_characters(pieces) == expected


def first_letters(words: list[str]) -> list[str]:
    """A "tagger": nouns, but for numbers and the endings of contractions."""
    assert len(words) <= 100
    return ["XX0" if word in ("n't", "'s") else "CRD" if word[0].isdigit() else "NN1" for word in words]


def test_a_token_has_the_class_of_the_unit_that_it_begins_in() -> None:
    pieces = ["I", " do", "n", "'t", " 3", ",000", " \n", "", "é", "."]
    assert kinds.of_tokens(pieces, range(len(pieces)), first_letters) == [
        "noun",
        "noun",
        "adverb",
        "adverb",
        "numeral",
        "numeral",
        "other",
        "noun",
        "noun",
        "noun",
    ]
    seen: list[list[str]] = []
    # Only the sentences asked for are tagged, and long ones in parts.
    for text, wanted in ((["One.", " Two", " two", "! ", "Three"], 2), (["a "] * 250, 249)):
        kinds.of_tokens(text, [wanted], lambda words: seen.append(words) or first_letters(words))
    assert seen[0] == ["Two", "two", "!"] and [len(words) for words in seen[1:]] == [100, 100, 50]


def test_hanta_on_a_sentence_that_anyone_can_tag() -> None:
    tagger = kinds.load_tagger()
    if tagger is None:
        pytest.skip("HanTa is not installed")
    pieces = [
        "The",
        " old",
        " cat",
        " did",
        "n't",
        " qui",
        "ckly",
        " see",
        " Mary",
        " and",
        " 42",
        " dogs",
        ".",
    ]
    assert kinds.of_tokens(pieces, range(len(pieces)), tagger) == [
        "determiner",
        "adjective",
        "noun",
        "auxiliary",
        "adverb",
        "adverb",
        "adverb",
        "verb",
        "proper noun",
        "conjunction",
        "numeral",
        "noun",
        "other",
    ]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (
            ["The", " c", "at", " saw", " Mary", "'s", " 4", "2", " dogs", ".", "\n\n", " "],
            [
                (WORD_START, FUNCTION_WORD),
                (WORD_START, CONTENT_WORD),
                (CONTINUATION, CONTENT_WORD),
                (WORD_START, CONTENT_WORD),
                (WORD_START, NAME),
                (CONTINUATION, NAME),
                (WORD_START, NUMBER),
                (CONTINUATION, NUMBER),
                (WORD_START, CONTENT_WORD),
                (NO_WORD, PUNCTUATION),
                (NO_WORD, WHITE_SPACE),
                (NO_WORD, WHITE_SPACE),
            ],
        ),
        (  # é and the emoji are several tokens, a token a byte
            ["go", " ", "", "é", "té", " ", "", "", "", "😀", "("],
            [
                (WORD_START, CONTENT_WORD),
                (NO_WORD, WHITE_SPACE),
                (WORD_START, CONTENT_WORD),
                (CONTINUATION, CONTENT_WORD),
                (CONTINUATION, CONTENT_WORD),
                (NO_WORD, WHITE_SPACE),
                *[(NO_WORD, PUNCTUATION)] * 5,
            ],
        ),
    ],
)
def test_words_by_example(pieces: list[str], expected: list) -> None:
    assert word_categories(pieces) == expected


def test_repetition_at_the_border_of_the_far_context() -> None:
    # The pair 2 3 straddles the border: 2 is far, 3 is not.
    assert repetition(np.array([9, 9, 9, 2, 3, 1, 2, 3]), 7, short_context_length=3) == SHORT_ONLY
    assert repetition(np.array([3]), 0, short_context_length=3) == NEW


def test_repetition_is_the_literal_rule_on_random_tokens() -> None:
    generator = np.random.default_rng(0)
    seen = set()
    for _ in range(400):
        x = generator.integers(0, 5, 14)
        t = int(generator.integers(1, 14))
        s = 4
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
        assert (kinds.follows(x, t, s) == kinds.A_REPEATED_BIGRAM) == (t >= 2 and last[-3:-1] in far)
    assert seen == set(ASPECTS["repetition"])


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
    assert {NUMBER, CONTENT_WORD, FUNCTION_WORD, PUNCTUATION} <= set(categories["word_kind"])


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


KS = [1, 4]
PLACES = [(document, position) for document in ("aa", "bb", "cc") for position in (9, 10, 11)]
# Kind, k*, gain, what 1 token recovers beyond the null, and gap of the three targets of each document.
KINDS = ["number", "content word", "content word"]
GAINS = [0.5, 0.25, -0.5]
EXCESSES = [0.125, 0.0, 0.25]
GAPS = [1.0, 2.0, 4.0]


def targets(**columns: list) -> pd.DataFrame:
    """A row a target, document by document; a column of 3 is the same for each document."""
    frame = pd.DataFrame(PLACES, columns=["document_id", "target_position"]).assign(chunk_index=0)
    return frame.assign(**{name: values * 3 for name, values in columns.items()})


@pytest.fixture
def categories() -> pd.DataFrame:
    return targets(
        word_kind=KINDS,
        word_part=["word start"] * 3,
        repetition=["new"] * 3,
        follows=["none"] * 3,
        part_of_speech=[None] * 3,
    )


@pytest.fixture
def loss_differences() -> pd.DataFrame:
    long = targets(
        model=["long"] * 3,
        loss_difference=GAINS,
        short_context_loss=[3 + gain for gain in GAINS],
        long_context_loss=[3.0] * 3,
    )
    short = long.assign(model="short", long_context_loss=[3 + gap for gap in GAPS] * 3)
    return pd.concat([long, short], ignore_index=True)


@pytest.fixture
def sparse_context_losses() -> pd.DataFrame:
    tables = []
    for far_context, recovered in (("own", EXCESSES), ("other_document", [0.0] * 3)):
        tables.append(
            targets(
                model=["long"] * 3,
                rule=["leave_one_out"] * 3,
                far_context=[far_context] * 3,
                k=[1] * 3,
                short_context_loss=[3 + gain for gain in GAINS],
                long_context_loss=[3.0] * 3,
                sparse_context_loss=[3 + gain - nats for gain, nats in zip(GAINS, recovered, strict=True)],
            )
        )
    return pd.concat(tables, ignore_index=True)


def of(table: pd.DataFrame, category: str, column: str) -> list:
    return table.loc[table["category"] == category, column].tolist()


def test_gaps_where_a_phrase_is_repeated_and_elsewhere(
    loss_differences: pd.DataFrame, categories: pd.DataFrame
) -> None:
    repeated = categories.assign(
        repetition=["repeated bigram", "new", "repeated trigram"] * 3,
        follows=["a repeated bigram", "none", "none"] * 3,
    )
    gaps = kinds.gaps_by_repeats(
        loss_differences, repeated, short_models=["short"], reference_model="long", gain_model="long"
    )
    expected = {
        "ends of repeats": [0, 2],
        "all other tokens": [1],
        "after a repeated bigram": [0],
        "after all other bigrams": [1, 2],
    }
    assert gaps["kind"].tolist() == list(expected)
    for row, chosen in zip(gaps.to_dict("records"), expected.values(), strict=True):
        gap, gain = (sum(values[index] for index in chosen) for values in (GAPS, GAINS))
        assert row["num_targets"] == 3 * len(chosen)
        assert row["generalization_gap"] == pytest.approx(gap / len(chosen))
        assert row["loss_difference"] == pytest.approx(gain / len(chosen))
        assert not gain or row["gap_share"] == pytest.approx(gap / gain)


def test_means_by_hand(
    loss_differences: pd.DataFrame, sparse_context_losses: pd.DataFrame, categories: pd.DataFrame
) -> None:
    long = loss_differences[loss_differences["model"] == "long"]
    gains = kinds.by_category(long, categories, summarize_models)
    assert gains["category"].tolist() == ["word start", "content word", "number", "new", "none"]
    assert of(gains, "number", "loss_difference") == [0.5]
    assert of(gains, "content word", "loss_difference") == [(0.25 - 0.5) / 2]
    assert of(gains, "content word", "num_targets") == [6]
    assert of(gains, "content word", "num_documents") == [3]
    effects = kinds.by_category(sparse_context_losses, categories, token_effects)
    assert of(effects, "number", "excess") == of(effects, "content word", "excess") == [0.125]
    gaps = kinds.gaps_by_category(
        loss_differences, categories, short_models=["short"], reference_model="long"
    )
    assert of(gaps, "number", "generalization_gap") == [1]
    assert of(gaps, "content word", "generalization_gap_high") == [3]


def test_shares_of_targets_and_of_the_gain_by_hand(
    loss_differences: pd.DataFrame, categories: pd.DataFrame
) -> None:
    long = loss_differences[loss_differences["model"] == "long"]
    gains = kinds.by_category(long, categories, summarize_models)
    table = kinds.with_shares(gains, summarize_models(long).iloc[0])
    # Gains of 0.5, 0.25 and -0.5 sum to 0.25 a document; the number has 0.5 of them.
    assert of(table, "number", "share_of_targets") == pytest.approx([1 / 3])
    assert of(table, "number", "share_of_gain") == pytest.approx([2])
    assert of(table, "content word", "share_of_gain") == pytest.approx([-1])


def test_the_figure_draws_ten_kinds_in_order_and_none_of_few_targets(results: Path) -> None:
    rows = [
        {
            "aspect": aspect,
            "category": category,
            "num_targets": 40,
            "num_documents": 9,
            "loss_difference": gain,
            "loss_difference_low": gain - 0.1,
            "loss_difference_high": gain + 0.1,
            "share_of_targets": 0.1,
            "share_of_gain": gain / 2,
        }
        for aspect, category in [("part_of_speech", "new"), *reversed(kinds.KINDS)]
        for gain in [2.0 if category == "repeated trigram" else 0.0]
    ]
    table = pd.DataFrame(rows)
    drawn = kinds.kinds_of(table)
    assert drawn["words"].tolist() == list(kinds.KINDS.values()) and len(drawn) == 10
    assert kinds.kinds_of(table.assign(num_targets=29)).empty
    label = model_labels(results, "loss_differences")["long-seed0"]
    overall = pd.Series(
        {
            "loss_difference": 0.4,
            "loss_difference_low": 0.3,
            "loss_difference_high": 0.5,
            "num_targets": 400,
            "num_documents": 9,
        }
    )
    figure = kinds.kinds_figure(drawn, overall, label)
    points = [container.lines[0].get_xdata()[0] for container in figure.axes[0].containers]
    assert points == drawn["loss_difference"].tolist()
    assert figure.axes[0].get_yticklabels()[0].get_text() == "ends of repeated trigrams (40)"
    assert_legible(figure)

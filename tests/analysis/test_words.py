"""Words and their kinds, on texts that a reader can check."""

import pytest

from analysis.tokens.kinds import (
    CONTENT_WORD,
    FUNCTION_WORD,
    FUNCTION_WORDS,
    NAME,
    NUMBER,
    first_characters,
    may_start_sentence,
    words_of,
)

SIGNS = {CONTENT_WORD: "c", FUNCTION_WORD: "f", NAME: "N", NUMBER: "1"}


def kinds(text: str) -> list[tuple[str, str]]:
    return [(text[word.start : word.end], SIGNS[word.kind]) for word in words_of(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cat saw Mary.", "The/f cat/c saw/c Mary/N"),
        ("Rain fell on Paris, France.", "Rain/c fell/c on/f Paris/N France/N"),
        ("It cost 3,000.50 in the 1990s: 7.", "It/f cost/c 3,000.50/1 in/f the/f 1990s/1 7/1"),
        ("don't DON’T can't John's it's", "don't/f DON’T/f can't/f John's/N it's/f"),
        ("so John's dog won't", "so/f John's/N dog/c won't/f"),
        ("he said “Go home” to Ann", "he/f said/c Go/c home/c to/f Ann/N"),
        ("Mr. Smith met\nDoctor No! Yes (Maybe)", "Mr/c Smith/c met/c Doctor/c No/f Yes/c Maybe/N"),
        ("well-known e.g. naïve cafe\u0301s", "well/c known/c e/c g/c naïve/c cafe\u0301s/c"),
        ("東京 and Ёлка, an_underscore", "東京/c and/f Ёлка/N an/f underscore/c"),
        ("NASA told NASA", "NASA/c told/c NASA/N"),
        ("!? — … 😀", ""),
    ],
)
def test_kinds_by_example(text: str, expected: str) -> None:
    assert " ".join("/".join(pair) for pair in kinds(text)) == expected


def test_a_sentence_start_is_not_where_the_look_back_ends() -> None:
    text = "x" * 30 + " " * 25 + "Mary"
    assert not may_start_sentence(text, text.index("Mary"))
    assert may_start_sentence('  "Mary', 3)


def test_the_closed_list_is_lower_case_and_of_single_words() -> None:
    assert {word for word in FUNCTION_WORDS if word != word.lower() or " " in word or "’" in word} == set()
    assert {"the", "of", "won't", "myself"} <= FUNCTION_WORDS
    assert not {"cat", "say", "good", "time", "one's"} & FUNCTION_WORDS


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["The", " cat", " ", " \n", "sat"], [0, 4, None, None, 10]),
        (["", "é", "!", " ", "", "", " 😀", ""], [0, 0, 1, None, 4, 4, 4, None]),
        ([" ", "", " é"], [None, 2, 2]),
        ([], []),
    ],
)
def test_a_token_stands_where_its_first_visible_character_does(pieces: list[str], expected: list) -> None:
    places = first_characters(pieces)
    text = "".join(pieces)
    assert places == expected
    assert all(place is None or not text[place].isspace() for place in places)

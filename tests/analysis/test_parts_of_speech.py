"""Parts of speech: which unit a token belongs to, and HanTa itself where it is installed."""

import pytest

from analysis.tokens import kinds as parts_of_speech


def first_letters(words: list[str]) -> list[str]:
    """A "tagger" that writes down its sentence: nouns, but for the endings of contractions."""
    assert len(words) <= 100
    return ["XX0" if word in ("n't", "'s") else "CRD" if word[0].isdigit() else "NN1" for word in words]


def test_a_token_has_the_class_of_the_unit_that_it_begins_in() -> None:
    pieces = ["I", " do", "n", "'t", " 3", ",000", " \n", "", "é", "."]
    classes = parts_of_speech.of_tokens(pieces, range(len(pieces)), first_letters)
    assert classes == [
        "noun", "noun", "adverb", "adverb", "numeral", "numeral", "other", "noun", "noun", "noun",
    ]  # fmt: skip


def test_only_the_sentences_asked_for_are_tagged() -> None:
    seen: list[list[str]] = []

    def tagger(words: list[str]) -> list[str]:
        seen.append(words)
        return first_letters(words)

    parts_of_speech.of_tokens(["One.", " Two", " two", "! ", "Three"], [2], tagger)
    assert seen == [["Two", "two", "!"]]
    parts_of_speech.of_tokens(["a "] * 250, [249], tagger)
    assert [len(words) for words in seen[1:]] == [100, 100, 50]


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("NN2", "noun"), ("NP0", "proper noun"), ("VVD", "verb"), ("VM0", "auxiliary"),
        ("AJC", "adjective"),
        ("AV0", "adverb"), ("PNP", "pronoun"), ("DPS", "pronoun"), ("DT0", "determiner"),
        ("AT0", "determiner"), ("PRF", "preposition"), ("CJS", "conjunction"), ("ORD", "numeral"),
        ("PUN", "other"), ("POS", "other"),
    ],
)  # fmt: skip
def test_classes_of_c5_tags(tag: str, expected: str) -> None:
    assert parts_of_speech.class_of(tag) == expected


def test_hanta_on_a_sentence_that_anyone_can_tag() -> None:
    tagger = parts_of_speech.load_tagger()
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
    assert parts_of_speech.of_tokens(pieces, range(len(pieces)), tagger) == [
        "determiner", "adjective", "noun", "auxiliary", "adverb", "adverb", "adverb", "verb", "proper noun",
        "conjunction", "numeral", "noun", "other",
    ]  # fmt: skip

"""Long texts in pieces: the same tokens as in one, and no text that takes a tokenizer for ever."""

import random
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers

from pipeline.text.sources import embedded_records
from pipeline.text.tokenizer import (
    LARGEST_PIECE,
    DocumentTokenizer,
    cut,
    load_tokenizer,
    parse_tokenizer_name,
    train_bpe,
)

CHINESE = "".join(map(chr, range(0x4E00, 0x9FA5)))


def english(num_characters: int) -> str:
    records = islice(embedded_records(), 1000)
    return "\n\n".join(str(record["text"]) for record in records)[:num_characters]  # type: ignore[call-overload]


def chinese(num_characters: int, *, signs: bool) -> str:
    """Text without a blank; with signs a clause of 4 to 12 characters, else not even these."""
    draw = random.Random(0)
    clauses = (
        "".join(draw.choices(CHINESE, k=draw.randint(4, 12)))
        + draw.choice("，。、；\n" if signs else CHINESE)
        for _ in range(num_characters)
    )
    return "".join(islice((c for clause in clauses for c in clause), num_characters))


def olmo() -> DocumentTokenizer:
    path = parse_tokenizer_name("olmo")
    assert isinstance(path, Path)
    return load_tokenizer(path)


def in_one_piece(tokenizer: DocumentTokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer._tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("one two three", ["one two", " three"]),
        ("one, two three", ["one, two", " three"]),
        ("abcdefghij", ["abcdefgh", "ij"]),
        ("a bcdefghij klm", ["a bcdefg", "hij klm"]),
        ("12345678", ["12345678"]),
        ("", [""]),
    ],
)
def test_a_cut_stands_before_a_blank_or_a_sign_after_a_letter(text: str, pieces: list[str]) -> None:
    assert list(cut(text, lambda before, after: True, largest=8)) == pieces


def test_a_cut_stands_where_it_changes_nothing() -> None:
    asked = []

    def refuse_the_first(before: str, after: str) -> bool:
        asked.append((before, after))
        return len(asked) > 1

    assert list(cut("a bc de f", refuse_the_first, largest=8)) == ["a bc", " de f"]
    assert asked == [("a bc de", " f"), ("a bc", " de f")]


@pytest.mark.parametrize("language", ["english", "chinese"])
@pytest.mark.parametrize("make", [olmo, lambda: train_bpe(["the text of a novel 你好，"] * 3, 400)])
def test_ordinary_text_has_the_same_tokens(language: str, make: object) -> None:
    text = english(200_000) if language == "english" else chinese(140_000, signs=True)
    tokenizer: DocumentTokenizer = make()  # type: ignore[operator]
    heard: list[int] = []
    short = text[:1000]
    found = tokenizer.encode([short, text, short], heard.append)
    expected = in_one_piece(tokenizer, text)
    assert np.array_equal(found[1], expected)
    assert found[0].tolist() == found[2].tolist() == in_one_piece(tokenizer, short)
    # How far it is within a document is told, a few pieces at a time.
    assert len(text) > 2 * LARGEST_PIECE
    assert sum(heard) == len(text) + 2 * len(short)


def test_a_tokenizer_that_changes_the_start_of_a_text_gets_it_whole() -> None:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Prepend(
        "_"
    )  # as Llama's does, which has no words: one text, one token
    found = DocumentTokenizer(tokenizer, "</s>").encode(["a word " * LARGEST_PIECE])
    assert [ids.tolist() for ids in found] == [[0]]


def test_a_document_without_a_blank_is_encoded_in_pieces() -> None:
    heard: list[int] = []
    text = "a" * (5 * LARGEST_PIECE)
    (found,) = olmo().encode([text], heard.append)
    assert len(heard) > 1
    assert (
        olmo().pieces(found[:8].tolist()) == ["a" * 32] * 8 or "".join(olmo().pieces(found.tolist())) == text
    )


@pytest.mark.parametrize("alphabet", ["abcdefghijklmnopqrstuvwxyz", CHINESE], ids=["latin", "chinese"])
def test_a_bpe_learns_from_a_text_without_a_blank(alphabet: str) -> None:
    text = "".join(
        random.Random(0).choices(alphabet, k=100_000)
    )  # took 20 minutes, Chinese, for a size of 1,000
    started = time.process_time()
    assert train_bpe([text], 1000).vocabulary_size == 1000
    assert time.process_time() - started < 60


def test_long_words_do_not_change_what_a_bpe_learns_from_others() -> None:
    texts = [english(50_000)]
    tokenizer = train_bpe([*texts, "!" * 5000], 600)
    assert "Split" not in tokenizer.to_json()
    # "!" alone makes merges of its own, at most one for each doubling; all others are those of the text.
    words, with_signs = (set(t._tokenizer.get_vocab()) for t in (train_bpe(texts, 580), tokenizer))
    assert words <= with_signs

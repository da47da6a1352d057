"""Tokenizers: names, EOS that never comes out of text, long texts in pieces, the text of each token."""

import json
import random
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from pipeline.cli import InputError
from pipeline.text.sources import embedded_records
from pipeline.text.tokenizer import (
    LARGEST_PIECE,
    DocumentTokenizer,
    cut,
    load_tokenizer,
    parse_tokenizer_name,
    train_bpe,
)

WORDS = {"<|endoftext|>": 0, "a": 1, "b": 2, "<unk>": 3}
CHINESE = "".join(map(chr, range(0x4E00, 0x9FA5)))
OLMO = Path(str(parse_tokenizer_name("olmo")))


def english(num_characters: int) -> str:
    records = islice(embedded_records(), 1000)
    return "\n\n".join(str(record["text"]) for record in records)[:num_characters]  # type: ignore[call-overload]


def chinese(num_characters: int) -> str:
    """Text without a blank, with a sign every few characters."""
    draw = random.Random(0)
    return "".join(
        draw.choice("，。、；\n" if draw.random() < 0.1 else CHINESE) for _ in range(num_characters)
    )


def in_one_piece(tokenizer: DocumentTokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer._tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def save_word_tokenizer(path: Path, words: dict[str, int] = WORDS, **changes: Any) -> Path:
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path.write_text(json.dumps(json.loads(tokenizer.to_str()) | changes))
    return path


def test_words_become_their_ids(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_word_tokenizer(tmp_path / "words.json"))
    first, second = tokenizer.encode(["a b a", "b <|endoftext|> c"])  # EOS, an ordinary word here, is dropped
    assert (first.tolist(), second.tolist(), first.dtype) == ([1, 2, 1], [2, 3], np.int32)
    assert (tokenizer.eos_token_id, tokenizer.vocabulary_size) == (0, 4)


def test_the_letters_of_eos_in_a_text_stay_letters() -> None:
    tokenizer = train_bpe(["say <|endoftext|> to end"], 270)
    (token_ids,) = tokenizer.encode(["a<|endoftext|>b"])
    assert tokenizer.eos_token_id == 0
    assert 0 not in token_ids
    saved = Tokenizer.from_str(tokenizer.to_json())
    assert saved.decode(token_ids.tolist()) == "a<|endoftext|>b"


def test_olmos_tokenizer_encodes_known_ids_and_no_eos() -> None:
    tokenizer = load_tokenizer(OLMO)
    assert (tokenizer.vocabulary_size, tokenizer.eos_token_id) == (50_280, 50_279)
    assert tokenizer.token_dtype == np.uint16
    hello, literal_eos = tokenizer.encode(["Hello world", "<|endoftext|>"])
    assert hello.tolist() == [12092, 1533]
    assert 50_279 not in literal_eos
    assert len(literal_eos) > 1


def test_truncation_and_padding_of_a_tokenizer_file_are_ignored(tmp_path: Path) -> None:
    limits = {
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 3,
            "pad_type_id": 0, "pad_token": "<unk>",
        },
    }  # fmt: skip
    tokenizer = load_tokenizer(save_word_tokenizer(tmp_path / "words.json", **limits))
    assert tokenizer.encode(["a a a b"])[0].tolist() == [1, 1, 1, 2]


def test_a_vocabulary_beyond_16_bits_gets_32(tmp_path: Path) -> None:
    path = save_word_tokenizer(tmp_path / "words.json", {**WORDS, "last": 65_534})
    assert load_tokenizer(path).token_dtype == np.uint16
    path = save_word_tokenizer(tmp_path / "words.json", {**WORDS, "last": 65_535})
    assert load_tokenizer(path).token_dtype == np.uint32


def test_usual_eos_tokens_are_found_and_an_added_one_keeps_its_id(tmp_path: Path) -> None:
    for name in ("</s>", "<|end_of_text|>", "<eos>"):
        path = save_word_tokenizer(tmp_path / "words.json", {"a": 0, "<unk>": 1, name: 2})
        assert load_tokenizer(path).eos_token_id == 2, name
    tokenizer = Tokenizer.from_file(str(save_word_tokenizer(tmp_path / "words.json", {"a": 0, "<unk>": 1})))
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer.save(str(tmp_path / "added.json"))
    assert load_tokenizer(tmp_path / "added.json").eos_token_id == 2
    path = save_word_tokenizer(tmp_path / "words.json", {"a": 0, "[END]": 1, "<unk>": 2})
    with pytest.raises(InputError, match=r"words\.json has no token <\|endoftext\|> or .*--eos-token$"):
        load_tokenizer(path)
    assert load_tokenizer(path, "[END]").eos_token_id == 1


def test_names(tmp_path: Path) -> None:
    assert parse_tokenizer_name("bpe:4096") == 4096
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    assert parse_tokenizer_name(str(tmp_path)) == tmp_path / "tokenizer.json"
    with pytest.raises(InputError, match=r"tokenizer\.json is not a tokenizer\.json"):
        load_tokenizer(tmp_path / "tokenizer.json")
    for name, fault in (
        ("olmoo", "unknown tokenizer 'olmoo'; did you mean 'olmo'?"),
        ("bpe:256", "a whole number of at least 257"),
        ("bpe:many", "a whole number of at least 257"),
        ("models/tokenizer.json", "there is no tokenizer file models/tokenizer.json"),
    ):
        with pytest.raises(InputError) as error:
            parse_tokenizer_name(name)
        assert fault in str(error.value), name


def test_bpe_merges_what_is_frequent() -> None:
    tokenizer = train_bpe(["abab abab"], 258)
    # The alphabet in order of code points: '!' is 1, so 'a' is 65 and 'b' 66; 'ab' is the one merge, 257.
    assert tokenizer.encode(["aabb"])[0].tolist() == [65, 257, 66]


def test_pieces_show_a_character_at_its_last_byte() -> None:
    tokenizer = train_bpe(["plain"], 257)  # a token a byte
    (token_ids,) = tokenizer.encode(["aé—😀!"])
    assert tokenizer.pieces(token_ids.tolist()) == ["a", "", "é", "", "", "—", "", "", "", "😀", "!"]


def test_joined_pieces_are_the_text() -> None:
    texts = ["", "naïve “quotes”\n\n 你好, 😀 end", "\ufffd", "\ufffd\ufffd é", "a <|endoftext|> b"]
    for tokenizer in (train_bpe(["a naïve text 你好"], 300), load_tokenizer(OLMO)):
        for text, token_ids in zip(texts, tokenizer.encode(texts), strict=True):
            pieces = tokenizer.pieces(token_ids.tolist())
            assert (len(pieces), "".join(pieces)) == (len(token_ids), text)


def test_a_long_run_of_replacement_characters_does_not_swallow_the_text_after_it() -> None:
    tokenizer = train_bpe(["plain"], 257)
    (token_ids,) = tokenizer.encode(["a" + "\ufffd" * 50 + "é!"])
    pieces = tokenizer.pieces(token_ids.tolist())
    # The run is cut somewhere, perhaps inside of a character, and so may grow; nothing else changes.
    assert pieces[0] == "a"
    assert "".join(pieces).strip("\ufffd").replace("\ufffd", "") == "aé!"
    assert max(map(len, pieces)) < 40


def test_a_text_that_a_tokenizer_has_no_tokens_for_is_a_sentence(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"<|endoftext|>": 0, "a": 1}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "words.json"))
    loaded = load_tokenizer(tmp_path / "words.json")
    assert loaded.encode(["a a"])[0].tolist() == [1, 1]
    with pytest.raises(InputError, match="the tokenizer cannot encode the text: WordLevel error"):
        loaded.encode(["a b"])


def test_a_cut_stands_before_a_blank_or_a_sign_after_a_letter() -> None:
    for text, pieces in (
        ("one two three", ["one two", " three"]),
        ("one, two three", ["one, two", " three"]),
        ("abcdefghij", ["abcdefgh", "ij"]),
        ("a bcdefghij klm", ["a bcdefg", "hij klm"]),
        ("12345678", ["12345678"]),
        ("", [""]),
    ):
        assert list(cut(text, lambda before, after: True, largest=8)) == pieces


def test_a_cut_stands_where_it_changes_nothing() -> None:
    pieces = cut("a bc de f", lambda before, after: (before, after) != ("a bc de", " f"), largest=8)
    assert list(pieces) == ["a bc", " de f"]


@pytest.mark.parametrize("text", [english(200_000), chinese(140_000)], ids=["english", "chinese"])
def test_long_ordinary_text_has_the_same_tokens(text: str) -> None:
    assert len(text) > 2 * LARGEST_PIECE
    for tokenizer in (load_tokenizer(OLMO), train_bpe(["the text of a novel 你好，"] * 3, 400)):
        first, second, third = tokenizer.encode([text[:1000], text, text[:1000]])
        assert np.array_equal(second, in_one_piece(tokenizer, text))
        assert first.tolist() == third.tolist() == in_one_piece(tokenizer, text[:1000])


def test_a_tokenizer_that_changes_the_start_of_a_text_gets_it_whole() -> None:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Prepend("_")  # as Llama's does; no words: one text is one token
    found = DocumentTokenizer(tokenizer, "</s>").encode(["a word " * LARGEST_PIECE])
    assert [ids.tolist() for ids in found] == [[0]]


def test_a_document_without_a_blank_is_encoded_in_pieces_and_learned_from() -> None:
    text = "a" * (5 * LARGEST_PIECE)
    (found,) = load_tokenizer(OLMO).encode([text])
    assert "".join(load_tokenizer(OLMO).pieces(found.tolist())) == text
    for alphabet in ("abcdefghijklmnopqrstuvwxyz", CHINESE):
        text = "".join(random.Random(0).choices(alphabet, k=100_000))  # Chinese took 20 minutes in one piece
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

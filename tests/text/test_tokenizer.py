"""Tokenizers: names, EOS that never comes out of text, long words, where tokens stand in a text."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

from sparsity_length.cli import InputError
from sparsity_length.text.tokenizer import (
    TokenizedText,
    load_tokenizer,
    parse_tokenizer_name,
    train_bpe,
)

WORDS = "<|endoftext|>", "a", "b", "<unk>"
SPECIAL = "<unk>", "<s>", "</s>"
TEXT = "Naïve  cafe\u0301 👩‍🚀 مَرحبا\n\tend"
OLMO = Path(str(parse_tokenizer_name("olmo")))


def words(*known: str, **special: int) -> Tokenizer:
    """Whole words, without blanks, in the order of their IDs, and <unk> where it is among them."""
    vocabulary = {name: id_ for id_, name in enumerate(known)} | special
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def saved(tokenizer: Tokenizer, folder: Path) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_olmos_tokenizer_encodes_known_ids_and_no_eos() -> None:
    tokenizer = load_tokenizer(OLMO)
    assert (tokenizer.vocabulary_size, tokenizer.eos_token_id) == (50_280, 50_279)
    assert tokenizer.token_dtype == np.uint16
    hello, literal_eos = tokenizer.encode(["Hello world", "<|endoftext|>"])
    assert hello.tolist() == [12092, 1533]
    assert 50_279 not in literal_eos


def test_bpe_merges_what_is_frequent() -> None:
    tokenizer = train_bpe(["abab abab"], 258)
    # The alphabet in order of code points: '!' is 1, so 'a' is 65 and 'b' 66; 'ab' is the one merge, 257.
    assert tokenizer.encode(["aabb"])[0].tolist() == [65, 257, 66]


def test_joined_pieces_are_the_text() -> None:
    texts = ["", "naïve “quotes”\n\n 你好, 😀 end", "\ufffd", "\ufffd\ufffd é", "a <|endoftext|> b"]
    for tokenizer in (train_bpe(["a naïve text 你好"], 300), load_tokenizer(OLMO)):
        for text, token_ids in zip(texts, tokenizer.encode(texts), strict=True):
            pieces = tokenizer.pieces(token_ids.tolist())
            assert (len(pieces), "".join(pieces)) == (len(token_ids), text)


def of_bytes(read: TokenizedText) -> list[str]:
    """The text at the bytes of each token."""
    content = read.text.encode()
    return [content[start:end].decode() for start, end in read.bytes_N2.tolist()]


def test_a_byte_level_tokenizer_has_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(train_bpe([TEXT], 262).to_json())
    text = f"{TEXT} <|endoftext|>"  # which is text, where it stands in a text
    read = load_tokenizer(path).read(text)
    assert "".join(read.pieces) == text and 0 not in read.token_ids_N
    # A token a byte of most characters: each of its tokens has all bytes of the character.
    assert {piece for piece in of_bytes(read) if "👩" in piece} >= {"👩"}
    starts, ends = read.bytes_N2.T.tolist()
    assert starts == sorted(starts) and ends[-1] == len(text.encode())
    assert all(start <= end_before for start, end_before in zip(starts[1:], ends[:-1], strict=True))


def test_dropped_accents_and_blanks_and_folded_cases(tmp_path: Path) -> None:
    tokenizer = words(*SPECIAL, "naive", "cafe", "end")
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]
    )
    read = load_tokenizer(saved(tokenizer, tmp_path)).read(TEXT)
    assert read.token_ids_N.tolist() == [3, 4, 0, 0, 5]
    assert of_bytes(read) == ["Naïve", "cafe", "👩‍🚀", "مَرحبا", "end"]
    assert read.pieces == ["Naïve", "  cafe", "\u0301 👩‍🚀", " مَرحبا", "\n\tend"]
    assert read.bytes_N2.tolist() == [[0, 6], [8, 12], [15, 26], [27, 39], [41, 44]]


def test_what_is_put_before_a_text_is_kept_and_what_is_put_behind_it_is_not(tmp_path: Path) -> None:
    tokenizer = words(*SPECIAL, "a", "b")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=16)
    read = load_tokenizer(saved(tokenizer, tmp_path)).read("a b a b")
    assert (read.bos_token_ids, read.token_ids_N.tolist()) == ((1,), [3, 4, 3, 4])
    assert read.pieces == ["a", " b", " a", " b"]
    assert read.bytes_N2.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize(
    ("configuration", "outcome"),
    [
        ({"tokenizer_class": "GemmaTokenizer"}, "mend tokenizer_class, .* in .*/tokenizer_config.json"),
        (
            {"extra_special_tokens": {"a": {"content": "<a>"}}},
            "extra_special_tokens, .*/tokenizer_config.json",
        ),
        ("<!doctype html>", "tokenizer_config.json is no JSON object"),
        ({"tokenizer_class": "GPT2Tokenizer"}, "differ"),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, "alike"),
    ],
)
def test_what_a_configuration_makes_of_a_file_is_told(
    configuration: dict[str, Any] | str, outcome: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A rule for runs of digits that a class replaces by its own; fields that the library cannot use."""
    inner = Tokenizer.from_str(train_bpe(["2024 1999 2000 1234567890"] * 9, 300).to_json())
    in_threes = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+|\s+|[^\s\p{L}\p{N}]+"), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.pre_tokenizer = pre_tokenizers.Sequence([in_threes, byte_level])
    saved(inner, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(configuration))
    if outcome not in ("differ", "alike"):
        with pytest.raises(InputError, match=outcome):
            load_tokenizer(tmp_path)
        return
    tokens = load_tokenizer(tmp_path).read("2024").token_ids_N.tolist()
    assert tokens == AutoTokenizer.from_pretrained(tmp_path)("2024")["input_ids"]
    assert (tokens != inner.encode("2024").ids) == (outcome == "differ")
    assert ("differ from those of tokenizer.json" in caplog.text) == (outcome == "differ")

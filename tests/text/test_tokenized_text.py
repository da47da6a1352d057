"""Where the tokens of a text stand in it, of tokenizers that drop, fold and join what they read."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from pipeline.cli import InputError
from pipeline.text.tokenizer import TokenizedText, tokenized_text, train_bpe

TEXT = "Naïve  cafe\u0301 👩‍🚀 مَرحبا\n\tend"


def saved(tokenizer: Tokenizer, folder: Path) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def words(*known: str) -> Tokenizer:
    """Whole words, without blanks, and <unk> for what is not known."""
    names = ["<unk>", "<s>", "</s>", *known]
    tokenizer = Tokenizer(models.WordLevel({name: id_ for id_, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def of_bytes(read: TokenizedText) -> list[str]:
    """What stands at the bytes of each token."""
    content = read.text.encode()
    return [content[start:end].decode() for start, end in read.bytes_N2.tolist()]


def test_a_byte_level_tokenizer_has_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(train_bpe([TEXT], 262).to_json())
    text = f"{TEXT} <|endoftext|>"  # which is text, where it stands in a text
    read = tokenized_text(text, path)
    assert "".join(read.pieces) == text and 0 not in read.token_ids_N
    # A token a byte of most characters: all bytes of a character are told as those of its tokens.
    assert {piece for piece in of_bytes(read) if "👩" in piece} >= {"👩"}
    starts, ends = read.bytes_N2.T.tolist()
    assert starts == sorted(starts) and ends[-1] == len(text.encode())
    assert all(start <= end_before for start, end_before in zip(starts[1:], ends[:-1], strict=True))


def test_dropped_accents_and_blanks_and_folded_cases(tmp_path: Path) -> None:
    tokenizer = words("naive", "cafe", "end")
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]
    )
    read = tokenized_text(TEXT, saved(tokenizer, tmp_path))
    assert read.token_ids_N.tolist() == [3, 4, 0, 0, 5]
    assert of_bytes(read) == ["Naïve", "cafe\u0301", "👩‍🚀", "مَرحبا", "end"]
    assert read.pieces == ["Naïve", "  cafe\u0301", " 👩‍🚀", " مَرحبا", "\n\tend"]
    assert read.bytes_N2.tolist() == [[0, 6], [8, 14], [15, 26], [27, 39], [41, 44]]


def test_a_tokenizer_that_drops_characters_altogether(tmp_path: Path) -> None:
    tokenizer = words("ab", "c")
    tokenizer.normalizer = normalizers.Replace("é", "")
    read = tokenized_text("ééa\u0301b éc é", saved(tokenizer, tmp_path))
    assert read.token_ids_N.tolist() == [0, 4]
    assert of_bytes(read) == ["a\u0301b", "c"]
    assert read.pieces == ["ééa\u0301b", " éc é"]


def test_a_sentencepiece_tokenizer_with_bytes_for_what_it_does_not_know(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "▁a": 1, "▁": 2, "b": 3}
    vocabulary |= {f"<0x{byte:02X}>": 4 + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    read = tokenized_text("b é", saved(tokenizer, tmp_path))
    assert read.pieces == ["", "b", " ", "", "é"]
    assert of_bytes(read)[-2:] == ["é", "é"] and of_bytes(read)[1] == "b"


def test_what_is_put_before_a_text_is_kept_and_what_is_put_behind_it_is_not(tmp_path: Path) -> None:
    tokenizer = words("a", "b")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=16)
    read = tokenized_text("a b a b", saved(tokenizer, tmp_path))
    assert read.token_ids_N.tolist() == [1, 3, 4, 3, 4]
    assert read.pieces == ["<s>", "a", " b", " a", " b"]
    assert read.bytes_N2.tolist() == [[0, 0], [0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize(
    ("text", "sentence"), [(" \n", "finds no token in the text"), ("a \ud83d b", "its character 2 is half")]
)
def test_texts_that_cannot_be_read(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        tokenized_text(text, saved(words("a"), tmp_path))

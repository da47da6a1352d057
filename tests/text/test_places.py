"""Words and units of texts in many scripts, and the tokens that hold them; properties of any text."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from unicodedata import normalize

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_documents import contents
from sparsity_length.programs import tokenize_c4
from test_tokenize_c4 import interrupt_at_document
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from sparsity_length.cli import InputError
from sparsity_length.text import tokenizing
from sparsity_length.text.folder import TokenizedData
from sparsity_length.text.places import occurrence_of, token_at, tokens_between, unit_starts, words_of
from sparsity_length.text.tokenizer import DocumentTokenizer, TokenizedText, load_tokenizer, train_bpe

TEXTS = {
    "Latin": "Il cafe\u0301 noir, don't: l’e\u0301te\u0301 naïve.",
    "Chinese": "伦敦是英国的首都。她说：「好！」然后走了",
    "Japanese": "東京タワーはか\u3099っこいい。𠮷野家へ行く",
    "Korean": "서울은 한국의 수도입니다. 나라",
    "Hindi": "नमस्ते दुनिया, राम की किताब है। कि यह",
    "Arabic": "كِتَاب الولد، هل رأيتَ مدينة؟ می‌خواهم",
    "Thai": "ที่นี่คือกรุงเทพ สวัสดี",
}


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer.from_str(train_bpe([*TEXTS.values()], 400).to_json())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


def metaspace() -> Tokenizer:
    """As SentencePiece's: a blank before the text, which is a token of its own before 伦敦."""
    letters = sorted({*"".join(TEXTS.values()).replace("伦", "").replace(" ", "▁")})
    pieces = dict.fromkeys(["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "▁I", "▁Il"])
    merges = [("▁", "I"), ("▁I", "l")]
    vocabulary = {piece: token_id for token_id, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return tokenizer


def unigram() -> Tokenizer:
    pieces = [("<unk>", 0.0), ("▁", -2.0), ("伦敦", -2.5), ("▁한국", -2.5)]
    letters = {*normalize("NFKC", "".join(TEXTS.values()))} - {" "}
    tokenizer = Tokenizer(models.Unigram([*pieces, *((letter, -9.0) for letter in sorted(letters))], 0))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


KINDS = [byte_level, metaspace, unigram]


def read(text: str, make: Callable[[], Tokenizer] = byte_level) -> TokenizedText:
    return load_tokenizer(make()).read(text)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize(
    ("script", "word"),
    [
        ("Latin", "Il"),
        ("Latin", "caf\u00e9"),
        ("Latin", " noir "),
        ("Latin", "don't"),
        ("Latin", ","),
        ("Chinese", "伦敦"),
        ("Chinese", "英国"),
        ("Chinese", "好！"),
        ("Japanese", "東京"),
        ("Japanese", "タワー"),
        ("Japanese", "\u304cっこいい"),  # in the text in two characters
        ("Japanese", "𠮷野"),
        ("Korean", "서울"),  # with a particle
        ("Korean", "서울은"),
        ("Korean", "나"),  # nothing tells a particle from the rest of a word
        ("Korean", normalize("NFD", "한국의")),
        ("Hindi", "दुनिया"),
        ("Hindi", "कि"),  # not what किताब begins with
        ("Arabic", "كِتَاب"),
        ("Arabic", "مدينة"),
        ("Arabic", "می‌خواهم"),
        ("Thai", "ที่นี่"),
        ("Thai", "กรุงเทพ"),
    ],
)
def test_a_word_and_the_first_token_of_its_own_characters(
    script: str, word: str, make: Callable[[], Tokenizer]
) -> None:
    tokenizer = make()
    text = load_tokenizer(tokenizer).read(TEXTS[script])
    _, start, stop, *_ = occurrence_of(word, text)
    assert normalize("NFC", text.text[start:stop]) == normalize("NFC", word.strip())
    first, end = tokens_between(text, start, stop)
    assert first == token_at(text, start)
    # Whatever holds a character of it, bytes of one too; a lone blank holds none.
    expected = [
        token for token, (begin, until) in enumerate(text.characters_N2) if begin < stop and until > start
    ]
    assert [*range(first, end)] == expected
    assert tokenizer.id_to_token(text.token_ids_N[first]).strip("▁Ġ")
    assert "".join(text.pieces) == text.text


@pytest.mark.parametrize(
    ("script", "word"),
    [
        ("Latin", "cafe"),  # that is another letter, with its accent
        ("Latin", "noi"),
        ("Latin", " "),
        ("Japanese", "か"),  # が, in two characters
        ("Korean", "울은"),
        ("Hindi", "क"),
        ("Hindi", "किता"),
        ("Arabic", "ولد"),
        ("Thai", "ที"),
    ],
)
def test_a_part_of_a_word_or_of_a_character_is_none(script: str, word: str) -> None:
    with pytest.raises(InputError, match="does not occur"):
        occurrence_of(word, read(TEXTS[script]))


def test_the_last_occurrence_or_the_one_that_is_named() -> None:
    text = read("哈哈哈")  # 0 and 1
    assert occurrence_of("哈哈", text) == ("哈哈", 1, 3, 2, 2)
    assert occurrence_of("哈哈:1", text) == ("哈哈", 0, 2, 1, 2)
    with pytest.raises(InputError, match="“哈哈” occurs 2 times"):
        occurrence_of("哈哈:3", text)


@pytest.mark.parametrize(
    ("script", "unit", "expected"),
    [
        ("Latin", "word", "Il|cafe\u0301|noir|,|don't|:|l’e\u0301te\u0301|naïve|."),
        ("Chinese", "word", "伦|敦|是|英|国|的|首|都|。|她|说|：「|好|！」|然|后|走|了"),
        ("Chinese", "sentence", "伦敦是英国的首都。|她说：「好！」|然后走了"),
        ("Japanese", "word", "東|京|タ|ワ|ー|は|か\u3099|っ|こ|い|い|。|𠮷|野|家|へ|行|く"),
        ("Korean", "word", "서울은|한국의|수도입니다|.|나라"),
        ("Hindi", "word", "नमस्ते|दुनिया|,|राम|की|किताब|है|।|कि|यह"),
        ("Hindi", "sentence", "नमस्ते दुनिया, राम की किताब है।|कि यह"),
        ("Arabic", "word", "كِتَاب|الولد|،|هل|رأيتَ|مدينة|؟|می‌خواهم"),
        ("Arabic", "sentence", "كِتَاب الولد، هل رأيتَ مدينة؟|می‌خواهم"),
        ("Thai", "word", "ที่|นี่|คื|อ|ก|รุ|ง|เ|ท|พ|ส|วั|ส|ดี"),
    ],
)
def test_units_of_many_scripts(script: str, unit: str, expected: str) -> None:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # one token per code point
    text = load_tokenizer(tokenizer).read(TEXTS[script])
    starts = text.characters_N2[unit_starts(text, unit), 0].tolist()
    found = [text.text[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]
    assert found == expected.split("|")


@pytest.mark.parametrize(
    ("text", "character", "own"),
    [
        ("he saw 10,000 ships", 7, "10,000"),
        ("他去伦敦了", 2, "伦"),
        ("我爱Paris的春天", 2, "Paris"),
        ("यह किताब है", 3, "किताब"),
        ("ไปที่นี่", 2, "ที่"),
    ],
)
def test_the_word_at_a_position(text: str, character: int, own: str) -> None:
    tokenizer = load_tokenizer(Tokenizer.from_str(train_bpe(["x"], 257).to_json()))  # one token per byte
    one = tokenizer.read(text)
    found = words_of(one, token_at(one, character), None, "other", tokenizer)
    assert found == (character, own, "other")


def test_a_word_is_not_compared_with_itself_in_another_form() -> None:
    text = read(TEXTS["Latin"])
    with pytest.raises(InputError, match="--instead compares two words"):
        words_of(text, 0, occurrence_of("café", text)[1:3], "caf\u00e9", load_tokenizer(byte_level()))


FEW = settings(derandomize=True, database=None, deadline=None, max_examples=40)
AWKWARD = [
    *"aB 1\n\t.?!,'’▁Ġ#",
    "e\u0301",
    "ﬁ",
    "가",
    "伦敦",
    "。",
    "कि",
    "ที่",
    "👩\u200d🚀",
    "\ufeff",
    "<s>",
    "\r\n",
    "\x00",
]
ANY_TEXT = st.lists(st.sampled_from(AWKWARD) | st.characters(exclude_categories=["Cs"]), max_size=14).map(
    "".join
)
"""Any characters but halves of surrogate pairs, which tokenizers refuse."""


def word_piece() -> Tokenizer:
    """Folds cases, drops accents, and knows few letters."""
    words = {word: token_id for token_id, word in enumerate(["[UNK]", *"abe1.,", "##a", "##b", "##e"])}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


READERS = [load_tokenizer(make()) for make in (*KINDS, word_piece)]


@FEW
@given(ANY_TEXT, st.sampled_from(READERS))
def test_pieces_join_to_the_text_and_spans_rise(text: str, reader: DocumentTokenizer) -> None:
    read = reader.read(text)
    assert "".join(read.pieces) == (text if len(read.token_ids_N) else "")
    assert len(read.pieces) == len(read.token_ids_N)
    assert read.token_ids_N.tolist() == reader.encode([text])[0].tolist()
    starts_N, ends_N = read.characters_N2.T
    assert (np.diff(starts_N) >= 0).all() and (np.diff(ends_N) >= 0).all() and (starts_N <= ends_N).all()
    assert not len(ends_N) or (starts_N[0] >= 0 and ends_N[-1] <= len(text))
    of_bytes = [text.encode()[start:end].decode() for start, end in read.bytes_N2]
    assert of_bytes == [text[start:end] for start, end in read.characters_N2]


@FEW
@given(ANY_TEXT, st.sampled_from(READERS), st.sampled_from(["token", "word", "sentence", "paragraph"]))
def test_units_are_whole_characters_and_all_of_them(text: str, reader: DocumentTokenizer, unit: str) -> None:
    read = reader.read(text)
    starts = unit_starts(read, unit).tolist()
    assert starts == sorted({*starts}) and starts[:1] == [0][: len(read.token_ids_N)]
    assert not starts or starts[-1] < len(read.token_ids_N)


@FEW
@given(ANY_TEXT, st.sampled_from(READERS), st.data())
def test_tokens_between_are_those_that_hold_a_character(
    text: str, reader: DocumentTokenizer, data: st.DataObject
) -> None:
    text += "."
    read = reader.read(text)
    start = data.draw(st.integers(0, len(text) - 1))
    stop = data.draw(st.integers(start + 1, len(text)))
    first, end = tokens_between(read, start, stop)
    spans = enumerate(read.characters_N2.tolist())
    holding = [token for token, (begin, until) in spans if max(begin, start) < min(until, stop)]
    assert holding == [token for token in range(first, end) if np.ptp(read.characters_N2[token])]


@FEW
@given(ANY_TEXT, st.data())
def test_a_word_of_a_text_is_found_in_either_form(text: str, data: st.DataObject) -> None:
    text = f"{text} naïve {text}"
    word = data.draw(st.sampled_from(regex.findall(r"(?<!\S)(?:(?=\p{L})\X)+(?!\S)", text)))
    form = data.draw(st.sampled_from(["NFC", "NFD"]))
    found = occurrence_of(normalize(form, word), READERS[0].read(text))
    assert normalize("NFC", text[found.begin : found.end]) == normalize("NFC", word)
    assert 1 <= found.number == found.total


@settings(FEW, max_examples=12)
@given(st.lists(ANY_TEXT, min_size=1, max_size=8), st.integers(0, 7))
def test_what_was_interrupted_ends_in_the_bytes_of_the_unbroken_run(texts: list[str], place: int) -> None:
    """Files of JSON lines whose texts train, tokenized in parts of about ten tokens."""
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        words = ["--source", f"{folder}/texts.jsonl", "--tokenizer", f"{folder}/bytes.json"]
        words += ["--evaluation-source", f"{folder}/evaluation.txt", "--tokens-per-part", "10", "--out"]
        lines = (json.dumps({"text": text}) + "\n" for text in [*texts, "the last"])
        (folder / "texts.jsonl").write_text("".join(lines))
        (folder / "evaluation.txt").write_text("evaluates")
        (folder / "bytes.json").write_text(train_bpe(["the"], 258).to_json())
        tokenize_c4.STAGE([*words, f"{folder}/whole"])
        patch.setattr(tokenizing, "DOCUMENTS_PER_BATCH", 1)
        with patch.context() as interrupted:
            interrupt_at_document(interrupted, place)
            with suppress(KeyboardInterrupt):
                tokenize_c4.STAGE([*words, f"{folder}/data"])
        tokenize_c4.STAGE([*words, f"{folder}/data"])
        assert contents(folder / "data") == contents(folder / "whole")
        kept = {text.strip(): text for text in texts if text.strip() and text != "evaluates"}
        found = TokenizedData.open(folder / "data").manifest["counts"]["train_documents"]
        assert found == len({*kept.values()} - {"the last"}) + 1

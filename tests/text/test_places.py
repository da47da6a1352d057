"""Words and units of texts in many scripts, and the tokens that hold them, by tokenizers of every kind."""

from collections.abc import Callable
from unicodedata import normalize

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from sparsity_length.cli import InputError
from sparsity_length.text.places import occurrence_of, token_at, tokens_between, unit_starts, words_of
from sparsity_length.text.tokenizer import TokenizedText, load_tokenizer, train_bpe

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

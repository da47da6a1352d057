"""Words and units of texts in many scripts, and the tokens that hold them; properties of any text."""

from unicodedata import normalize

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_kinds import TEXTS, byte_level, metaspace, unigram, word_piece
from tokenizers import Tokenizer, models, pre_tokenizers

from sparsity_length.cli import InputError
from sparsity_length.text.places import occurrence_of, token_at, tokens_between, unit_starts, words_of
from sparsity_length.text.tokenizer import DocumentTokenizer, load_tokenizer, train_bpe

BYTES = load_tokenizer(byte_level(add_prefix_space=True))
code_points = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
code_points.pre_tokenizer = pre_tokenizers.Split("", "isolated")
READERS = [BYTES, *(load_tokenizer(make()) for make in (metaspace, unigram, word_piece))]


@pytest.mark.parametrize("reader", READERS[:3], ids=["byte-level", "metaspace", "unigram"])
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
    script: str, word: str, reader: DocumentTokenizer
) -> None:
    text = reader.read(TEXTS[script])
    _, start, stop, *_ = occurrence_of(word, text)
    assert normalize("NFC", text.text[start:stop]) == normalize("NFC", word.strip())
    first, _ = tokens_between(text, start, stop)
    (name,) = reader._names(text.token_ids_N[[first]].tolist())
    assert name.strip("▁Ġ"), "a lone blank holds no character"


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
        occurrence_of(word, BYTES.read(TEXTS[script]))


def test_the_last_occurrence_or_the_one_that_is_named() -> None:
    text = BYTES.read("哈哈哈")  # 0 and 1
    assert occurrence_of("哈哈", text) == ("哈哈", 1, 3, 2, 2)
    assert occurrence_of("哈哈:1", text) == ("哈哈", 0, 2, 1, 2)
    with pytest.raises(InputError, match="“哈哈” occurs 2 times"):
        occurrence_of("哈哈:3", text)


@pytest.mark.parametrize("text", ["I don't know.", "I don’t know.", "I don’t\r\nknow.", "I don't  know."])
def test_words_are_found_across_lines_and_whichever_way_an_apostrophe_is_written(text: str) -> None:
    for words in ("don't know", "don’t\nknow"):
        assert occurrence_of(words, BYTES.read(text))[1:3] == (2, len(text) - 1)


@pytest.mark.parametrize("reader", [BYTES, load_tokenizer(code_points)], ids=["byte-level", "code-points"])
@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("It rained, naïvely.", "word", "It|rained|,|naïvely|."),
        ("if x == foo_2:\n    y", "word", "if|x|==|foo_2|:|y"),
        ("One. Two!\nThree", "sentence", "One.|Two!|Three"),
        ("One.\nTwo\n\nThree", "paragraph", "One.\nTwo|Three"),
        ("One.\nTwo", "paragraph", "One.|Two"),
        ("你好吗", "word", "你|好|吗"),
        (TEXTS["Latin"], "word", "Il|cafe\u0301|noir|,|don't|:|l’e\u0301te\u0301|naïve|."),
        (TEXTS["Chinese"], "word", "伦|敦|是|英|国|的|首|都|。|她|说|：「|好|！」|然|后|走|了"),
        (TEXTS["Chinese"], "sentence", "伦敦是英国的首都。|她说：「好！」|然后走了"),
        (TEXTS["Japanese"], "word", "東|京|タ|ワ|ー|は|か\u3099|っ|こ|い|い|。|𠮷|野|家|へ|行|く"),
        (TEXTS["Korean"], "word", "서울은|한국의|수도입니다|.|나라"),
        (TEXTS["Hindi"], "word", "नमस्ते|दुनिया|,|राम|की|किताब|है|।|कि|यह"),
        (TEXTS["Hindi"], "sentence", "नमस्ते दुनिया, राम की किताब है।|कि यह"),
        (TEXTS["Arabic"], "word", "كِتَاب|الولد|،|هل|رأيتَ|مدينة|؟|می‌خواهم"),
        (TEXTS["Arabic"], "sentence", "كِتَاب الولد، هل رأيتَ مدينة؟|می‌خواهم"),
        (TEXTS["Thai"], "word", "ที่|นี่|คื|อ|ก|รุ|ง|เ|ท|พ|ส|วั|ส|ดี"),
    ],
)
def test_units_of_many_scripts(text: str, unit: str, expected: str, reader: DocumentTokenizer) -> None:
    read = reader.read(text)
    starts = read.characters_N2[unit_starts(read, unit), 0].tolist()
    found = [read.text[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]
    assert normalize("NFC", "|".join(found)) == normalize("NFC", expected)


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
    assert words_of(one, token_at(one, character), None, "other", tokenizer) == (character, own, "other")


FEW = settings(derandomize=True, database=None, deadline=None, max_examples=40)
AWKWARD = "a B 1 \n \t . ? ! , ' ’ ▁ Ġ # e\u0301 ﬁ 가 伦敦 。 कि ที่ 👩\u200d🚀 \ufeff <s> \r\n \x00"
ANY_TEXT = st.lists(
    st.sampled_from([" ", *AWKWARD.split(" ")]) | st.characters(exclude_categories=["Cs"]), max_size=14
).map("".join)
"""Any characters but halves of surrogate pairs, which tokenizers refuse."""


@FEW
@given(ANY_TEXT, st.sampled_from(READERS))
def test_pieces_join_to_the_text_and_units_are_all_of_its_tokens(
    text: str, reader: DocumentTokenizer
) -> None:
    read = reader.read(text)
    assert "".join(read.pieces) == (text if len(read.token_ids_N) else "")
    assert len(read.pieces) == len(read.token_ids_N)
    assert read.token_ids_N.tolist() == reader.encode([text])[0].tolist()
    starts_N, ends_N = read.characters_N2.T
    assert (np.diff(starts_N) >= 0).all() and (np.diff(ends_N) >= 0).all() and (starts_N <= ends_N).all()
    assert not len(ends_N) or (starts_N[0] >= 0 and ends_N[-1] <= len(text))
    assert [text.encode()[start:end].decode() for start, end in read.bytes_N2] == [
        text[start:end] for start, end in read.characters_N2
    ]
    for unit in ("word", "sentence", "paragraph"):
        starts = unit_starts(read, unit).tolist()
        assert starts == sorted({*starts} & {*range(len(read.token_ids_N))})
        assert starts[:1] == [0][: len(read.token_ids_N)]
    assert unit_starts(read, "token").tolist() == [*range(len(read.token_ids_N))]


@FEW
@given(ANY_TEXT, st.sampled_from(READERS), st.data())
def test_tokens_between_are_those_that_hold_a_character(
    text: str, reader: DocumentTokenizer, data: st.DataObject
) -> None:
    read = reader.read(f"{text}.")
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start + 1, len(text) + 1))
    first, end = tokens_between(read, start, stop)
    begins_N, ends_N = read.characters_N2.T
    holding = np.maximum(begins_N, start) < np.minimum(ends_N, stop)
    assert [*np.flatnonzero(holding)] == [
        token for token in range(first, end) if ends_N[token] > begins_N[token]
    ]


@FEW
@given(ANY_TEXT, st.data())
def test_a_word_of_a_text_is_found_in_either_form(text: str, data: st.DataObject) -> None:
    text = f"{text} naïve {text}"
    word = data.draw(st.sampled_from(regex.findall(r"(?<!\S)(?:(?=\p{L})\X)+(?!\S)", text)))
    found = occurrence_of(normalize(data.draw(st.sampled_from(["NFC", "NFD"])), word), BYTES.read(text))
    assert normalize("NFC", text[found.begin : found.end]) == normalize("NFC", word)
    assert 1 <= found.number == found.total

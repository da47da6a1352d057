"""Whatever the text: its pieces join to it, its spans rise, its words are where they are said to stand.

Examples are drawn by hypothesis, the same ones each time.
"""

import json
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
from test_places import KINDS
from test_tokenize_c4 import interrupt_at_document
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from sparsity_length.text import tokenizing
from sparsity_length.text.folder import TokenizedData
from sparsity_length.text.places import occurrence_of, tokens_between, unit_starts
from sparsity_length.text.tokenizer import DocumentTokenizer, load_tokenizer, train_bpe

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
TEXTS = st.lists(st.sampled_from(AWKWARD) | st.characters(exclude_categories=["Cs"]), max_size=14).map(
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
@given(TEXTS, st.sampled_from(READERS))
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
@given(TEXTS, st.sampled_from(READERS), st.sampled_from(["token", "word", "sentence", "paragraph"]))
def test_units_are_whole_characters_and_all_of_them(text: str, reader: DocumentTokenizer, unit: str) -> None:
    read = reader.read(text)
    starts = unit_starts(read, unit).tolist()
    assert starts == sorted({*starts}) and starts[:1] == [0][: len(read.token_ids_N)]
    assert not starts or starts[-1] < len(read.token_ids_N)


@FEW
@given(TEXTS, st.sampled_from(READERS), st.data())
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
@given(TEXTS, st.data())
def test_a_word_of_a_text_is_found_in_either_form(text: str, data: st.DataObject) -> None:
    text = f"{text} naïve {text}"
    word = data.draw(st.sampled_from(regex.findall(r"(?<!\S)(?:(?=\p{L})\X)+(?!\S)", text)))
    form = data.draw(st.sampled_from(["NFC", "NFD"]))
    found = occurrence_of(normalize(form, word), READERS[0].read(text))
    assert normalize("NFC", text[found.begin : found.end]) == normalize("NFC", word)
    assert 1 <= found.number == found.total


@settings(FEW, max_examples=12)
@given(st.lists(TEXTS, min_size=1, max_size=8), st.integers(0, 7))
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

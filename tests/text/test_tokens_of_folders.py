"""The tokens of a folder are AutoTokenizer's in every program; EOS, BOS, where tokens stand in a text.

Tokenizers of six kinds, each a Hugging Face folder, are compared with what everybody else gets of it,
`AutoTokenizer.from_pretrained(folder)(text)`, minus what that puts behind the text.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hugging_face_families import make_model
from measured_documents import run, word_level
from sparsity_length.programs import tokenize_c4
from tokenizer_kinds import ENGLISH as TEXTS
from tokenizer_kinds import SPECIAL, byte_level, metaspace, unigram, word_piece
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

from sparsity_length import explain, losses
from sparsity_length.cli import InputError
from sparsity_length.models.given import GivenModel
from sparsity_length.text.folder import TokenizedData
from sparsity_length.text.tokenizer import load_tokenizer, parse_tokenizer_name, train_bpe


def template() -> Tokenizer:
    """Puts tokens before and behind a text, and cuts and pads it, which is left out."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "</s>")])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=99)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single="<s> $A </s>",
                special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")],
            ),
        ]
    )
    return tokenizer


KINDS: dict[str, tuple[Callable[[], Tokenizer], dict[str, Any]]] = {
    "byte-level": (byte_level, {"eos_token": "<|endoftext|>", "add_prefix_space": True}),
    "metaspace": (
        metaspace,
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "legacy": False},
    ),
    "template": (
        template,
        {
            "bos_token": "<s>",
            "eos_token": "</s>",
            "chat_template": "{{ bos_token or '' }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
            "{{ m['content'] }}<|im_end|>\n{% endfor %}",
        },
    ),
    "word-piece": (
        word_piece,
        {
            "tokenizer_class": "BertTokenizer",
            "unk_token": "[UNK]",
            "cls_token": "[CLS]",
            "sep_token": "[SEP]",
            "pad_token": "[PAD]",
            "eos_token": "[SEP]",
            "do_lower_case": True,
        },
    ),
    # Beside a tokenizer.json transformers 5 ignores add_bos_token; without one it counts.
    "vocab-and-merges": (
        byte_level,
        {
            "tokenizer_class": "GPT2Tokenizer",
            "eos_token": "<|endoftext|>",
            "bos_token": "<|endoftext|>",
            "unk_token": "<|endoftext|>",
            "add_bos_token": True,
        },
    ),
    "unigram": (
        unigram,
        {
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "add_bos_token": True,
            "extra_special_tokens": ["<|im_start|>", "<|im_end|>"],
        },
    ),
}


def write_folder(folder: Path, tokenizer: Tokenizer, configuration: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if configuration.get("tokenizer_class") == "GPT2Tokenizer":
        tokenizer.model.save(str(folder))
    else:
        tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | configuration)
    )
    return folder


def tokenized(out: Path, tokenizer: Path, texts: list[str], *flags: str) -> TokenizedData:
    """Every text evaluates, and one more trains."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "train.txt").write_text("the mat")
    (out / "evaluation.jsonl").write_text(
        "".join(json.dumps({"text": text, "url": text}) + "\n" for text in texts)
    )
    words = (
        f"--source {out}/train.txt --evaluation-source {out}/evaluation.jsonl --out {out}/data --tokenizer"
    )
    run(tokenize_c4, *words.split(), tokenizer, *flags)
    return TokenizedData.open(out / "data")


def documents(data: TokenizedData) -> dict[str, list[int]]:
    return {str(document.url): document.token_ids.tolist() for document in data.evaluation_documents()}


@pytest.mark.parametrize(
    "kind",
    [
        "template",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "template"),
    ],
)
def test_every_program_has_the_tokens_of_autotokenizer(kind: str, tmp_path: Path) -> None:
    make, configuration = KINDS[kind]
    folder = write_folder(tmp_path / kind, make(), configuration)
    automatic = AutoTokenizer.from_pretrained(folder)
    make_model("llama", vocab_size=len(automatic), max_position_embeddings=256).save_pretrained(folder)
    own = {text: automatic(text, add_special_tokens=False)["input_ids"] for text in TEXTS}
    for bos, num_bos in (("none", 0), ("auto", int(kind not in ("byte-level", "unigram")))):
        data = tokenized(tmp_path / bos, folder, TEXTS, "--bos", bos)
        assert data.eos_token_id == automatic.eos_token_id
        # The folder's tokenizer, AutoTokenizer in memory, the data's own, and its file alone read alike.
        given = [GivenModel(str(folder)).tokenizer(*some, bos=bos) for some in ((), (automatic,))]
        for text, tokens in own.items():
            before = automatic(text)["input_ids"][:num_bos]
            assert documents(data)[text] == tokens and list(data.bos_token_ids) == before
            for tokenizer in (*given, data.tokenizer(), load_tokenizer(data.folder, bos=bos)):
                read = tokenizer.read(text)
                assert list(read.bos_token_ids) == before and read.token_ids_N.tolist() == tokens
    for text, tokens in own.items():
        # BOS belongs to the model: no row
        assert losses(text, str(folder), short_context_length=2)["token_id"].tolist() == tokens
        page = explain(text, str(folder), short_context_length=2, targets=1, swap_text=TEXTS[1] * 9)
        assert page.text.token_ids_N.tolist() == tokens


def test_token_ids_and_messages_are_texts_too(tmp_path: Path) -> None:
    _, configuration = KINDS["template"]
    folder = write_folder(tmp_path, template(), configuration | {"extra_special_tokens": SPECIAL[3:]})
    automatic = AutoTokenizer.from_pretrained(folder)
    measured = partial(
        losses,
        model=make_model("llama", vocab_size=len(automatic), max_position_embeddings=256),
        tokenizer=automatic,
        short_context_length=3,
    )
    chat = [{"role": "user", "content": TEXTS[0]}, {"role": "assistant", "content": TEXTS[1]}]
    ids = automatic.apply_chat_template(chat, tokenize=True, return_dict=False)
    of_chat = measured(chat)
    bos, *own = ids
    assert bos == automatic.bos_token_id and own[0] == automatic.convert_tokens_to_ids("<|im_start|>")
    assert of_chat["token_id"].tolist() == own  # BOS belongs to the model: no row
    places = ["token", "byte_start", "byte_end"]
    for texts in (ids, np.array(ids), pd.Series(ids, index=range(5, 5 + len(ids))), [ids], [chat]):
        assert measured(texts).drop(columns=places).equals(of_chat.drop(columns=places))
    rendered = measured(automatic.apply_chat_template(chat, tokenize=False), special_tokens=True)
    assert rendered["token_id"].tolist() == own  # <s> once, though the text brings one
    with pytest.raises(InputError, match="begin with BOS"):
        measured([ids, own])


EOT = AddedToken("<eot>", special=True)


@pytest.mark.parametrize(
    ("known", "added", "configuration", "flags", "eos"),
    [
        (["</s>", "<eos>"], [], {}, (), "</s>"),
        ([], [AddedToken("</s>", special=False)], {}, (), "</s>"),
        ([], [EOT], {"eos_token": "<eot>"}, (), "<eot>"),
        (["</s>"], [EOT], {"eos_token": {"content": "<eot>", "__type": "AddedToken"}}, (), "<eot>"),
        ([], [EOT], {}, ("--eos-token", "<eot>"), "<eot>"),
        (["</s>"], [EOT], {"eos_token": "</s>"}, ("--eos-token", "<eot>"), "<eot>"),
    ],
)
def test_what_ends_a_document(
    known: list[str],
    added: list[AddedToken],
    configuration: dict[str, Any],
    flags: tuple[str, ...],
    eos: str,
    tmp_path: Path,
) -> None:
    tokenizer = word_level("<unk>", "x", "y", *known)
    tokenizer.add_tokens(added)
    folder = write_folder(tmp_path / "model", tokenizer, configuration)
    data = tokenized(tmp_path / "out", folder, ["x y", f"x {eos} y"], *flags)
    assert data.eos_token_id == data.tokenizer().eos_token_id == tokenizer.token_to_id(eos)
    # The EOS of a text is text, and if it cannot be, it stays in; explain reads the same.
    found = documents(data)[f"x {eos} y"]
    assert found == [1, tokenizer.get_vocab(with_added_tokens=False).get(eos, 0), 2]
    assert load_tokenizer(folder).read(f"x {eos} y").token_ids_N.tolist() == found


def test_control_tokens_are_text_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_folder(tmp_path / "model", template(), KINDS["template"][1])
    texts = ["the <s> cat", "</s>", "the cat"]
    automatic = AutoTokenizer.from_pretrained(folder)
    as_text = tokenized(tmp_path / "text", folder, texts)
    assert caplog.text.count("control tokens stand in the text, such as <") == 1
    as_control = tokenized(tmp_path / "control", folder, texts, "--special-tokens")
    assert documents(as_control)[texts[0]] == automatic(texts[0])["input_ids"][1:-1]
    assert (
        automatic.bos_token_id not in documents(as_text)[texts[0]]
        and as_control.manifest["settings"]["special_tokens"]
    )


def test_bpe_merges_what_is_frequent() -> None:
    # The alphabet in order of code points: '!' is 1, so 'a' is 65 and 'b' 66; 'ab' is the one merge, 257.
    assert train_bpe(["abab abab"], 258).encode(["aabb"])[0].tolist() == [65, 257, 66]


def test_pieces_and_known_ids_of_olmos_tokenizer() -> None:
    olmo = load_tokenizer(Path(str(parse_tokenizer_name("olmo"))))
    assert (olmo.vocabulary_size, olmo.eos_token_id, olmo.token_dtype) == (50_280, 50_279, np.uint16)
    assert olmo.encode(["Hello world"])[0].tolist() == [12092, 1533]
    texts = ["", "naïve “quotes”\n\n 你好, 😀 end", "\ufffd", "\ufffd\ufffd é", "a <|endoftext|> b"]
    for text, token_ids in zip(texts, olmo.encode(texts), strict=True):
        pieces = olmo.pieces(token_ids.tolist())
        assert (len(pieces), "".join(pieces)) == (len(token_ids), text)
        assert olmo.eos_token_id not in token_ids, "an EOS that a text spells is text"


def test_bytes_of_a_character_have_the_place_of_the_whole() -> None:
    read = train_bpe(["x"], 257).read("é!")  # one token per byte
    assert (read.pieces, read.bytes_N2.tolist()) == (["", "é", "!"], [[0, 2], [0, 2], [2, 3]])
    assert read.characters_N2.tolist() == [[0, 1], [0, 1], [1, 2]]


def test_dropped_accents_and_blanks_and_folded_cases() -> None:
    tokenizer = word_level("<unk>", "<s>", "</s>", "naive", "cafe", "end")
    tokenizer.normalizer = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False)
    read = load_tokenizer(tokenizer).read("Naïve  cafe\u0301 👩‍🚀 مَرحبا\n\tend")
    assert read.token_ids_N.tolist() == [3, 4, 0, 0, 5]
    assert read.pieces == ["Naïve", "  cafe", "\u0301 👩‍🚀", " مَرحبا", "\n\tend"]
    assert read.bytes_N2.tolist() == [[0, 6], [8, 12], [15, 26], [27, 39], [41, 44]]


@pytest.mark.parametrize(
    "model",
    [
        models.BPE({"<unk>": 0, "a": 1, "b": 2}, [], unk_token="<unk>"),
        models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"),
        models.WordPiece({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"),
        models.Unigram([("a", -1.0), ("<unk>", 0.0), ("b", -1.0)], unk_id=1),
    ],
)
def test_unknown_tokens_are_counted_and_told_from_a_hundredth_on(
    model: models.Model, caplog: pytest.LogCaptureFixture
) -> None:
    inner = Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = load_tokenizer(inner)
    assert tokenizer.num_unknown(tokenizer.encode(["a 你 b 好"])[0]) == 2
    tokenizer.warn_of_unknown(2, 201)
    assert not caplog.messages
    tokenizer.warn_of_unknown(2, 200)
    assert "1.0% of the tokens stand for what is unknown" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "tokenizer_config.json",
            '{"tokenizer_class": "GemmaTokenizer"}',
            "mend tokenizer_class, .* in .*/tokenizer_config.json",
        ),
        (
            "tokenizer_config.json",
            '{"extra_special_tokens": {"a": {"content": "<a>"}}}',
            "extra_special_tokens, .*/tokenizer_config.json",
        ),
        ("tokenizer_config.json", "<!doctype html>", "tokenizer_config.json is not a JSON object"),
        (
            "tokenizer.json",
            "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
            "tokenizer.json is a Git LFS pointer",
        ),
    ],
)
def test_files_that_cannot_be_read_are_refused(
    name: str, content: str, sentence: str, tmp_path: Path
) -> None:
    write_folder(tmp_path, byte_level(), {})
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=sentence):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(("kind", "differs"), [("GPT2Tokenizer", True), ("PreTrainedTokenizerFast", False)])
def test_a_class_that_changes_what_a_file_does_is_obeyed_and_told(
    kind: str, differs: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A rule for runs of digits, which a class replaces by its own."""
    inner = Tokenizer.from_str(train_bpe(["2024 1999 2000 1234567890"] * 9, 300).to_json())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+|\s+|[^\s\p{L}\p{N}]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    tokens = load_tokenizer(tmp_path).read("2024").token_ids_N.tolist()
    assert tokens == AutoTokenizer.from_pretrained(tmp_path)("2024")["input_ids"]
    assert (tokens != inner.encode("2024").ids) == differs
    assert ("differ from those of tokenizer.json" in caplog.text) == differs

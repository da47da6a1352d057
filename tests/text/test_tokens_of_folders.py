"""The tokens of a folder are AutoTokenizer's in every program; EOS, BOS, where tokens stand in a text.

Six kinds of tokenizers are made here, each a Hugging Face folder. They are compared with what everybody else
gets of it, `AutoTokenizer.from_pretrained(folder)(text)`, minus what that puts behind the text.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hugging_face_families import make_model
from measured_documents import word_level
from sparsity_length.programs import tokenize_c4
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

from sparsity_length import explain, losses
from sparsity_length.cli import InputError
from sparsity_length.measuring.given import GivenModel
from sparsity_length.text.folder import TokenizedData
from sparsity_length.text.tokenizer import (
    TokenizedText,
    load_tokenizer,
    parse_tokenizer_name,
    train_bpe,
)

TEXTS = ["The cat sat on a mat, and the cat saw the dog 2 times.", "A naïve  cat;\n the dog sat on it again."]
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "times", "naive", "it", "2", ",", ".", ";"]
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{{ bos_token or '' }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}"
)


def byte_level() -> Tokenizer:
    return Tokenizer.from_str(train_bpe(TEXTS * 4, 300).to_json())


def metaspace() -> Tokenizer:
    pieces = [
        *SPECIAL,
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "▁t",
        "▁th",
        "▁the",
        *"thecasondgmw",
    ]
    vocabulary = {piece: id_ for id_, piece in enumerate(dict.fromkeys(pieces))}
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e")]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def template() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "</s>")])
    ids = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ids),
        ]
    )
    return tokenizer


def word_piece() -> Tokenizer:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *(f"##{letter}" for letter in "aeginsvï")]
    tokenizer = Tokenizer(models.WordPiece({word: id_ for id_, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def unigram() -> Tokenizer:
    pieces = [*((token, 0.0) for token in SPECIAL), ("▁", -2.0), ("▁the", -2.5), ("cat", -3.0)]
    pieces += [(letter, -5.0) for letter in "abcdeghimnostuvwATï,.;2\n"]
    tokenizer = Tokenizer(models.Unigram(pieces, 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


Kind = tuple[Callable[[], Tokenizer], dict[str, Any]]
KINDS: dict[str, Kind] = {
    "byte-level": (byte_level, {"eos_token": "<|endoftext|>", "add_prefix_space": True}),
    "metaspace": (
        metaspace,
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "legacy": False},
    ),
    "template": (template, {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}),
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


def write_folder(folder: Path, tokenizer: Tokenizer, configuration: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if configuration and configuration.get("tokenizer_class") == "GPT2Tokenizer":
        tokenizer.model.save(str(folder))
    else:
        tokenizer.save(str(folder / "tokenizer.json"))
    if configuration is not None:
        configuration = {"tokenizer_class": "PreTrainedTokenizerFast"} | configuration
        (folder / "tokenizer_config.json").write_text(json.dumps(configuration))
    return folder


def tokenized(
    out: Path, tokenizer: Path, texts: list[str], *flags: str
) -> tuple[TokenizedData, dict[str, Any]]:
    """Every text evaluates, and one more trains."""
    out.mkdir(parents=True, exist_ok=True)
    for name, some in (("train", ["the mat"]), ("evaluation", texts)):
        lines = (json.dumps({"text": text, "url": text}) for text in some)
        (out / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    words = ["--source", f"{out}/train.jsonl", "--evaluation-source", f"{out}/evaluation.jsonl", *flags]
    words += ["--out", f"{out}/data", "--tokenizer", str(tokenizer)]
    tokenize_c4.STAGE(words)
    return TokenizedData.open(out / "data"), json.loads((out / "data/manifest.json").read_text())


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
    has_bos = kind not in ("byte-level", "unigram")
    for bos, num_bos in (("auto", int(has_bos)), ("none", 0)):
        data, manifest = tokenized(tmp_path / bos, folder, TEXTS, "--bos", bos)
        assert len(manifest["bos_token_ids"]) == num_bos and data.eos_token_id == automatic.eos_token_id
        for text in TEXTS:
            ids = automatic(text, add_special_tokens=bos == "auto")["input_ids"]
            if bos == "auto" and kind in ("template", "word-piece"):
                ids = ids[:-1]  # what is put behind
            assert [*manifest["bos_token_ids"], *documents(data)[text]] == ids
            read = GivenModel(str(folder)).tokenizer(bos=bos).read(text)
            assert list(read.bos_token_ids) == ids[:num_bos] and read.token_ids_N.tolist() == ids[num_bos:]
            # The data's own tokenizer, and AutoTokenizer in memory, read alike.
            for given in (data.tokenizer(), GivenModel(str(folder)).tokenizer(automatic, bos=bos)):
                assert given.read(text).token_ids_N.tolist() == ids[num_bos:]
            if bos == "auto":
                frame = losses(text, str(folder), short_context_length=2)
                assert frame["token_id"].tolist() == ids[num_bos:]  # BOS belongs to the model: no row
                explained = explain(
                    text, str(folder), short_context_length=2, targets=1, swap_text=TEXTS[1] * 9
                )
                assert explained.text.token_ids_N.tolist() == ids[num_bos:]


def test_token_ids_and_messages_are_texts_too(tmp_path: Path) -> None:
    make, configuration = KINDS["template"]
    folder = write_folder(tmp_path / "chat", make(), configuration | {"extra_special_tokens": SPECIAL[3:]})
    automatic = AutoTokenizer.from_pretrained(folder)
    make_model("llama", vocab_size=len(automatic), max_position_embeddings=256).save_pretrained(folder)
    chat = [{"role": "user", "content": TEXTS[0]}, {"role": "assistant", "content": TEXTS[1]}]
    ids = automatic.apply_chat_template(chat, tokenize=True, return_dict=False)
    of_chat = losses(chat, str(folder), short_context_length=3)
    bos, *own = ids
    assert bos == automatic.bos_token_id and own[0] == automatic.convert_tokens_to_ids("<|im_start|>")
    assert of_chat["token_id"].tolist() == own  # BOS belongs to the model: no row
    for texts in (ids, np.array(ids), pd.Series(ids, index=range(5, 5 + len(ids))), [ids], [chat]):
        of_ids = losses(texts, str(folder), short_context_length=3)
        assert of_ids.drop(columns=["token", "byte_start", "byte_end"]).equals(
            of_chat.drop(columns=["token", "byte_start", "byte_end"])
        )
    rendered = automatic.apply_chat_template(chat, tokenize=False)
    of_text = losses(rendered, str(folder), short_context_length=3, special_tokens=True)
    assert of_text["token_id"].tolist() == own  # <s> once, though the text brings one
    with pytest.raises(InputError, match="begin with BOS"):
        losses([ids, own], str(folder), short_context_length=3)


def words(*known: str, special: tuple[str, ...] = (), added: tuple[str, ...] = ()) -> Tokenizer:
    tokenizer = word_level(*known)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False) for token in added])
    return tokenizer


XY = ("<unk>", "x", "y")


@pytest.mark.parametrize(
    ("tokenizer", "files", "flags", "eos"),
    [
        (words(*XY, "</s>", "<eos>"), {}, (), "</s>"),
        (words(*XY, added=("</s>",)), {}, (), "</s>"),
        (words(*XY, special=("<eot>",)), {"tokenizer_config.json": {"eos_token": "<eot>"}}, (), "<eot>"),
        (
            words(*XY, special=("<eot>", "</s>")),
            {"tokenizer_config.json": {"eos_token": {"content": "<eot>", "__type": "AddedToken"}}},
            (),
            "<eot>",
        ),
        (words(*XY, special=("<eot>",)), {}, ("--eos-token", "<eot>"), "<eot>"),
        (
            words(*XY, special=("</s>", "<eot>")),
            {"tokenizer_config.json": {"eos_token": "</s>"}},
            ("--eos-token", "<eot>"),
            "<eot>",
        ),
    ],
)
def test_what_ends_a_document(
    tokenizer: Tokenizer, files: dict[str, Any], flags: tuple[str, ...], eos: str, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "model", tokenizer)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    data, manifest = tokenized(tmp_path / "out", folder, ["x y", f"x {eos} y"], *flags)
    eos_id = tokenizer.token_to_id(eos)
    assert manifest["eos_token_id"] == data.eos_token_id == data.tokenizer().eos_token_id == eos_id
    # The EOS of a text is text, and if it cannot be, it stays in; explain reads the same.
    found = documents(data)[f"x {eos} y"]
    assert len(found) == 3
    read = load_tokenizer(folder).read(f"x {eos} y")
    assert read.token_ids_N.tolist() == found


def test_control_tokens_are_text_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL[3:]])
    folder = write_folder(tmp_path / "model", tokenizer, {"eos_token": "<|endoftext|>"})
    texts = ["<|im_start|>user\nHi<|im_end|>", "<|im_end|>", "the cat"]
    data, _ = tokenized(tmp_path / "text", folder, texts)
    assert caplog.text.count("control tokens stand in the text, such as <|im_") == 1
    start = tokenizer.token_to_id("<|im_start|>")
    assert start not in documents(data)[texts[0]]
    data, manifest = tokenized(tmp_path / "control", folder, texts, "--special-tokens")
    assert documents(data)[texts[0]] == AutoTokenizer.from_pretrained(folder)(texts[0])["input_ids"]
    assert manifest["settings"]["special_tokens"]


FIRST = "<unk>", "<s>", "</s>"
TEXT = "Naïve  cafe\u0301 👩‍🚀 مَرحبا\n\tend"
OLMO = Path(str(parse_tokenizer_name("olmo")))


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
    # One token per byte of most characters; each has the place of the whole character.
    assert {piece for piece in of_bytes(read) if "👩" in piece} >= {"👩"}
    starts, ends = read.bytes_N2.T.tolist()
    assert starts == sorted(starts) and ends[-1] == len(text.encode())
    assert all(start <= end_before for start, end_before in zip(starts[1:], ends[:-1], strict=True))


def test_dropped_accents_and_blanks_and_folded_cases(tmp_path: Path) -> None:
    tokenizer = word_level(*FIRST, "naive", "cafe", "end")
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]
    )
    read = load_tokenizer(saved(tokenizer, tmp_path)).read(TEXT)
    assert read.token_ids_N.tolist() == [3, 4, 0, 0, 5]
    assert of_bytes(read) == ["Naïve", "cafe", "👩‍🚀", "مَرحبا", "end"]
    assert read.pieces == ["Naïve", "  cafe", "\u0301 👩‍🚀", " مَرحبا", "\n\tend"]
    assert read.bytes_N2.tolist() == [[0, 6], [8, 12], [15, 26], [27, 39], [41, 44]]


def test_what_is_put_before_a_text_is_kept_and_what_is_put_behind_it_is_not(tmp_path: Path) -> None:
    tokenizer = word_level(*FIRST, "a", "b")
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
        ("<!doctype html>", "tokenizer_config.json is not a JSON object"),
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

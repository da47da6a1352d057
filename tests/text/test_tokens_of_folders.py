"""The tokens of a folder: AutoTokenizer's, and the same for tokenize_c4, explain and the library.

Six kinds of tokenizers are made here, each a Hugging Face folder. They are compared with what everybody else
gets of it, `AutoTokenizer.from_pretrained(folder)(text)`, less what that puts behind the text.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hugging_face_families import make_model
from sparsity_length.programs import loss_differences, tokenize_c4
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

from sparsity_length import explain, losses
from sparsity_length.cli import InputError
from sparsity_length.measuring.given import GivenModel
from sparsity_length.results.read import Results
from sparsity_length.text.folder import TokenizedData
from sparsity_length.text.tokenizer import (
    load_tokenizer,
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
        if bos == "auto":
            assert_losses_of_every_face(folder, data, tmp_path / "results")


def assert_losses_of_every_face(folder: Path, data: TokenizedData, results: Path) -> None:
    """Compare the documents' starts, of one length; library and `explain` get token IDs with BOS."""
    length = min(map(len, documents(data).values()))
    words = ["--data", data.folder, "--checkpoints", folder, "--results", results, "--device", "cpu"]
    words += ["--short-context-length", 2, "--long-context-length", length, "--targets-per-chunk", 3]
    words += ["--max-chunks-per-document", 1]
    loss_differences.STAGE(list(map(str, words)))
    rows = Results(results).frame("loss_differences")
    names = ["short_context_loss", "long_context_loss"]
    for document in data.evaluation_documents():
        ids = [*data.bos_token_ids, *document.token_ids[:length].tolist()]
        of_stage = rows[rows["document_id"] == document.document_id].sort_values("target_position")
        asked: dict[str, Any] = {"short_context_length": 2, "device": "cpu"}
        found = losses(ids, str(folder), **asked).tail(3)
        np.testing.assert_allclose(found[names], of_stage[names], atol=2e-5)
        explained = explain(ids, str(folder), **asked, targets=1, swap_text=TEXTS[1] * 9).losses.tail(3)
        np.testing.assert_allclose(explained["long_context_loss"], of_stage["long_context_loss"], atol=2e-5)


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
    tokenizer = Tokenizer(models.WordLevel({word: id_ for id_, word in enumerate(known)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
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


def test_a_tokenizer_of_other_tokens_is_refused_everywhere(tmp_path: Path) -> None:
    """The same vocabulary, and other tokens: one puts a blank before each text."""
    folder = write_folder(tmp_path / "model", byte_level(), {"eos_token": "<|endoftext|>"})
    make_model("llama", vocab_size=300).save_pretrained(folder)
    other = byte_level()
    other.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    named = write_folder(tmp_path / "other", other) / "tokenizer.json"
    for given in (str(named), other):
        with pytest.raises(InputError, match="another tokenizer than that of model"):
            losses(TEXTS, str(folder), given, short_context_length=2)
    assert len(losses(TEXTS, str(folder), byte_level(), short_context_length=2))

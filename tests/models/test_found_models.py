"""What lies under a model's name, which files decide it, and whether tokens and model belong together."""

import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hugging_face_families import make_model, save_model
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from sparsity_length import explain, influential_tokens, losses
from sparsity_length.cli import InputError
from sparsity_length.models.given import GivenModel, refuse_foreign_tokens
from sparsity_length.models.load import find_model, name_of
from sparsity_length.models.settings import Loading
from sparsity_length.text.tokenizer import load_tokenizer, parse_tokenizer_name, train_bpe


def write_model(folder: Path) -> Path:
    """A model in several shards, with a tokenizer."""
    make_model("llama").save_pretrained(folder, max_shard_size="20KB")
    (folder / "tokenizer.json").write_text(train_bpe(["a b"], 257).to_json())
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def _as_a_trainer(folder: Path) -> None:
    for step in (500, 1000):
        shutil.copytree(folder, folder.with_name("run") / f"checkpoint-{step}")


def _renamed(old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: next(folder.glob(old)).rename(folder / new)


@pytest.mark.parametrize(
    ("change", "at", "sentence"),
    [
        (lambda _: None, "absent.gguf", "GGUF is .*; name the model that it was made from"),
        (
            _renamed("model.safetensors.index.json", "q4.gguf"),
            "",
            "GGUF is .*; name the model that it was made",
        ),
        (_as_a_trainer, "../run", "name one below it, such as .*/run/checkpoint-1000$"),
        (lambda _: None, "config.json", "it is a file; name the folder"),
        (_renamed("*.index.json", "old.json"), "", r"\(it holds config.json, .*, old.json, tokenizer.json\)"),
        (
            lambda folder: (folder / "model-00001-of-00004.safetensors").write_text(
                "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
            ),
            "",
            "model-00001-of-00004.safetensors is a Git LFS pointer",
        ),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text("{}"),
            "",
            "index.json does not say which files hold the weights",
        ),
    ],
)
def test_what_is_there_is_named(
    change: Callable[[Path], object], at: str, sentence: str, folder: Path
) -> None:
    change(folder)
    with pytest.raises(InputError, match=sentence):
        find_model(str(folder / at))


def test_names_of_models(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in the home folder is found without a shell."""
    monkeypatch.setenv("HOME", str(folder.parent))
    assert find_model("~/model").folder == parse_tokenizer_name("~/model") == folder
    names = [name_of(word) for word in ("~/model", "gpt2", "me/tiny@refs/pr/1", f"{folder}/runs/long-seed0")]
    assert names == ["model", "gpt2", "tiny-refs-pr-1", "long-seed0"]


def test_a_model_is_the_files_that_are_loaded(folder: Path) -> None:
    """Not what an earlier save, or another format, left beside them."""
    before = find_model(str(folder)).sha256(with_code=False)
    other = make_model("llama", seed=1)
    for name in ("model-00001-of-00002.safetensors", "pytorch_model.bin", "model.fp16.safetensors"):
        (folder / name).write_bytes(b"stale")
    assert find_model(str(folder)).sha256(with_code=False) == before
    other.save_pretrained(folder)  # one file, which goes before the shards
    changed = find_model(str(folder))
    assert [path.name for path in changed.files(with_code=False)] == ["config.json", "model.safetensors"]
    assert changed.sha256(with_code=False) != before
    loaded = GivenModel(changed, Loading(device="cpu"))._load(16)
    assert torch.equal(loaded._model.lm_head.weight, other.lm_head.weight)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cached files of me/tiny, two shards among them; the hub has others, which were not fetched."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    cache = tmp_path / "models--me--tiny"
    folder = write_model(cache / "snapshots" / COMMIT)
    for revision in ("main", "refs/pr/1", "feature/x"):
        (cache / "refs" / revision).parent.mkdir(parents=True, exist_ok=True)
        (cache / "refs" / revision).write_text(COMMIT)
    tree = pytest.importorskip("huggingface_hub._tree_cache")
    names = [*(path.name for path in folder.iterdir()), "all_results.json"]
    tree.write_tree_cache(str(cache), COMMIT, dict.fromkeys(names, tree.TreeCacheEntry(1, "0" * 40)))
    return folder


@pytest.mark.parametrize("at", ["", "@main", "@refs/pr/1", "@feature/x", f"@{COMMIT}"])
def test_what_nobody_needs_may_be_missing(at: str, snapshot: Path) -> None:
    assert find_model(f"me/tiny{at}").folder == parse_tokenizer_name(f"me/tiny{at}") == snapshot


@pytest.mark.parametrize(
    "missing", ["config.json", "tokenizer.json", "model-00002-of-*", "model.safetensors.index.json"]
)
def test_what_is_needed_may_not(missing: str, snapshot: Path) -> None:
    next(snapshot.glob(missing)).unlink()
    with pytest.raises(InputError, match="me/tiny at revision main is not in the cache and cannot be"):
        find_model("me/tiny")


TEXT = "The cat sat on a mat, and the cat that sat there saw a naïve dog in the hall. " * 2
OTHER_TEXT = "Words of quite another kind: 0123456789, zigzag, fuzzy, quiz, jinx, vortex. " * 4


def _bpe(text: str = TEXT, size: int = 290) -> Tokenizer:
    return Tokenizer.from_str(train_bpe([text * 9], size).to_json())


def _with_added(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_tokens([AddedToken("<s>", special=True)])
    return tokenizer


@pytest.mark.parametrize(
    ("change", "num_rows", "used", "outcome"),
    [
        (lambda own: own, 290, [5], "fits"),
        (lambda own: own, 4000, [5], "fits"),  # its own, however far its embedding is padded
        (_with_added, 320, [5], "fits"),  # an unused one of the data's
        (_with_added, 290, [290], "largest ID used: 290"),  # which the model has no row for
        (_with_added, 320, [290], "another tokenizer"),  # which the model's does not know
        (lambda _: _bpe(OTHER_TEXT), 290, [5], "another tokenizer"),  # of the same size
        # Of the same names and IDs, with a blank before a text.
        (
            lambda own: Tokenizer.from_str(own.to_str().replace('space":false', 'space":true')),
            290,
            [5],
            "another tokenizer",
        ),
        (lambda _: _bpe(size=270), 290, [5], "another tokenizer"),  # whose names and IDs it all has
    ],
)
def test_the_whole_tokenizer_is_compared_where_both_are_known(
    change: Callable[[Tokenizer], Tokenizer], num_rows: int, used: list[int], outcome: str
) -> None:
    tokenizer, its_own = (load_tokenizer(given) for given in (change(_bpe()), _bpe()))
    with pytest.raises(InputError, match=outcome) if outcome != "fits" else nullcontext():
        refuse_foreign_tokens(num_rows, "m", its_own, [np.array(used)], tokenizer)


@pytest.mark.parametrize(("num_more", "outcome"), [(512, nullcontext()), (513, pytest.raises(InputError))])
def test_an_embedding_may_be_padded_by_512_rows(num_more: int, outcome: AbstractContextManager[Any]) -> None:
    tokenizer = load_tokenizer(_bpe())
    with outcome:
        refuse_foreign_tokens(tokenizer.vocabulary_size + num_more, "m", None, [np.array([5])], tokenizer)


def test_a_model_without_bos_is_not_given_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = _with_added(_bpe())
    second = save_model(tmp_path / "without", tokenizer.to_str())
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    first = save_model(tmp_path / "with", tokenizer.to_str())
    with pytest.raises(
        InputError, match="puts <s> before a text, is .* that of without, .*, which puts nothing"
    ):
        losses(TEXT, second, first, short_context_length=4)
    assert "before a text" not in caplog.text
    losses(TEXT, first, second, short_context_length=4)
    assert "was made for" not in caplog.text
    losses(TEXT, first, second, short_context_length=4, long_context_length=1000)
    assert re.search(r"with was made for \d+ positions, and reads 1000$", caplog.text, re.MULTILINE)
    assert "with was trained with <s> before a text, and reads this without it" in caplog.text


def test_every_face_refuses_a_foreign_tokenizer(tmp_path: Path) -> None:
    model = save_model(tmp_path / "own", _bpe().to_str())
    other = _bpe(OTHER_TEXT)
    other.save(str(tmp_path / "tokenizer.json"))
    for function, given in (
        (losses, other),
        (explain, f"{tmp_path}/tokenizer.json"),
        (influential_tokens, tmp_path),
    ):
        with pytest.raises(InputError, match="is another tokenizer than that of own"):
            function(TEXT, model, tokenizer=given, short_context_length=4)

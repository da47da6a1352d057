"""What lies at a path that is named as a model, and which files decide the model."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hugging_face_families import make_model

from sparsity_length.cli import InputError
from sparsity_length.measuring.given import GivenModel
from sparsity_length.models.load import find_model, name_of
from sparsity_length.text.tokenizer import load_tokenizer, parse_tokenizer_name, train_bpe

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model in several shards, with a tokenizer."""
    make_model("llama").save_pretrained(tmp_path / "model", max_shard_size="20KB")
    (tmp_path / "model" / "tokenizer.json").write_text(train_bpe(["a b"], 257).to_json())
    return tmp_path / "model"


def _only(*names: str) -> Callable[[Path], object]:
    def keep(folder: Path) -> None:
        for path in folder.iterdir():
            if path.name not in names:
                path.unlink()

    return keep


def _as_a_trainer(folder: Path) -> None:
    whole = folder.with_name("whole")
    folder.rename(whole)
    for step in (500, 1000):
        shutil.copytree(whole, folder / f"checkpoint-{step}")


def _renamed(old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: next(folder.glob(old)).rename(folder / new)


@pytest.mark.parametrize(
    ("change", "at", "sentence"),
    [
        (_renamed("config.json", "x.gguf"), "x.gguf", "GGUF is .*; name the model that it was made from"),
        (lambda _: None, "absent.gguf", "GGUF is .*; name the model that it was made from"),
        (
            _renamed("model.safetensors.index.json", "q4.gguf"),
            "",
            "GGUF is .*; name the model that it was made",
        ),
        (_as_a_trainer, "", "name one below it, such as .*/model/checkpoint-1000$"),
        (lambda _: None, "config.json", "it is a file; name the folder"),
        (_only("config.json", "tokenizer.json"), "", r"\(it holds config.json, tokenizer.json\)"),
        (
            lambda folder: (folder / "model-00001-of-00004.safetensors").write_text(POINTER),
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


def test_a_pointer_is_no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(POINTER)
    with pytest.raises(InputError, match="tokenizer.json is a Git LFS pointer"):
        load_tokenizer(folder)


def test_a_home_folder_is_found_without_a_shell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert find_model("~/model").folder == folder and name_of("~/model") == "model"
    assert GivenModel("~/model").name == "model"
    assert parse_tokenizer_name("~/model") == folder


def test_a_model_is_the_files_that_are_loaded(folder: Path) -> None:
    """Not what an earlier save, or another format, left beside them."""
    before = find_model(str(folder)).sha256(with_code=False)
    for name in ("model-00001-of-00002.safetensors", "pytorch_model.bin", "model.fp16.safetensors"):
        (folder / name).write_bytes(b"stale")
    assert find_model(str(folder)).sha256(with_code=False) == before
    make_model("llama", seed=1).save_pretrained(folder)  # one file, which goes before the shards
    changed = find_model(str(folder))
    assert [path.name for path in changed.files(with_code=False)] == ["config.json", "model.safetensors"]
    assert changed.sha256(with_code=False) != before
    weights = GivenModel(changed, device="cpu")._load(16)._model.state_dict()
    assert torch.equal(weights["lm_head.weight"], make_model("llama", seed=1).lm_head.weight)

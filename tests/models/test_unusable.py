"""Folders, words and files that are no model, or not the whole of one."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from measured_documents import write_checkpoint
from olmo.model import OLMo

from pipeline.cli import InputError
from pipeline.models.load import find_checkpoint, find_model, load_olmo, read_tensors

CPU = torch.device("cpu")


def _files(*names: str) -> Callable[[Path], None]:
    """Make empty files."""

    def make(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        for name in names:
            (folder / name).write_text("{}")

    return make


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ((), "no model at .*: expected"),
        (("config.json", "tokenizer.json"), "no model at"),
        (("a.gguf", "b.gguf"), "no model at"),
        (("config.yaml", "rank0.pt"), "no model at"),
        (("model.safetensors",), "no model at"),
        (("config.json", "model.safetensors", "adapter_config.json"), "holds an adapter"),
        (("adapter_config.json", "adapter_model.safetensors"), "holds an adapter .* merge it"),
    ],
)
def test_folders_and_words_that_are_no_model(names: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    _files(*names)(tmp_path)
    with pytest.raises(InputError, match=sentence):
        find_model(str(tmp_path))
    for word in (f"{tmp_path}/nowhere", "nowhere.gguf", "s3://bucket/x"):
        with pytest.raises(InputError, match="there is no file or folder"):
            find_model(word)


def test_a_gguf_file_is_a_model_under_its_own_name_or_its_folder_s(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    _files("tiny-Q4.gguf", "config.json", "README.md")(folder)
    for word, name in ((folder / "tiny-Q4.gguf", "tiny-Q4"), (folder, "tiny")):
        found = find_model(str(word))
        assert (found.name, found.files(False), found.is_olmo) == (name, [folder / "tiny-Q4.gguf"], False)
        assert found.own_tokenizer().path == folder / "tiny-Q4.gguf"
    with pytest.raises(InputError, match="tiny-Q4.gguf cannot be used: "):
        found.num_positions()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"n_layers": 1}, "no place in it for .* such as transformer.blocks.1"),
        ({"n_layers": 3}, "lacks .* such as transformer.blocks.2"),
        ({"mlp_ratio": 4}, r"not the weights of its config.yaml: .*size mismatch for transformer"),
        ({"weight_tying": False}, "lacks 1, such as transformer.ff_out.weight"),
    ],
)  # fmt: skip
def test_the_model_measured_is_the_checkpoint_s(
    fields: dict[str, object], sentence: str, tmp_path: Path, make_olmo: Callable[..., OLMo]
) -> None:
    folder = find_checkpoint(write_checkpoint(tmp_path, make_olmo()))
    weights = (folder / "model.pt").read_bytes()
    write_checkpoint(tmp_path, make_olmo(**fields))
    (folder / "model.pt").write_bytes(weights)
    with pytest.raises(InputError, match=sentence):
        load_olmo(folder, CPU)


def test_tensors_and_plain_values_are_read_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"weight": torch.ones(2), "step": 7, "betas": (0.9, 0.95)}, path)
    read = read_tensors(path)
    assert torch.equal(read["weight"], torch.ones(2)) and (read["step"], read["betas"]) == (7, (0.9, 0.95))
    for spoil in (
        lambda: torch.save({"a": torch.nn.Linear(2, 2)}, path),
        lambda: os.truncate(path, 20),
        lambda: path.write_text("{}"),
    ):
        spoil()
        with pytest.raises(InputError, match="is damaged, or was not written by torch.save"):
            read_tensors(path)

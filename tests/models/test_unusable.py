"""What is no model, or not one to be measured as it lies there: the sentence names the next step."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from measured_documents import write_checkpoint
from olmo.model import OLMo
from omegaconf import OmegaConf

from pipeline.cli import InputError
from pipeline.models import huggingface
from pipeline.models.load import find_checkpoint, find_model, load_olmo, read_tensors

CPU = torch.device("cpu")


def _files(*names: str) -> Callable[[Path], None]:
    """Empty files; folders where a name ends with a slash."""

    def make(folder: Path) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).mkdir() if name.endswith("/") else (folder / name).write_text("{}")

    return make


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (_files(), "no model at .*: expected"),
        (_files("model_and_optim/.metadata"), "checkpoint of OLMo-core .* convert_checkpoint_to_hf"),
        (_files("step1000/model_and_optim/.metadata"), "checkpoint of OLMo-core"),
        (_files("step10/config.yaml", "step10/model/rank0.pt"), "step10 is a sharded .*unshard.py"),
        (_files("config.yaml", "rank0.pt"), "is a sharded checkpoint of OLMo"),
        (_files("step10/other"), "step10, which is no step<N>-unsharded"),
        (_files("checkpoint-90/config.json", "checkpoint-500/config.json"), "Trainer; .*/checkpoint-500$"),
        (_files("a.gguf", "b.gguf"), "holds 2 GGUF files; name one of them, such as .*/a.gguf"),
        (_files("config.json", "tokenizer.json"), "has a config.json and no weights"),
        (_files("config.json", "tf_model.h5"), "weights of the format TensorFlow only"),
        (_files("config.json", "flax_model.msgpack"), "weights of the format Flax only"),
        (_files("config.json", "onnx/model.onnx"), "weights of the format ONNX only"),
        (_files("config.json", "weights.00.npz"), "weights of the format MLX only"),
        (_files("config.json", "consolidated.00.pth"), "weights of the format Meta's own only"),
        (_files("config.json", "a.gguf", "b.gguf"), "holds 2 GGUF files"),
        (_files("config.json", "model.safetensors", "adapter_config.json"), "holds an adapter"),
        (_files("adapter_config.json", "adapter_model.safetensors"), "holds an adapter .* merge it"),
        (_files("tokenizer.json", "tokenizer_config.json"), "holds a tokenizer and no model"),
        (_files("vocab.json", "merges.txt"), "holds a tokenizer and no model"),
        (_files("model.safetensors"), "has weights .model.safetensors. and no config.json"),
        (_files("config.yaml"), "has OLMo's config.yaml and not the model.pt"),
        (_files("model.pt"), "has OLMo's model.pt and not the config.yaml"),
        (_files("snapshots/0a1b/config.json"), "a folder below it; name that, such as .*/snapshots/0a1b$"),
    ],
)
def test_what_lies_there_is_said_and_what_to_do(
    make: Callable[[Path], None], sentence: str, tmp_path: Path
) -> None:
    make(tmp_path)
    with pytest.raises(InputError, match=sentence) as error:
        find_model(str(tmp_path))
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("", "the name of the model is empty"),
        ("https://huggingface.co/gpt2/x/tree/main", "is a URL; .* hub, as gpt2/x$"),
        ("s3://bucket/x", "is a URL; .* as owner/name$"),
        ("{folder}/nowhere", "there is no file or folder .*/nowhere; name"),
        ("nowhere.gguf", "there is no file or folder nowhere.gguf"),
        ("{folder}/model.safetensors", "is a file; name the folder that holds the model"),
    ],
)
def test_words_that_name_no_model(word: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(InputError, match=sentence):
        find_model(word.format(folder=tmp_path))


def test_a_gguf_file_is_a_model_under_its_own_name_or_its_folder_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tiny"
    _files("tiny-Q4.gguf", "config.json", "README.md")(folder)
    for word, name in ((folder / "tiny-Q4.gguf", "tiny-Q4"), (folder, "tiny")):
        found = find_model(str(word))
        assert (found.name, found.files(False), found.is_olmo) == (name, [folder / "tiny-Q4.gguf"], False)
        assert found.own_tokenizer().path == folder / "tiny-Q4.gguf"
    monkeypatch.setattr(huggingface, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="is read with the package gguf, which is not installed; `pip"):
        found.num_positions()
    monkeypatch.undo()
    with pytest.raises(InputError, match="tiny-Q4.gguf cannot be used: "):
        found.num_positions()


def test_an_olmo_checkpoint_is_wanted_where_hugging_face_models_are_of_no_use(tmp_path: Path) -> None:
    _files("config.json", "model.safetensors")(tmp_path)
    with pytest.raises(InputError, match="holds a Hugging Face model; name an OLMo checkpoint"):
        find_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"n_layers": 1}, "holds .* such as transformer.blocks.1"),
        ({"n_layers": 3}, "lacks .* such as transformer.blocks.2"),
        ({"mlp_ratio": 4}, r"not the weights of its config.yaml: .*size mismatch for transformer"),
        ({"weight_tying": False}, "lacks 1 of the weights .* such as transformer.ff_out.weight"),
    ],
)  # fmt: skip
def test_the_model_measured_is_the_checkpoint_s(
    fields: dict[str, object], sentence: str, tmp_path: Path, make_olmo: Callable[..., OLMo]
) -> None:
    folder = find_checkpoint(write_checkpoint(tmp_path, make_olmo()))
    weights = (folder / "model.pt").read_bytes()
    write_checkpoint(tmp_path, make_olmo(**fields))
    (folder / "model.pt").write_bytes(weights)
    with pytest.raises(InputError, match=sentence) as error:
        load_olmo(folder, CPU)
    assert "\n" not in str(error.value)


def test_plain_values_beside_tensors_are_read_and_others_are_named(tmp_path: Path) -> None:
    content = {
        "weight": torch.ones(2), "betas": OmegaConf.create([0.9, 0.95]), "loss": np.float64(3.5),
        "step": np.int64(7), "array": np.arange(3.0), "path": Path("a/b"),
        "config": OmegaConf.create({"a": {"b": [1, "x", None, True, 2.5]}}),
    }  # fmt: skip
    torch.save(content, tmp_path / "model.pt")
    read = read_tensors(tmp_path / "model.pt")
    assert list(read["betas"]) == [0.9, 0.95] and read["config"].a.b[1] == "x"
    assert (read["loss"], read["step"], read["path"]) == (3.5, 7, Path("a/b"))
    assert read["array"].tolist() == [0, 1, 2] and torch.equal(read["weight"], torch.ones(2))
    for spoil, sentence in (
        (lambda path: torch.save({"a": torch.nn.Linear(2, 2)}, path), "holds a torch.nn.modules.linear.Lin"),
        (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"),
        (lambda path: os.truncate(path, 20), "is damaged, or was not written by torch.save"),
        (lambda path: path.write_text(json.dumps({})), "is damaged, or was not written by torch.save"),
    ):
        spoil(tmp_path / "model.pt")
        with pytest.raises(InputError, match=sentence):
            read_tensors(tmp_path / "model.pt")

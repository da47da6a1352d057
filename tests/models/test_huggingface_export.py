import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from losses_under_contexts import long_context_losses
from olmo.model import OLMo
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer

from pipeline.cli import InputError
from pipeline.models.export import as_hugging_face, write_hugging_face_folder
from pipeline.models.huggingface import load_hugging_face
from pipeline.models.olmo import OLMoCausalLM

MakeOLMo = Callable[..., OLMo]


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """48 words, the first of which ends a text."""
    vocabulary = {"<|endoftext|>": 0, **{f"word{index}": index for index in range(1, 48)}}
    path = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel(vocabulary, unk_token="word1")).save(str(path))
    return path


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"weight_tying": False},
        {"n_kv_heads": 2},
        {"clip_qkv": 0.5},
        {"embedding_size": 128},
        {"rope_theta": 500},
    ],
    ids=str,
)
def test_the_exported_folder_gives_our_losses(
    fields: dict[str, object], make_olmo: MakeOLMo, tokenizer_file: Path, tmp_path: Path
) -> None:
    model = make_olmo(**fields)
    difference = write_hugging_face_folder(model, tokenizer_file, 0, tmp_path / "out")
    assert difference < 1e-5
    token_ids = np.random.default_rng(3).integers(0, 48, 64)
    twin = load_hugging_face(tmp_path / "out", device=torch.device("cpu"), num_positions=64)
    ours, theirs = (
        long_context_losses(lm, token_ids, np.arange(1, 64)) for lm in (OLMoCausalLM(model), twin)
    )
    assert np.abs(ours - theirs).max() < 1e-5
    assert ours.std() > 0.1  # the agreement is about losses that differ from token to token


def test_the_folder_is_what_other_tools_expect(
    make_olmo: MakeOLMo, tokenizer_file: Path, tmp_path: Path
) -> None:
    write_hugging_face_folder(make_olmo(), tokenizer_file, 0, tmp_path / "out")
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["OlmoForCausalLM"]
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == tokenizer_file.read_bytes()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (tokenizer.eos_token_id, tokenizer("word7")["input_ids"]) == (0, [7])


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"layer_norm_type": "rms"}, "model.layer_norm_type is rms, but .* knows only default"),
        ({"layer_norm_with_affine": True}, "model.layer_norm_with_affine is True"),
        ({"activation_type": "gelu"}, "model.activation_type is gelu"),
        ({"include_bias": True}, "model.include_bias is True"),
        ({"attention_layer_norm": True}, "model.attention_layer_norm is True"),
        ({"layer_norm_eps": 1e-6}, "model.layer_norm_eps is 1e-06"),
    ],
)
def test_what_the_class_cannot_express_is_refused(
    fields: dict[str, object], sentence: str, make_olmo: MakeOLMo
) -> None:
    with pytest.raises(InputError, match=sentence):
        as_hugging_face(make_olmo(**fields))


def test_a_folder_that_exists_is_left_alone(
    make_olmo: MakeOLMo, tokenizer_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="is there already"):
        write_hugging_face_folder(make_olmo(), tokenizer_file, 0, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []

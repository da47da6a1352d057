"""An OLMo as a Hugging Face folder: the same losses by a second implementation; whole, checked, or absent."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from losses_under_contexts import long_context_losses
from measured_documents import flip
from olmo.model import OLMo
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer

from sparsity_length.cli import InputError
from sparsity_length.models.export import as_hugging_face, write_hugging_face_folder
from sparsity_length.models.load import Loading, find_model, load_causal_lm
from sparsity_length.models.olmo import OLMoCausalLM

MakeOLMo = Callable[..., OLMo]
CPU = Loading("cpu")


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """48 words, the first of which ends a text."""
    vocabulary = {"<|endoftext|>": 0, **{f"word{index}": index for index in range(1, 48)}}
    Tokenizer(models.WordLevel(vocabulary, unk_token="word1")).save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.mark.parametrize(
    "fields",
    [{"weight_tying": False, "rope_theta": 500}, {"n_kv_heads": 2}, {"clip_qkv": 0.5, "embedding_size": 128}],
    ids=str,
)
def test_hugging_face_agrees_on_every_token_loss(
    fields: dict[str, object], make_olmo: MakeOLMo, tokenizer_file: Path, tmp_path: Path
) -> None:
    model = make_olmo(**fields)
    assert write_hugging_face_folder(model, tokenizer_file, 0, tmp_path / "out") < 1e-5
    token_ids = np.random.default_rng(3).integers(0, 48, 64)
    ours = long_context_losses(OLMoCausalLM(model), token_ids, np.arange(1, 64))
    assert ours.std() > 0.1  # the agreement is about losses that differ from token to token
    with torch.inference_mode():
        logits = as_hugging_face(model)(torch.tensor(token_ids)[None]).logits[0, :-1]
    stock = torch.nn.functional.cross_entropy(logits, torch.tensor(token_ids[1:]), reduction="none")
    exported = load_causal_lm(find_model(str(tmp_path / "out")), CPU, 64)
    for losses in (stock.numpy(), long_context_losses(exported, token_ids, np.arange(1, 64))):
        np.testing.assert_allclose(losses, ours, rtol=0, atol=1e-5)


def test_the_folder_is_what_other_tools_expect_and_a_flipped_bit_is_seen(
    make_olmo: MakeOLMo, tokenizer_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    write_hugging_face_folder(make_olmo(), tokenizer_file, 0, out)
    written = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert written <= {path.name for path in out.iterdir()}
    assert json.loads((out / "config.json").read_text())["architectures"] == ["OlmoForCausalLM"]
    assert (out / "tokenizer.json").read_bytes() == tokenizer_file.read_bytes()
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert (tokenizer.eos_token_id, tokenizer("word7")["input_ids"]) == (0, [7])
    with pytest.raises(InputError, match="is there already"):
        write_hugging_face_folder(make_olmo(), tokenizer_file, 0, out)
    flip(out / "model.safetensors")
    with pytest.raises(InputError, match="model.safetensors has not the SHA-256 of its manifest"):
        load_causal_lm(find_model(str(out)), CPU, 64)

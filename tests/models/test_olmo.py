"""OLMo: chosen position IDs and nothing else changed; damaged checkpoints; exports to Hugging Face."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from measured_documents import flip, word_level, write_checkpoint
from olmo.config import TrainConfig
from olmo.model import OLMo
from transformers import AutoTokenizer

from sparsity_length.cli import InputError
from sparsity_length.models.checkpoints import find_checkpoint, whole_model
from sparsity_length.models.export import as_hugging_face, write_hugging_face_folder
from sparsity_length.models.interface import CausalLM
from sparsity_length.models.load import Loading, find_model, load_causal_lm
from sparsity_length.models.olmo import OLMoCausalLM, load_stock_olmo

MakeOLMo = Callable[..., OLMo]
ROWS = torch.arange(40)[None]


def _tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 48, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rope_full_precision": False},
        {"n_kv_heads": 2},
        {"block_group_size": 2},
        {"weight_tying": False, "scale_logits": True, "embedding_layer_norm": True},
        {"attention_layer_norm": True, "norm_after": True, "layer_norm_type": "rms"},
    ],
)
def test_contiguous_ids_give_the_stock_logits_bit_for_bit(
    make_olmo: MakeOLMo, fields: dict[str, Any]
) -> None:
    token_ids = _tokens(2, 40)
    with torch.inference_mode():
        stock = make_olmo(**fields)(token_ids).logits
    lm = OLMoCausalLM(make_olmo(**fields))
    assert torch.equal(lm.logits(lm.hidden_states(token_ids, ROWS, None, None)), stock)


@pytest.mark.parametrize("largest", [8.0, float("inf")], ids=["alibi", "nope"])
def test_alibi_is_that_of_stock_olmo_at_kept_ids(make_olmo: MakeOLMo, largest: float) -> None:
    fields = {"rope": False, "alibi": True, "alibi_bias_max": largest, "init_std": 0.1}
    token_ids = _tokens(2, 40)
    with torch.inference_mode():
        stock = make_olmo(**fields)(token_ids).logits
    lm = OLMoCausalLM(make_olmo(**fields))
    for ids in (ROWS, ROWS + 1000):
        found = lm.logits(lm.hidden_states(token_ids, ids, None, None))
        torch.testing.assert_close(found, stock, rtol=0, atol=1e-5 if ids is ROWS else 5e-5)
    stretched = lm.logits(lm.hidden_states(token_ids, 2 * ROWS, None, None))
    assert torch.allclose(stretched, stock, atol=1e-5) == (largest == float("inf")), "NoPE has no distances"


def test_ids_and_not_rows_are_the_positions(make_olmo: MakeOLMo) -> None:
    token_ids = _tokens(2, 40)
    lm = OLMoCausalLM(make_olmo(init_std=0.1))
    near = lm.logits(lm.hidden_states(token_ids, ROWS, None, None))
    # Far beyond max_sequence_length.
    far = lm.logits(lm.hidden_states(token_ids, ROWS + 100, None, None))
    assert (near - far).abs().max() < 1e-5
    both = torch.cat([ROWS, 3 * ROWS])
    together = lm.hidden_states(token_ids, both, None, None)
    for row in (0, 1):
        alone = lm.hidden_states(token_ids[row : row + 1], both[row : row + 1], None, None)
        assert (together[row] - alone[0]).abs().max() < 1e-5, "IDs may differ within a batch"


@pytest.fixture
def checkpoint(tmp_path: Path, make_olmo: MakeOLMo) -> Path:
    """A checkpoint of another program: without a mark."""
    return write_checkpoint(tmp_path / "run", make_olmo(seed=4)) / "step20-unsharded"


def _refusal(checkpoint: Path) -> str:
    with pytest.raises(InputError) as error:
        load_stock_olmo(checkpoint)
    return str(error.value)


class Hostile:
    """Would run a command where it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


def _hold(content: object) -> Callable[[Path, MakeOLMo], object]:
    return lambda folder, make_olmo: torch.save(content, folder / "model.pt")


def _weights_of(**fields: Any) -> Callable[[Path, MakeOLMo], object]:
    """The configuration of another model than the weights'."""
    return lambda folder, make_olmo: TrainConfig.new(model=make_olmo(**fields).config).save(
        folder / "config.yaml"
    )


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda folder, _: os.truncate(folder / "model.pt", 1000), "is damaged, or was not written by"),
        (_hold(Hostile()), "is damaged, or was not written by"),
        (
            lambda folder, make_olmo: write_checkpoint(folder.parent, make_olmo(rope=False)),
            "without which positions are learned",
        ),
        (lambda folder, _: (folder / "config.yaml").write_text("]["), "is not an OLMo configuration"),
        (
            lambda folder, _: (folder / "config.yaml").write_text("attention_scaling: learnt\nmodel: {}"),
            "scales attention",
        ),
        (_weights_of(n_layers=1), "transformer.blocks.1"),
        (_weights_of(n_layers=3), "transformer.blocks.2"),
        (_weights_of(mlp_ratio=4), "size mismatch for transformer"),
        (_weights_of(weight_tying=False), "transformer.ff_out.weight"),
    ],
)
def test_what_is_wrong_with_a_checkpoint_is_said(
    spoil: Callable[[Path, MakeOLMo], object], sentence: str, checkpoint: Path, make_olmo: MakeOLMo
) -> None:
    spoil(checkpoint, make_olmo)
    assert sentence in _refusal(checkpoint)


def test_a_mark_tells_of_every_change(checkpoint: Path) -> None:
    unmarked = checkpoint.rename(checkpoint.with_name("unmarked"))
    with whole_model(checkpoint) as draft:
        shutil.copytree(unmarked, draft, dirs_exist_ok=True)
    load_stock_olmo(checkpoint)
    later = Path(shutil.copytree(checkpoint, checkpoint.with_name("step100-unsharded")))
    flip(checkpoint / "model.pt")
    assert "model.pt has not the SHA-256 of its manifest" in _refusal(checkpoint)
    os.truncate(checkpoint / "model.pt", 1000)
    assert "has 1000 bytes, not " in _refusal(checkpoint)
    (checkpoint / "complete.json").write_text("{}")
    assert "complete.json is damaged" in _refusal(checkpoint)
    # A later step that lost a file is not passed over: an earlier one would be another result.
    (later / "model.pt").unlink()
    assert find_checkpoint(checkpoint.parent) == later
    assert f"the checkpoint {later} is damaged: {later}/model.pt is missing" in _refusal(later)


def logits_of(lm: CausalLM, token_ids: torch.Tensor) -> torch.Tensor:
    rows = torch.arange(token_ids.shape[1])[None]
    return lm.logits(lm.hidden_states(token_ids, rows, None, None)[0])


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """48 words, the first of which ends a text."""
    words = ["<|endoftext|>", *(f"word{token_id}" for token_id in range(1, 48))]
    word_level(*words, unk_token="word1").save(str(tmp_path / "tokenizer.json"))
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
    token_ids = _tokens(1, 64)
    exported = load_causal_lm(find_model(str(tmp_path / "out")), Loading("cpu"), 64)
    with torch.inference_mode():
        stock = as_hugging_face(model)(token_ids).logits[0]
    ours, *others = (
        torch.nn.functional.cross_entropy(logits[:-1], token_ids[0, 1:], reduction="none")
        for logits in (logits_of(OLMoCausalLM(model), token_ids), logits_of(exported, token_ids), stock)
    )
    assert ours.std() > 0.1  # the agreement is about losses that differ from token to token
    for losses in others:
        torch.testing.assert_close(losses, ours, rtol=0, atol=1e-5)


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
        load_causal_lm(find_model(str(out)), Loading("cpu"), 64)

"""OLMo: chosen position IDs and nothing else changed; damaged checkpoints; exports to Hugging Face."""

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
from sparsity_length.models.load import find_model, load_causal_lm
from sparsity_length.models.olmo import OLMoCausalLM, load_stock_olmo
from sparsity_length.models.settings import Loading

MakeOLMo = Callable[..., OLMo]
ROWS = torch.arange(40)[None]
TOKENS = torch.randint(0, 48, (2, 40), generator=torch.Generator().manual_seed(1))


def logits_of(lm: CausalLM, token_ids: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return lm.logits(lm.hidden_states(token_ids, ids, None, None))


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
    with torch.inference_mode():
        stock = make_olmo(**fields)(TOKENS).logits
    assert torch.equal(logits_of(OLMoCausalLM(make_olmo(**fields)), TOKENS, ROWS), stock)


ALIBI = {"rope": False, "alibi": True}


@pytest.mark.parametrize(
    ("fields", "shift", "tolerance"),
    [
        ({}, 100, 1e-5),  # far beyond max_sequence_length
        (ALIBI, 1000, 5e-5),
        (ALIBI | {"alibi_bias_max": float("inf")}, 1000, 5e-5),
    ],
    ids=["rope", "alibi", "nope"],
)
def test_ids_and_not_rows_are_the_positions(
    fields: dict[str, Any], shift: int, tolerance: float, make_olmo: MakeOLMo
) -> None:
    with torch.inference_mode():
        stock = make_olmo(init_std=0.1, **fields)(TOKENS).logits
    lm = OLMoCausalLM(make_olmo(init_std=0.1, **fields))
    assert (logits_of(lm, TOKENS, ROWS + shift) - stock).abs().max() < tolerance
    stretched = (logits_of(lm, TOKENS, torch.cat([ROWS, 3 * ROWS])) - stock).abs()
    assert stretched[0].max() < 1e-5
    assert (stretched[1].max() < 1e-5) == ("alibi_bias_max" in fields), "NoPE has no distances"


@pytest.fixture
def checkpoint(folder: Path) -> Path:
    """A checkpoint of another program: without a mark."""
    return folder / "run" / "step20-unsharded"


def _refusal(checkpoint: Path) -> str:
    with pytest.raises(InputError) as error:
        load_stock_olmo(checkpoint)
    return str(error.value)


class Hostile:
    """Would run a command where it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


def _weights_of(**fields: Any) -> Callable[[Path, MakeOLMo], object]:
    """The configuration of another model than the weights'."""
    return lambda folder, make_olmo: TrainConfig.new(model=make_olmo(**fields).config).save(
        folder / "config.yaml"
    )


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda folder, _: os.truncate(folder / "model.pt", 1000), "is damaged, or was not written by"),
        (lambda folder, _: torch.save(Hostile(), folder / "model.pt"), "is damaged, or was not written by"),
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
    (checkpoint / "complete.json").write_text("{}")
    assert "complete.json is damaged" in _refusal(checkpoint)
    # A later step that lost a file is not passed over: an earlier one would be another result.
    (later / "model.pt").unlink()
    assert find_checkpoint(checkpoint.parent) == later
    assert f"the checkpoint {later} is damaged: {later}/model.pt is missing" in _refusal(later)


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
def test_an_exported_model_is_the_same_to_other_tools_and_a_flipped_bit_is_seen(
    fields: dict[str, object], make_olmo: MakeOLMo, tokenizer_file: Path, tmp_path: Path
) -> None:
    model = make_olmo(**fields)
    out = tmp_path / "out"
    assert write_hugging_face_folder(model, tokenizer_file, 0, out) < 1e-5
    with torch.inference_mode():
        stock = as_hugging_face(model)(TOKENS).logits
    ours = logits_of(OLMoCausalLM(model), TOKENS, ROWS).log_softmax(-1)
    assert ours.std() > 0.1
    exported = load_causal_lm(find_model(str(out)), Loading(device="cpu"), 40)
    for logits in (logits_of(exported, TOKENS, ROWS), stock):
        torch.testing.assert_close(logits.log_softmax(-1), ours, rtol=0, atol=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert (tokenizer.eos_token_id, tokenizer("word7")["input_ids"]) == (0, [7])
    with pytest.raises(InputError, match="is there already"):
        write_hugging_face_folder(model, tokenizer_file, 0, out)
    for name in ("model.safetensors", "tokenizer.json", "generation_config.json"):
        flip(out / name)
        with pytest.raises(InputError, match=f"{name} has not the SHA-256 of its manifest"):
            load_causal_lm(find_model(str(out)), Loading(device="cpu"), 40)
        flip(out / name)


@pytest.mark.parametrize(
    ("use", "fields", "sentence"),
    [
        (lambda model, _: OLMoCausalLM(model), {"rope": False}, "this OLMo cannot be measured"),
        (lambda model, _: OLMoCausalLM(model), {"block_type": "llama"}, "this OLMo cannot be measured"),
        (
            lambda model, file: write_hugging_face_folder(model, file, 0, file.with_name("out")),
            {"activation_type": "gelu"},
            "cannot hold the weights of this model",
        ),
    ],
)
def test_what_a_model_in_memory_cannot_be_used_for(
    use: Callable[[OLMo, Path], object],
    fields: dict[str, Any],
    sentence: str,
    make_olmo: MakeOLMo,
    tokenizer_file: Path,
) -> None:
    with pytest.raises(InputError, match=sentence):
        use(make_olmo(**fields), tokenizer_file)

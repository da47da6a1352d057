"""OLMo: chosen position IDs and nothing else changed; damaged checkpoints and marks."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from measured_documents import flip
from olmo.config import TrainConfig
from olmo.model import OLMo

from sparsity_length.cli import InputError
from sparsity_length.models.checkpoints import find_checkpoint, whole_model
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
    folder = tmp_path / "run" / "step20-unsharded"
    folder.mkdir(parents=True)
    _save(make_olmo(seed=4), folder)
    return folder


def _save(model: OLMo, folder: Path) -> None:
    TrainConfig.new(model=model.config).save(folder / "config.yaml")
    torch.save(model.state_dict(), folder / "model.pt")


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
            lambda folder, make_olmo: _save(make_olmo(rope=False), folder),
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

"""Finding and loading OLMo checkpoints, and saying clearly what is wrong with one."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from olmo.config import TrainConfig
from olmo.model import OLMo

from pipeline.cli import InputError
from pipeline.models.load import find_checkpoint, load_olmo, model_name
from pipeline.models.olmo import OLMoCausalLM


@pytest.fixture
def checkpoint(tmp_path: Path, make_olmo: Callable[..., OLMo]) -> Path:
    folder = tmp_path / "run" / "step20-unsharded"
    folder.mkdir(parents=True)
    model = make_olmo(seed=4)
    TrainConfig.new(model=model.config).save(folder / "config.yaml")
    torch.save(model.state_dict(), folder / "model.pt")
    return folder


def test_a_run_folder_means_its_last_step(checkpoint: Path) -> None:
    (checkpoint.parent / "step100-unsharded").mkdir()  # nothing in it: not a checkpoint
    (checkpoint.parent / "step3-unsharded").mkdir()
    (checkpoint.parent / "step3-unsharded" / "model.pt").touch()
    assert find_checkpoint(checkpoint.parent) == checkpoint
    assert find_checkpoint(checkpoint) == checkpoint
    assert model_name(checkpoint.parent) == "run"
    assert model_name(checkpoint) == "run-step20"


def test_loaded_weights_are_the_saved_ones(checkpoint: Path, make_olmo: Callable[..., OLMo]) -> None:
    token_ids, ids = torch.arange(20)[None], torch.arange(20)[None]
    loaded = load_olmo(checkpoint, torch.device("cpu"))
    assert loaded.vocabulary_size == 48
    here = OLMoCausalLM(make_olmo(seed=4))
    there, here = (lm.hidden_states(token_ids, ids, None, None) for lm in (loaded, here))
    assert torch.equal(there, here)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no OLMo checkpoint at"):
        find_checkpoint(tmp_path / "nowhere")


def test_truncated(checkpoint: Path) -> None:
    weights = (checkpoint / "model.pt").read_bytes()
    (checkpoint / "model.pt").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(InputError, match="model.pt is damaged: it is no archive of torch.save"):
        load_olmo(checkpoint, torch.device("cpu"))


@pytest.mark.parametrize("text", ["hello: world\n", "model: 3\n", "model:\n  d_modle: 32\n", "]["])
def test_not_olmo(checkpoint: Path, text: str) -> None:
    (checkpoint / "config.yaml").write_text(text)
    with pytest.raises(InputError, match="config.yaml is not an OLMo configuration"):
        load_olmo(checkpoint, torch.device("cpu"))


def test_weights_of_another_model(checkpoint: Path, make_olmo: Callable[..., OLMo]) -> None:
    torch.save(make_olmo(d_model=16).state_dict(), checkpoint / "model.pt")
    with pytest.raises(InputError, match="not the weights of its config.yaml"):
        load_olmo(checkpoint, torch.device("cpu"))


def test_no_rope(checkpoint: Path, make_olmo: Callable[..., OLMo]) -> None:
    model = make_olmo(rope=False)
    TrainConfig.new(model=model.config).save(checkpoint / "config.yaml")
    torch.save(model.state_dict(), checkpoint / "model.pt")
    with pytest.raises(InputError, match="no RoPE"):
        load_olmo(checkpoint, torch.device("cpu"))

"""A damaged checkpoint is refused in a sentence by whoever measures it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from olmo.model import OLMo
from omegaconf import OmegaConf

from pipeline.cli import InputError
from pipeline.models.load import find_checkpoint, load_olmo, write_mark

CPU = torch.device("cpu")


class Hostile:
    """Would run a command where it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


@pytest.fixture
def checkpoint(make_olmo: Callable[..., OLMo], tmp_path: Path) -> Path:
    """As another program leaves it: without a mark."""
    model, folder = make_olmo(), tmp_path / "run" / "step3-unsharded"
    folder.mkdir(parents=True)
    OmegaConf.save({"model": model.config.asdict()}, folder / "config.yaml")
    torch.save(model.state_dict(), folder / "model.pt")
    return folder


def refusal(checkpoint: Path) -> str:
    with pytest.raises(InputError) as error:
        load_olmo(checkpoint, CPU)
    sentence = str(error.value)
    assert "\n" not in sentence
    assert len(sentence) < 400
    return sentence


@pytest.mark.parametrize("with_mark", [False, True])
@pytest.mark.parametrize("num_bytes", [0, 1, 1000])
def test_truncated_weights(checkpoint: Path, num_bytes: int, with_mark: bool) -> None:
    if with_mark:
        write_mark(checkpoint)
    os.truncate(checkpoint / "model.pt", num_bytes)
    expected = f"has {num_bytes} bytes, not the " if with_mark else "is damaged: it is no archive"
    assert ("is empty" if num_bytes == 0 else expected) in refusal(checkpoint)


def test_one_flipped_bit(checkpoint: Path) -> None:
    write_mark(checkpoint)
    load_olmo(checkpoint, CPU)
    content = bytearray((checkpoint / "model.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (checkpoint / "model.pt").write_bytes(content)
    assert "model.pt is not what was saved: its SHA-256 differs" in refusal(checkpoint)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([1, 2], "holds a list, not named tensors"),
        ({"a": 3}, "is not the weights of its config.yaml"),
        (Hostile(), "is refused: to load it could run code"),
    ],
    ids=["list", "number", "hostile"],
)
def test_files_of_something_else(checkpoint: Path, content: Any, sentence: str) -> None:
    torch.save(content, checkpoint / "model.pt")
    assert sentence in refusal(checkpoint)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"- a list\n", b"model: 3\n"])
def test_a_configuration_that_is_none(checkpoint: Path, content: bytes) -> None:
    (checkpoint / "config.yaml").write_bytes(content)
    assert "config.yaml is not an OLMo configuration" in refusal(checkpoint)


@pytest.mark.parametrize("name", ["config.yaml", "model.pt"])
def test_a_later_step_that_lost_a_file_is_not_passed_over(
    checkpoint: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    later = Path(shutil.copytree(checkpoint, checkpoint.with_name("step10-unsharded")))
    write_mark(later)
    (later / name).unlink()
    assert find_checkpoint(checkpoint.parent) == later
    assert caplog.messages == []
    assert f"the checkpoint {later} is damaged: it has no {name}" in refusal(later)


def test_an_empty_folder_of_a_later_step_is_passed_over_and_told(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    later = checkpoint.with_name("step10-unsharded")
    later.mkdir()
    assert find_checkpoint(checkpoint.parent) == checkpoint
    assert f"{later} holds no model and is passed over" in caplog.text

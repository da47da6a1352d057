"""Checkpoints: damage is refused, and a run folder belongs to one run."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from measured_documents import flip

from sparsity_length.cli import InputError
from sparsity_length.text.folder import TokenizedData
from sparsity_length.training.config import PretrainConfig, load_config
from sparsity_length.training.loop import has_finished, newest_state, save_checkpoint

TINY = Path(__file__).parents[2] / "olmo_configs" / "tiny.yaml"
STATE = {"model": {"weight": torch.arange(3)}, "optim": {"step": 1}, "train": {"step": 7}}


@pytest.fixture
def config(data: TokenizedData) -> PretrainConfig:
    return load_config(TINY, [], data)


def test_another_configuration_is_refused_by_what_changed(
    tmp_path: Path, config: PretrainConfig, data: TokenizedData
) -> None:
    assert not has_finished(tmp_path, config, 7)
    save_checkpoint(tmp_path, 7, config, STATE)
    record = tmp_path / "step7-unsharded" / "config.yaml"
    for of_a_run_before_the_field in (False, True):  # it had what is its default
        if of_a_run_before_the_field:
            (record.parent / "complete.json").unlink()
            record.write_text(
                record.read_text().replace("eval_num_documents: 64\n", "attention_scaling: none\n")
            )
        assert has_finished(tmp_path, load_config(TINY, ["run_name=another", "eval_interval=7"], data), 7)
        with pytest.raises(InputError) as error:
            has_finished(tmp_path, load_config(TINY, ["seed=1", "optimizer.eps=0.5"], data), 7)
        assert "other settings: optimizer.eps was 1e-08, now 0.5; seed was 0, now 1;" in str(error.value)


FILES = ("config.yaml", "model.pt", "optim.pt", "train.pt")
DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (lambda path: os.truncate(path, 100), "has 100 bytes, not"),
    "empty": (lambda path: os.truncate(path, 0), "has 0 bytes, not"),
    "missing": (Path.unlink, "is missing"),
    "one bit": (flip, "has not the SHA-256 of its manifest"),
}


def step_found(run_folder: Path) -> int:
    return int(newest_state(run_folder)["train"]["step"])


@pytest.mark.parametrize(("name", "damage"), list(zip(FILES, DAMAGES, strict=True)))
def test_damage_is_refused_and_the_one_before_taken_once_it_is_removed(
    name: str, damage: str, tmp_path: Path, config: PretrainConfig
) -> None:
    for step in (7, 8):
        save_checkpoint(tmp_path, step, config, STATE | {"train": {"step": step}})
    assert step_found(tmp_path) == 8
    do, sentence = DAMAGES[damage]
    do(tmp_path / "step8-unsharded" / name)
    with pytest.raises(InputError, match=f"{name} {sentence}"):
        newest_state(tmp_path)
    shutil.rmtree(tmp_path / "step8-unsharded")
    assert step_found(tmp_path) == 7

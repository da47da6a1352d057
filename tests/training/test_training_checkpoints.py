"""Checkpoints: damage is told and passed over, and a run folder belongs to one run."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from measured_documents import flip

from pipeline.cli import InputError
from pipeline.models.load import RUN_FILES, newest_whole
from pipeline.text.folder import TokenizedData
from pipeline.training.checkpoints import (
    refuse_another_run,
    save_checkpoint,
)
from pipeline.training.config import PretrainConfig, load_config

TINY = Path(__file__).parents[2] / "olmo_configs" / "tiny.yaml"
STATE = {"model": {"weight": torch.arange(3)}, "optim": {"step": 1}, "train": {"step": 7}}


@pytest.fixture
def config(data: TokenizedData) -> PretrainConfig:
    return load_config(TINY, [], data)


def test_another_configuration_is_refused_by_what_changed(
    tmp_path: Path, config: PretrainConfig, data: TokenizedData
) -> None:
    refuse_another_run(tmp_path, config)
    save_checkpoint(tmp_path, 7, config, STATE)
    record = tmp_path / "step7-unsharded" / "config.yaml"
    for of_a_run_before_the_field in (False, True):  # it had what is its default
        if of_a_run_before_the_field:
            (record.parent / "complete.json").unlink()
            record.write_text(
                record.read_text().replace("eval_num_documents: 64\n", "attention_scaling: none\n")
            )
        refuse_another_run(tmp_path, load_config(TINY, ["run_name=another", "eval_interval=7"], data))
        with pytest.raises(InputError) as error:
            refuse_another_run(tmp_path, load_config(TINY, ["seed=1", "optimizer.eps=0.5"], data))
        assert "other settings: optimizer.eps was 1e-08, now 0.5; seed was 0, now 1;" in str(error.value)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (lambda path: os.truncate(path, 100), "has 100 bytes, not"),
    "empty": (lambda path: os.truncate(path, 0), "has 0 bytes, not"),
    "missing": (Path.unlink, "is missing"),
    "one bit": (flip, "has not the SHA-256 of its manifest"),
}


@pytest.mark.parametrize(("name", "damage"), list(zip(RUN_FILES, DAMAGES, strict=True)))
def test_damage_is_told_and_passed_over(
    name: str, damage: str, tmp_path: Path, config: PretrainConfig, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (7, 8):
        save_checkpoint(tmp_path, step, config, STATE)
    assert newest_whole(tmp_path) == (8, tmp_path / "step8-unsharded")
    assert not caplog.text
    do, sentence = DAMAGES[damage]
    do(tmp_path / "step8-unsharded" / name)
    assert newest_whole(tmp_path) == (7, tmp_path / "step7-unsharded")
    assert sentence in caplog.text and name in caplog.text
    do(tmp_path / "step7-unsharded" / name)
    with pytest.raises(InputError, match="no checkpoint of .* is whole"):
        newest_whole(tmp_path)

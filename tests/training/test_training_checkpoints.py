"""Checkpoints are whole or absent, damage is passed over, and a run folder belongs to one run."""

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
from pipeline.training import checkpoints
from pipeline.training.checkpoints import (
    checkpoints_of,
    drop_old_checkpoints,
    newest_state,
    refuse_another_run,
    save_checkpoint,
)
from pipeline.training.config import PretrainConfig, load_config

TINY = Path(__file__).parents[2] / "olmo_configs" / "tiny.yaml"
STATE = {"model": {"weight": torch.arange(3)}, "optim": {"step": 1}, "train": {"step": 7}}


@pytest.fixture
def config(data: TokenizedData) -> PretrainConfig:
    return load_config(TINY, [], data)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_saved_is_loaded_and_steps_are_numbers(tmp_path: Path, config: PretrainConfig) -> None:
    for step in (9, 10, 100):
        save_checkpoint(tmp_path, step, config, STATE)
    assert names_in(tmp_path / "step9-unsharded") == sorted([*RUN_FILES, "complete.json"])
    state = newest_state(tmp_path)
    assert state is not None
    assert (state["model"]["weight"].tolist(), state["train"]) == ([0, 1, 2], {"step": 7})
    assert list(checkpoints_of(tmp_path)) == [9, 10, 100]
    drop_old_checkpoints(tmp_path, num_kept=2)
    assert names_in(tmp_path) == ["step10-unsharded", "step100-unsharded"]


def test_a_torn_save_is_no_checkpoint(
    tmp_path: Path, config: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed, pytest.raises(pytest.fail.Exception):
        killed.setattr(Path, "rename", lambda *_: pytest.fail("killed before the rename"))
        killed.setattr(checkpoints.shutil, "rmtree", lambda *_, **__: None)  # a kill tidies nothing up
        save_checkpoint(tmp_path, 7, config, STATE)
    assert names_in(tmp_path) == [".step7-unsharded.part"]
    assert checkpoints_of(tmp_path) == {}
    (tmp_path / ".step1-unsharded.old").mkdir()  # of a removal that was killed
    save_checkpoint(tmp_path, 7, config, STATE)
    assert names_in(tmp_path) == ["step7-unsharded"]


def test_another_configuration_is_refused_by_what_changed(
    tmp_path: Path, config: PretrainConfig, data: TokenizedData
) -> None:
    refuse_another_run(tmp_path, config)
    save_checkpoint(tmp_path, 7, config, STATE)
    record = tmp_path / "step7-unsharded" / "config.yaml"
    for of_a_run_before_the_field in (False, True):  # it had what is its default
        if of_a_run_before_the_field:
            (record.parent / "complete.json").unlink()
            record.write_text(record.read_text().replace("attention_scaling: none\n", ""))
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

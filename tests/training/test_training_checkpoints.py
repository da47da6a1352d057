import resource
from pathlib import Path

import pytest
import torch

from pipeline.errors import InputError
from pipeline.text.tokenized_data import TokenizedData
from pipeline.training import checkpoints
from pipeline.training.checkpoints import (
    checkpoints_of,
    drop_old_checkpoints,
    load_state,
    refuse_another_run,
    save_checkpoint,
    write_run_config,
)
from pipeline.training.configuration import PretrainConfig
from pipeline.training.given_settings import load_config

TINY = Path(__file__).parents[2] / "olmo_configs" / "tiny.yaml"
STATE = {"model": {"weight": torch.arange(3)}, "optim": {"step": 1}, "train": {"step": 7}}


@pytest.fixture
def config(data: TokenizedData) -> PretrainConfig:
    return load_config(TINY, [], data)


def test_what_is_saved_is_loaded(tmp_path: Path, config: PretrainConfig) -> None:
    save_checkpoint(tmp_path, 7, config, STATE)
    folder = tmp_path / "step7-unsharded"
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.yaml",
        "model.pt",
        "optim.pt",
        "train.pt",
    ]
    state = load_state(folder)
    assert state["model"]["weight"].tolist() == [0, 1, 2]
    assert state["train"] == {"step": 7}
    assert [path.name for path in tmp_path.iterdir()] == ["step7-unsharded"]


def test_a_disk_that_takes_no_more_says_so_and_keeps_what_was_there(
    tmp_path: Path, config: PretrainConfig
) -> None:
    save_checkpoint(tmp_path, 7, config, STATE)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            save_checkpoint(tmp_path, 8, config, STATE | {"model": {"weight": torch.zeros(100_000)}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["step7-unsharded"]


def test_steps_are_numbers_not_names(tmp_path: Path, config: PretrainConfig) -> None:
    for step in (9, 10, 100):
        save_checkpoint(tmp_path, step, config, STATE)
    assert list(checkpoints_of(tmp_path)) == [9, 10, 100]
    drop_old_checkpoints(tmp_path, num_kept=2)
    assert list(checkpoints_of(tmp_path)) == [10, 100]


def test_a_torn_save_is_no_checkpoint(
    tmp_path: Path, config: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "rename", lambda *_: pytest.fail("killed before the rename"))
    with pytest.raises(pytest.fail.Exception), monkeypatch.context() as killed:
        killed.setattr(checkpoints.shutil, "rmtree", lambda *_, **__: None)  # a kill tidies nothing up
        save_checkpoint(tmp_path, 7, config, STATE)
    assert [path.name for path in tmp_path.iterdir()] == [".step7-unsharded.part"]
    assert checkpoints_of(tmp_path) == {}
    monkeypatch.undo()
    save_checkpoint(tmp_path, 7, config, STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["step7-unsharded"]


def test_another_configuration_is_refused_by_what_changed(
    tmp_path: Path, config: PretrainConfig, data: TokenizedData
) -> None:
    refuse_another_run(tmp_path, config)
    save_checkpoint(tmp_path, 7, config, STATE)
    refuse_another_run(tmp_path, load_config(TINY, ["run_name=another", "eval_interval=7"], data))
    with pytest.raises(InputError) as error:
        refuse_another_run(tmp_path, load_config(TINY, ["seed=1", "optimizer.eps=0.5"], data))
    assert "other settings: optimizer.eps was 1e-08, now 0.5; seed was 0, now 1;" in str(error.value)


def test_a_run_without_a_checkpoint_is_known_by_its_settings(
    tmp_path: Path, config: PretrainConfig, data: TokenizedData
) -> None:
    write_run_config(tmp_path, config)
    refuse_another_run(tmp_path, config)
    with pytest.raises(InputError, match="other settings: seed was 0, now 1;"):
        refuse_another_run(tmp_path, load_config(TINY, ["seed=1"], data))
    assert checkpoints_of(tmp_path) == {}

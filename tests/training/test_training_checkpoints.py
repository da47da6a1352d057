import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.cli import InputError
from pipeline.models.checkpoint_files import RUN_FILES, newest_whole, read_tensors
from pipeline.text.folder import TokenizedData
from pipeline.training import checkpoints
from pipeline.training.checkpoints import (
    checkpoints_of,
    drop_old_checkpoints,
    load_state,
    recorded_run,
    refuse_another_run,
    save_checkpoint,
)
from pipeline.training.config import PretrainConfig, load_config

TINY = Path(__file__).parents[2] / "olmo_configs" / "tiny.yaml"
STATE = {"model": {"weight": torch.arange(3)}, "optim": {"step": 1}, "train": {"step": 7}}


@pytest.fixture
def config(data: TokenizedData) -> PretrainConfig:
    return load_config(TINY, [], data)


def test_what_is_saved_is_loaded(tmp_path: Path, config: PretrainConfig) -> None:
    save_checkpoint(tmp_path, 7, config, STATE)
    folder = tmp_path / "step7-unsharded"
    assert sorted(path.name for path in folder.iterdir()) == [
        "complete.json",
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
    with pytest.raises(KeyboardInterrupt), recorded_run(tmp_path, config):
        raise KeyboardInterrupt
    refuse_another_run(tmp_path, config)
    with pytest.raises(InputError, match="other settings: seed was 0, now 1;"):
        refuse_another_run(tmp_path, load_config(TINY, ["seed=1"], data))
    assert checkpoints_of(tmp_path) == {}


def test_a_refused_training_leaves_no_record_that_refuses_the_mended_one(
    tmp_path: Path, config: PretrainConfig, data: TokenizedData
) -> None:
    with pytest.raises(InputError, match="too fast"), recorded_run(tmp_path, config):
        (tmp_path / "metrics.jsonl").touch()
        raise InputError("too fast")
    assert not list(tmp_path.iterdir())
    save_checkpoint(tmp_path, 7, config, STATE)
    with pytest.raises(InputError, match="too fast"), recorded_run(tmp_path, config):
        raise InputError("too fast")
    with pytest.raises(InputError, match="seed was 0, now 1"):  # what is saved is kept, and so is its record
        refuse_another_run(tmp_path, load_config(TINY, ["seed=1"], data))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"", b"- a list\n", b"a: [\n"])
def test_a_damaged_record_of_a_run_is_refused(tmp_path: Path, config: PretrainConfig, content: bytes) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(InputError, match="config.yaml is damaged: it does not hold the settings of a run"):
        refuse_another_run(tmp_path, config)


class Hostile:
    """Would run a command where it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (lambda path: os.truncate(path, 100), "has 100 bytes, not the"),
    "empty": (lambda path: os.truncate(path, 0), "is empty"),
    "missing": (Path.unlink, "it has no "),
    "one bit": (flip, "is not what was saved: its SHA-256 differs"),
}


@pytest.mark.parametrize("name", RUN_FILES)
@pytest.mark.parametrize("damage", DAMAGES)
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
    assert list(checkpoints_of(tmp_path)) == ([7, 8] if damage == "one bit" else [7])
    do(tmp_path / "step7-unsharded" / name)
    with pytest.raises(InputError, match="no checkpoint of .* is whole") as error:
        newest_whole(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("mark", [b"", b"\xff", b"[]", b'{"files": {}}', b'{"files": {"model.pt": 3}}'])
def test_a_damaged_mark_is_damage(tmp_path: Path, config: PretrainConfig, mark: bytes) -> None:
    save_checkpoint(tmp_path, 7, config, STATE)
    (tmp_path / "step7-unsharded" / "complete.json").write_bytes(mark)
    with pytest.raises(InputError, match="complete.json is not the mark of a complete checkpoint"):
        newest_whole(tmp_path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([1, 2], "holds a list, not named tensors"),
        (Hostile(), "holds something else than tensors and is refused: to load it could run code"),
        ({"a": Hostile()}, "holds something else than tensors and is refused"),
    ],
    ids=["list", "hostile", "hostile within"],
)
def test_what_holds_no_tensors_is_refused_in_a_sentence(tmp_path: Path, content: Any, sentence: str) -> None:
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(InputError, match=sentence) as error:
        read_tensors(tmp_path / "model.pt")
    assert len(str(error.value)) < 300 and "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"PK", b"garbage", b"\x80\x02garbage"])
def test_garbage_is_no_file_of_tensors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "optim.pt").write_bytes(content)
    with pytest.raises(InputError, match="optim.pt is damaged") as error:
        read_tensors(tmp_path / "optim.pt")
    assert "\n" not in str(error.value)

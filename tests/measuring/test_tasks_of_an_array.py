"""Documents split among tasks and processes: every shard once, the same bytes."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from measured_documents import command_line, contents, measure, write_checkpoint, write_data
from olmo.model import OLMo
from sparsity_length.programs import influential_tokens, loss_differences

from sparsity_length.cli import InputError
from sparsity_length.measuring import stage
from sparsity_length.models.devices import device_of_this_process
from sparsity_length.results.files import Task
from sparsity_length.training.loop import train

ROOT = Path(__file__).resolve().parents[2]
ONE_DOCUMENT = ["--documents-per-shard", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_olmo: Callable[..., OLMo]) -> Path:
    folder = tmp_path_factory.mktemp("shares")
    write_data(folder / "data")
    write_checkpoint(folder / "run", make_olmo(seed=1))
    return folder


def task_of(index: int, count: int) -> list[str]:
    return ["--task-index", str(index), "--num-tasks", str(count)]


@pytest.mark.parametrize("stage", [loss_differences, influential_tokens])
def test_tasks_in_any_order_write_the_bytes_of_one(stage: ModuleType, folder: Path, tmp_path: Path) -> None:
    whole = contents(measure(stage, folder, *ONE_DOCUMENT, "--results", str(tmp_path / "whole")))
    split = tmp_path / "split"
    for index in (3, 1, 0, 2):  # of three documents: the task 3 has nothing to do
        measure(stage, folder, *ONE_DOCUMENT, "--results", str(split), *task_of(index, 4))
    assert contents(split) == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        ["torchrun", "--standalone", "--nproc-per-node=2"],
        # Said to be GPUs: on CPUs accelerate starts several processes through MPI only.
        [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2"],
    ],
    ids=["torchrun", "accelerate"],
)
def test_processes_under_a_launcher_write_the_bytes_of_one(
    launcher: list[str], folder: Path, tmp_path: Path
) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    whole = contents(measure(loss_differences, folder, *ONE_DOCUMENT, "--results", str(tmp_path / "whole")))
    flags = command_line(loss_differences, folder, *ONE_DOCUMENT, "--results", str(tmp_path / "split"))
    launched = subprocess.run(
        [*launcher, str(ROOT / "pipeline" / "loss_differences.py"), *flags],
        timeout=240,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PATH": path},
        capture_output=True,
        text=True,
    )
    assert launched.returncode == 0, launched.stderr
    assert contents(tmp_path / "split") == whole


def test_each_process_has_its_shards_and_its_own_gpu(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert device_of_this_process("cuda") == "cuda"
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    results = measure(loss_differences, folder, *ONE_DOCUMENT, "--results", str(tmp_path))
    written = [path.name for path in results.rglob("*.parquet")]
    assert written == ["00001-of-00003.parquet"]
    assert [device_of_this_process(name) for name in ("cuda", "cuda:3", "cpu")] == ["cuda:1", "cuda:3", "cpu"]
    # Of two tasks with two processes each, the second processes have the last two of four shares.
    assert [stage._share_of(Task(index, 2)) for index in range(2)] == [Task(2, 4), Task(3, 4)]


@pytest.mark.parametrize(
    ("variables", "share"),
    [
        ("RANK=0 WORLD_SIZE=2", "share 1 of 2 alone is measured here, as RANK and WORLD_SIZE"),
        ("WORLD_SIZE=1", None),
        ("RANK=0", None),
    ],
)
def test_a_share_is_named_by_what_says_so(
    variables: str,
    share: str | None,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))
    measure(loss_differences, folder, *ONE_DOCUMENT, "--results", str(tmp_path))
    assert len(list(tmp_path.rglob("*.parquet"))) == (2 if share else 3)
    assert (share or "") in caplog.text and ("alone" in caplog.text) == (share is not None)


@pytest.mark.parametrize(
    "variables",
    [
        "RANK=1",
        "WORLD_SIZE=4",
        "RANK=4 WORLD_SIZE=4",
        "RANK=-1 WORLD_SIZE=2",
        "RANK=x",
        "RANK=",
        "LOCAL_RANK=1",
    ],
)
def test_variables_that_do_not_fit_are_refused(
    variables: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))
    with pytest.raises(InputError, match=f"{variables} in the environment numbers no process"):
        measure(loss_differences, folder, *ONE_DOCUMENT, "--results", str(tmp_path))
    with pytest.raises(InputError, match="numbers no process of a launcher|speaks of processes that train"):
        train(tmp_path, lambda: pytest.fail("it began"))


def test_the_rest_can_be_done_in_other_tasks(folder: Path, tmp_path: Path) -> None:
    flags = [*ONE_DOCUMENT, "--results", str(tmp_path / "split")]
    measure(loss_differences, folder, *flags, *task_of(1, 2))
    measure(loss_differences, folder, *flags, *task_of(1, 3))
    measure(loss_differences, folder, *flags)
    whole = measure(loss_differences, folder, *ONE_DOCUMENT, "--results", str(tmp_path / "whole"))
    assert contents(tmp_path / "split") == contents(whole)


def test_status_counts_what_is_there(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*ONE_DOCUMENT, "--results", str(tmp_path / "results")]
    measure(loss_differences, folder, *flags, *task_of(1, 2))
    with pytest.raises(SystemExit) as stopped:
        measure(loss_differences, folder, *flags, "--status")
    assert stopped.value.code == 1 and "has 1 of 3 shards" in capsys.readouterr().out
    stage = loss_differences.STAGE
    arguments = stage.parse(command_line(loss_differences, folder, *flags))
    assert len(stage.left(arguments)) == 1  # of one model
    stage.run(arguments)
    assert stage.left(arguments) == []
    with pytest.raises(SystemExit) as stopped:
        measure(loss_differences, folder, *flags, "--status")
    assert stopped.value.code == 0 and "has 3 of 3 shards" in capsys.readouterr().out
    with pytest.raises(InputError, match="made with other settings"):
        stage.left(stage.parse(command_line(loss_differences, folder, *flags, "--target-stride", "2")))

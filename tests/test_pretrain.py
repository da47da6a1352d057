"""Training runs as a user sees them: killed, stopped, on two ranks, finished, with other data."""

import shutil
import signal
import subprocess
from pathlib import Path

import forked_stages
import numpy as np
import pandas as pd
import pytest
import torch
from measured_documents import contents, flip, write_data
from sparsity_length.programs.pretrain import STAGE

from sparsity_length.cli import InputError

NUM_STEPS = 160
SHORT = ("max_duration=4", "save_interval=2", "scheduler.t_warmup=1")
OVERRIDES = [
    "model.d_model=16",
    "model.n_heads=2",
    "model.n_layers=1",
    "model.max_sequence_length=32",
    "train_context_length=8",
    "position_scheme=pose",
    "pose_target_length=32",
    "global_train_batch_tokens=32",
    "device_train_microbatch_tokens=16",
    "model.residual_dropout=0.1",
    "precision=fp32",
    f"max_duration={NUM_STEPS}",
    "save_interval=20",
    "eval_context_lengths=null",
]


def write_tokens(folder: Path, seed: int) -> Path:
    return write_data(folder, train_token_ids=[np.random.default_rng(seed).integers(0, 40, size=4000)])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("data"), seed=0)


def command_line(data: Path, save_folder: Path, *overrides: str) -> list[str]:
    paths = [
        f"{forked_stages.ROOT}/olmo_configs/tiny.yaml",
        "--data",
        str(data),
        "--save-folder",
        str(save_folder),
    ]
    return [*paths, *OVERRIDES, *overrides]


def run_here(data: Path, save_folder: Path, *overrides: str) -> None:
    STAGE(command_line(data, save_folder, *overrides))


def loaded(run: Path, name: str = "model.pt", step: int = NUM_STEPS) -> dict[str, torch.Tensor]:
    return torch.load(run / f"step{step}-unsharded" / name, weights_only=True)


def metrics(run: Path) -> pd.DataFrame:
    return pd.read_json(run / "metrics.jsonl", lines=True)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGUSR1, 75)])
def test_a_run_that_was_ended_goes_on_to_the_same_weights(
    number: int, code: int, data: Path, tmp_path: Path
) -> None:
    """From another directory, as a stage must not depend on where it is called."""
    run = tmp_path / "run"
    words = forked_stages.command(forked_stages.ROOT / "pipeline" / "pretrain.py", *command_line(data, run))
    begun = subprocess.Popen(words, cwd=tmp_path)
    forked_stages.wait_for(run / "step40-unsharded" / "model.pt", begun)
    with pytest.raises(InputError, match="in use by another program"):
        run_here(data, run)
    begun.send_signal(number)
    assert begun.wait(timeout=120) == code
    assert number == signal.SIGKILL or (run / f"step{len(metrics(run))}-unsharded").exists()
    run_here(data, run, "save_interval=50")  # which is no other run
    run_here(data, tmp_path / "whole")
    torch.testing.assert_close(loaded(run), loaded(tmp_path / "whole"), rtol=0, atol=0)
    assert metrics(run)["step"].tolist() == list(range(1, NUM_STEPS + 1))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_train_on_the_batches_of_one(strategy: str, data: Path, tmp_path: Path) -> None:
    steps = (
        "max_duration=6",
        "save_interval=3",
        "scheduler.t_warmup=1",
        "model.residual_dropout=0",
        "eval_context_lengths=[8,16]",
        "eval_interval=3",
    )
    runs = (tmp_path / "one", tmp_path / "two")
    words = command_line(data, runs[1], *steps, f"distributed_strategy={strategy}")
    with forked_stages.ranks("pipeline/pretrain.py", *words, cwd=tmp_path):
        run_here(data, runs[0], *steps)
    one, two = (metrics(run).filter(like="loss_nats").stack().dropna().tolist() for run in runs)
    assert len(one) == 6 + 2 * 2  # of training, and held out at two lengths after steps 3 and 6
    assert two == pytest.approx(one, rel=1e-5)

    # What two ranks saved is a checkpoint like any other: one rank goes on from it.
    shutil.rmtree(runs[1] / "step6-unsharded")
    run_here(data, runs[1], *steps)
    for name in ("model.pt", "optim.pt"):
        one, two = (loaded(run, name, step=6) for run in runs)
        torch.testing.assert_close(two.get("state", two), one.get("state", one), rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    run_here(data, folder, *SHORT)
    return folder


def test_a_finished_run_is_left_as_it_is_and_another_refused(
    data: Path, finished: Path, tmp_path: Path
) -> None:
    before = contents(finished)
    run_here(data, finished, *SHORT)
    change = "max_duration was 4, now 6; train_data_sha256 was .*; choose another --save-folder"
    with pytest.raises(InputError, match=f"other settings: {change}"):
        run_here(write_tokens(tmp_path, seed=1), finished, *SHORT, "max_duration=6")
    assert contents(finished) == before


def test_tokens_of_another_content_are_refused_at_a_start_and_when_going_on(
    data: Path, finished: Path, tmp_path: Path
) -> None:
    damaged = shutil.copytree(data, tmp_path / "data")
    flip(damaged / "train" / "part-00000.npy")
    going_on = shutil.copytree(finished, tmp_path / "going_on")
    shutil.rmtree(going_on / "step4-unsharded")
    before = contents(tmp_path)
    for run in (tmp_path / "new", going_on):
        with pytest.raises(InputError, match=r"part-00000.npy has not the SHA-256 of its manifest"):
            run_here(damaged, run, *SHORT)
    assert contents(tmp_path) == before and not (tmp_path / "new").exists()

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import forked_stages
import numpy as np
import pytest
import torch
from measured_documents import contents, flip, write_data
from sparsity_length.programs.pretrain import STAGE

from sparsity_length.cli import InputError
from sparsity_length.models.checkpoints import find_checkpoint
from sparsity_length.models.olmo import OLMoCausalLM, load_stock_olmo

ROOT = Path(__file__).parents[1]
NUM_STEPS = 160
LAST = f"step{NUM_STEPS}-unsharded"
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
    folder.mkdir()
    return write_data(folder, train_token_ids=[np.random.default_rng(seed).integers(0, 40, size=4000)])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("corpus") / "data", seed=0)


def command_line(data: Path, save_folder: Path, *overrides: str) -> list[str]:
    config = str(ROOT / "olmo_configs" / "tiny.yaml")
    return [config, "--data", str(data), "--save-folder", str(save_folder), *OVERRIDES, *overrides]


def run_here(data: Path, save_folder: Path, *overrides: str) -> None:
    STAGE(command_line(data, save_folder, *overrides))


def start(data: Path, save_folder: Path, *overrides: str) -> "subprocess.Popen[str]":
    # From another directory: a stage must not depend on where it is called.
    words = command_line(data, save_folder, *overrides)
    return forked_stages.start("pipeline/pretrain.py", *words, cwd=save_folder.parent)


def assert_same_weights(*checkpoints: Path) -> None:
    first, second = (torch.load(folder / "model.pt", weights_only=True) for folder in checkpoints)
    assert all(torch.equal(first[name], second[name]) for name in second)


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run_here(data, folder)
    return folder


@pytest.mark.parametrize("largest", ["8", ".inf"], ids=["alibi", "nope"])
def test_other_positions_than_rope_are_trained_and_measured(data: Path, tmp_path: Path, largest: str) -> None:
    fields = ["model.rope=false", "model.alibi=true", f"model.alibi_bias_max={largest}"]
    run_here(data, tmp_path / "run", *SHORT, *fields, "position_scheme=contiguous", "pose_target_length=null")
    stock = load_stock_olmo(find_checkpoint(tmp_path / "run")).eval()
    token_ids = torch.arange(1, 31)[None]
    with torch.inference_mode():
        expected = stock(token_ids).logits
    lm = OLMoCausalLM(stock)
    found = lm.logits(lm.hidden_states(token_ids, torch.arange(30)[None], None, None))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def wait_for(path: Path, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 120
    while not path.exists() or not path.stat().st_size:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1]
        time.sleep(0.005)


def steps_in(save_folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (save_folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_weights(data: Path, tmp_path: Path, whole: Path) -> None:
    killed = start(data, tmp_path / "killed")
    wait_for(tmp_path / "killed" / "step40-unsharded" / "model.pt", killed)
    with pytest.raises(InputError, match="in use by another program"):
        run_here(data, tmp_path / "killed")
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not (tmp_path / "killed" / LAST).exists()
    resumed = start(data, tmp_path / "killed")
    _, said = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, said
    assert_same_weights(tmp_path / "killed" / LAST, whole / LAST)
    assert steps_in(tmp_path / "killed") == list(range(1, NUM_STEPS + 1))


@pytest.mark.slow
def test_a_run_asked_to_stop_saves_and_goes_on_to_the_same_weights(
    data: Path, tmp_path: Path, whole: Path
) -> None:
    asked = start(data, tmp_path / "run", f"save_interval={NUM_STEPS}")
    wait_for(tmp_path / "run" / "metrics.jsonl", asked)
    asked.send_signal(signal.SIGUSR1)
    _, said = asked.communicate(timeout=120)
    assert asked.returncode == 75, said
    (saved,) = (tmp_path / "run").glob("step*-unsharded")
    assert steps_in(tmp_path / "run") == list(range(1, 1 + int(saved.name[4:].split("-")[0])))

    run_here(data, tmp_path / "run")  # another save_interval is no other run
    assert_same_weights(tmp_path / "run" / LAST, whole / LAST)


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
    words = command_line(data, tmp_path / "two", *steps, f"distributed_strategy={strategy}")
    with forked_stages.ranks("pipeline/pretrain.py", *words, cwd=tmp_path):
        run_here(data, tmp_path / "one", *steps)
    lines = [(tmp_path / run / "metrics.jsonl").read_text().splitlines() for run in ("one", "two")]
    losses = [
        [value for line in run for name, value in json.loads(line).items() if "loss_nats" in name]
        for run in lines
    ]
    assert len(losses[0]) == 6 + 2 * 2  # of training, and held out at two lengths after steps 3 and 6
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)

    # What two ranks saved is a checkpoint like any other: one rank goes on from it.
    shutil.rmtree(tmp_path / "two" / "step6-unsharded")
    run_here(data, tmp_path / "two", *steps)
    for name in ("model.pt", "optim.pt"):
        one, two = (
            torch.load(tmp_path / run / "step6-unsharded" / name, weights_only=True) for run in ("one", "two")
        )
        torch.testing.assert_close(two.get("state", two), one.get("state", one), rtol=1e-4, atol=1e-6)


def test_a_finished_run_says_so_and_another_is_refused(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_here(data, run, *SHORT)
    before = contents(run)
    run_here(data, run, *SHORT)
    assert contents(run) == before

    other = write_tokens(tmp_path / "other", seed=1)
    for tokens, override, change in (
        (data, "seed=5", "seed was 0, now 5; choose another --save-folder"),
        (data, "max_duration=6", "max_duration was 4, now 6"),
        (other, "seed=0", "train_data_sha256 was "),
    ):
        with pytest.raises(InputError, match=f"other settings: {change}"):
            run_here(tokens, run, *SHORT, override)


def test_tokens_of_another_content_are_refused_at_a_start_and_when_going_on(
    data: Path, tmp_path: Path
) -> None:
    damaged = shutil.copytree(data, tmp_path / "data")
    flip(damaged / "train" / "part-00000.npy")
    with pytest.raises(InputError, match=r"part-00000.npy has not the SHA-256 of its manifest"):
        run_here(damaged, tmp_path / "run", *SHORT)
    assert not (tmp_path / "run").exists()
    run_here(data, tmp_path / "run", *SHORT)
    shutil.rmtree(tmp_path / "run" / "step4-unsharded")
    before = contents(tmp_path / "run")
    with pytest.raises(InputError, match=r"part-00000.npy has not the SHA-256 of its manifest"):
        run_here(damaged, tmp_path / "run", *SHORT)
    assert contents(tmp_path / "run") == before

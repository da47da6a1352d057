"""The synthetic stages as a user runs them: resumed to the same bytes, refused in a sentence."""

import hashlib
import shutil
from pathlib import Path

import pytest
import torch
from sparsity_length.programs import train_synthetic
from tiny_task import TINY_TASK

from sparsity_length.cli import InputError
from sparsity_length.synthetic.config import load_task_config
from sparsity_length.synthetic.train import TaskTrainer, find_task_run, is_learnt

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "olmo_configs" / "synthetic" / "small.yaml"
TINY = [*TINY_TASK, "save_interval=2", "eval_interval=3"]


def train(folder: Path, *overrides: str, task: str = "copy", positions: str = "predicted") -> None:
    words = [str(CONFIG), "--task", task, "--positions", positions, "--save-folder", str(folder)]
    train_synthetic.STAGE([*words, *TINY, *overrides])


def fingerprint(folder: Path) -> dict[str, str]:
    """SHA-256 of the last checkpoint's weights and of the metrics."""
    files = {
        "weights": folder / "step6-unsharded" / "model.pt",
        "metrics": folder / "metrics.jsonl",
    }
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("synthetic") / "copy-predicted-seed0"
    train(folder)
    return folder


@pytest.mark.parametrize("architecture", [pytest.param("gpt_neox", marks=pytest.mark.slow), "olmo"])
def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path: Path, architecture: str) -> None:
    of_architecture = f"model.architecture={architecture}"
    train(tmp_path / "whole", of_architecture)
    config = load_task_config(CONFIG, [*TINY, of_architecture], task="copy", positions="predicted")
    stopped = TaskTrainer(config, tmp_path / "stopped", torch.device("cpu"))
    stopped.ask_to_stop()
    assert stopped.run().name == "step1-unsharded"
    train(tmp_path / "stopped", of_architecture)
    assert fingerprint(tmp_path / "stopped") == fingerprint(tmp_path / "whole")
    shutil.rmtree(tmp_path / "stopped" / "step6-unsharded")  # from step 4, with what was measured after 3
    train(tmp_path / "stopped", of_architecture)
    assert fingerprint(tmp_path / "stopped") == fingerprint(tmp_path / "whole")


@pytest.mark.parametrize(
    ("task", "positions", "overrides", "words"),
    [
        ("sparse_parity", "pose", ["largest_sparsity=11"], "has k up to 10, by largest_size"),
        ("sparse_parity", "predicted", [], "unknown positions of sparse_parity"),
        ("sparse_first", "coupled", [], "unknown positions of sparse_first"),
        ("copy", "sparse", [], "model.num_keys is None; positions sparse need one"),
        ("copy", "alibi", ["model.num_keys=8"], "model.num_keys is 8; positions sparse need one"),
        ("cues_1", "predicted", [], "unknown positions of cues_1"),
        ("sparse_parity", "pose", ["smallest_size=9"], "size 9 "),
        ("copy", "pose", ["largest_sparsity=2"], "task copy has k up to 0"),
        ("copy", "pose", ["num_position_ids=20"], "need 21 or more position IDs, but num_position_ids is 20"),
        ("copi", "pose", [], "did you mean 'copy'"),
        ("copy", "pose", ["largest_sise=4"], "Key 'largest_sise' not in"),
        ("copy", "pose", ["learning_rate=nan"], "learning_rate is nan; it must be above 0"),
        ("copy", "pose", ["sizes_per_step=0"], "sizes_per_step is 0; it must be above 0"),
        ("copy", "pose", ["batch_size=9"], "batch_size 9 is not divisible by sizes_per_step 2"),
        *(
            ("copy", "predicted", [override], override.partition("=")[0].removeprefix("model."))
            for override in ("num_steps=many", "seed=[1")
        ),
        ("copy", "pose", ["stop_at_excess_loss=0.1"], "the best loss of task copy is not known"),
        (
            "copy",
            "pose",
            ["stop_at_accuracy=99.5"],
            "stop_at_accuracy is 99.5; it must be above 0, at most 1",
        ),
    ],
)
def test_bad_settings(tmp_path: Path, task: str, positions: str, overrides: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        train(tmp_path / "run", *overrides, task=task, positions=positions)
    assert not (tmp_path / "run").exists()


def test_another_run_is_not_continued(trained: Path) -> None:
    with pytest.raises(InputError, match="positions was 'predicted', now 'coupled'"):
        train(trained, positions="coupled")
    with pytest.raises(InputError, match="task was 'copy', now 'addition'"):
        train(trained, task="addition")


OF_CUES = [
    "model.architecture=olmo",
    "smallest_size=32",
    "largest_size=32",
    "sizes_per_step=1",
    "num_position_ids=96",
]


def test_a_run_ends_once_its_task_is_known(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, *OF_CUES, "stop_at_excess_loss=100", task="cues_1", positions="contiguous")
    assert sorted(path.name for path in run.glob("step*")) == ["step2-unsharded", "step3-unsharded"]
    assert is_learnt(*find_task_run(run, "cues_1"))
    train(tmp_path / "other", *OF_CUES, "stop_at_excess_loss=1e-6", task="cues_1", positions="contiguous")
    assert (tmp_path / "other" / "step6-unsharded").is_dir()
    assert not is_learnt(*find_task_run(tmp_path / "other", "cues_1"))


def test_a_run_ends_at_an_accuracy(tmp_path: Path) -> None:
    of_parity = ["largest_sparsity=5", "sizes_per_step=1", "eval_num_examples=200"]
    for share, last in ((0.1, "step3-unsharded"), (1.0, "step6-unsharded")):
        run = tmp_path / str(share)
        for _ in range(2):  # the second finds that it has ended
            train(run, *of_parity, f"stop_at_accuracy={share}", task="sparse_parity", positions="pose")
        assert max(path.name for path in run.glob("step*")) == last
        assert is_learnt(*find_task_run(run, "sparse_parity")) == (share == 0.1)

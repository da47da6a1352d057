"""Values that a library would refuse deep inside, and damaged runs: each a sentence, nothing left."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from test_train_synthetic import CONFIG, evaluate, fingerprint, train

from pipeline.cli import InputError
from pipeline.models.load import MARK_FILE
from pipeline.synthetic.config import load_task_config

MISSING = "synthetic_training.parquet is missing or damaged"


@pytest.mark.parametrize(
    "override",
    [
        "learning_rate=nan", "betas=[1.5,0.9]", "betas=[0.9]", "betas={}", "max_grad_norm=0", "seed=-1",
        "model.num_heads=7", "model.rotary_fraction=nan", "model=3", "model.dropout=5", "largest_size=0",
        "num_steps=0", "seed=[1", "seed", "=5", "tasks=5",
    ],
)  # fmt: skip
def test_a_value_is_refused_by_its_fields_name(override: str) -> None:
    field = override.partition("=")[0].removeprefix("model.") or override
    with pytest.raises(InputError, match=field):
        load_task_config(CONFIG, [override], task="copy", positions="predicted")


@pytest.mark.parametrize("content", ["tasks: 5", "tasks: {copy: 5}", "5", "a: [", "betas: {a: 1}"])
def test_a_file_of_other_things_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(InputError, match="config.yaml"):
        load_task_config(tmp_path / "config.yaml", [], task="copy", positions="pose")


def test_a_training_that_diverges_at_once_leaves_no_record(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gradient norm .*; stopped"):
        train(tmp_path, "weight_decay=1e300")
    assert list(tmp_path.iterdir()) == []
    train(tmp_path, "num_steps=3")
    assert (tmp_path / "step3-unsharded").is_dir()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "copy"
    train(folder)
    return folder


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def without_mark(checkpoint: Path, name: str, content: object) -> None:
    """As an earlier version, or another program, could have left it."""
    (checkpoint / MARK_FILE).unlink()
    torch.save(content, checkpoint / name)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            lambda run: truncate(run / "synthetic_training.parquet"),
            MISSING,
        ),
        (
            lambda run: (run / "synthetic_training.parquet").unlink(),
            MISSING,
        ),
        (
            lambda run: pd.read_parquet(run / "synthetic_training.parquet")[:3].to_parquet(
                run / "synthetic_training.parquet"
            ),
            "does not hold the metrics of steps 1 to 4",
        ),
        (lambda run: (run / "config.yaml").write_bytes(b""), "config.yaml is (damaged|not a readable)"),
        (
            lambda run: (run / "config.yaml").write_bytes(bytes(range(256))),
            "config.yaml is (damaged|not a readable)",
        ),
        (lambda run: without_mark(run / "step4-unsharded", "model.pt", [1]), "holds a list"),
        (
            lambda run: without_mark(run / "step4-unsharded", "model.pt", {"a": torch.zeros(1)}),
            "is not the weights of its config.yaml",
        ),
        (
            lambda run: without_mark(run / "step4-unsharded", "optim.pt", {"a": 1}),
            "does not hold the state of this run .'param_groups'",
        ),
    ],
)
def test_a_damaged_run_does_not_go_on(
    whole: Path, tmp_path: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(run / "step6-unsharded")
    damage(run)
    with pytest.raises(InputError, match=sentence):
        train(run)
    assert not (run / "step6-unsharded").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda checkpoint: truncate(checkpoint / "model.pt"),
        lambda checkpoint: (checkpoint / "train.pt").unlink(),
        lambda checkpoint: [path.unlink() for path in checkpoint.iterdir()],
    ],
)
def test_a_damaged_newest_checkpoint_is_passed_over(
    whole: Path, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    damage(run / "step6-unsharded")
    train(run)
    assert fingerprint(run) == fingerprint(whole)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            lambda run: (run / "synthetic_training.parquet").unlink(),
            MISSING,
        ),
        (lambda run: (run / "step6-unsharded" / "config.yaml").write_text("a: 1"), "damaged"),
        (
            lambda run: without_mark(run / "step6-unsharded", "model.pt", {"a": torch.zeros(1)}),
            "is not the weights of its config.yaml",
        ),
        (lambda run: shutil.rmtree(run), "no checkpoint in"),
    ],
)
def test_a_damaged_run_is_not_tested(
    whole: Path, tmp_path: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    for step in (2, 4):
        shutil.rmtree(run / f"step{step}-unsharded")
    damage(run)
    with pytest.raises(InputError, match=sentence):
        evaluate(run, tmp_path / "results", "--sizes", "2")
    assert not (tmp_path / "results" / "synthetic_accuracy").exists()


def test_a_size_far_beyond_the_position_table_is_refused_at_once(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="size 1000000: examples of this size need 1000000 or more"):
        evaluate(whole, tmp_path / "results", "--sizes", "1000000")

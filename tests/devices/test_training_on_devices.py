"""Training on a device: the losses of the CPU, and after a break the same ones; task models answer there."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from accelerate.state import AcceleratorState
from measured_documents import write_data
from olmo.model import OLMo
from on_devices import on_devices
from tiny_task import TINY_TASK

from sparsity_length.synthetic.config import load_task_config
from sparsity_length.synthetic.evaluation import accuracy
from sparsity_length.synthetic.tasks import TASKS
from sparsity_length.synthetic.train import TaskTrainer, find_task_run, load_task_lm
from sparsity_length.text.folder import TokenizedData
from sparsity_length.training.config import load_config
from sparsity_length.training.data import TrainingBatches
from sparsity_length.training.trainer import Trainer

ROOT = Path(__file__).resolve().parents[2]
TINY = [
    "model.d_model=32",
    "model.n_heads=4",
    "model.n_layers=2",
    "model.max_sequence_length=32",
    "train_context_length=16",
    "position_scheme=pose",
    "pose_target_length=32",
    "global_train_batch_tokens=64",
    "device_train_microbatch_tokens=32",
    "precision=fp32",
    "max_duration=8",
    "save_interval=4",
    "scheduler.t_warmup=2",
    "optimizer.learning_rate=1e-2",
    "eval_context_lengths=null",
]
TASK = [*TINY_TASK, "save_interval=3", "eval_interval=6"]
FIRST_LOSS_OF_THE_CPU = 1e-4
"""Relative. Later steps may differ by more: an optimizer makes much of the last bits of small gradients."""


@pytest.fixture(autouse=True)
def accelerate_is_told_anew() -> Iterator[None]:
    """It keeps the precision of a process' first training for all others."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TokenizedData:
    """Tokens in which 2n is always followed by 2n + 1."""
    tokens = np.repeat(np.random.default_rng(0).integers(0, 20, 400) * 2, 2) + np.tile([0, 1], 400)
    return TokenizedData.open(write_data(tmp_path_factory.mktemp("data"), train_token_ids=[tokens]))


def trainer_of(data: TokenizedData, folder: Path, *overrides: str) -> Trainer:
    config = load_config(ROOT / "olmo_configs" / "tiny.yaml", [*TINY, *overrides], data)
    config.save_folder = str(folder)
    return Trainer(config, data)


def losses_of(trainer: Trainer, steps: range) -> list[float]:
    return [trainer._train_step(step)[0]["loss_nats"] for step in steps]


@on_devices
@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_a_resumed_training_goes_on_to_the_same_losses(
    device: torch.device, precision: str, data: TokenizedData, tmp_path: Path
) -> None:
    trainer = trainer_of(data, tmp_path, f"precision={precision}")
    assert trainer._accelerator.device.type == device.type
    for trainer.step in range(1, 5):
        trainer._train_step(trainer.step)
    trainer._save()
    expected = losses_of(trainer, range(5, 9))
    resumed = trainer_of(data, tmp_path, f"precision={precision}")
    assert resumed.step == 4
    # To the byte on a CPU; a GPU's kernels may add up gradients in any order.
    tolerance = 1e-5 if device.type == "cuda" else 0
    np.testing.assert_allclose(losses_of(resumed, range(5, 9)), expected, rtol=tolerance)


@on_devices
def test_the_first_loss_is_that_of_stock_olmo_on_the_cpu(
    device: torch.device, data: TokenizedData, tmp_path: Path
) -> None:
    trainer = trainer_of(data, tmp_path, "position_scheme=contiguous", "pose_target_length=null")
    assert trainer._accelerator.device.type == device.type
    stock = OLMo(trainer._config.model)
    stock.load_state_dict({name: weight.cpu() for name, weight in trainer._olmo.state_dict().items()})
    batches = TrainingBatches(trainer._config, data)
    token_ids_BS = torch.from_numpy(batches.batch(1)[0])
    with torch.no_grad():
        logits = stock(token_ids_BS).logits[:, :-1].flatten(0, 1)
        expected = float(torch.nn.functional.cross_entropy(logits, token_ids_BS[:, 1:].flatten()))
    assert losses_of(trainer, range(1, 2))[0] == pytest.approx(expected, rel=FIRST_LOSS_OF_THE_CPU)


@on_devices
@pytest.mark.parametrize("positions", ["predicted", "contiguous"])
def test_task_models_train_and_answer(device: torch.device, positions: str, tmp_path: Path) -> None:
    small = ROOT / "olmo_configs" / "synthetic" / "small.yaml"
    config = load_task_config(small, TASK, task="copy", positions=positions)
    first_losses = []
    for where in (device, torch.device("cpu")):
        folder = tmp_path / where.type if where is device else tmp_path / "witness"
        folder.mkdir()
        TaskTrainer(config, folder, where).run()
        first_losses.append(pd.read_json(folder / "metrics.jsonl", lines=True)["loss"][0])
    assert first_losses[0] == pytest.approx(first_losses[1], rel=FIRST_LOSS_OF_THE_CPU)
    run = find_task_run(tmp_path / device.type, "copy")
    examples = TASKS["copy"].draw(5, [None] * 40, np.random.default_rng(0))
    of_device, of_cpu = (
        accuracy(load_task_lm(*run, where), examples, np.random.default_rng(1), size)["synthetic_examples"]
        for where, size in ((device, 16), (torch.device("cpu"), 40))
    )
    assert (of_device["answer"] == of_cpu["answer"]).mean() > 0.9  # a tie may be broken the other way

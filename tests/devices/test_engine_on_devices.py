"""Engine and training on a device: every number is the CPU's; in bfloat16 within stated bounds.

What is compared with is computed on the CPU in float32, in other batches.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from hugging_face_families import make_model
from measured_documents import write_data
from olmo.model import OLMo
from tiny_task import TINY_TASK

from sparsity_length.measuring.contexts import Batching
from sparsity_length.measuring.far_context import FarContext, far_contexts
from sparsity_length.measuring.rules import attention, gradient
from sparsity_length.measuring.settings import ContextLengths
from sparsity_length.models.devices import usable_device
from sparsity_length.models.huggingface import HuggingFaceCausalLM
from sparsity_length.models.interface import CausalLM
from sparsity_length.models.olmo import OLMoCausalLM
from sparsity_length.synthetic.config import load_task_config
from sparsity_length.synthetic.evaluation import accuracy
from sparsity_length.synthetic.tasks import TASKS
from sparsity_length.synthetic.train import TaskTrainer, load_task_lm
from sparsity_length.text.folder import TokenizedData
from sparsity_length.training.config import load_config
from sparsity_length.training.data import TrainingBatches
from sparsity_length.training.trainer import Trainer

on_devices = pytest.mark.parametrize(
    "device",
    [
        pytest.param(torch.device("cpu"), marks=pytest.mark.slow),
        pytest.param(torch.device("cuda"), marks=pytest.mark.gpu),
    ],
    ids=["cpu", "cuda"],
)
"""One body of a test for every device: on the CPU in the slow tests, and on a GPU where one is."""
TOLERANCE = 1e-4
"""Nats. Products add up in another order on every device; TF32, which is off, would move them by 1e-2."""
MakeOLMo = Callable[..., OLMo]


def model_on(
    device: torch.device, name: str, make_olmo: MakeOLMo, dtype: torch.dtype = torch.float32
) -> CausalLM:
    """A toy model."""
    if name.startswith("olmo"):
        model = make_olmo(seed=7, init_std=0.2, n_kv_heads=2 if "grouped" in name else None)
        return OLMoCausalLM(model.to(device, dtype))
    return HuggingFaceCausalLM(make_model(name, seed=7).to(device, dtype))


def contexts_of(model: CausalLM, tokens_per_batch: int) -> Mapping[str, FarContext]:
    lengths = ContextLengths(short_context_length=6, long_context_length=48, targets_per_chunk=7)
    chunks = np.random.default_rng(11).integers(0, 48, (2, 48))
    return far_contexts(model, lengths, Batching(tokens_per_batch), *chunks)


@on_devices
@pytest.mark.parametrize("name", ["olmo", "olmo with grouped heads", "llama", "gpt2"])
def test_every_number_is_the_cpus(device: torch.device, name: str, make_olmo: MakeOLMo) -> None:
    usable_device(str(device))
    here = contexts_of(model_on(device, name, make_olmo), 400)
    expected = contexts_of(model_on(torch.device("cpu"), name, make_olmo), 150)
    for far in here:
        assert np.nanstd(expected[far].influence.losses) > 50 * TOLERANCE
        found = numbers_of(here[far])
        for what, numbers in numbers_of(expected[far]).items():
            np.testing.assert_allclose(found[what], numbers, rtol=0, atol=TOLERANCE, err_msg=f"{far} {what}")


def numbers_of(context: FarContext) -> dict[str, np.ndarray]:
    """Everything that is measured, losses and divergences together; and what rules see inside."""
    return {
        "long_losses_T": context.long_losses_T,
        "influence": np.array(context.influence),
        "short": np.array(context.short),
        "first_additions": np.array(context.first_additions),
        "attention": attention(context),
        "gradient": gradient(context),
    }


@on_devices
@pytest.mark.parametrize("name", ["olmo", "llama"])
def test_bfloat16_stays_within_bounds(device: torch.device, name: str, make_olmo: MakeOLMo) -> None:
    """It has 8 bits."""
    coarse = contexts_of(model_on(device, name, make_olmo, torch.bfloat16), 400)["own"]
    exact = contexts_of(model_on(torch.device("cpu"), name, make_olmo), 150)["own"]
    np.testing.assert_allclose(coarse.long_losses_T, exact.long_losses_T, rtol=0, atol=0.1)
    is_far = ~np.isnan(exact.influence.losses)
    found, expected = (context.influence.losses[is_far] for context in (coarse, exact))
    assert 0 < np.std(found - expected) < 0.2 * np.std(expected)
    assert np.corrcoef(found, expected)[0, 1] > 0.98


CONFIGS = Path(__file__).parents[2] / "olmo_configs"
FIRST_LOSS = 1e-4
"""Relative. Later steps may differ by more: an optimizer makes much of the last bits of small gradients."""


@pytest.fixture(autouse=True)
def precision_ends_with_the_test() -> Iterator[None]:
    """Accelerate keeps the precision of a process' first training for all others."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def trainer_of(data: TokenizedData, folder: Path, precision: str) -> Trainer:
    overrides = [
        f"precision={precision}",
        f"save_folder={folder}",
        "model.d_model=32",
        "model.n_heads=4",
        "model.n_layers=2",
        "model.max_sequence_length=32",
        "train_context_length=16",
        "global_train_batch_tokens=64",
        "device_train_microbatch_tokens=32",
        "max_duration=8",
        "save_interval=4",
        "scheduler.t_warmup=2",
        "optimizer.learning_rate=1e-2",
        "eval_context_lengths=null",
    ]
    return Trainer(load_config(CONFIGS / "tiny.yaml", overrides, data), data)


def losses_of(trainer: Trainer, steps: range) -> list[float]:
    return [trainer._train_step(step)[0]["loss_nats"] for step in steps]


@on_devices
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", FIRST_LOSS), ("amp_bf16", 2e-3)])
def test_training_begins_with_the_loss_of_stock_olmo_on_the_cpu_and_resumes_to_the_same_losses(
    device: torch.device, precision: str, tolerance: float, tmp_path: Path
) -> None:
    data = TokenizedData.open(
        write_data(tmp_path / "data", np.random.default_rng(0).integers(0, 40, (1, 800)))
    )
    trainer = trainer_of(data, tmp_path, precision)
    assert trainer._accelerator.device.type == device.type
    stock = OLMo(trainer._config.model)
    stock.load_state_dict({name: weight.cpu() for name, weight in trainer._olmo.state_dict().items()})
    token_ids_BS = torch.from_numpy(TrainingBatches(trainer._config, data).batch(1)[0])
    logits_BVS = stock(token_ids_BS).logits.detach()[:, :-1].transpose(1, 2)
    expected = float(torch.nn.functional.cross_entropy(logits_BVS, token_ids_BS[:, 1:]))
    assert losses_of(trainer, range(1, 5))[0] == pytest.approx(expected, rel=tolerance)
    trainer.step = 4
    trainer._save()
    later = losses_of(trainer, range(5, 9))
    resumed = trainer_of(data, tmp_path, precision)
    assert resumed.step == 4
    # To the byte on a CPU; a GPU's kernels may add up gradients in any order.
    rounding = 1e-5 if device.type == "cuda" else 0
    np.testing.assert_allclose(losses_of(resumed, range(5, 9)), later, rtol=rounding)


@on_devices
@pytest.mark.parametrize("positions", ["predicted", "contiguous"])
def test_task_models_train_and_answer(device: torch.device, positions: str, tmp_path: Path) -> None:
    config = load_task_config(CONFIGS / "synthetic/small.yaml", TINY_TASK, task="copy", positions=positions)
    cpu = torch.device("cpu")
    witness, _ = TaskTrainer(config, tmp_path, cpu)._train_step(1)
    trainer = TaskTrainer(config, tmp_path, device)
    assert trainer._train_step(1)[0]["loss"] == pytest.approx(witness["loss"], rel=FIRST_LOSS)
    checkpoint = trainer.run()
    examples = TASKS["copy"].draw(5, [None] * 40, np.random.default_rng(0))
    here, expected = (
        accuracy(load_task_lm(checkpoint, config, where), examples, np.random.default_rng(1), size)
        for where, size in ((device, 16), (cpu, 40))
    )
    is_same = here["synthetic_examples"]["answer"] == expected["synthetic_examples"]["answer"]
    assert is_same.mean() > 0.9  # a tie may be broken the other way

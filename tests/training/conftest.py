"""A tiny corpus and a tiny run, so that a whole training takes well under a second."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from measured_documents import write_data

from sparsity_length.text.folder import TokenizedData
from sparsity_length.training.config import load_config
from sparsity_length.training.trainer import Trainer

TINY_YAML = Path(__file__).parents[2] / "olmo_configs" / "tiny.yaml"
TINY_OVERRIDES = (
    "model.d_model=16",
    "model.n_heads=2",
    "model.n_layers=1",
    "model.max_sequence_length=32",
    "train_context_length=8",
    "global_train_batch_tokens=32",
    "device_train_microbatch_tokens=16",
    "scheduler.t_warmup=2",
    "optimizer.learning_rate=1e-2",
    "precision=fp32",
    "max_duration=6",
    "save_interval=2",
    "eval_context_lengths=null",
)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> TokenizedData:
    """Two files of 600 and 200 tokens in which token 2n is always followed by 2n + 1."""
    generator = np.random.default_rng(0)
    firsts = [2 * generator.integers(0, 20, num_tokens // 2) for num_tokens in (600, 200)]
    files = [np.stack((first, first + 1), axis=1).ravel() for first in firsts]
    return TokenizedData.open(write_data(tmp_path_factory.mktemp("data"), files))


@pytest.fixture
def make_trainer(data: TokenizedData) -> Callable[..., Trainer]:
    """A function making a Trainer of the tiny run: make_trainer(save_folder, *overrides)."""

    def make(save_folder: Path, *overrides: str) -> Trainer:
        config = load_config(TINY_YAML, [*TINY_OVERRIDES, *overrides], data)
        config.save_folder = str(save_folder)
        return Trainer(config, data)

    return make

"""Tiny OLMo models that every test may use."""

from collections.abc import Callable

import pytest
import torch
from olmo.config import ModelConfig
from olmo.model import OLMo

# Tests multiply tiny matrices: threads only cost, and on a busy machine they cost minutes.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def make_olmo() -> Callable[..., OLMo]:
    """A function making a small random OLMo in float32: make_olmo(seed=0, **model_config_fields)."""

    def make(seed: int = 0, **fields: object) -> OLMo:
        torch.manual_seed(seed)
        config = {
            "d_model": 32, "n_heads": 4, "n_layers": 2, "mlp_ratio": 2, "rope": True, "include_bias": False,
            "layer_norm_type": "default", "layer_norm_with_affine": False, "bias_for_layer_norm": False,
            "attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0,
            "max_sequence_length": 64, "vocab_size": 48, "embedding_size": 48, "eos_token_id": 0,
            "pad_token_id": 0, "init_device": "cpu", "init_std": 0.3,
        } | fields  # fmt: skip
        return OLMo(ModelConfig.new(**config)).eval()

    return make

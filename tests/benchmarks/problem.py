"""The model, the chunk and the lengths that all variants of a benchmark share."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from machine import DTYPES
from olmo.config import ModelConfig, TrainConfig
from olmo.model import OLMo

from pipeline.cli import InputError
from pipeline.measuring.flags import ContextLengths
from pipeline.models.olmo import find_checkpoint
from pipeline.text.folder import TokenizedData

SUBSTITUTE_ID = 0
"""The token that stands in for a removed one, for tools that cannot remove. No chunk holds it."""


@dataclass(frozen=True)
class RandomModel:
    """A randomly initialised OLMo with the fields of olmo_configs."""

    num_layers: int
    width: int
    num_heads: int
    vocabulary_size: int
    mlp_ratio: int
    init_std: float
    """Larger than one trains with, so that far tokens matter and a wrong influence would show."""
    seed: int

    def config(self, num_positions: int) -> ModelConfig:
        """As in olmo_configs/150m.yaml, at these sizes."""
        return ModelConfig.new(
            d_model=self.width, n_heads=self.num_heads, n_layers=self.num_layers, mlp_ratio=self.mlp_ratio,
            activation_type="swiglu", rope=True, flash_attention=False, attention_dropout=0.0,
            residual_dropout=0.0, embedding_dropout=0.0, layer_norm_type="default",
            layer_norm_with_affine=False, bias_for_layer_norm=False, attention_layer_norm_with_affine=False,
            include_bias=False,
            weight_tying=True, max_sequence_length=num_positions, vocab_size=self.vocabulary_size,
            embedding_size=self.vocabulary_size, eos_token_id=0, pad_token_id=0, init_device="cpu",
            init_fn="normal", init_std=self.init_std,
        )  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """What is measured: sent to the process of each variant, which builds the same model from it."""

    model: RandomModel | Path
    """A random model, or a checkpoint folder of pretrain.py."""
    data: Path | None
    """Where the chunk comes from, a folder of tokenize_c4.py; None: uniformly drawn tokens."""
    lengths: ContextLengths
    tokens_per_batch: int
    sample_tokens: int
    """About how many token-forwards a timed sample holds, of variants whose whole chunk takes too long."""
    device: str = "cpu"
    threads: int | None = None

    def load(self, dtype: str) -> OLMo:
        """The model, ready to run."""
        if isinstance(self.model, Path):
            folder = find_checkpoint(self.model)
            olmo = OLMo.from_checkpoint(str(folder), device=self.device)
        else:
            torch.manual_seed(self.model.seed)
            olmo = OLMo(self.model.config(self.lengths.long_context_length))
        return olmo.to(device=self.device, dtype=DTYPES[dtype]).eval().requires_grad_(False)

    @cached_property
    def chunk_L(self) -> np.ndarray:
        """The tokens: int64, without `SUBSTITUTE_ID` where they are drawn.

        Raises:
            InputError: no evaluation document is as long as the chunk.
        """
        num_tokens = self.lengths.long_context_length
        if self.data is None:
            vocabulary_size = self._vocabulary_size()
            return np.random.default_rng(num_tokens).integers(1, vocabulary_size, num_tokens)
        for document in TokenizedData.open(self.data).evaluation_documents():
            if len(document.token_ids) >= num_tokens:
                return document.token_ids[:num_tokens].astype(np.int64)
        raise InputError(
            f"no evaluation document in {self.data} has {num_tokens} tokens; choose shorter chunks"
        )

    def _vocabulary_size(self) -> int:
        if isinstance(self.model, RandomModel):
            return self.model.vocabulary_size
        return TrainConfig.load(find_checkpoint(self.model) / "config.yaml").model.vocab_size

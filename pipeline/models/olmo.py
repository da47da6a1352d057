"""ai2-olmo checkpoints behind the `CausalLM` interface.

Shapes: B batch, S sequence, D width, V vocabulary, N any number of rows.
"""

import math
import pickle
import re
from pathlib import Path

import torch
from olmo.config import ModelConfig
from olmo.exceptions import OLMoConfigurationError
from olmo.model import OLMo
from yaml import YAMLError

from pipeline.errors import InputError
from pipeline.models.rope import blocks_of, use_position_ids


class OLMoCausalLM:
    """An OLMo whose tokens can be given any position IDs and any visibility; see `CausalLM`."""

    def __init__(self, model: OLMo) -> None:
        self._model = model.eval()
        self._rotary = use_position_ids(model)

    @property
    def vocabulary_size(self) -> int:
        """Token IDs run from 0 to this, exclusive; rows that only pad the embedding do not count."""
        return self._model.config.vocab_size

    @property
    def device(self) -> torch.device:
        """Where inputs must lie."""
        return self._model.device

    @torch.inference_mode()
    def hidden_states(
        self, token_ids_BS: torch.Tensor, position_ids_BS: torch.Tensor, visible_BSS: torch.Tensor | None
    ) -> torch.Tensor:
        """As `OLMo.forward` up to the vocabulary projection, which at every row would cost most of all."""
        self._rotary.set_position_ids(position_ids_BS)
        transformer = self._model.transformer
        hidden_BSD = transformer.wte(token_ids_BS)
        if self._model.config.embedding_layer_norm:
            hidden_BSD = transformer.emb_norm(hidden_BSD)
        bias = None if visible_BSS is None else _attention_bias(visible_BSS)
        for block in blocks_of(self._model):
            hidden_BSD, _ = block(hidden_BSD, attention_bias=bias)
        return transformer.ln_f(hidden_BSD)

    @torch.inference_mode()
    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """Vocabulary logits [N, V] as OLMo computes them: tied or own weights, scaled or not."""
        transformer, config = self._model.transformer, self._model.config
        if config.weight_tying:
            logits_NV = torch.nn.functional.linear(hidden_ND, transformer.wte.weight)
        else:
            logits_NV = transformer.ff_out(hidden_ND)
        return logits_NV * (1 / math.sqrt(config.d_model)) if config.scale_logits else logits_NV


def _attention_bias(visible_BSS: torch.Tensor) -> torch.Tensor:
    """0 where a row may look, the least float where not, as OLMo wants it: [B, 1, S, S]."""
    bias_BSS = torch.zeros(visible_BSS.shape, device=visible_BSS.device)
    return bias_BSS.masked_fill_(~visible_BSS, torch.finfo(bias_BSS.dtype).min)[:, None]


def find_checkpoint(path: Path) -> Path:
    """The checkpoint folder that `path` means: itself, or the latest `step<N>-unsharded` of a run folder.

    Raises:
        InputError: neither is there.
    """
    if (path / "model.pt").is_file() and (path / "config.yaml").is_file():
        return path
    steps = {}
    for folder in path.glob("step*-unsharded"):
        match = re.fullmatch(r"step(\d+)-unsharded", folder.name)
        if match and (folder / "model.pt").is_file():
            steps[int(match[1])] = folder
    if not steps:
        raise InputError(
            f"no OLMo checkpoint at {path}: expected config.yaml and model.pt there, or in a folder"
            " step<N>-unsharded below it, as pipeline/pretrain.py writes them"
        )
    return steps[max(steps)]


def model_name(path: Path) -> str:
    """The name results are filed under: the run folder's, with the step where one was asked for."""
    path = path.resolve()
    match = re.fullmatch(r"(step\d+)-unsharded", path.name)
    return f"{path.parent.name}-{match[1]}" if match else path.name


def load_olmo(checkpoint: Path, device: torch.device) -> OLMoCausalLM:
    """Load an unsharded OLMo checkpoint in float32.

    Raises:
        InputError: the folder is not an OLMo checkpoint, is truncated, or has no RoPE.
    """
    try:
        config = ModelConfig.load(checkpoint / "config.yaml", key="model", validate_paths=False)
    except (OLMoConfigurationError, KeyError, TypeError, ValueError, YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{checkpoint / 'config.yaml'} is not an OLMo configuration: {reason}") from error
    if not config.rope:
        raise InputError(f"{checkpoint} has no RoPE (model.rope: false), so tokens cannot keep position IDs")
    try:
        model = OLMo.from_checkpoint(str(checkpoint), device=str(device))
    except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise InputError(
            f"{checkpoint / 'model.pt'} is not the weights of its config.yaml, or is truncated: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return OLMoCausalLM(model.float())

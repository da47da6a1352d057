"""What a run will need, before it runs: parameters, tokens, memory and hours, from its configuration alone.

Assumptions, each a number below or a flag of study.py --dry-run:

- a Chinchilla-optimal run sees 20 tokens a parameter (Hoffmann et al. 2022, arXiv 2203.15556);
- hours are FLOPs (training.throughput's 6 N + 12 L D S a token) over what the device does: its peak times a
  model-FLOPs utilization, which is assumed and not measured;
- memory is 18 bytes a parameter (float32 weights and gradients, AdamW's two moments, the bfloat16 copy that
  autocast keeps) and, for each token of a micro-batch, what a backward pass keeps: in each layer 26 D + 4 F
  bytes, D wide with an F wide SwiGLU input, and 10 bytes a logit; attention fused, nothing checkpointed.
"""

from dataclasses import dataclass
from typing import NamedTuple

from pipeline.errors import InputError
from pipeline.training.configuration import PretrainConfig
from pipeline.training.schedule import counts_epochs, num_training_steps
from pipeline.training.throughput import flops_per_token, model_without_weights

TOKENS_PER_PARAMETER = 20
_BYTES_PER_PARAMETER = 18
_BYTES_PER_LOGIT = 10


class Device(NamedTuple):
    """What a run is estimated for."""

    name: str
    peak_flops: float
    utilization: float
    """Assumed model-FLOPs utilization, a fraction."""


class GPUPeaks(NamedTuple):
    """Multiplications and additions a second by NVIDIA's data sheet for the SXM board, without sparsity."""

    bfloat16: float
    float32: float
    """Whole products; TF32, which rounds them, is off here."""


GPUS = {
    "a100": GPUPeaks(312e12, 19.5e12),
    "h100": GPUPeaks(989e12, 67e12),
    "h200": GPUPeaks(989e12, 67e12),
}
H100 = Device("H100", peak_flops=GPUS["h100"].bfloat16, utilization=0.40)


@dataclass(frozen=True)
class Estimate:
    """What one run needs on one device."""

    num_parameters: int
    num_tokens: int
    """That the run sees, by its max_duration."""
    num_steps: int
    memory_bytes: int
    flops: int
    seconds: float

    @property
    def chinchilla_tokens(self) -> int:
        """Tokens of a Chinchilla-optimal run."""
        return TOKENS_PER_PARAMETER * self.num_parameters


def estimate(config: PretrainConfig, device: Device = H100, num_train_tokens: int | None = None) -> Estimate:
    """What the run of `config` needs on one `device`.

    Args:
        config: of the run.
        device: where it runs.
        num_train_tokens: of the data; None where there is none yet, and no epoch can be counted.

    Raises:
        InputError: max_duration counts epochs, and there is no data yet, or is not understood.
    """
    if counts_epochs(config.max_duration) and num_train_tokens is None:
        raise InputError(
            f"max_duration '{config.max_duration}' counts epochs, and there is no data yet to count them of;"
            " give steps (1000) or tokens ('2e6T')"
        )
    steps_per_epoch = (num_train_tokens or 0) // config.tokens_per_step
    model = model_without_weights(config.model)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    num_steps = num_training_steps(config.max_duration, config.tokens_per_step, steps_per_epoch)
    num_tokens = num_steps * config.tokens_per_step
    flops = num_tokens * flops_per_token(config.model, config.sequence_length)
    micro_batch_tokens = config.micro_batch_size(num_ranks=1) * config.sequence_length
    return Estimate(
        num_parameters=num_parameters,
        num_tokens=num_tokens,
        num_steps=num_steps,
        memory_bytes=_BYTES_PER_PARAMETER * num_parameters
        + micro_batch_tokens * (layer_bytes_per_token(config) + _logit_bytes_per_token(config)),
        flops=flops,
        seconds=flops / (device.peak_flops * device.utilization),
    )


def layer_bytes_per_token(config: PretrainConfig) -> int:
    """What the backward pass keeps of one token in all layers, under bfloat16 autocast."""
    model = config.model
    feed_forward_width = model.mlp_hidden_size or model.mlp_ratio * model.d_model
    # Two float32 inputs of norms; in bfloat16 two of projections, the queries, keys and values before and
    # after RoPE, attention's output twice; of the feed-forward layer its input, gate and product.
    return model.n_layers * (26 * model.d_model + 4 * feed_forward_width)


def _logit_bytes_per_token(config: PretrainConfig) -> int:
    return _BYTES_PER_LOGIT * (config.model.embedding_size or config.model.vocab_size)

"""What one pretraining run is: OLMo's TrainConfig, with our fields for length, positions and batch in tokens.

A run acts on the fields in `HONORED_FIELDS`. Any other field of OLMo's is refused: it would be recorded and
do nothing. `model`, `optimizer` and `scheduler` go whole to OLMo's own classes. `max_duration` has OLMo's
meaning: 1000 is steps, "2e6T" tokens; epochs are not understood. `save_interval` counts steps between
checkpoints, which are always unsharded.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from olmo.config import BlockType, DistributedStrategy, SchedulerType, SchedulerUnits, TrainConfig
from olmo.optim import build_scheduler
from omegaconf import MISSING

from sparsity_length.cli import InputError
from sparsity_length.results.files import launched_process
from sparsity_length.text.folder import TokenizedData
from sparsity_length.training.positions import POSITION_SCHEMES
from sparsity_length.training.settings import (
    read_overrides,
    read_yaml,
    require,
    require_name,
    require_positive,
    settings_of,
)


@dataclass
class PretrainConfig(TrainConfig):
    """OLMo's TrainConfig, and what this project adds to it."""

    train_context_length: int | None = None
    """Tokens of one training sequence. None: model.max_sequence_length."""

    position_scheme: str = "contiguous"
    """Position IDs of a training sequence: `contiguous`, `pose` or `randomized`."""

    pose_target_length: int | None = None
    """PoSE draws position IDs below this number of tokens. None unless position_scheme is `pose`."""

    randomized_target_length: int | None = None
    """Randomized position IDs are below this number. None unless position_scheme is `randomized`."""

    global_train_batch_tokens: int = MISSING
    """Tokens of one optimizer step over all ranks; OLMo's global_train_batch_size (sequences) follows."""

    device_train_microbatch_tokens: int = MISSING
    """Tokens of one pass on one device; OLMo's device_train_microbatch_size (sequences) follows."""

    eval_context_lengths: list[int] | None = None
    """Tokens of a sequence of held-out text at which the loss is measured every eval_interval steps and at
    the end. The longest must be a multiple of each. None: never."""

    eval_num_documents: int = 64
    """Held-out documents to measure on, or as many as are long enough."""

    distributed_strategy: DistributedStrategy | None = DistributedStrategy.ddp
    """Several ranks: `ddp` keeps all on each, `fsdp` shards. OLMo's field with another default."""

    train_data_sha256: str | None = None
    """SHA-256 of the training tokens, in hex; as `model`'s vocabulary, taken from the tokenized data."""

    @property
    def sequence_length(self) -> int:
        """Tokens of one training sequence, with the default resolved."""
        return self.train_context_length or self.model.max_sequence_length

    @property
    def num_position_ids(self) -> int:
        """The position IDs of training are below this number."""
        return getattr(self, f"{self.position_scheme}_target_length", None) or self.sequence_length

    @property
    def num_steps(self) -> int:
        """OLMo's `max_duration` in optimizer steps: 1000 steps, or "2e6T" tokens, rounded up to a step."""
        text = str(self.max_duration)
        # "2e6T" at 65,536 tokens per step is 30.5 steps, so 31.
        unit = self.global_train_batch_tokens if text.endswith("T") else 1
        try:
            return math.ceil(float(text.removesuffix("T")) / unit)
        except (ValueError, OverflowError) as error:
            raise InputError(f"max_duration '{text}' is not steps (1000) or tokens ('2e6T')") from error

    def scheduled(self, step: int) -> int:
        """A step as the scheduler counts it, which may be in tokens."""
        return step * (self.global_train_batch_tokens if self.scheduler.units == SchedulerUnits.tokens else 1)

    def rates(self, step: int) -> tuple[float, float | None]:
        """Learning rate of a step, counted from 1, and the norm its gradient is clipped to (None: it is not).

        They are those of OLMo's trainer, but a schedule in tokens ends with the last step, not within it.
        """
        scheduler = build_scheduler(self)
        # Step and end in one unit, that of the scheduler's warm-up.
        at = self.scheduled(step), self.scheduled(self.num_steps)
        return (
            scheduler.get_lr(self.optimizer.learning_rate, *at),
            scheduler.get_max_grad_norm(self.max_grad_norm, *at),
        )

    def num_micro_batches(self, num_ranks: int) -> int:
        """Equal passes that a step takes on each of `num_ranks` ranks; an InputError if there are none."""
        batch_size = self.global_train_batch_size
        micro_batch_size = min(self.device_train_microbatch_size, batch_size // num_ranks)
        require(
            micro_batch_size > 0 and batch_size % (num_ranks * micro_batch_size) == 0,
            f"global_train_batch_tokens make {batch_size} sequences, not divisible by {num_ranks} ranks times"
            f" {micro_batch_size}, as many as device_train_microbatch_tokens or a rank's share allow",
        )
        return batch_size // (num_ranks * micro_batch_size)


HONORED_FIELDS = {
    *PretrainConfig.__annotations__,
    "run_name",
    "seed",
    "model",
    "optimizer",
    "scheduler",
    "save_folder",
    "save_interval",
    "save_num_unsharded_checkpoints_to_keep",
    "max_duration",
    "max_grad_norm",
    "precision",
    "eval_interval",
    "activation_checkpointing",
    "compile",
    "load_path",
}


def load_config(path: Path, overrides: Sequence[str], data: TokenizedData) -> PretrainConfig:
    """The configuration of one run, complete and checked; an InputError names a bad field and what is right.

    The overrides (`field.subfield=value`) win over the YAML file; the data decides the vocabulary.

    Call order:
        settings_of         one configuration from file, overrides and data, in this order
        HONORED_FIELDS      no field that pretrain would ignore
        require_positive, require_name
                            each field by itself
        require             fields that must fit together: model, positions, lengths, batches
        num_micro_batches   batches that the processes can share
        require             a warm-up that ends before the training does
    """
    require(
        not data.bos_token_ids,
        f"{data.folder} was tokenized with a beginning-of-text token, which measuring puts before every"
        " context and training sequences do not hold; tokenize the text with --bos none",
    )
    file = read_yaml(path)
    chosen = read_overrides(overrides)
    by_data = {
        "train_data_sha256": data.train_sha256,
        "model": {
            "vocab_size": data.vocabulary_size,
            # Up to a multiple of 128, as OLMo does for faster products: 50,280 tokens have 50,304 rows.
            "embedding_size": math.ceil(data.vocabulary_size / 128) * 128,
            "eos_token_id": data.eos_token_id,
            "pad_token_id": data.eos_token_id,  # sequences are full: no token is ever padding
        },
    }
    # The last part wins: a vocabulary in the file cannot contradict the data.
    config: PretrainConfig = settings_of(path, PretrainConfig, file, chosen, by_data)
    ignored = {*file, *chosen} - HONORED_FIELDS
    require(
        not ignored,
        f"pretrain does not act on {', '.join(sorted(ignored))} of OLMo's trainer; leave it out (batches are"
        " given in tokens: global_train_batch_tokens, device_train_microbatch_tokens)",
    )
    require_positive(
        config,
        "train_context_length global_train_batch_tokens device_train_microbatch_tokens max_grad_norm"
        " save_interval eval_interval eval_num_documents num_steps optimizer.learning_rate model.n_heads",
    )
    require(config.seed >= 0, f"seed is {config.seed}; it must be 0 or above")
    require_name("precision", config.precision, ("auto", "amp_bf16", "fp32"))
    require_name("position_scheme", config.position_scheme, POSITION_SCHEMES)
    model = config.model
    length = config.sequence_length
    require(
        length >= 2,
        f"train_context_length is {length}; it must be at least 2, as the first token is no target",
    )
    require(
        model.block_type == BlockType.sequential,
        f"model.block_type is {model.block_type}; only models with sequential blocks can be measured",
    )
    require(
        # RoPE rotates pairs of numbers of a head, so a head's width must be even.
        bool(model.rope) != bool(model.alibi) and model.d_model % (2 * model.n_heads) == 0,
        "position IDs can be chosen only with either model.rope or model.alibi (with neither, positions are"
        " learned; for none at all, set model.alibi and model.alibi_bias_max=.inf), and with a model.d_model"
        " that is a multiple of twice model.n_heads",
    )
    require(
        bool(model.rope) or config.position_scheme == "contiguous",
        f"position_scheme '{config.position_scheme}' needs model.rope: OLMo's ALiBi counts rows in training",
    )
    require(
        length <= model.max_sequence_length,
        f"train_context_length is {length}; it must be at most model.max_sequence_length,"
        f" {model.max_sequence_length}",
    )
    for scheme in ("pose", "randomized"):
        target_length = getattr(config, f"{scheme}_target_length")
        require(
            (target_length or 0) >= length if scheme == config.position_scheme else target_length is None,
            f"{scheme}_target_length is {target_length}: position_scheme '{scheme}' needs the length to"
            f" generalize to, at least train_context_length, {length}; by any other it would be ignored",
        )
    lengths = config.eval_context_lengths or ()
    require(
        not any(each < 2 or max(lengths) % each for each in lengths),
        f"eval_context_lengths {lengths}: each must be at least 2, and divide the longest",
    )
    for kind in ("global_train_batch", "device_train_microbatch"):
        tokens = getattr(config, f"{kind}_tokens")
        require(
            tokens % length == 0,
            f"{kind}_tokens {tokens} is not a multiple of train_context_length, {length}",
        )
        setattr(config, f"{kind}_size", tokens // length)
    config.num_micro_batches(launched_process().num_tasks)
    warm_up = config.scheduler.t_warmup
    end = config.scheduled(config.num_steps)
    if config.scheduler.t_max is not None:
        end = min(end, config.scheduler.t_max)
    require(
        config.scheduler.name == SchedulerType.constant or warm_up < end,
        f"scheduler.t_warmup is {warm_up} {config.scheduler.units}, not shorter than scheduler.t_max or"
        f" max_duration '{config.max_duration}', so the learning rate would never be reached",
    )
    return config


def config_of(arguments: argparse.Namespace, data: TokenizedData) -> PretrainConfig:
    """The configuration that a command line of pretrain.py asks for."""
    config = load_config(arguments.config, arguments.overrides, data)
    # The flag wins over a save_folder of the file; the folder may move, and is no setting of the run.
    config.save_folder = str(arguments.save_folder)
    return config


def config_without_text(arguments: argparse.Namespace, needed: Sequence[Any]) -> PretrainConfig:
    """The same, checked as far as possible before the text is there."""
    return config_of(arguments, TokenizedData(Path(), [], np.dtype(np.uint16), 2, 0, "unknown", "unknown"))

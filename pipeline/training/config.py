"""What one pretraining run is: OLMo's TrainConfig, with our fields for length, positions and batch in tokens.

A plain OLMo TrainConfig file loads too. A run acts on the fields in `HONOURED_FIELDS`. Any other field of
OLMo's is refused unless it is null or has OLMo's default: it would be recorded and do nothing. `model`,
`optimizer` and `scheduler` go whole to OLMo's own classes. `max_duration` has OLMo's meaning: 1000 is
steps, "2e6T" tokens, "2ep" epochs. `save_interval` counts steps between checkpoints, which are always
unsharded.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from olmo.config import DistributedStrategy, ModelConfig, SchedulerType, SchedulerUnits, TrainConfig
from olmo.exceptions import OLMoConfigurationError
from olmo.model import OLMo
from olmo.optim import build_scheduler
from omegaconf import OmegaConf

from pipeline.cli import InputError
from pipeline.models.olmo import ATTENTION_SCALINGS
from pipeline.text.folder import TokenizedData
from pipeline.training.positions import POSITION_SCHEMES, position_scheme
from pipeline.training.settings import (
    plain_values,
    read_overrides,
    read_yaml,
    require,
    require_name,
    require_numbers,
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

    attention_scaling: str = "none"
    """What attention scores are multiplied by, in training and wherever the model is measured: `none`,
    `log_length` or `learnt` (`AttentionScaling`, whose L is train_context_length)."""

    global_train_batch_tokens: int | None = None
    """Tokens of one optimizer step over all ranks, in place of global_train_batch_size (sequences)."""

    device_train_microbatch_tokens: int | None = None
    """Tokens of one pass on one device, in place of device_train_microbatch_size (sequences)."""

    eval_context_lengths: list[int] | None = None
    """Tokens of a sequence of held-out text at which the loss is measured every eval_interval steps and at
    the end. The longest must be a multiple of each. None: never."""

    eval_num_documents: int = 64
    """Held-out documents to measure on, or as many as are long enough."""

    peak_flops: float | None = None
    """FLOPs a second that one device could do at most in the precision of the run, which
    model_flops_utilization is a fraction of. None: measured at the start."""

    trackers: list[str] | None = None
    """Where metrics go beside metrics.jsonl: `tensorboard`, `wandb`."""

    distributed_strategy: DistributedStrategy | None = DistributedStrategy.ddp
    """Several ranks: `ddp` keeps all on each, `fsdp` shards. OLMo's field with another default."""

    train_data_sha256: str | None = None
    """SHA-256 of the training tokens, in hex. None: taken from the tokenized data."""

    @property
    def sequence_length(self) -> int:
        """Tokens of one training sequence, with the default resolved."""
        length = self.train_context_length
        return self.model.max_sequence_length if length is None else length

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all ranks."""
        return self.global_train_batch_size * self.sequence_length

    @property
    def position_target_length(self) -> int | None:
        """Where the position scheme draws from, in tokens; None for contiguous positions."""
        return getattr(self, f"{self.position_scheme}_target_length", None)

    def micro_batch_size(self, num_ranks: int) -> int:
        """Sequences of each forward pass on one of `num_ranks` ranks; an InputError where none is."""
        rank_batch_size, rest = divmod(self.global_train_batch_size, num_ranks)
        if rest:
            raise InputError(
                f"global_train_batch_size {self.global_train_batch_size} (sequences) is not divisible by the"
                f" {num_ranks} ranks"
            )
        micro_batch_size = min(self.device_train_microbatch_size, rank_batch_size)
        if rank_batch_size % micro_batch_size:
            raise InputError(
                f"the {rank_batch_size} sequences of a rank are not divisible by"
                f" device_train_microbatch_size {micro_batch_size} (sequences)"
            )
        return micro_batch_size


OUR_FIELDS = tuple(
    field.name for field in dataclasses.fields(PretrainConfig) if field.name in PretrainConfig.__annotations__
)
HONOURED_FIELDS = frozenset(OUR_FIELDS) | {
    "run_name",
    "seed",
    "model",
    "optimizer",
    "scheduler",
    "save_folder",
    "save_interval",
    "save_num_unsharded_checkpoints_to_keep",
    "max_duration",
    "global_train_batch_size",
    "device_train_microbatch_size",
    "max_grad_norm",
    "precision",
    "console_log_interval",
    "eval_interval",
    "activation_checkpointing",
    "compile",
    "load_path",
}


@dataclass(frozen=True)
class AssumedData:
    """Stands for data that is not there yet, to plan with."""

    vocabulary_size: int
    eos_token_id: int = 0
    train_sha256: str = "unknown"
    num_train_tokens: int | None = None


DataFacts = TokenizedData | AssumedData
"""What a configuration takes its vocabulary from."""

_EMBEDDING_MULTIPLE = 128  # OLMo pads its embedding to a multiple of this: faster matrix products


def load_config(path: Path, overrides: Sequence[str], data: DataFacts) -> PretrainConfig:
    """The configuration of one run, complete and checked; an InputError names a bad field and what is right.

    The overrides (`field.subfield=value`) win over the YAML file; the data decides the vocabulary.
    """
    chosen = read_overrides(overrides)
    PretrainConfig._register_resolvers(validate_paths=False)  # a file may use OLMo's `path.*`
    file = PretrainConfig.update_legacy_settings(read_yaml(path))
    decided = {
        "train_data_sha256": data.train_sha256,
        "model.vocab_size": data.vocabulary_size,
        "model.embedding_size": -(-data.vocabulary_size // _EMBEDDING_MULTIPLE) * _EMBEDDING_MULTIPLE,
        "model.eos_token_id": data.eos_token_id,
        "model.pad_token_id": data.eos_token_id,  # sequences are full: no token is ever padding
    }
    by_data = OmegaConf.create()
    for field, value in decided.items():
        OmegaConf.update(by_data, field, value)
    config: PretrainConfig = settings_of(path, _schema(), file, chosen, by_data)
    for field, value in decided.items():
        for part in (file, chosen):
            if (given := OmegaConf.select(part, field)) not in (None, value):
                raise InputError(f"{field} is {given}, but the tokenized data says {value}; leave it out")
    _refuse_bad_numbers(config)
    _refuse_bad_models(config)
    _derive_sequences(config, {*file, *chosen})
    _refuse_bad_names(config)
    _refuse_bad_lengths(config)
    config.micro_batch_size(num_ranks=1)
    try:  # what OLMo would refuse later
        model_without_weights(config.model)
    except (OLMoConfigurationError, AssertionError, RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or ["OLMo's own check fails"])[0]
        raise InputError(f"model: OLMo refuses this combination of settings ({reason})") from error
    return config


# All fields with their types and defaults, built once: a study loads a dozen configurations.
_schema = cache(lambda: OmegaConf.structured(PretrainConfig))
_olmo_defaults = cache(lambda: plain_values(TrainConfig()))


def _derive_sequences(config: PretrainConfig, given: set[Any]) -> None:
    """Turn batch sizes in tokens into OLMo's, in sequences of this run's length."""
    length = config.sequence_length
    for kind in ("global_train_batch", "device_train_microbatch"):
        tokens_field = f"{kind}_tokens"
        sequences_field = f"{kind}_size"
        tokens = getattr(config, tokens_field)
        num_sequences = getattr(config, sequences_field)
        if tokens is None:
            continue
        if tokens % length:
            raise InputError(
                f"{tokens_field} {tokens} is not a multiple of the train_context_length, {length}"
            )
        if sequences_field in given and num_sequences != tokens // length:
            raise InputError(
                f"{tokens_field} {tokens} makes {tokens // length} sequences, but {sequences_field} is"
                f" {num_sequences}; give one of the two"
            )
        setattr(config, sequences_field, tokens // length)


def _refuse_bad_numbers(config: PretrainConfig) -> None:
    require_numbers(
        config,
        "train_context_length pose_target_length randomized_target_length eval_context_lengths eval_interval"
        " global_train_batch_size global_train_batch_tokens device_train_microbatch_size"
        " device_train_microbatch_tokens eval_num_documents save_interval console_log_interval max_grad_norm"
        " optimizer.learning_rate optimizer.eps peak_flops model.d_model model.n_heads model.n_kv_heads"
        " model.n_layers model.mlp_ratio model.mlp_hidden_size model.max_sequence_length",
    )
    require_numbers(config, "seed optimizer.weight_decay scheduler.t_warmup scheduler.alpha_f", zero=True)
    betas_and_dropouts = (
        "optimizer.betas model.attention_dropout model.residual_dropout model.embedding_dropout"
    )
    require_numbers(config, betas_and_dropouts, most=1, zero=True)


def _refuse_bad_models(config: PretrainConfig) -> None:
    model = config.model
    require_name("precision", config.precision, ("auto", "amp_bf16", "fp32"))
    require_name("attention_scaling", config.attention_scaling, ATTENTION_SCALINGS)
    require(
        model.d_model % (2 * model.n_heads) == 0,
        f"model.d_model {model.d_model} is not a multiple of twice model.n_heads, {model.n_heads}: RoPE turns"
        " pairs within a head",
    )
    require(
        bool(model.rope) and not model.alibi,
        f"model.rope is {model.rope} and model.alibi {model.alibi}; position IDs can be chosen in models with"
        " RoPE only",
    )
    require(
        config.sequence_length <= model.max_sequence_length,
        f"train_context_length is {config.sequence_length}; it must be at most model.max_sequence_length,"
        f" {model.max_sequence_length}",
    )


def _refuse_bad_names(config: PretrainConfig) -> None:
    for name, value in plain_values(config).items():
        if name not in HONOURED_FIELDS and value is not None and value != _olmo_defaults()[name]:
            raise InputError(
                f"'{name}' is a field of OLMo's trainer that pretrain does not act on; leave it out"
            )
    for tracker in config.trackers or ():  # accelerate would go on without it
        if find_spec(tracker) is None:
            raise InputError(f"trackers names {tracker}, which is not installed: pip install {tracker}")


def _refuse_bad_lengths(config: PretrainConfig) -> None:
    length = config.sequence_length
    position_scheme(config.position_scheme, config.position_target_length)
    for scheme in POSITION_SCHEMES:
        target_length = getattr(config, name := f"{scheme}_target_length", None)
        if target_length is None:
            continue
        if scheme != config.position_scheme:
            raise InputError(
                f"{name} is {target_length}; position_scheme '{config.position_scheme}' would ignore it"
            )
        if target_length < length:
            raise InputError(
                f"{name} is {target_length} tokens; it must be at least train_context_length, {length}"
            )
    lengths = config.eval_context_lengths or ()
    for length in lengths:
        if max(lengths) % length:
            raise InputError(
                f"eval_context_lengths has {length}; each must divide the longest, {max(lengths)}"
            )


def model_without_weights(config: ModelConfig) -> OLMo:
    """The model's modules and shapes, which take no memory."""
    return OLMo(ModelConfig(**{**config.asdict(), "init_device": "meta"}), init_params=False)


def counts_epochs(max_duration: int | str) -> bool:
    """Whether only the data tells how long that is."""
    return str(max_duration).strip().endswith("ep")


def num_training_steps(max_duration: int | str, tokens_per_step: int, steps_per_epoch: int) -> int:
    """OLMo's `max_duration` in optimizer steps: 1000 steps, "2e6T" tokens (rounded up), "2ep" epochs."""
    text = str(max_duration).strip()
    try:
        if counts_epochs(text):
            num_steps = int(text[:-2]) * steps_per_epoch
        elif text.endswith("T"):
            num_steps = math.ceil(float(text[:-1]) / tokens_per_step)
        else:
            num_steps = int(float(text))
    except (ValueError, OverflowError) as error:
        sentence = f"max_duration '{max_duration}' is not steps (1000), tokens ('2e6T') or epochs ('2ep')"
        raise InputError(sentence) from error
    if num_steps < 1:
        raise InputError(f"max_duration '{max_duration}' is less than one step")
    return num_steps


class Schedule:
    """Learning rate and clipping threshold of each step, counted from 1 as OLMo's trainer does.

    InputError where the duration is not understood, or the warm-up is longer.
    """

    def __init__(self, config: PretrainConfig, steps_per_epoch: int) -> None:
        self.num_steps = num_training_steps(config.max_duration, config.tokens_per_step, steps_per_epoch)
        self._config = config
        self._scheduler = build_scheduler(config)
        self._unit = config.tokens_per_step if config.scheduler.units == SchedulerUnits.tokens else 1
        warms_up = config.scheduler.name != SchedulerType.constant
        if warms_up and config.scheduler.t_warmup > self.num_steps * self._unit:
            raise InputError(
                f"scheduler.t_warmup is {config.scheduler.t_warmup} {config.scheduler.units}, longer than"
                f" max_duration '{config.max_duration}' ({self.num_steps} steps of"
                f" {config.tokens_per_step} tokens)"
            )

    def learning_rate(self, step: int) -> float:
        """The learning rate of `step`."""
        places = step * self._unit, self.num_steps * self._unit
        return self._scheduler.get_lr(self._config.optimizer.learning_rate, *places)

    def max_grad_norm(self, step: int) -> float | None:
        """The norm to which the gradient of `step` is clipped; None: it is not clipped."""
        places = step * self._unit, self.num_steps * self._unit
        return self._scheduler.get_max_grad_norm(self._config.max_grad_norm, *places)

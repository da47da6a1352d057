"""Which values a configuration of training may have: a table of ranges and one of relations.

Asked where the configuration is built, so that no library refuses a number, or takes a senseless one, after
data was read and folders were made. nan lies in no range. None means "off" or "by default", and is not asked.

What one pretraining run is: OLMo's TrainConfig with our fields for length, positions and batch in tokens.

A plain OLMo TrainConfig YAML loads too. Of OLMo's top-level fields the run honours those in
`HONOURED_FIELDS`; any other one is refused unless it is null or has OLMo's default value, for a setting
that does nothing would be recorded as if it had done something. `model`, `optimizer` and `scheduler` go
to OLMo's own classes whole. `max_duration` has OLMo's meaning: 1000 is steps, "2e6T" tokens, "2ep"
epochs. `save_interval` counts steps between checkpoints, which are always unsharded.

From what the user wrote (a YAML file, overrides, tokenized data) to a checked PretrainConfig.

How many steps a run has, and the learning rate and clipping threshold of each, by OLMo's scheduler.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol, cast

from olmo.config import DistributedStrategy, SchedulerType, SchedulerUnits, TrainConfig
from olmo.optim import build_scheduler
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from pipeline.cli import InputError, omegaconf_sentence, unknown_name
from pipeline.training.positions import POSITION_SCHEMES, position_scheme

_LARGEST_VOCABULARY = 2**32  # what a token's widest type holds


@dataclass(frozen=True)
class Range:
    """Numbers from `least` to `most`, either of which may be left out."""

    least: float
    most: float = math.inf
    leaves_least_out: bool = False
    leaves_most_out: bool = False

    def __contains__(self, value: float) -> bool:
        is_above = value > self.least if self.leaves_least_out else value >= self.least
        is_below = value < self.most if self.leaves_most_out else value <= self.most
        return is_above and is_below

    def __str__(self) -> str:
        words = [f"{'above' if self.leaves_least_out else 'at least'} {self.least}"]
        if self.most == math.inf:
            words += ["finite"] if self.leaves_most_out else []
        else:
            words += [f"{'below' if self.leaves_most_out else 'at most'} {self.most}"]
        return " and ".join(words)


SEED = Range(0, 2**63 - 1)  # what a result's column of seeds holds
SHARE_BELOW_ONE = Range(0, 1, leaves_most_out=True)
POSITIVE = Range(0, leaves_least_out=True)
FINITE_FROM_ZERO = Range(0, leaves_most_out=True)
LEARNING_RATE = Range(0, 1000, leaves_least_out=True)  # beyond, a step overflows
_COUNT = Range(1)
_LENGTH = Range(2)
_SIZE = Range(0, leaves_least_out=True, leaves_most_out=True)
_VOCABULARY = Range(1, _LARGEST_VOCABULARY)

RANGES = {
    "seed": SEED,
    "train_context_length": _LENGTH,
    "pose_target_length": _LENGTH,
    "randomized_target_length": _LENGTH,
    "global_train_batch_size": _COUNT,
    "global_train_batch_tokens": _COUNT,
    "device_train_microbatch_size": _COUNT,
    "device_train_microbatch_tokens": _COUNT,
    "eval_context_lengths": _LENGTH,
    "eval_num_documents": _COUNT,
    "eval_interval": _COUNT,
    "save_interval": _COUNT,
    "save_num_unsharded_checkpoints_to_keep": Range(-1),  # OLMo's: -1 keeps all
    "console_log_interval": _COUNT,
    "answer_loss_weight": _SIZE,
    "peak_flops": _SIZE,
    "max_grad_norm": POSITIVE,
    "model.d_model": _COUNT,
    "model.n_heads": _COUNT,
    "model.n_kv_heads": _COUNT,
    "model.n_layers": _COUNT,
    "model.block_group_size": _COUNT,
    "model.mlp_ratio": _COUNT,
    "model.mlp_hidden_size": _COUNT,
    "model.max_sequence_length": _LENGTH,
    "model.vocab_size": _VOCABULARY,
    "model.embedding_size": _VOCABULARY,
    "model.rope_theta": _SIZE,
    "model.clip_qkv": _SIZE,
    "model.layer_norm_eps": _SIZE,
    "model.init_std": _SIZE,
    "model.init_cutoff_factor": _SIZE,
    "model.emb_init_std": _SIZE,
    "model.attention_dropout": SHARE_BELOW_ONE,
    "model.residual_dropout": SHARE_BELOW_ONE,
    "model.embedding_dropout": SHARE_BELOW_ONE,
    "optimizer.learning_rate": LEARNING_RATE,
    "optimizer.weight_decay": FINITE_FROM_ZERO,
    "optimizer.betas": SHARE_BELOW_ONE,
    "optimizer.eps": _SIZE,
    "scheduler.t_warmup": FINITE_FROM_ZERO,
    "scheduler.t_max": _COUNT,
    "scheduler.alpha_f": FINITE_FROM_ZERO,
    "scheduler.warmup_min_lr": FINITE_FROM_ZERO,
    "scheduler.grad_clip_warmup_steps": FINITE_FROM_ZERO,
    "scheduler.grad_clip_warmup_factor": _SIZE,
}
"""Field of a `PretrainConfig` -> where its number lies; of a list, where each of its numbers lies."""

Relation = tuple[Callable[[Any], bool], str]
"""What must be so, once every number is in its range, and the sentence where it is not."""
RELATIONS: tuple[Relation, ...] = (
    (
        lambda config: config.model.d_model % config.model.n_heads == 0,
        "model.d_model {0.model.d_model} is not divisible by model.n_heads {0.model.n_heads}",
    ),
    (
        lambda config: config.model.d_model // config.model.n_heads % 2 == 0,
        "model.d_model {0.model.d_model} gives each of model.n_heads {0.model.n_heads} an odd width, but RoPE"
        " turns pairs; it must be a multiple of twice the heads",
    ),
    (
        lambda config: config.model.n_heads % (config.model.n_kv_heads or 1) == 0,
        "model.n_heads {0.model.n_heads} is not divisible by model.n_kv_heads {0.model.n_kv_heads}",
    ),
    (
        lambda config: config.model.n_layers % config.model.block_group_size == 0,
        "model.n_layers {0.model.n_layers} is not divisible by model.block_group_size"
        " {0.model.block_group_size}",
    ),
    (
        lambda config: config.model.rope,
        "model.rope is false; position IDs can be chosen in models with RoPE only",
    ),
    (
        lambda config: not config.model.alibi,
        "model.alibi is true; ALiBi cannot be beside RoPE, which carries the position IDs",
    ),
    (
        lambda config: config.model.init_device != "meta",
        "model.init_device 'meta' leaves the weights unset, but this stage sets them before it shards them;"
        " leave it out",
    ),
)
"""Of the fields of a `PretrainConfig`."""


def refuse_bad_numbers(config: Any, ranges: Mapping[str, Range] = RANGES) -> None:
    """Refuse a number that lies outside its range.

    Args:
        config: a `PretrainConfig`, or anything with the fields of `ranges`.
        ranges: field -> where its number lies; of a list, where each of its numbers lies.

    Raises:
        InputError: names the field, its value and what would be right.
    """
    for field, allowed in ranges.items():
        for number in _numbers(attrgetter(field)(config)):
            if number not in allowed:
                raise InputError(f"{field} is {number}; it must be {allowed}")


def refuse_bad_relations(config: Any, relations: Sequence[Relation] = RELATIONS) -> None:
    """Refuse fields that do not go together, their numbers all being in range.

    Raises:
        InputError: says which, and why.
    """
    for holds, sentence in relations:
        if not holds(config):
            raise InputError(sentence.format(config))


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, list | tuple):
        yield from value
    elif value is not None:
        yield value


PRECISIONS = ("auto", "amp_bf16", "fp32")
TRACKERS = ("tensorboard", "wandb")


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

    global_train_batch_tokens: int | None = None
    """Tokens of one optimizer step over all ranks, in place of global_train_batch_size (sequences), so that
    another train_context_length leaves the tokens of a step as they are. None: the latter decides."""

    device_train_microbatch_tokens: int | None = None
    """Tokens of one forward and backward pass on one device, in place of device_train_microbatch_size
    (sequences). None: device_train_microbatch_size decides."""

    eval_context_lengths: list[int] | None = None
    """Tokens of a sequence of held-out text at which the loss is measured every eval_interval steps and at
    the end (pipeline.training.trainer). The longest must be a multiple of each. None: never."""

    eval_num_documents: int = 64
    """Held-out documents to measure on, or as many as are long enough."""

    answer_loss_weight: float | None = None
    """Weight of the mean loss of planted answers (plant_signs.py), added to that of all tokens. Two answers
    among 64 tokens drown in the gradient of the text. None: they count as every other token does."""

    peak_flops: float | None = None
    """Multiplications and additions a second that one device could do at most in the precision of the run,
    which model_flops_utilization is a fraction of. None: measured at the start."""

    trackers: list[str] | None = None
    """Where metrics go beside metrics.jsonl: `tensorboard`, `wandb` (written offline unless WANDB_MODE says
    otherwise). None: nowhere."""

    distributed_strategy: DistributedStrategy | None = DistributedStrategy.ddp
    """Several ranks: `ddp` keeps the whole model and optimizer on each, `fsdp` shards both over them. OLMo's
    field with another default; a run on one rank ignores it."""

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
        """Sequences of one forward pass on one of `num_ranks` ranks; every micro-batch has this size.

        Raises:
            InputError: the global batch does not divide into equal micro-batches.
        """
        if self.global_train_batch_size % num_ranks:
            raise InputError(
                f"global_train_batch_size {self.global_train_batch_size} (sequences) is not divisible by"
                f" the {num_ranks} ranks"
            )
        rank_batch_size = self.global_train_batch_size // num_ranks
        micro_batch_size = min(self.device_train_microbatch_size, rank_batch_size)
        if rank_batch_size % micro_batch_size:
            raise InputError(
                f"the {rank_batch_size} sequences of a rank are not divisible by device_train_microbatch_size"
                f" {micro_batch_size} (sequences)"
            )
        return micro_batch_size

    def validate(self) -> None:
        """Refuse values that could only fail later, or do nothing.

        Raises:
            InputError: names the field, its value and what would be right.
        """
        refuse_bad_numbers(self)
        refuse_bad_relations(self)
        self._validate_positions()
        self._validate_evaluation()
        if self.precision is not None and self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        for tracker in self.trackers or ():
            if tracker not in TRACKERS:
                raise unknown_name("tracker", tracker, TRACKERS)
        self.micro_batch_size(num_ranks=1)

    def _validate_positions(self) -> None:
        length, longest = self.sequence_length, self.model.max_sequence_length
        if length > longest:
            raise InputError(
                f"train_context_length is {length} tokens; it must be at most model.max_sequence_length,"
                f" {longest}"
            )
        position_scheme(self.position_scheme, self.position_target_length)
        for scheme in POSITION_SCHEMES:
            target_length = getattr(self, name := f"{scheme}_target_length", None)
            if target_length is None:
                continue
            if scheme != self.position_scheme:
                raise InputError(
                    f"{name} is {target_length}, but position_scheme is '{self.position_scheme}' and would"
                    " ignore it"
                )
            if target_length < length:
                raise InputError(
                    f"{name} is {target_length} tokens; it must be at least train_context_length, {length}"
                )

    def _validate_evaluation(self) -> None:
        lengths = self.eval_context_lengths or ()
        for length in lengths:
            if max(lengths) % length:
                raise InputError(
                    f"eval_context_lengths has {length}; each must divide the longest, {max(lengths)}"
                )


OUR_FIELDS = tuple(
    field.name for field in dataclasses.fields(PretrainConfig) if field.name in PretrainConfig.__annotations__
)
HONOURED_FIELDS = frozenset(OUR_FIELDS) | {
    "run_name", "seed", "model", "optimizer", "scheduler", "save_folder", "save_interval",
    "save_num_unsharded_checkpoints_to_keep", "max_duration", "global_train_batch_size",
    "device_train_microbatch_size", "max_grad_norm", "precision", "console_log_interval", "eval_interval",
    "activation_checkpointing", "compile",
}  # fmt: skip


def plain_values(config: Any) -> dict[str, Any]:
    """`config` as it is written to YAML: nested dicts and lists, enums by name."""
    # Through YAML itself: a config in memory has tuples and enums, one that was read back has not.
    text = OmegaConf.to_yaml(OmegaConf.structured(config))
    return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(text)))


@cache
def _olmo_defaults() -> dict[str, Any]:
    return plain_values(TrainConfig())


def refuse_ignored_fields(given: dict[str, Any]) -> None:
    """Refuse a setting of OLMo's that this stage would not act on.

    Args:
        given: what the user wrote, nested plain values.

    Raises:
        InputError: names the field.
    """
    defaults = _olmo_defaults()
    for name, value in given.items():
        if name not in HONOURED_FIELDS and value is not None and value != defaults[name]:
            raise InputError(
                f"'{name}' is a field of OLMo's trainer that pretrain does not act on;"
                " leave it out or set it to null"
            )


_EMBEDDING_MULTIPLE = 128  # OLMo pads its embedding to a multiple of this: faster matrix products
_BATCH_FIELDS = {
    "global_train_batch_tokens": "global_train_batch_size",
    "device_train_microbatch_tokens": "device_train_microbatch_size",
}


class DataFacts(Protocol):
    """What a configuration takes from tokenized data: the fields of that name of `TokenizedData`."""

    @property
    def vocabulary_size(self) -> int:
        """Tokens of the tokenizer."""

    @property
    def eos_token_id(self) -> int:
        """The token that ends a document."""

    @property
    def train_sha256(self) -> str:
        """SHA-256 of the training tokens, in hex."""

    @property
    def num_train_tokens(self) -> int | None:
        """EOS included; None where they are not known yet."""


@dataclass(frozen=True)
class AssumedData:
    """Stands for data that is not there yet, to plan with."""

    vocabulary_size: int
    eos_token_id: int = 0
    train_sha256: str = "unknown"
    num_train_tokens: int | None = None


def load_config(path: Path, overrides: Sequence[str], data: DataFacts) -> PretrainConfig:
    """The configuration of one run, complete and checked.

    Args:
        path: a YAML file of PretrainConfig's, or plain OLMo TrainConfig's, fields.
        overrides: `field.subfield=value`, as in OLMo's scripts; they win over the file.
        data: `TokenizedData`, whose tokenizer decides vocab_size, embedding_size, eos_token_id and
            pad_token_id of the model; a setting that says otherwise is refused.

    Raises:
        InputError: one sentence naming the field and what would be right.
    """
    try:
        given = _read_given(path, overrides)
        refuse_unknown_fields(given, _schema())
        refuse_ignored_fields(given)
        _take_from_data(given, data)
        config = OmegaConf.to_object(merge_given(path, _schema(), given))
        assert isinstance(config, PretrainConfig)
        refuse_bad_numbers(config)
        _derive_sequences(config, given)
    except OmegaConfBaseException as error:
        raise InputError(f"{path}: {omegaconf_sentence(error)}") from error
    config.validate()
    _refuse_impossible_model(config)
    return config


@cache
def _schema() -> DictConfig:
    """All fields with their types and defaults, built once: a study loads a dozen configurations."""
    return OmegaConf.structured(PretrainConfig)


def _refuse_impossible_model(config: PretrainConfig) -> None:
    """Let OLMo itself look at the model, without its weights: what it would refuse later is refused here."""
    from olmo.exceptions import OLMoConfigurationError

    from pipeline.training.speed import model_without_weights

    try:
        model_without_weights(config.model)
    except (OLMoConfigurationError, AssertionError, RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or ["OLMo's own check fails"])[0]
        raise InputError(f"model: OLMo refuses this combination of settings ({reason})") from error


def _read_given(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """What the file and the overrides say, merged, interpolations resolved."""
    chosen = read_overrides(overrides)
    _register_resolvers()
    merged = merge_given(path, PretrainConfig.update_legacy_settings(read_yaml(path)), chosen)
    given = OmegaConf.to_container(merged, resolve=True)
    assert isinstance(given, dict)
    return cast(dict[str, Any], given)


def read_overrides(overrides: Sequence[str]) -> DictConfig:
    """What `field.subfield=value` words of a command line say.

    Raises:
        InputError: names the word that says nothing.
    """
    for override in overrides:
        if "=" not in override:
            raise InputError(f"override '{override}' has no '='; write it as field=value, such as seed=1")
        try:
            OmegaConf.from_dotlist([override])
        except (YAMLError, OmegaConfBaseException) as error:
            raise InputError(
                f"override '{override}' is not readable: behind '=' stands a value as YAML has it, such as"
                " seed=1 or betas=[0.9,0.95]"
            ) from error
    return OmegaConf.from_dotlist(list(overrides))


def merge_given(path: Path, *parts: Any) -> DictConfig:
    """Fields of a configuration, the later parts winning.

    Raises:
        InputError: a value is of another kind than its field; names `path`, where most of them stand.
    """
    try:
        return cast(DictConfig, OmegaConf.merge(*parts))
    except (OmegaConfBaseException, TypeError) as error:  # a TypeError where a list meets fields
        field = _unmergeable_field(parts)
        raise InputError(f"{path}: {field}{omegaconf_sentence(error)}") from error


def _unmergeable_field(parts: Sequence[Any]) -> str:
    """The field that cannot be merged, which OmegaConf's message may not name."""
    for part in parts[1:]:
        for name, value in cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(part))).items():
            try:
                OmegaConf.merge(parts[0], {name: value})
            except (OmegaConfBaseException, TypeError):
                return f"{name}: "
    return ""


def read_yaml(path: Path) -> DictConfig:
    """What a configuration file says.

    Raises:
        InputError: there is none, or it does not hold fields.
    """
    try:
        file = OmegaConf.load(path)
    except FileNotFoundError as error:
        raise InputError(f"no configuration file {path}") from error
    except (OSError, ValueError, RecursionError, YAMLError, OmegaConfBaseException) as error:
        raise InputError(f"{path} is not a readable YAML file: {error}") from error
    if not isinstance(file, DictConfig):
        raise InputError(f"{path} does not hold the fields of a training configuration")
    return file


def _register_resolvers() -> None:
    """Let a file use OLMo's `path.*` interpolations."""
    with (
        warnings.catch_warnings()
    ):  # ai2-olmo 0.6 registers them in a way that OmegaConf 2.4 calls deprecated
        warnings.simplefilter("ignore", UserWarning)
        PretrainConfig._register_resolvers(validate_paths=False)


def refuse_unknown_fields(given: Mapping[str, Any], schema: DictConfig, prefix: str = "") -> None:
    """Raise for the first field, at any depth, that the configuration does not have."""
    known_names = [str(name) for name in schema]
    for name, value in given.items():
        if name not in known_names:
            valid = [f"{prefix}{known}" for known in known_names]
            raise unknown_name("configuration field", f"{prefix}{name}", valid)
        if isinstance(value, Mapping) and isinstance(schema[name], DictConfig) and len(schema[name]):
            refuse_unknown_fields(value, schema[name], f"{prefix}{name}.")


def _take_from_data(given: dict[str, Any], data: DataFacts) -> None:
    """Fill in what the tokenized data decides; refuse a setting that says otherwise."""
    model = given["model"] = dict(given.get("model") or {})
    padded_size = -(-data.vocabulary_size // _EMBEDDING_MULTIPLE) * _EMBEDDING_MULTIPLE
    decided = [
        (given, "train_data_sha256", data.train_sha256),
        (model, "vocab_size", data.vocabulary_size),
        (model, "embedding_size", padded_size),
        (model, "eos_token_id", data.eos_token_id),
        (model, "pad_token_id", data.eos_token_id),  # sequences are full: no token is ever padding
    ]
    for settings, name, value in decided:
        if settings.get(name) not in (None, value):
            field = name if settings is given else f"model.{name}"
            raise InputError(
                f"{field} is {settings[name]}, but the tokenized data says {value}; leave it out"
            )
        settings[name] = value


def _derive_sequences(config: PretrainConfig, given: Mapping[str, Any]) -> None:
    """Turn batch sizes in tokens into OLMo's, in sequences of this run's length."""
    for tokens_field, sequences_field in _BATCH_FIELDS.items():
        tokens, length = getattr(config, tokens_field), config.sequence_length
        if tokens is None:
            continue
        if tokens < length or tokens % length:
            raise InputError(
                f"{tokens_field} {tokens} is not a multiple of the train_context_length, {length} tokens"
            )
        if given.get(sequences_field) not in (None, tokens // length):
            raise InputError(
                f"{tokens_field} {tokens} makes {tokens // length} sequences, but {sequences_field} is"
                f" {given[sequences_field]}; give one of the two"
            )
        setattr(config, sequences_field, tokens // length)


def counts_epochs(max_duration: int | str) -> bool:
    """Whether only the data tells how long that is."""
    return str(max_duration).strip().endswith("ep")


def num_training_steps(max_duration: int | str, tokens_per_step: int, steps_per_epoch: int) -> int:
    """OLMo's `max_duration` in optimizer steps: 1000 steps, "2e6T" tokens (rounded up), "2ep" epochs.

    Raises:
        InputError: it is none of these, or less than one step.
    """
    text = str(max_duration).strip()
    try:
        if counts_epochs(text):
            num_steps = int(text[:-2]) * steps_per_epoch
        elif text.endswith("T"):
            num_steps = math.ceil(float(text[:-1]) / tokens_per_step)
        else:
            num_steps = int(float(text))
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"max_duration '{max_duration}' is not steps (1000), tokens ('2e6T') or epochs ('2ep')"
        ) from error
    if num_steps < 1:
        raise InputError(f"max_duration '{max_duration}' is less than one step")
    return num_steps


class Schedule:
    """Steps are counted from 1, as OLMo's trainer does: step n uses the rate at n."""

    def __init__(self, config: PretrainConfig, steps_per_epoch: int) -> None:
        """Build the schedule of a run.

        Args:
            config: the run's configuration.
            steps_per_epoch: optimizer steps that see every training sequence once.

        Raises:
            InputError: the duration is not understood, or the warm-up is longer than it.
        """
        self.num_steps = num_training_steps(config.max_duration, config.tokens_per_step, steps_per_epoch)
        self._config = config
        self._scheduler = build_scheduler(config)
        in_tokens = config.scheduler.units == SchedulerUnits.tokens
        self._unit = config.tokens_per_step if in_tokens else 1
        warms_up = config.scheduler.name != SchedulerType.constant
        if warms_up and config.scheduler.t_warmup > self.num_steps * self._unit:
            raise InputError(
                f"scheduler.t_warmup is {config.scheduler.t_warmup} {config.scheduler.units}, longer than"
                f" max_duration '{config.max_duration}' ({self.num_steps} steps of"
                f" {config.tokens_per_step} tokens)"
            )

    def learning_rate(self, step: int) -> float:
        """The learning rate of `step`."""
        return self._scheduler.get_lr(
            self._config.optimizer.learning_rate, step * self._unit, self.num_steps * self._unit
        )

    def max_grad_norm(self, step: int) -> float | None:
        """The norm to which the gradient of `step` is clipped; None: it is not clipped."""
        return self._scheduler.get_max_grad_norm(
            self._config.max_grad_norm, step * self._unit, self.num_steps * self._unit
        )

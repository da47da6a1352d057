"""What one pretraining run is: OLMo's TrainConfig with our fields for length, positions and batch in tokens.

A plain OLMo TrainConfig YAML loads too. Of OLMo's top-level fields the run honours those in
`HONOURED_FIELDS`; any other one is refused unless it is null or has OLMo's default value, for a setting
that does nothing would be recorded as if it had done something. `model`, `optimizer` and `scheduler` go
to OLMo's own classes whole. `max_duration` has OLMo's meaning: 1000 is steps, "2e6T" tokens, "2ep"
epochs. `save_interval` counts steps between checkpoints, which are always unsharded.
"""

import dataclasses
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from olmo.config import DistributedStrategy, TrainConfig
from omegaconf import OmegaConf

from pipeline.errors import InputError, unknown_name
from pipeline.positions.schemes import POSITION_SCHEMES, position_scheme
from pipeline.training.value_checks import refuse_bad_numbers, refuse_bad_relations

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
    the end (pipeline.training.held_out_loss). The longest must be a multiple of each. None: never."""

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

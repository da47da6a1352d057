"""Which values a configuration of training may have: a table of ranges and one of relations.

Asked where the configuration is built, so that no library refuses a number, or takes a senseless one, after
data was read and folders were made. nan lies in no range. None means "off" or "by default", and is not asked.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from pipeline.errors import InputError

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

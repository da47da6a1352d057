"""Pretrain one OLMo model on tokenized text, at a chosen context length and position scheme.

The configuration is an OLMo TrainConfig file with a few fields of ours (olmo_configs/); any field can be
overridden as field=value. Training context and position scheme are overrides, so that one file serves
the short-context model, the one with PoSE and the long-context one. A step sees
global_train_batch_tokens tokens at any train_context_length.

A laptop-size run, about a minute on one core:

    python pipeline/pretrain.py olmo_configs/demo.yaml --data runs/demo/data \\
        --save-folder runs/demo/models/short-pose train_context_length=32 \\
        position_scheme=pose pose_target_length=128 seed=0 max_duration=360

A full-size run, on one GPU:

    python pipeline/pretrain.py olmo_configs/150m.yaml --data runs/c4/data \\
        --save-folder runs/c4/models/long seed=0 max_duration=1e10T

Several GPUs: under torchrun or `accelerate launch`, one process each; a step stays the same, divided over
them. olmo_configs/README.md has the fields for speed and memory.

    torchrun --nproc-per-node 8 pipeline/pretrain.py olmo_configs/1b.yaml --data runs/c4/data \\
        --save-folder runs/c4/models/1b distributed_strategy=fsdp

Under --save-folder: metrics.jsonl (one line a step: step, tokens, loss_nats, learning_rate, gradient_norm,
tokens_per_second and, every eval_interval steps, held_out_loss_nats_at_<context length>); and a folder
step<N>-unsharded every save_interval steps and at the end, in OLMo's own layout, with the sizes and SHA-256
of its files (complete.json). The same command run again goes on from the last one, to the same weights, or
says that the run is finished. Another configuration, other data, or a folder in which another job runs is
refused, and so is a last checkpoint that is damaged: once it is removed, the run goes on from the one before.
Each start reads the training tokens once and compares their SHA-256.

SIGTERM or SIGUSR1, sent to any of the processes that train: the step in hand is finished and saved, and the
exit code is 75: run the same command again to go on. (torchrun reports 1 for every exit code but 0.)
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from sparsity_length.cli import Asked, file_path, folder_path, run_stage, stage_parser
from sparsity_length.text.folder import TokenizedData

# torch and ai2-olmo are imported in the functions, for a --help at once.
_NO_TEXT = TokenizedData(Path(), [], np.dtype(np.uint16), 2, 0, "unknown", "unknown")
"""What a training is checked with before its text is there."""


def check(arguments: argparse.Namespace, data: TokenizedData) -> Any:
    """The PretrainConfig, checked as far as it can be without the data itself, or an InputError."""
    from sparsity_length.training.config import load_config

    config = load_config(arguments.config, arguments.overrides, data)
    # The flag wins over a save_folder of the file; the folder may move, and is no setting of the run.
    config.save_folder = str(arguments.save_folder)
    return config


def is_done(arguments: argparse.Namespace) -> bool:
    """Whether the run has come to its end; a folder that holds another run is refused."""
    from sparsity_length.training.loop import has_finished

    config = check(arguments, TokenizedData.open(arguments.data))
    return has_finished(arguments.save_folder, config, config.num_steps)


def left(arguments: argparse.Namespace, asked: Asked) -> tuple[bool, Any]:
    """Whether the run is unfinished, and its configuration, which does not depend on the text."""
    return not (asked.is_ready and is_done(arguments)), check(arguments, _NO_TEXT)


def main(arguments: argparse.Namespace) -> None:
    """Train, go on training, or say that the run is finished."""
    from sparsity_length.training.data import refuse_damaged_tokens
    from sparsity_length.training.loop import train
    from sparsity_length.training.trainer import Trainer

    if not is_done(arguments):
        data = TokenizedData.open(arguments.data)
        refuse_damaged_tokens(data)
        train(arguments.save_folder, lambda: Trainer(check(arguments, data), data))


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add = stage.add_argument
    add("config", type=file_path, help="an OLMo TrainConfig YAML file, such as olmo_configs/tiny.yaml")
    add("overrides", nargs="*", metavar="field=value", help="fields to set otherwise than the file does")
    add("--data", type=folder_path, required=True, help="folder written by tokenize_c4.py")
    add("--save-folder", type=folder_path, required=True, help="the run's folder: checkpoints and metrics")
    # Overrides may stand before, between and after the flags, which plain parse_args does not allow.
    stage.parse_args = stage.parse_intermixed_args  # type: ignore[method-assign]
    return stage


if __name__ == "__main__":
    run_stage(parser(), main)

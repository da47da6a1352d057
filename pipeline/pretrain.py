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

from sparsity_length.cli import Stage, file_path, folder_path, late


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the configuration, its overrides, and the folders."""
    add = parser.add_argument
    add("config", type=file_path, help="an OLMo TrainConfig YAML file, such as olmo_configs/tiny.yaml")
    add("overrides", nargs="*", metavar="field=value", help="fields to set otherwise than the file does")
    add("--data", type=folder_path, required=True, help="folder written by tokenize_c4.py")
    add("--save-folder", type=folder_path, required=True, help="the run's folder: checkpoints and metrics")


STAGE = Stage(
    __doc__,
    add_flags,
    run=late("sparsity_length.training.trainer:pretrain"),
    settings=late("sparsity_length.training.config:config_without_text"),
    left=late("sparsity_length.training.trainer:left"),
)


if __name__ == "__main__":
    STAGE.main()

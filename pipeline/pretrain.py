"""Train one OLMo model on tokenized text, at a chosen context length and position scheme.

The configuration is an OLMo TrainConfig file with a few fields of our own (see olmo_configs/). Any field can
be overridden as field=value. Context length and position scheme are overrides, so one file serves the
short-context model, the PoSE model and the long-context model. Every step sees global_train_batch_tokens
tokens, at any train_context_length.

On a laptop, about a minute on one core:
  sparsity pretrain olmo_configs/demo.yaml --data runs/demo/data --save-folder runs/demo/models/short-pose \\
      train_context_length=32 position_scheme=pose pose_target_length=128 seed=0 max_duration=360

At full size, on one GPU:
  sparsity pretrain olmo_configs/150m.yaml --data runs/c4/data --save-folder runs/c4/models/long \\
      seed=0 max_duration=1e10T

On several GPUs, with torchrun or `accelerate launch`, one process per GPU. The processes divide each step,
which stays the same. olmo_configs/README.md lists the fields for speed and memory.
  torchrun --nproc-per-node 8 -m sparsity_length pretrain olmo_configs/1b.yaml --data runs/c4/data \\
      --save-folder runs/c4/models/1b distributed_strategy=fsdp

Output, in the --save-folder:
  metrics.jsonl       one line per step: step, tokens, loss_nats, learning_rate, gradient_norm,
                      tokens_per_second and, every eval_interval steps,
                      held_out_loss_nats_at_<context length>
  step<N>-unsharded/  a checkpoint in OLMo's own layout, every save_interval steps and at the end;
                      complete.json has the sizes and SHA-256 of its files
Resume: run the same command again to continue from the last checkpoint, to the same weights, or to learn that
the run is finished. The program refuses another configuration, other data, and a folder in use by another
job. It also refuses a damaged last checkpoint; remove it to continue from the one before. Each start reads
the training tokens once and verifies their SHA-256.

After SIGTERM or SIGUSR1 (sent to any training process), the program finishes the current step, saves it, and
exits with code 75. Run the same command again to continue. (torchrun turns every exit code but 0 into 1.)
"""

import argparse

from sparsity_length.cli import Stage, file_path, folder_path, late


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the configuration, its overrides, and the folders."""
    add = parser.add_argument
    add("config", type=file_path, help="OLMo TrainConfig YAML file, such as olmo_configs/tiny.yaml")
    add("overrides", nargs="*", metavar="field=value", help="values that override fields of the file")
    add("--data", type=folder_path, required=True, help="folder written by tokenize_c4")
    add(
        "--save-folder", type=folder_path, required=True, help="the run's folder, for checkpoints and metrics"
    )


STAGE = Stage(
    __doc__,
    add_flags,
    run=late("sparsity_length.training.trainer:pretrain"),
    settings=late("sparsity_length.training.config:config_without_text"),
    left=late("sparsity_length.training.trainer:left"),
)


if __name__ == "__main__":
    STAGE.main()

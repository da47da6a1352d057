"""Train one model on one synthetic task, with a chosen position scheme.

The configuration is a YAML file (see olmo_configs/synthetic/). Any field can be overridden as field=value,
for example num_steps=500 model.width=64.

Tasks (sparsity_length/synthetic/tasks.py shows an example of each):
  with k     sparse_parity, planted_correlation, sparse_or, sparse_majority, sparse_first, sparse_last,
             sparse_lookup, sparse_parity_scratchpad, variable_assignment_hops
  without k  parity_scratchpad, variable_assignment, addition, addition_padded, copy, cues_1, cues_2, cues_4

Position schemes: contiguous, pose, randomized; coupled (the response's coupled IDs are given in training and,
as an oracle, in testing); and predicted (PPC: the model learns to predict these IDs in training and must
predict them in testing). With contiguous position IDs and another attention
(sparsity_length/synthetic/schemes.py): nope (no positions), alibi, dape_nope and dape_alibi (DAPE V2 over
either), and sparse (each row attends to the model.num_keys keys with the largest scores).

On a laptop, a few minutes on two cores:
  sparsity train_synthetic olmo_configs/synthetic/small.yaml --task copy --positions predicted \\
      --save-folder runs/demo/synthetic/copy-predicted-seed0 num_steps=1000

At full size, on one GPU:
  sparsity train_synthetic olmo_configs/synthetic/paper.yaml --task variable_assignment \\
      --positions predicted --save-folder runs/synthetic/models/variable_assignment-predicted-seed0 seed=0

A run ends early once a measurement finds the excess loss small enough (stop_at_excess_loss; only cues_*,
whose best possible loss is known) or enough exact matches (stop_at_accuracy; all other tasks), and a second
one, on other examples, does, too. At the end, the program says whether the task was learned: by default, if
at least 99% of responses to examples as in training are entirely right; otherwise as stop_at_accuracy or
stop_at_excess_loss demand. A model that has not learned its task says nothing about other lengths.

Output, in the --save-folder:
  metrics.jsonl       one line per step: step, loss, learning_rate, gradient_norm, with predicted positions
                      position_id_loss and, every eval_interval steps and at the end, exact_match and, for
                      cues_*, excess_loss (losses in nats)
  step<N>-unsharded/  a checkpoint, every save_interval steps and at the end
Resume: run the same command again to continue from the last checkpoint, with identical bytes, or to learn
that the run is finished. Another configuration is refused, and so is a folder in use by another job.

After SIGTERM or SIGUSR1, the program finishes the current step, saves it, and exits with code 75. Run the
same command again to continue.
"""

import argparse

from sparsity_length.cli import Stage, file_path, folder_path, late


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the configuration, its overrides, task, positions and folder."""
    add = parser.add_argument
    add("config", type=file_path, help="YAML file, such as olmo_configs/synthetic/small.yaml")
    add("overrides", nargs="*", metavar="field=value", help="values that override fields of the file")
    add("--task", required=True, help="name of the task")
    add("--positions", required=True, help="name of the position scheme")
    add(
        "--save-folder", type=folder_path, required=True, help="the run's folder, for checkpoints and metrics"
    )


STAGE = Stage(
    __doc__,
    add_flags,
    run=late("sparsity_length.synthetic.train:train_on_task"),
    settings=late("sparsity_length.synthetic.config:config_of"),
    left=late("sparsity_length.synthetic.train:left"),
)


if __name__ == "__main__":
    STAGE.main()

"""Train one model on one synthetic task, at a chosen position scheme.

The configuration is a YAML file (olmo_configs/synthetic/); any field can be overridden as field=value, as in
num_steps=500 model.width=64. Tasks: sparse_parity, planted_correlation, parity_scratchpad,
variable_assignment, addition, addition_padded, copy; sparse_parity_scratchpad,
variable_assignment_hops (with k); sparse_or, sparse_majority, sparse_last, sparse_lookup;
cues_1, cues_2, cues_4; sparsity_length/synthetic/tasks.py shows an example of each.
Positions: contiguous, pose, randomized; coupled, where the response's coupled IDs are given in training and,
as an oracle, in testing; predicted (PPC), where the model must predict them in testing, and learns to in
training.

A laptop-size run, minutes on two cores:

    python pipeline/train_synthetic.py olmo_configs/synthetic/small.yaml --task copy --positions predicted \\
        --save-folder runs/demo/synthetic/copy-predicted-seed0 num_steps=1000

A full-size run, on one GPU:

    python pipeline/train_synthetic.py olmo_configs/synthetic/paper.yaml --task variable_assignment \\
        --positions predicted --save-folder runs/synthetic/models/variable_assignment-predicted-seed0 seed=0

Under --save-folder: metrics.jsonl (one line a step: step, loss, learning_rate, gradient_norm, with predicted
positions position_id_loss and, every eval_interval steps and at the end, exact_match and, of cues_*,
excess_loss; losses in nats); and a folder step<N>-unsharded every save_interval steps and at the end. The
same command run again goes on from the last of them, to the same bytes, or says that the run is finished;
another configuration is refused, and so is a folder in which another job runs.

SIGTERM or SIGUSR1: the step in hand is finished and saved, and the exit code is 75: run the same command
again to go on.

A run ends early once a measurement finds so little loss beyond the best possible one (stop_at_excess_loss, of
cues_*, whose best loss is known), or so many exact matches (stop_at_accuracy, all other tasks).

The end says whether the task was learnt: at least 99 % of responses, as in training, wholly right; or what
stop_at_accuracy or stop_at_excess_loss asks for. A model that has not learnt its task shows nothing at other
lengths.
"""

import argparse

from sparsity_length.cli import Stage, file_path, folder_path, late


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the configuration, its overrides, task, positions and folder."""
    add = parser.add_argument
    add("config", type=file_path, help="a YAML file such as olmo_configs/synthetic/small.yaml")
    add("overrides", nargs="*", metavar="field=value", help="fields to set otherwise than the file does")
    add("--task", required=True, help="the task's name")
    add("--positions", required=True, help="the position scheme's name")
    add("--save-folder", type=folder_path, required=True, help="the run's folder: checkpoints and metrics")


STAGE = Stage(
    __doc__,
    add_flags,
    run=late("sparsity_length.synthetic.train:train_on_task"),
    settings=late("sparsity_length.synthetic.config:config_of"),
    left=late("sparsity_length.synthetic.train:left"),
)


if __name__ == "__main__":
    STAGE.main()

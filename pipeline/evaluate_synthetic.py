"""Test models of a synthetic task: their accuracy, or which tokens decide their answers.

Models answer freely: each token of the response, and with predicted positions (PPC) each position ID, is the
most likely one and is fed back. An exact match is a response without any error, wrong IDs included. For
cues_*, the program also measures the excess of the loss over the best possible one. Test examples depend only
on (size, k), so they are the same for every model. The program prints one line per size and k.

--dependencies asks instead whether the selection rules find the tokens that truly decide an answer, which the
task's generator knows. Each rule selects tokens from the distant context of every answer token, as
influential_tokens does in text, and each selected token either is in the true dependency set or is not. Here
the answers and the true position IDs are given. Ablated tokens are masked, or replaced by other examples'
tokens in the same place (swap). The last two tokens are the short context: dependencies there are always
visible and not counted, and targets without a dependency in their distant context are left out.

Output: <results>/synthetic_accuracy/<run folder's name>/*.parquet and <results>/synthetic_examples/…, or with
--dependencies <results>/found_dependencies/… (columns: pipeline/RESULTS.md).
Resume: run the same command again. Each size and k is a shard, kept once it is complete; results made with
other settings are refused.

At full size, on one GPU:
  sparsity evaluate_synthetic --task sparse_parity --checkpoints runs/paper/models/* \\
      --results runs/paper/results --sizes 20 50 100 200 300 400 500 --sparsities 4 6 8 10 12 14 16

On a laptop, after the laptop example of train_synthetic (takes seconds):
  sparsity evaluate_synthetic --task copy --checkpoints runs/demo/synthetic/copy-predicted-seed0 \\
      --results runs/demo/synthetic/results --sizes 5 10 20 30 --num-examples 100
  sparsity evaluate_synthetic --task copy --checkpoints runs/demo/synthetic/copy-predicted-seed0 \\
      --results runs/demo/synthetic/results --sizes 5 10 --num-examples 20 --dependencies --largest-k 4
"""

import argparse

from sparsity_length.cli import Stage, folder_path, late, positive_int
from sparsity_length.measuring.rules import CONTROLS, RULES
from sparsity_length.synthetic.config import tested_cells
from sparsity_length.synthetic.tasks import TASKS


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add which models are tested, at which sizes, and whether by accuracy or by dependencies."""
    add = parser.add_argument
    add(
        "--task",
        required=True,
        choices=TASKS,
        metavar="TASK",
        help="name of the task; run folders of other tasks are refused",
    )
    add(
        "--checkpoints",
        type=folder_path,
        nargs="+",
        required=True,
        metavar="RUN",
        help="run folders of train_synthetic",
    )
    add(
        "--results",
        type=folder_path,
        required=True,
        help="results folder to write to; complete shards in it are kept",
    )
    add(
        "--sizes",
        type=positive_int,
        nargs="+",
        required=True,
        help="sizes of the test examples, in the task's own unit: letters, bits, digits, assignments, or"
        " prompt tokens",
    )
    add(
        "--sparsities",
        type=positive_int,
        nargs="+",
        help="values of k of the test examples, for tasks with k; a size too small for a k is skipped",
    )
    add("--num-examples", type=positive_int, default=1000, help="number of test examples for each size and k")
    add(
        "--dependencies",
        action="store_true",
        help="measure which tokens decide the answers, instead of the accuracy",
    )
    add(
        "--rules",
        nargs="+",
        choices=RULES,
        default=[
            "attention_rollout",
            "leave_one_out",
            "leave_one_out_divergence",
            "add_one_in",
            "greedy",
            *CONTROLS,
        ],
        metavar="RULE",
        help=f"selection rules for --dependencies, from: {', '.join(RULES)}",
    )
    add(
        "--largest-k",
        type=positive_int,
        default=8,
        help="number of tokens that each rule selects; at least as many as truly decide",
    )


STAGE = Stage(
    __doc__,
    add_flags,
    run=late("sparsity_length.synthetic.testing:test"),
    settings=tested_cells,
    left=late("sparsity_length.synthetic.testing:left"),
)


if __name__ == "__main__":
    STAGE.main()

"""Test models of one synthetic task at every test size and k: accuracy, or which tokens decide.

The models answer freely: each token of the response, and with predicted positions (PPC) each position ID, is
the likeliest, and read back. Exact match counts a response where all are right, a wrong ID being an error.
For cues_* the loss beyond the best possible one is measured, too.
Test examples are drawn by (size, k), the same for every model. Prints a line for each size and k.

--dependencies asks instead whether the selection rules find the tokens that truly decide an answer, which the
task's generator knows: the tokens that every rule selects in the distant context of every answer token, as
influential_tokens.py selects them in text, and whether each is in the true dependency set. Answers are given,
not generated, and position IDs the true ones. A token left out is masked, or replaced by the tokens that
other examples have in its place (swap). What of a dependency set lies in the short context, the last two
tokens, is seen anyway and not counted; targets whose distant context holds no true dependency are left out.

writes   <results>/synthetic_accuracy/<run folder's name>/*.parquet      columns: pipeline/RESULTS.md
         with --dependencies found_dependencies
resumes  run the same command again; a size and k is a shard, kept once complete; other settings are refused

full size, on one GPU:
  python pipeline/evaluate_synthetic.py --task sparse_parity --checkpoints runs/paper/models/* \\
      --results runs/paper/results --sizes 20 50 100 200 300 400 500 --sparsities 4 6 8 10 12 14 16

on a laptop, after the laptop command of train_synthetic.py (seconds):
  python pipeline/evaluate_synthetic.py --task copy --checkpoints runs/demo/synthetic/copy-predicted-seed0 \\
      --results runs/demo/synthetic/results --sizes 5 10 20 30 --num-examples 100
  python pipeline/evaluate_synthetic.py --task copy --checkpoints runs/demo/synthetic/copy-predicted-seed0 \\
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
        help="the task's name; run folders of other tasks are refused",
    )
    add(
        "--checkpoints",
        type=folder_path,
        nargs="+",
        required=True,
        metavar="RUN",
        help="run folders of train_synthetic.py",
    )
    add("--results", type=folder_path, required=True, help="results folder; complete shards in it are kept")
    add(
        "--sizes",
        type=positive_int,
        nargs="+",
        required=True,
        help="sizes of the test examples, in the task's own unit (letters, bits, digits, assignments, prompt"
        " tokens)",
    )
    add(
        "--sparsities",
        type=positive_int,
        nargs="+",
        help="k of the test examples, for tasks with k; left out at sizes without room",
    )
    add("--num-examples", type=positive_int, default=1000, help="test examples of each size and k")
    add("--dependencies", action="store_true", help="find the tokens that decide, instead of the accuracy")
    add(
        "--rules",
        nargs="+",
        choices=RULES,
        # The first finds most of the truth of these tasks (analysis/README.md).
        default=[
            "attention_rollout",
            "leave_one_out",
            "leave_one_out_divergence",
            "add_one_in",
            "greedy",
            *CONTROLS,
        ],
        help="selection rules of --dependencies",
    )
    add(
        "--largest-k",
        type=positive_int,
        default=8,
        help="tokens that each rule selects, in its order; at least as many as truly decide",
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

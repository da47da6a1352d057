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

from sparsity_length.cli import Stage, late
from sparsity_length.synthetic.config import Testing

STAGE = Stage(
    __doc__,
    Testing.add_flags,
    run=Testing.given_to(late("sparsity_length.synthetic.testing:test")),
    settings=Testing.given_to(Testing.check),
    left=Testing.given_to(late("sparsity_length.synthetic.testing:left")),
)


if __name__ == "__main__":
    STAGE.main()

"""Find the few distant tokens that each prediction needs, and measure what they recover.

For each checkpoint and each target t of the evaluation documents, the program
  1. measures the loss with everything before t in the chunk (the long context) and with only the s tokens
     before t (the short context), and KL(p(.|long) || p(.|short)), which does not look at the target token;
  2. ranks the distant tokens by each rule: by the loss or, if the rule's name ends in _divergence, by the KL;
  3. measures loss and KL with the short context and the k tokens ranked first. Under --ablation swap,
     other documents' tokens take the places of all other distant tokens; these documents were not used for
     ranking. Under --ablation mask, nothing else is visible. The baselines random and recency are measured
     at every power of two up to the whole distant context;
  4. repeats this with another document's tokens at the same positions. This null baseline tells how much of
     the recovery the search alone achieves;
  5. computes how many tokens each prediction needs, by loss and by KL: mean_log2_k, in doublings, for every
     target with a gain, and k_90, the smallest k that recovers 90% of the gain.

pipeline/README.md explains every rule and ablation, their cost, and the null baseline. Here a model evaluates
its own choice; evaluate_tokens evaluates it with other models.

Output: <results>/{influential_tokens,influences,sparse_context_losses,dependency_sparsity}/<model>/*.parquet
(columns: pipeline/RESULTS.md).
Resume: run the same command again. Complete shards are kept; results made with other settings are refused.

At full size, on one GPU:
  sparsity influential_tokens --data runs/c4/data --checkpoints runs/c4/models/long-seed0 \\
      --results runs/c4/results --short-context-length 64 --long-context-length 1024 --targets-per-chunk 64

On a laptop, after `make demo` (takes half a minute):
  sparsity influential_tokens --data runs/demo/data --checkpoints runs/demo/models/long-seed0 \\
      --results runs/try/results --long-context-length 128 --max-documents 8
"""

import argparse

from sparsity_length.measuring.rules import load_rule_files
from sparsity_length.measuring.selecting import Selecting
from sparsity_length.measuring.settings import Job, measuring_stage


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add what is selected, by which rules, and where it is evaluated."""
    Selecting.add_flags(parser)
    Job.add_flags(parser, "rule_file")


def settings(arguments: argparse.Namespace) -> Selecting:
    """What is to be measured; lengths, rules and k that do not fit together are refused."""
    load_rule_files(arguments)
    return Selecting.asked(arguments)


STAGE = measuring_stage(
    __doc__, add_flags, settings, "sparsity_length.measuring.measurements:influential_tokens"
)


if __name__ == "__main__":
    STAGE.main()

"""The few distant tokens that carry a prediction, and what is lost by keeping only them.

For each checkpoint and each target t of the evaluation documents:
  1. loss and prediction with everything before it in the chunk (long context), and with the s tokens before
     it (short context). The divergence KL(p(.|long) || p(.|short)) compares these without seeing the answer;
  2. the k distant tokens that each rule ranks first, by the loss or (names with _divergence) by the KL;
  3. loss and divergence with the short context and those k tokens: among the distant tokens of other
     documents than the one that stood in while they were chosen, or with nothing else visible anywhere in the
     network (--ablation mask); of the controls, random and recency, at every power of two up to the whole
     distant context;
  4. the same with another document's tokens at the same positions: the null, which tells how much of that is
     an effect;
  5. how many tokens it takes: mean_log2_k, in doublings, which every target with a gain has; and k*, the
     least k that recovers 90 % of the gain; by losses and by divergence.

pipeline/README.md says what each rule and ablation does and costs, and why there is a null. Here a model
tries its own choice; evaluate_tokens.py tries it on others.

writes   <results>/{influential_tokens,influences,sparse_context_losses,dependency_sparsity}/<model>/*.parquet
         columns: pipeline/RESULTS.md
resumes  run the same command again; complete shards are kept, other settings are refused

full size, on one GPU:
  python pipeline/influential_tokens.py --data runs/c4/data --checkpoints runs/c4/models/long-seed0 \\
      --results runs/c4/results --short-context-length 64 --long-context-length 1024 --targets-per-chunk 64

on a laptop, after `make demo` (half a minute):
  python pipeline/influential_tokens.py --data runs/demo/data --checkpoints runs/demo/models/long-seed0 \\
      --results runs/try/results --short-context-length 16 --long-context-length 256 --max-documents 8
"""

import argparse

from sparsity_length.cli import file_path
from sparsity_length.measuring.rules import load_rule_file
from sparsity_length.measuring.selecting import Selecting
from sparsity_length.measuring.settings import measuring_stage


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add what is selected, by which rules, and where it is tried."""
    Selecting.add_flags(parser)
    parser.add_argument(
        "--rule-file",
        type=file_path,
        nargs="+",
        default=(),
        metavar="FILE",
        help="Python files with selection rules of your own; analysis/examples/kv_cache_rules.py shows two",
    )


def settings(arguments: argparse.Namespace) -> Selecting:
    """What is to be measured; lengths, rules and k that do not fit together are refused."""
    for path in arguments.rule_file:
        load_rule_file(path)
    return Selecting.of(vars(arguments))


STAGE = measuring_stage(
    __doc__, add_flags, settings, "sparsity_length.measuring.measurements:influential_tokens"
)


if __name__ == "__main__":
    STAGE.main()

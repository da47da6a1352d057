"""Evaluate the tokens that one model chose with other models, or under another ablation.

The choices are read from a results folder of influential_tokens. They fix the context lengths, documents,
rules and numbers k, and the null baseline: the tokens chosen in another document. For each model of
--checkpoints, the program measures losses and KL with the short context and the k tokens ranked first, and
how many of these tokens each prediction needs. A choice cannot have fitted another model's noise.

Under the ablation that the choices were made with, results can go into the same folder, where analyses find
both: column `model` names the selector, `evaluator` the model that evaluated the choice. Under another
ablation they need a folder of their own. If the choices were made with --screen, tokens beyond their largest
--k were not recorded and are not evaluated.

Output: <results>/{sparse_context_losses,dependency_sparsity}/<model>/<evaluator>/*.parquet (columns:
pipeline/RESULTS.md).
Resume: run the same command again. Complete shards are kept; results made with other settings are refused.

With the chosen tokens alone visible, after `make demo` (takes seconds):
  sparsity evaluate_tokens --choices runs/demo/results --data runs/demo/data \\
      --checkpoints runs/demo/models/short-pose --results runs/try/only_chosen --ablation mask
"""

import argparse

from sparsity_length.measuring.rules import load_rule_files
from sparsity_length.measuring.selecting import Evaluating
from sparsity_length.measuring.settings import Job, measuring_stage


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add whose choices are evaluated, and under which ablation."""
    Evaluating.add_flags(parser)
    Job.add_flags(parser, "rule_file")


def settings(arguments: argparse.Namespace) -> Evaluating:
    """What is asked for; lengths, rules and k are those of the choices, which may not be there yet."""
    load_rule_files(arguments)
    return Evaluating.asked(arguments)


STAGE = measuring_stage(
    __doc__, add_flags, settings, "sparsity_length.measuring.measurements:evaluated_tokens"
)


if __name__ == "__main__":
    STAGE.main()

"""Try the tokens that some model chose on other models, or under another ablation.

The choices are those of a results folder that influential_tokens wrote: for each target, rule and rank a
position. Lengths, documents, rules and numbers k are theirs, and so is the null: the tokens that were chosen
in another document. For each model of --checkpoints: losses and divergences with the short context and the k
tokens that rank first, and how few of them it needs. A choice cannot have fitted another model's noise.

Under the choices' own ablation the results can go into the same folder, where analyses find both: `model`
says who chose, `evaluator` who tried. Under another they need a folder of their own. With --screen, tokens
beyond the largest --k of the choices were not recorded and are not tried.

writes   <results>/{sparse_context_losses,dependency_sparsity}/<model>/<evaluator>/*.parquet
         columns: pipeline/RESULTS.md
resumes  run the same command again; complete shards are kept, other settings are refused

after `make demo`, the paper's figure (seconds):
  python pipeline/evaluate_tokens.py --choices runs/demo/results --data runs/demo/data \\
      --checkpoints runs/demo/models/short-pose --results runs/try/only_chosen --ablation mask
"""

import argparse

from sparsity_length.cli import folder_path, positive_int
from sparsity_length.measuring.rules import ABLATIONS, TRIAL_SWAPS
from sparsity_length.measuring.settings import measuring_stage


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add whose choices are tried, and among what."""
    add = parser.add_argument
    # fmt: off
    add("--choices", type=folder_path, required=True, metavar="RESULTS",
        help="results of influential_tokens, whose chosen tokens are tried on --checkpoints")
    add("--choices-of", metavar="MODEL", help="whose choices, where that folder holds several models'")
    add("--ablation", choices=ABLATIONS,
        help="what stands where a token is left out (default: what stood there for the choices)")
    add("--trial-swaps", type=positive_int, metavar="N",
        help="under --ablation swap: other documents that the tokens are tried among, none of them one that"
        f" stood in while they were chosen (default: the choices', or {TRIAL_SWAPS})")
    # fmt: on


# Settings are those of the choices, which may not be there yet.
STAGE = measuring_stage(
    __doc__, add_flags, lambda arguments: None, "sparsity_length.measuring.measurements:evaluated_tokens"
)


if __name__ == "__main__":
    STAGE.main()

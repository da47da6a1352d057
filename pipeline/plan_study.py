"""Say what model sizes need: parameters, tokens, memory and hours on one GPU, a line for every configuration.

These are the words at the head of olmo_configs/*.yaml. What they assume: 20 tokens a parameter are optimal
(Hoffmann et al. 2022); 6 N + 12 L D S FLOPs a token; a GPU of --peak-flops of which --utilization is used
(neither is measured here); memory by the formula in pipeline/training/estimates.py, without activation
checkpointing. What a whole study takes: pipeline/study.py --dry-run.

  python pipeline/plan_study.py olmo_configs/60m.yaml olmo_configs/150m.yaml

the size of `make demo`:
  python pipeline/plan_study.py olmo_configs/tiny.yaml --vocabulary-size 1024      # of runs/demo/data
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.start import start

    start(__file__)

import argparse
from typing import TYPE_CHECKING

from pipeline.stage import fraction, positive_int, stage_parser

if TYPE_CHECKING:
    from pipeline.training.estimates import Estimate

_OLMO_VOCABULARY = 50_280


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add(
        "configs",
        type=Path,
        nargs="+",
        metavar="config",
        help="OLMo TrainConfig YAML files, one a model size",
    )
    add(
        "--vocabulary-size",
        type=positive_int,
        default=_OLMO_VOCABULARY,
        help="tokens of the tokenizer; OLMo's",
    )
    add("--peak-flops", type=float, default=989e12, help="of one GPU, a second; an H100's in bfloat16")
    add("--utilization", type=fraction, default=0.4, help="model-FLOPs utilization to assume")
    return program


def main(arguments: argparse.Namespace) -> None:
    """Print a line for each configuration to standard output."""
    # Imported late, for a --help at once.
    from pipeline.training.estimates import Device, estimate
    from pipeline.training.given_settings import AssumedData, load_config

    device = Device("GPU", arguments.peak_flops, arguments.utilization)
    for path in arguments.configs:
        config = load_config(path, [], AssumedData(arguments.vocabulary_size))
        sys.stdout.write(f"{in_words(estimate(config, device))}\n")


def in_words(run: "Estimate") -> str:
    """One line: parameters, tokens, memory, hours."""
    return (
        f"{run.num_parameters / 1e6:,.1f} M parameters, Chinchilla-optimal at"
        f" {run.chinchilla_tokens / 1e6:,.0f} M tokens; {run.num_tokens / 1e6:,.0f} M tokens in"
        f" {run.num_steps:,} steps take {run.memory_bytes / 1e9:,.1f} GB and {run.seconds / 3600:,.2f} hours"
    )

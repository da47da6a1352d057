"""Plan a study: what each model size needs, and the jobs of the grid size x {short, short with PoSE, long}.

Without --data it prints a line for every configuration: parameters, tokens, memory and hours on one GPU.
These are the words at the head of olmo_configs/*.yaml. What they assume: 20 tokens a parameter are optimal
(Hoffmann et al. 2022); 6 N + 12 L D S FLOPs a token; a GPU of --peak-flops of which --utilization is used
(neither is measured here); memory by the formula in pipeline/training/estimates.py, without activation
checkpointing.

With --data it prints jobs, a command a line, each after a comment with its name and estimate: pipe it into sh
to submit them. Every job is checked as pretrain.py would check it. A job is a configuration and overrides,
never a copy of one; the models of a size differ in train_context_length and position_scheme only, and all of
them log the held-out loss at both lengths.

what the sizes need:
  python pipeline/plan_study.py olmo_configs/60m.yaml olmo_configs/150m.yaml

the grid on a cluster, two seeds each:
  python pipeline/plan_study.py olmo_configs/20m.yaml olmo_configs/60m.yaml olmo_configs/150m.yaml \\
      --data runs/c4/data --models runs/c4/models --short-context 256 --long-context 2048 --seeds 0 1 | sh

on a laptop, after `make demo` (three runs of two minutes, one after the other):
  python pipeline/plan_study.py olmo_configs/tiny.yaml --vocabulary-size 1024 --data runs/demo/data \\
      --models runs/demo/grid --short-context 32 --long-context 256 \\
      --launcher "python pipeline/pretrain.py" | sh
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run as a file: put the repository, not pipeline/, on the path
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from pipeline.errors import InputError
from pipeline.stage import fraction, positive_int, run_stage, stage_parser

if TYPE_CHECKING:
    from pipeline.training.estimates import Estimate

_OLMO_VOCABULARY = 50_280
_MODELS = ("short-contiguous", "short-pose", "short-randomized", "long")


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
    add("--data", type=Path, help="folder of tokenize_c4.py for the jobs; without it no jobs are printed")
    add("--models", type=Path, help="folder for the jobs' run folders")
    add("--short-context", type=positive_int, help="train_context_length of the short models")
    add("--long-context", type=positive_int, help="that of the long model, and the target length of PoSE")
    add("--seeds", type=int, nargs="+", default=[0], help="seeds of every model")
    add(
        "--grid",
        choices=_MODELS,
        nargs="+",
        default=["short-contiguous", "short-pose", "long"],
        help="models of a size",
    )
    add("--launcher", default="sbatch --job-name={name} slurm/pretrain.sh",
        help="what stands before pretrain.py's arguments; {name} is the model's")  # fmt: skip
    return program


def main(arguments: argparse.Namespace) -> None:
    """Print the plan to standard output."""
    wanted = ("models", "short_context", "long_context")
    if arguments.data is not None and any(getattr(arguments, name) is None for name in wanted):
        raise InputError("--data asks for jobs, which need --models, --short-context and --long-context too")
    for path in arguments.configs:
        lines = _job_lines(path, arguments) if arguments.data else [_describe(path, [], arguments)]
        sys.stdout.writelines(f"{line}\n" for line in lines)


def _job_lines(path: Path, arguments: argparse.Namespace) -> Iterator[str]:
    """Comment and command of every job of one size."""
    short, long = arguments.short_context, arguments.long_context
    overrides_of = {
        "short-contiguous": [f"train_context_length={short}"],
        "short-pose": [f"train_context_length={short}", "position_scheme=pose", f"pose_target_length={long}"],
        "short-randomized": [
            f"train_context_length={short}", "position_scheme=randomized", f"randomized_target_length={long}"
        ],
        "long": [f"train_context_length={long}"],
    }  # fmt: skip
    for model in arguments.grid:
        for seed in arguments.seeds:
            name = f"{path.stem}-{model}-seed{seed}"
            overrides = [*overrides_of[model], f"eval_context_lengths=[{short},{long}]", f"seed={seed}"]
            yield f"# {name}: {_describe(path, overrides, arguments)}"
            folder = arguments.models / name
            words = [str(path), "--data", str(arguments.data), "--save-folder", str(folder), *overrides]
            yield f"{arguments.launcher.replace('{name}', name)} {shlex.join(words)}"


def _describe(path: Path, overrides: Sequence[str], arguments: argparse.Namespace) -> str:
    """The estimate of one run in words."""
    # Imported late, for a --help at once.
    from pipeline.training.estimates import Device, estimate
    from pipeline.training.given_settings import AssumedData, load_config

    config = load_config(path, overrides, AssumedData(arguments.vocabulary_size))
    device = Device("GPU", arguments.peak_flops, arguments.utilization)
    return in_words(estimate(config, device))


def in_words(run: "Estimate") -> str:
    """One line: parameters, tokens, memory, hours."""
    return (
        f"{run.num_parameters / 1e6:,.1f} M parameters, Chinchilla-optimal at"
        f" {run.chinchilla_tokens / 1e6:,.0f} M tokens; {run.num_tokens / 1e6:,.0f} M tokens in"
        f" {run.num_steps:,} steps take {run.memory_bytes / 1e9:,.1f} GB and {run.seconds / 3600:,.2f} hours"
    )


if __name__ == "__main__":
    run_stage(parser(), main)

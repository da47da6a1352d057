"""How fast the influence of every far token is measured: ours beside other ways, on one model and one chunk.

Rows of the table, all with the same randomly initialised OLMo (or --checkpoint), tokens, machine and threads:
  forward per pair         stock OLMo, one masked forward pass for every (target, far token) pair
  all-targets loop         one whole forward pass a removed token, all targets at once, in batches; our
                           model code, logits at targets only, the token masked or left out: the faster here
  same, last layer at targets   that loop given one more of our tricks
  captum FeatureAblation   captum around that loop's passes, a function that returns every target's loss
  captum LLMAttribution    a pass a token on the Hugging Face twin of the model; replaces tokens
  inseq occlusion          a pass a pair on the twin; replaces tokens. Up to --inseq-up-to tokens only
  ours                     leave_each_out, in float32 and bfloat16: a whole chunk, or 96 tokens of a long one
What is not installed is named and skipped: pip install '.[benchmark]' brings captum and inseq.

What is fair. Pairs are those of m targets (--targets-per-chunk) with the tokens more than s before them. The
more targets share a pass, the more a pass is worth, to the loops and to ours alike; a pass a pair gains
nothing: so the factor over a forward per pair depends on m, the factor over the loop hardly.
The others are timed on a sample of removed tokens or pairs, evenly spread, of about --sample-tokens
token-forwards, and the whole chunk is extrapolated from it; how many were timed stands in the JSON. Passes
with nothing removed are not charged to the others. Each variant has a process of its own; timing goes round
robin, --repeats times (a variant that has used --seconds-per-variant is not timed again), and medians count.
Peak memory is what the process's resident memory rose by during a run.

Numbers before speed. Before any timing, every variant's influences of the first far tokens must equal ours
(tools that replace a token: ours with the same replacement) to within --tolerance of the influences' standard
deviation; the timed runs' own influences are checked again, before anything is shown. If one differs, that is
said and nothing else. bfloat16 is not held to equality: its agreement with float32 is a result.

The fraction of the peak is useful work (accounting.py) over the machine's best measured matrix product in the
same dtype and run (matrix_product_peak.py). The gain over the loop stands beside what counting token-forwards
predicts.

all lengths; hours on 2 cores, most of them ours at 2048:
  python tests/benchmarks/leave_one_out.py --out runs/benchmarks/leave_one_out.json

a few minutes on 2 cores:
  python tests/benchmarks/leave_one_out.py --long-context-lengths 256 --repeats 1 \\
      --out runs/benchmarks/quick.json

on a trained model and real text, for the agreement of bfloat16 with float32:
  python tests/benchmarks/leave_one_out.py --checkpoint runs/c4/models/long-seed0 --data runs/c4/data \\
      --long-context-lengths 256 --short-context-length 16 --out runs/benchmarks/trained.json
"""

import argparse
import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

# The repository, and this folder for the processes that read this file again.
sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from accounting import ModelSizes
from equality import Measured, refuse_unequal
from machine import DTYPES, machine, use_threads
from matrix_product_peak import SQUARES, Peak, Shape, matrix_product_peak
from problem import Problem, RandomModel
from report import length_report, scaling_report, table
from tqdm import tqdm
from worker import UnavailableError, VariantName, Worker

from pipeline.cli import InputError, logger, positive_int, progress_bar, run_stage, stage_parser
from pipeline.measuring.flags import ContextLengths

OURS = VariantName("ours", "variants", "SharedPrefixes")
OURS_BFLOAT16 = VariantName("ours", "variants", "SharedPrefixes", "bfloat16")
OURS_SUBSTITUTING = VariantName(
    "ours, replacing", "variants", "SharedPrefixes", arguments=(("intervention", "substitute"),)
)
PAIRS = VariantName("forward per pair", "variants", "ForwardPerPair")
LOOP = VariantName("all-targets loop", "variants", "AllTargetsLoop")
LOOPS = (
    LOOP,
    VariantName(
        "same, last layer at targets",
        "variants",
        "AllTargetsLoop",
        arguments=(("last_layer_at_targets", True),),
    ),
    VariantName("all-targets loop", "variants", "AllTargetsLoop", "bfloat16"),
)
CAPTUM = (
    VariantName("captum FeatureAblation", "peers", "FeatureAblation"),
    VariantName("captum LLMAttribution", "peers", "LLMAttribution"),
)
INSEQ = VariantName("inseq occlusion", "peers", "Occlusion")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    script = stage_parser(__doc__)
    _add_problem_arguments(script)
    add = script.add_argument
    add("--repeats", type=positive_int, default=3, help="timed rounds; medians are reported")
    add(
        "--seconds-per-variant", type=float, default=600.0,
        help="a variant whose timed runs took longer in all is not timed again at that chunk length",
    )  # fmt: skip
    add("--sample-tokens", type=positive_int, default=16384, help="token-forwards of a timed sample, about")
    add(
        "--tolerance",
        type=float,
        default=0.001,
        help="largest difference, in standard deviations of the influences",
    )
    add(
        "--inseq-up-to",
        type=int,
        default=256,
        help="longest chunk for inseq, which measures whole targets; 0: none",
    )
    add("--without-peers", action="store_true", help="leave captum and inseq out")
    add("--threads", type=positive_int, help="threads of a process; all cores if not given")
    add("--device", default="cpu", help="torch device")
    add("--out", type=Path, required=True, help="JSON file for every number")
    return script


def _add_problem_arguments(script: argparse.ArgumentParser) -> None:
    add = script.add_argument
    add(
        "--long-context-lengths", nargs="+", type=positive_int, default=[256, 512, 1024, 2048],
        help="chunk lengths ℓ, in tokens",
    )  # fmt: skip
    add("--short-context-length", type=positive_int, default=64, help="s, in tokens")
    add("--targets-per-chunk", type=positive_int, default=64, help="m, targets at the end of the chunk")
    add("--checkpoint", type=Path, help="run folder of pretrain.py instead of a random model")
    add("--data", type=Path, help="folder of tokenize_c4.py: chunks of real text, not uniformly drawn tokens")
    add("--layers", type=positive_int, default=8, help="of the random model")
    add("--width", type=positive_int, default=512, help="of the random model")
    add("--heads", type=positive_int, default=8, help="of the random model")
    add("--vocabulary", type=positive_int, default=4096, help="of the random model, in tokens")
    add(
        "--mlp-ratio",
        type=positive_int,
        default=8,
        help="of the random model, as in OLMo's configurations (SwiGLU)",
    )
    add("--init-std", type=float, default=0.06, help="of the random model's weights")
    add("--seed", type=int, default=0, help="of the random model")
    add("--tokens-per-batch", type=positive_int, default=2048, help="of ours, as the stages' flag")


def main(arguments: argparse.Namespace) -> None:
    """Measure every chunk length, print tables, write the JSON."""
    if arguments.checkpoint and not arguments.data:
        raise InputError("--checkpoint needs --data: uniformly drawn tokens are no text to a trained model")
    use_threads(arguments.threads)
    device = torch.device(arguments.device)
    problems = [_problem(arguments, length) for length in arguments.long_context_lengths]
    sizes = ModelSizes.of(problems[0].load("float32"))
    shapes = [*SQUARES, *_model_shapes(sizes, arguments.tokens_per_batch)]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    for problem in problems:
        names = variants_for(arguments, problem.lengths)
        with progress_bar(None, f"ℓ = {problem.lengths.long_context_length}", "step") as bar:
            measured, peaks = measure(names, problem, arguments, device, shapes, bar)
        results.append(length_report(problem.lengths, measured, peaks))
        print(table(results[-1]), flush=True)
        # After each length: the last one takes longest, and should not take the others with it.
        report = whole_report(arguments, machine(device), sizes, results)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    for sentence in scaling_report(results)["sentences"]:
        print(sentence)


def whole_report(
    arguments: argparse.Namespace,
    machine_fields: dict[str, object],
    sizes: ModelSizes,
    results: list[dict[str, Any]],
) -> dict[str, Any]:
    """What the JSON file holds."""
    settings = {
        name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()
    }
    return {
        "machine": machine_fields,
        "model": asdict(sizes),
        "settings": settings,
        "lengths": results,
        "scaling": scaling_report(results),
    }


def variants_for(arguments: argparse.Namespace, lengths: ContextLengths) -> list[VariantName]:
    """Ours first, as the others are compared with it."""
    names = [OURS, OURS_BFLOAT16, *LOOPS, PAIRS]
    if arguments.without_peers:
        return names
    names += [OURS_SUBSTITUTING, *CAPTUM]
    return [*names, INSEQ] if lengths.long_context_length <= arguments.inseq_up_to else names


def measure(
    names: list[VariantName],
    problem: Problem,
    arguments: argparse.Namespace,
    device: torch.device,
    shapes: list[Shape],
    bar: "tqdm[None]",
) -> tuple[dict[str, Measured], list[Peak]]:
    """Check, time round robin, check again: (key -> what was measured, a peak a dtype).

    Raises:
        InputError: a variant's numbers differ from ours.
    """
    workers = [Worker(name, problem) for name in names]
    try:
        measured: dict[str, Measured] = {}
        for worker in workers:
            bar.set_postfix_str(f"numbers of {worker.name.key}")
            _introduce(worker, measured)
            bar.update()
        refuse_unequal(measured, arguments.tolerance)
        peaks: list[Peak] = []
        for _ in range(arguments.repeats):
            peaks += [matrix_product_peak(dtype, device, shapes) for dtype in DTYPES]
            for worker in workers:
                _time_once(worker, measured, arguments.seconds_per_variant, bar)
        refuse_unequal(measured, arguments.tolerance)
        best = [
            max((p for p in peaks if p.dtype == dtype), key=lambda p: p.flops_per_second) for dtype in DTYPES
        ]
        return measured, best
    finally:
        for worker in workers:
            worker.stop()


def _introduce(worker: Worker, measured: dict[str, Measured]) -> None:
    try:
        measured[worker.name.key] = Measured(worker.name, worker.ask("introduce"))
    except UnavailableError as error:
        if worker.name.module == "variants":
            raise InputError(f"{worker.name.key} cannot run here: {error}") from error
        logger.warning("%s is left out: %s", worker.name.label, error)


def _time_once(worker: Worker, measured: dict[str, Measured], seconds: float, bar: "tqdm[None]") -> None:
    """Time a variant that is there, is no mere yardstick, and has not used up its time."""
    variant = measured.get(worker.name.key)
    if variant is None or worker.name == OURS_SUBSTITUTING or variant.seconds_used > seconds:
        return
    bar.set_postfix_str(worker.name.key)
    try:
        variant.timed.append(worker.ask("time"))
    except UnavailableError as error:
        if worker.name.module == "variants":
            raise InputError(f"{worker.name.key} failed while it was timed: {error}") from error
        logger.warning("%s is left out: %s", worker.name.label, error)
        del measured[worker.name.key]
    bar.update()


def _problem(arguments: argparse.Namespace, long_context_length: int) -> Problem:
    random = RandomModel(
        arguments.layers, arguments.width, arguments.heads, arguments.vocabulary, arguments.mlp_ratio,
        arguments.init_std, arguments.seed,
    )  # fmt: skip
    lengths = ContextLengths(arguments.short_context_length, long_context_length, arguments.targets_per_chunk)
    return Problem(
        arguments.checkpoint or random, arguments.data, lengths, arguments.tokens_per_batch,
        arguments.sample_tokens, arguments.device, arguments.threads,
    )  # fmt: skip


def _model_shapes(sizes: ModelSizes, rows: int) -> list[Shape]:
    """The products of a batch with the model's matrices: queries, keys and values; the feed-forward's two."""
    width = sizes.width
    attention = width * width + sizes.key_value_weights
    hidden = (sizes.block_weights - attention - width * width) // (3 * width)
    return [(rows, width, attention // width), (rows, width, 2 * hidden), (rows, hidden, width)]


if __name__ == "__main__":
    logging.getLogger("transformers").setLevel(logging.ERROR)
    run_stage(parser(), main)

"""Theory, checked numerically: sparse functional attention fitted at L/2 to L tokens, tested up to 8 L.

For every condition (pipeline/synthetic/planted_class.py), k and seed: fits the paper's idealized class
(Definition 3.3) on planted correlations (Definition 3.2), and measures its error at every length of
training and beyond.
Theorem 4.3 speaks of the condition `local`, Theorem 4.4 of `halves_coupled`; the others leave out one of
their assumptions each.

writes   <results>/sparse_functional_attention/model=<condition>-k<k>/*.parquet, one a seed;
         columns: pipeline/RESULTS.md
resumes  run the same command again; complete fits are kept, other settings are refused
needs    nothing but a CPU

all conditions, six seeds (some 15 minutes of one core):
  python pipeline/sparse_functional_attention.py --results runs/theory/results

in seconds:
  python pipeline/sparse_functional_attention.py --results runs/demo/theory --conditions local \\
      uniform_trained_keys halves_coupled --seeds 0 1 2 --steps 200 --num-test-sequences 100

the figure, the table and what was found, of either:
  python analysis/run_notebooks.py --results runs/theory/results --figures runs/theory/figures \\
      --notebooks sparse_functional_attention
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

from pipeline.cli import (
    InputError,
    folder_path,
    logger,
    positive_float,
    positive_int,
    progress,
    stage_parser,
    unknown_name,
    whole_number,
)
from pipeline.results.write import StageOutput
from pipeline.synthetic.planted_class import CONDITIONS, Condition, Lengths

if TYPE_CHECKING:
    from pipeline.synthetic.theory import FitSettings, Measurement

STAGE = "sparse_functional_attention"
_MOST_TOKENS = 3
_LONGEST, _MOST = 65_536, 1_000_000  # what is more is a slip of the hand
_LARGEST_SEED = (1 << 31) - 1  # what the column of seeds holds


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    stage.add_argument("--results", type=folder_path, required=True, help="the results folder to write to")
    stage.add_argument(
        "--conditions", nargs="+", default=list(CONDITIONS), metavar="NAME",
        help="what to compare: position law, position IDs and reach of the keys; all if not given",
    )  # fmt: skip
    stage.add_argument(
        "--sparsity", type=positive_int, nargs="+", default=[2], metavar="K",
        help=f"k, 1 to {_MOST_TOKENS}; several are fitted one by one",
    )  # fmt: skip
    stage.add_argument(
        "--train-context-length", type=whole_number(1, _LONGEST), default=32,
        help="L: training sequences have L/2 to L tokens",
    )  # fmt: skip
    stage.add_argument("--local-length", type=positive_int, default=8, help="L_local, in tokens, at most L/4")
    stage.add_argument(
        "--length-multiples", type=whole_number(1, _LONGEST), nargs="+", default=[2, 4, 8], metavar="TIMES",
        help="test at these multiples of L too",
    )  # fmt: skip
    stage.add_argument(
        "--seeds", type=whole_number(0, _LARGEST_SEED), nargs="+", default=list(range(6)), help="a fit a seed"
    )
    stage.add_argument("--steps", type=whole_number(1, _MOST), default=2000, help="training steps")
    stage.add_argument(
        "--batch-size", type=whole_number(1, _MOST), default=32, help="training sequences a step"
    )
    stage.add_argument("--learning-rate", type=positive_float, default=0.1, help="of Adam")
    stage.add_argument(
        "--num-test-sequences",
        type=whole_number(1, _MOST),
        default=500,
        help="test sequences of each length",
    )
    stage.add_argument(
        "--free-values", action="store_true",
        help="let values leave the range of the labels, -1 to 1 (what that does: analysis/LOG.md)",
    )  # fmt: skip
    return stage


def main(arguments: argparse.Namespace) -> None:
    """Fit what is missing, seed by seed."""
    lengths = Lengths(
        arguments.train_context_length, arguments.local_length, tuple(arguments.length_multiples)
    )
    for name in arguments.conditions:
        if name not in CONDITIONS:
            raise unknown_name("condition", name, CONDITIONS)
    conditions = {name: CONDITIONS[name] for name in arguments.conditions}
    for k in arguments.sparsity:
        if k > lengths.local_length:
            raise InputError(
                f"--sparsity {k}: k tokens do not stand within --local-length {lengths.local_length}"
            )
        if k > _MOST_TOKENS:
            raise InputError(
                f"--sparsity {k}: keys and subsets grow with the k-th power; k is 1 to {_MOST_TOKENS}"
            )
    if len(set(arguments.seeds)) < len(arguments.seeds):
        raise InputError(f"--seeds {' '.join(map(str, arguments.seeds))}: each seed stands once")
    # Imported late, for a --help, and a refusal, at once.
    from pipeline.synthetic.theory import VOCABULARY_SIZE, FitSettings, fit, num_keys

    for condition in conditions.values():  # before the first fit, not hours into the last
        for k in arguments.sparsity:
            num_keys(k, VOCABULARY_SIZE, condition.key_reach(lengths))
    settings = FitSettings(
        num_steps=arguments.steps,
        batch_size=arguments.batch_size,
        learning_rate=arguments.learning_rate,
        num_test_sequences=arguments.num_test_sequences,
        free_values=arguments.free_values,
    )
    outputs = {
        (name, k): StageOutput(
            arguments.results,
            STAGE,
            f"{name}-k{k}",
            settings={**asdict(lengths), **asdict(settings), "seeds": arguments.seeds},
            inputs={},
            num_shards=len(arguments.seeds),
        )
        for k in dict.fromkeys(arguments.sparsity)
        for name in conditions
    }
    with ExitStack() as held:
        for output in outputs.values():
            if not output.is_done():
                held.enter_context(output.writing())
        pending = [(key, shard) for key, output in outputs.items() for shard in output.pending_shards()]
        for (name, k), shard in progress(pending, "fits", "fit", len(pending)):
            condition, seed = conditions[name], arguments.seeds[shard]
            measurements = list(fit(condition, k, lengths, settings, seed))
            columns = _columns(condition, k, lengths, settings, seed, measurements)
            outputs[name, k].write_shard(shard, {STAGE: columns})
            _log_fit(f"{name}, k = {k}, seed {seed}", lengths, measurements)
    for output in outputs.values():
        logger.info(output.state())


def _columns(
    condition: Condition,
    k: int,
    lengths: Lengths,
    settings: "FitSettings",
    seed: int,
    measurements: "Sequence[Measurement]",
) -> dict[str, list[object]]:
    same_in_all = {
        "seed": seed,
        "sparsity": k,
        "position_law": condition.position_law,
        "position_scheme": condition.position_scheme,
        "key_reach": condition.key_reach(lengths),
        "local_length": lengths.local_length,
        "train_context_length": lengths.train_context_length,
        "num_sequences": settings.num_test_sequences,
    }
    rows = [same_in_all | asdict(measurement) for measurement in measurements]
    return {name: [row[name] for row in rows] for name in rows[0]}


def _log_fit(what: str, lengths: Lengths, measurements: "Sequence[Measurement]") -> None:
    last = [one for one in measurements if one.training_step == measurements[-1].training_step]
    of_training = [one.squared_error for one in last if one.test_length <= lengths.train_context_length]
    logger.info(
        "%s: squared error %.1e at the lengths of training, %.1e at %d tokens, where %.1f %% are wrong",
        what,
        sum(of_training) / len(of_training),
        last[-1].squared_error,
        last[-1].test_length,
        100 * last[-1].error_rate,
    )

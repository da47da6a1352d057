"""Theory, checked numerically: sparse functional attention fitted at L/2 to L tokens, tested up to 8 L.

For every condition (pipeline/synthetic/planted_class.py), k and seed: fits the paper's idealized class
(Definition 3.3) on planted correlations (Definition 3.2), and measures its error at every length of
training and beyond.
Theorem 4.3 speaks of the condition `local`, Theorem 4.4 of `halves_coupled`; the others leave out one of
their assumptions each.

writes   <results>/sparse_functional_attention/model=<condition>-k<k>/*.parquet, one a seed;
         columns: pipeline/RESULTS.md
resumes  run the same command again; complete fits are kept, other settings are refused

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
from contextlib import ExitStack
from dataclasses import asdict

from pipeline.cli import (
    InputError,
    folder_path,
    logger,
    positive_float,
    positive_int,
    progress,
    stage_parser,
    whole_number,
)
from pipeline.results.write import StageOutput
from pipeline.synthetic.planted_class import CONDITIONS, Lengths

STAGE = "sparse_functional_attention"
_MOST_TOKENS = 3
_LONGEST, _MOST = 65_536, 1_000_000  # what is more is a slip of the hand
_LARGEST_SEED = (1 << 31) - 1  # what the column of seeds holds


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add, times, count = stage.add_argument, whole_number(1, _LONGEST), whole_number(1, _MOST)
    add("--results", type=folder_path, required=True, help="the results folder to write to")
    add("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS), metavar="NAME",
        help="what to compare: position law, position IDs, reach of the keys; all if not given")  # fmt: skip
    add("--sparsity", type=whole_number(1, _MOST_TOKENS), nargs="+", default=[2], metavar="K",
        help="k; keys and subsets grow with the k-th power; several are fitted one by one")  # fmt: skip
    add("--train-context-length", type=times, default=32, help="L: training sequences have L/2 to L tokens")
    add("--local-length", type=positive_int, default=8, help="L_local, in tokens, at most L/4")
    add("--length-multiples", type=times, nargs="+", default=[2, 4, 8], metavar="TIMES",
        help="test at these multiples of L too")  # fmt: skip
    add("--seeds", type=whole_number(0, _LARGEST_SEED), nargs="+", default=list(range(6)),
        help="a fit a seed")  # fmt: skip
    add("--steps", type=count, default=2000, help="training steps")
    add("--batch-size", type=count, default=32, help="training sequences a step")
    add("--learning-rate", type=positive_float, default=0.1, help="of Adam")
    add("--num-test-sequences", type=count, default=500, help="test sequences of each length")
    return stage


def main(arguments: argparse.Namespace) -> None:
    """Fit what is missing, seed by seed."""
    lengths = Lengths(
        arguments.train_context_length, arguments.local_length, tuple(arguments.length_multiples)
    )
    conditions = {name: CONDITIONS[name] for name in arguments.conditions}
    if (k := max(arguments.sparsity)) > lengths.local_length:
        raise InputError(
            f"--sparsity {k}: k tokens do not stand within --local-length {lengths.local_length}"
        )
    arguments.seeds = list(dict.fromkeys(arguments.seeds))
    # Imported late, for a --help, and a refusal, at once.
    from pipeline.synthetic.theory import VOCABULARY_SIZE, FitSettings, fit, num_keys

    for condition in conditions.values():  # before the first fit, not hours into the last
        for k in arguments.sparsity:
            num_keys(k, VOCABULARY_SIZE, condition.key_reach(lengths))
    settings = FitSettings(
        arguments.steps, arguments.batch_size, arguments.learning_rate, arguments.num_test_sequences
    )
    outputs = {
        (name, k): StageOutput(
            arguments.results,
            STAGE,
            f"{name}-k{k}",
            inputs={},
            num_shards=len(arguments.seeds),
            settings={**asdict(lengths), **asdict(settings), "seeds": arguments.seeds},
        )  # fmt: skip
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
            of_all_rows = {
                "seed": seed, "sparsity": k, "position_law": condition.position_law,
                "position_scheme": condition.position_scheme, "key_reach": condition.key_reach(lengths),
                "local_length": lengths.local_length, "train_context_length": lengths.train_context_length,
                "num_sequences": settings.num_test_sequences,
            }  # fmt: skip
            rows = [of_all_rows | asdict(measurement) for measurement in measurements]
            columns = {column: [row[column] for row in rows] for column in rows[0]}
            outputs[name, k].write_shard(shard, {STAGE: columns})
            last = measurements[-1]
            logger.info(
                "%s, k = %d, seed %d: squared error %.1e at %d tokens, where %.1f %% are wrong",
                name, k, seed, last.squared_error, last.test_length, 100 * last.error_rate,
            )  # fmt: skip
    for output in outputs.values():
        logger.info(output.state())

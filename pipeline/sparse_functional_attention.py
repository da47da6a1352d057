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
from contextlib import nullcontext
from dataclasses import asdict

from pipeline.cli import InputError, folder_path, logger, positive_int, progress, stage_parser, whole_number
from pipeline.results.write import StageOutput
from pipeline.synthetic.planted_class import CONDITIONS, Lengths

STAGE = "sparse_functional_attention"
_LARGEST_SEED = (1 << 31) - 1  # what the column of seeds holds


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add = stage.add_argument
    add("--results", type=folder_path, required=True, help="the results folder to write to")
    add("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS), metavar="NAME",
        help="what to compare: position law, position IDs, reach of the keys; all if not given")  # fmt: skip
    add("--sparsity", type=positive_int, nargs="+", default=[2], metavar="K",
        help="k; keys and subsets grow with the k-th power; several are fitted one by one")  # fmt: skip
    add("--train-context-length", type=positive_int, default=32, help="L: training has L/2 to L tokens")
    add("--local-length", type=positive_int, default=8, help="L_local, in tokens, at most L/4")
    add("--seeds", type=whole_number(0, _LARGEST_SEED), nargs="+", default=list(range(6)),
        help="a fit a seed")  # fmt: skip
    add("--steps", type=positive_int, default=2000, help="training steps")
    add("--num-test-sequences", type=positive_int, default=500, help="test sequences of each length")
    return stage


def main(arguments: argparse.Namespace) -> None:
    """Fit what is missing, seed by seed."""
    train, local = arguments.train_context_length, arguments.local_length
    if train % 4 or not max(arguments.sparsity) <= local <= train // 4:
        raise InputError(
            f"--train-context-length {train}, --local-length {local}: L is a multiple of 4, and the theorems"
            " ask for k <= L_local <= L/4"
        )
    lengths, seeds = Lengths(train, local), list(dict.fromkeys(arguments.seeds))
    # Imported late, for a --help, and a refusal, at once.
    from pipeline.synthetic import theory

    cases = [(name, k) for k in dict.fromkeys(arguments.sparsity) for name in arguments.conditions]
    for name, k in cases:  # before the first fit, not hours into the last
        theory.num_keys(k, theory.VOCABULARY_SIZE, CONDITIONS[name].key_reach(lengths))
    of_fit = arguments.steps, arguments.num_test_sequences
    settings = {
        **asdict(lengths), "num_steps": arguments.steps, "num_test_sequences": arguments.num_test_sequences,
        "batch_size": theory.BATCH_SIZE, "learning_rate": theory.LEARNING_RATE, "seeds": seeds,
    }  # fmt: skip
    for name, k in cases:
        output = StageOutput(
            arguments.results, STAGE, f"{name}-k{k}", settings=settings, inputs={}, num_shards=len(seeds)
        )
        with nullcontext() if output.is_done() else output.writing():
            for shard in progress(output.pending_shards(), f"{name}, k = {k}", "fits"):
                condition, seed = CONDITIONS[name], seeds[shard]
                of_all_rows = {
                    "seed": seed, "sparsity": k, "position_law": condition.position_law,
                    "position_scheme": condition.position_scheme, "key_reach": condition.key_reach(lengths),
                    "local_length": local, "train_context_length": train,
                    "num_sequences": arguments.num_test_sequences,
                }  # fmt: skip
                rows = [of_all_rows | row for row in theory.fit(condition, k, lengths, *of_fit, seed)]
                output.write_shard(shard, {STAGE: {name: [row[name] for row in rows] for name in rows[0]}})
                last = rows[-1]
                logger.info(
                    "%s, k = %d, seed %d: squared error %.1e at %d tokens, where %.1f %% are wrong",
                    name, k, seed, last["squared_error"], last["test_length"], 100 * last["error_rate"],
                )  # fmt: skip
        logger.info(output.state())

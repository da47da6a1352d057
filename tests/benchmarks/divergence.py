"""What the divergence costs beside the loss: passes of the engine with it over the same passes without it.

    python tests/benchmarks/divergence.py
    python tests/benchmarks/divergence.py --vocabulary-sizes 50304 --rounds 15

Two kinds of passes, by a random model of four layers: `removals`, the rows after a left-out token with all
targets of the chunk in each, as leave-one-out runs them; and `additions`, short contexts with one more token,
a target each, as add_one_in runs them. That both passes give the same losses is checked before anything is
timed. Rounds alternate between the two, and which comes first alternates too; the ratio is the median of the
rounds' own, and its quartiles are beside it. Seconds are the processor's, which a busy machine lengthens
least. What predictions are compared with is read once a chunk, and is not timed.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

import numpy as np
import torch
from losses_alone import context_losses
from machine import machine, use_threads
from windowed_losses import random_model

from pipeline.cli import positive_int
from pipeline.measuring.contexts import Batching, measured_contexts, own_context, read_everything
from pipeline.measuring.flags import ContextLengths
from pipeline.models.interface import CausalLM, Predictions, losses_and_divergences, target_losses

TOLERANCE = 1e-4


def parser() -> argparse.ArgumentParser:
    """The benchmark's command line."""
    benchmark = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = benchmark.add_argument
    add("--vocabulary-sizes", type=positive_int, nargs="+", default=[4096, 50304], help="of the models")
    add("--width", type=positive_int, default=256, help="of the random models of four layers")
    add("--long-context-length", type=positive_int, default=256, help="chunk length, in tokens")
    add("--short-context-length", type=positive_int, default=32, help="s, in tokens")
    add("--targets-per-chunk", type=positive_int, default=16, help="m")
    add("--tokens-per-batch", type=positive_int, default=2048, help="tokens a forward pass holds")
    add("--rounds", type=positive_int, default=9, help="timed rounds")
    add("--threads", type=positive_int, help="one a core if not given")
    return benchmark


@dataclass(frozen=True)
class Passes:
    """One kind of pass, without and with the divergence; each returns losses."""

    losses: Callable[[], np.ndarray]
    both: Callable[[], np.ndarray]

    def ratios(self, rounds: int) -> tuple[float, np.ndarray]:
        """Seconds of the pass without, and the costs of the pass with over it, round by round."""
        np.testing.assert_allclose(self.both(), self.losses(), atol=TOLERANCE)
        seconds_R2 = np.empty((rounds, 2))
        for number in range(rounds):
            for kind in (0, 1) if number % 2 else (1, 0):
                seconds_R2[number, kind] = _seconds((self.losses, self.both)[kind])
        return float(np.median(seconds_R2[:, 0])), seconds_R2[:, 1] / seconds_R2[:, 0]


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def removals(
    model: CausalLM, chunk_L: np.ndarray, lengths: ContextLengths, reference: Predictions, num_tokens: int
) -> Passes:
    """The first removals of a chunk, all that fit a batch."""
    sequence = own_context(chunk_L, lengths)
    num_rows = len(chunk_L) - 2
    num_removals = max(1, num_tokens // num_rows)
    rows_RS = np.arange(num_rows) + (np.arange(num_rows) >= np.arange(num_removals)[:, None])
    tokens, queries, targets = (
        torch.as_tensor(array)
        for array in (
            chunk_L[rows_RS],
            np.tile(sequence.query_rows_T - 1, (num_removals, 1)),
            np.tile(sequence.target_ids_T, (num_removals, 1)),
        )
    )
    inputs = model, tokens, torch.as_tensor(rows_RS), None, queries, targets
    return Passes(
        lambda: target_losses(*inputs).numpy(), lambda: losses_and_divergences(*inputs, reference)[0].numpy()
    )


def additions(
    model: CausalLM, chunk_L: np.ndarray, lengths: ContextLengths, reference: Predictions, num_tokens: int
) -> Passes:
    """Every target with the first far tokens, one at a time, as many as fit two batches."""
    short, num_targets = lengths.short_context_length, lengths.targets_per_chunk
    num_added = max(1, 2 * num_tokens // (short + 1) // num_targets)
    index_N = np.repeat(np.arange(num_targets), num_added)
    targets_N = lengths.targets_T[index_N]
    positions_NC = np.column_stack(
        [np.tile(np.arange(num_added), num_targets), targets_N[:, None] + np.arange(-short, 0)]
    )
    inputs = model, chunk_L[positions_NC], positions_NC, chunk_L[targets_N]
    return Passes(
        lambda: context_losses(*inputs, num_tokens),
        lambda: measured_contexts(*inputs, Batching(num_tokens), reference, index_N).losses,
    )


def main(arguments: argparse.Namespace) -> None:
    """Check, time and print a row a vocabulary and kind of pass."""
    use_threads(arguments.threads)
    lengths = ContextLengths(
        arguments.short_context_length, arguments.long_context_length, arguments.targets_per_chunk
    )
    told = machine(torch.device("cpu"))
    print(f"{told['cpu']}, {told['torch_cpu_capability']}, {told['threads']} threads, float32")
    print("vocabulary  passes     seconds  with divergence  [quartiles]")
    for size in arguments.vocabulary_sizes:
        model = random_model(arguments.width, lengths.long_context_length, size)
        chunk_L = np.random.default_rng(0).integers(1, size, lengths.long_context_length)
        reference = read_everything(model, own_context(chunk_L, lengths)).predictions
        for name, passes_of in (("removals", removals), ("additions", additions)):
            passes = passes_of(model, chunk_L, lengths, reference, arguments.tokens_per_batch)
            seconds, ratios = passes.ratios(arguments.rounds)
            low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
            print(f"{size:10,}  {name:9} {seconds:8.3f} {middle:15.3f}x  [{low:.3f}, {high:.3f}]")


if __name__ == "__main__":
    main(parser().parse_args())

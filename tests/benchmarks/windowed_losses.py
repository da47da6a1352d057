"""What exact short contexts cost beside LongPPL's shared windows, in one run on one model and chunk.

    python tests/benchmarks/windowed_losses.py
    python tests/benchmarks/windowed_losses.py --long-context-length 512 --short-context-length 64 --rounds 3

All tokens of a chunk that have a far context are targets. That windows shared by one target each give the
exact losses is checked before anything is timed. Rounds alternate between exact windows and each stride, so
that a busy machine slows all alike; medians are compared.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from losses_alone import window_losses
from olmo.config import ModelConfig
from olmo.model import OLMo

from pipeline.cli import positive_int
from pipeline.measuring.contexts import Batching, windowed_losses
from pipeline.measuring.flags import ContextLengths
from pipeline.models.olmo import OLMoCausalLM

VOCABULARY_SIZE, TOLERANCE = 2048, 1e-4


def parser() -> argparse.ArgumentParser:
    """The benchmark's command line."""
    benchmark = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = benchmark.add_argument
    add("--long-context-length", type=positive_int, default=1024, help="chunk length, in tokens")
    add("--short-context-length", type=positive_int, default=128, help="s, in tokens")
    add("--strides", type=positive_int, nargs="+", default=[8, 32, 128], help="targets that share a window")
    add("--width", type=positive_int, default=256, help="of the random model of four layers")
    add("--rounds", type=positive_int, default=5, help="timed rounds")
    add("--tokens-per-batch", type=positive_int, default=8192, help="tokens a forward pass may hold")
    return benchmark


def random_model(
    width: int, max_sequence_length: int, vocabulary_size: int = VOCABULARY_SIZE
) -> OLMoCausalLM:
    """Four layers of random weights in float32, on the CPU."""
    torch.manual_seed(0)
    config = ModelConfig(
        d_model=width, n_heads=width // 32, n_layers=4, mlp_ratio=4, rope=True, include_bias=False,
        max_sequence_length=max_sequence_length, vocab_size=vocabulary_size, embedding_size=vocabulary_size,
        eos_token_id=0, pad_token_id=0, init_device="cpu", attention_dropout=0.0, residual_dropout=0.0,
        embedding_dropout=0.0,
    )  # fmt: skip
    return OLMoCausalLM(OLMo(config).eval())


def shared_token_forwards(targets_T: np.ndarray, short_context_length: int, stride: int) -> int:
    """Tokens that shared windows hold, each read up to the token before its last target."""
    last_of_block = {
        (target - short_context_length) // stride * stride: target for target in targets_T.tolist()
    }
    return sum(last - start for start, last in last_of_block.items())


def main(arguments: argparse.Namespace) -> None:
    """Check, time and print a row an engine."""
    short, long = arguments.short_context_length, arguments.long_context_length
    targets_T = ContextLengths(short, long, long - short - 1).targets_T
    model = random_model(arguments.width, long)
    chunk_L = np.random.default_rng(0).integers(1, VOCABULARY_SIZE, long)

    def exact() -> np.ndarray:
        return window_losses(model, chunk_L, targets_T, short, arguments.tokens_per_batch)

    def shared(stride: int) -> np.ndarray:
        return windowed_losses(model, chunk_L, targets_T, short, stride, Batching(arguments.tokens_per_batch))

    np.testing.assert_allclose(shared(1), exact(), atol=TOLERANCE)
    engines: dict[str, Callable[[], np.ndarray]] = {"exact": exact}
    engines |= {f"w = {stride}": lambda stride=stride: shared(stride) for stride in arguments.strides}
    token_forwards = {"exact": short * len(targets_T)}
    token_forwards |= {
        f"w = {stride}": shared_token_forwards(targets_T, short, stride) for stride in arguments.strides
    }
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(arguments.rounds):
        for name, engine in engines.items():
            started = time.perf_counter()
            engine()
            seconds[name].append(time.perf_counter() - started)
    print(f"{len(targets_T)} targets, s = {short}, {long} tokens, {torch.get_num_threads()} threads, float32")
    print("windows   seconds  token-forwards  exact costs: measured  by the count")
    exact_seconds = statistics.median(seconds["exact"])
    for name in engines:
        median = statistics.median(seconds[name])
        by_count = token_forwards["exact"] / token_forwards[name]
        print(
            f"{name:8} {median:8.3f} {token_forwards[name]:15,} {exact_seconds / median:21.1f}x"
            f" {by_count:12.1f}x"
        )


if __name__ == "__main__":
    main(parser().parse_args())
